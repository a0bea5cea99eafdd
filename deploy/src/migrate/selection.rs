//! Where it is written which resources are encrypted.

use serde_json::Value;
use sidekey_core::config::{Problems, document};

use super::resources::Pattern;
use crate::Error;
use crate::model::{SecretEncryption, Writer, names};

/// Resources, and who encrypts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The resources.
    pub patterns: Vec<Pattern>,
    /// The KMS providers that write, by name, where they are known.
    pub writers: Vec<String>,
}

impl Selection {
    /// From names that a person gave.
    pub fn named(patterns: Vec<Pattern>) -> Self {
        Self { patterns, writers: Vec::new() }
    }

    /// From kube-apiserver's EncryptionConfiguration. `name` is the file's.
    pub fn of_encryption_configuration(text: &str, name: &str) -> Result<Self, Error> {
        let document = read(text, name, "EncryptionConfiguration")?;
        let mut selection = Self::default();
        let mut problems = Problems::default();
        for (index, stanza) in list(&document, "resources").enumerate() {
            let path = format!("resources[{index}].resources");
            selection.add(list(stanza, "resources"), &path, &mut problems);
            let first = list(stanza, "providers").next();
            let writer = first.and_then(|provider| provider.pointer("/kms/name")?.as_str());
            selection.writers.extend(writer.map(str::to_owned));
        }
        selection.checked(name, problems)
    }

    /// From a SecretEncryption. `name` is the file's.
    pub fn of_secret_encryption(text: &str, name: &str) -> Result<Self, Error> {
        let encryption = SecretEncryption::parse(text).map_err(|wrong| unusable(name, wrong))?;
        Self::of(&encryption).map_err(|problems| unusable(name, problems))
    }

    /// From a SecretEncryption that is read already; `Err` lists every bad name.
    pub fn of(encryption: &SecretEncryption) -> Result<Self, Problems> {
        let spec = &encryption.spec;
        let (mut selection, mut problems) = (Self::default(), Problems::default());
        let text = |name: &String| Value::from(name.as_str());
        let resources: Vec<Value> = spec.resources.iter().map(text).collect();
        selection.add(resources.iter(), "spec.resources", &mut problems);
        selection.writers.push(names::PROVIDER_NAME.to_owned());
        for (index, stanza) in spec.stanzas.iter().enumerate() {
            let path = format!("spec.stanzas[{index}].resources");
            let resources: Vec<Value> = stanza.resources.iter().map(text).collect();
            selection.add(resources.iter(), &path, &mut problems);
            selection.writers.push(names::stanza_name(&stanza.name));
        }
        if spec.write != Writer::Keys {
            selection.writers.clear();
        }
        problems.into_result(Some(selection))
    }

    fn add<'a>(
        &mut self,
        names: impl Iterator<Item = &'a Value>,
        path: &str,
        problems: &mut Problems,
    ) {
        for (index, name) in names.enumerate() {
            let path = format!("{path}[{index}]");
            match name.as_str().map(str::parse::<Pattern>) {
                Some(Ok(pattern)) if self.patterns.contains(&pattern) => {}
                Some(Ok(pattern)) => self.patterns.push(pattern),
                Some(Err(why)) => problems.add(&path, &why),
                None => problems.add(&path, "must be a text"),
            }
        }
    }

    fn checked(self, name: &str, mut problems: Problems) -> Result<Self, Error> {
        if self.patterns.is_empty() && problems.is_empty() {
            problems.add("resources", "names nothing that is encrypted");
        }
        problems.into_result(Some(self)).map_err(|problems| unusable(name, problems))
    }
}

fn read(text: &str, name: &str, kind: &str) -> Result<Value, Error> {
    let document = document(text).map_err(|problems| unusable(name, problems))?;
    let found = document.get("kind").and_then(Value::as_str).unwrap_or("nothing of the kind");
    if found != kind {
        return Err(Error::usage(format!("{name} is no {kind}: its kind is {found}")));
    }
    Ok(document)
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn unusable(name: &str, problems: Problems) -> Error {
    Error::usage(format!("cannot use {name}")).because(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encryption_configuration_says_what_is_encrypted_and_by_whom() {
        let text = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps, widgets.example.com]
  providers:
  - kms: {apiVersion: v2, name: sidekey, endpoint: unix:///a}
  - kms: {apiVersion: v2, name: old, endpoint: unix:///b}
- resources: ['*.apps', secrets, '*.']
  providers: [{identity: {}}, {kms: {name: sidekey-apps}}]
";
        let selection = Selection::of_encryption_configuration(text, "f").unwrap();
        let shown: Vec<String> = selection.patterns.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["secrets", "configmaps", "widgets.example.com", "*.apps", "*."]);
        assert_eq!(selection.writers, ["sidekey"], "those that write");
    }

    #[test]
    fn a_secret_encryption_has_usual_resources_and_stanzas() {
        let text = "
apiVersion: sidekey.dev/v1alpha1
kind: SecretEncryption
metadata: {name: cluster-a}
spec:
  stanzas: [{name: tokens, resources: [oauthaccesstokens.oauth.openshift.io]}]
  keys:
  - {id: 1, type: local, role: write, credentials: {keyFile: /etc/sidekey/key}, files: [{name: key, file: ./key}]}
";
        let selection = Selection::of_secret_encryption(text, "f").unwrap();
        assert_eq!(selection.patterns.len(), 3);
        assert_eq!(selection.writers, ["sidekey", "sidekey-tokens"]);
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let text = "{kind: EncryptionConfiguration, resources: [{resources: ['*', 7]}, {resources: [Pods]}]}";
        let error = Selection::of_encryption_configuration(text, "enc.yaml").unwrap_err();
        let report = error.report();
        for part in ["enc.yaml", "resources[0].resources[0]", "resources[0].resources[1]", "Pods"] {
            assert!(report.contains(part), "{part} is not in {report}");
        }
        let error = Selection::of_encryption_configuration("{kind: Pod}", "enc.yaml").unwrap_err();
        assert!(error.report().contains("its kind is Pod"), "{}", error.report());
    }
}
