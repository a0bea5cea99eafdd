//! What an EncryptionConfiguration would write an object with.

use std::collections::BTreeSet;

use serde_json::Value;

use super::envelope::{Kind, Under};
use super::resource::{Resource, Selector};
use crate::Error;

/// The stanzas of an EncryptionConfiguration, as far as they decide what is stale.
#[derive(Clone, Debug)]
pub struct Stanzas {
    stanzas: Vec<Stanza>,
    write_key: Option<u64>,
}

#[derive(Clone, Debug)]
struct Stanza {
    resources: Vec<Selector>,
    /// The first provider writes.
    kind: Kind,
    name: Option<String>,
}

impl Stanzas {
    /// Reads the YAML text of an EncryptionConfiguration; all mistakes are told at once.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let document = sidekey_core::config::document(text)
            .map_err(|error| Error::usage("EncryptionConfiguration").because(error))?;
        let mut wrong = Vec::new();
        if document["kind"] != "EncryptionConfiguration" {
            wrong.push("kind: must be EncryptionConfiguration".to_owned());
        }
        let found = document["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
        if found.is_empty() {
            wrong.push("resources: must not be empty".to_owned());
        }
        let mut stanzas = Vec::new();
        for (index, stanza) in found.iter().enumerate() {
            match Stanza::read(stanza) {
                Ok(stanza) => stanzas.push(stanza),
                Err(reasons) => {
                    wrong.extend(reasons.iter().map(|why| format!("resources[{index}].{why}")));
                }
            }
        }
        match wrong.is_empty() {
            true => Ok(Self { stanzas, write_key: None }),
            false => {
                Err(Error::usage(format!("not an EncryptionConfiguration: {}", wrong.join("; "))))
            }
        }
    }

    /// The keyID that the shim writes with: objects under another one are stale too.
    #[must_use]
    pub fn write_key(mut self, key: Option<u64>) -> Self {
        self.write_key = key;
        self
    }

    /// All resources that it names, each once.
    pub fn resources(&self) -> Vec<Selector> {
        let mut seen = BTreeSet::new();
        let all = self.stanzas.iter().flat_map(|stanza| stanza.resources.clone());
        all.filter(|one| seen.insert(one.clone())).collect()
    }

    /// Whether an update would store an object otherwise than it is; `None` if nothing says how
    /// that resource is stored.
    pub fn is_stale(&self, resource: &str, under: &Under) -> Option<bool> {
        let resource: Resource = resource.parse().ok()?;
        // The first that fits counts, as for kube-apiserver.
        let fits = |stanza: &&Stanza| stanza.resources.iter().any(|s| s.selects(&resource));
        let stanza = self.stanzas.iter().find(fits)?;
        let other_key = match (self.write_key, under.key) {
            (Some(write), found) if stanza.kind == Kind::KmsV2 => found != Some(write),
            _ => false,
        };
        Some(under.kind != stanza.kind || under.provider != stanza.name || other_key)
    }
}

impl Stanza {
    fn read(value: &Value) -> Result<Self, Vec<String>> {
        let mut wrong = Vec::new();
        let mut resources = Vec::new();
        let names = value["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
        if names.is_empty() {
            wrong.push("resources: must not be empty".to_owned());
        }
        for name in names {
            match name.as_str().and_then(|name| name.parse().ok()) {
                Some(selector) => resources.push(selector),
                None => wrong.push(format!("resources: {name} is not a resource")),
            }
        }
        let found = Self::provider(&value["providers"][0]);
        if found.is_none() {
            // Not repeated: it may hold a key.
            wrong.push("providers[0]: is not a provider that is known, or has no name".to_owned());
        }
        match found {
            Some((kind, name)) if wrong.is_empty() => Ok(Self { resources, kind, name }),
            _ => Err(wrong),
        }
    }

    fn provider(provider: &Value) -> Option<(Kind, Option<String>)> {
        if provider.get("identity").is_some() {
            return Some((Kind::Clear, None));
        }
        if let Some(kms) = provider.get("kms") {
            let kind = if kms["apiVersion"] == "v2" { Kind::KmsV2 } else { Kind::KmsV1 };
            return Some((kind, Some(kms["name"].as_str()?.to_owned())));
        }
        let kinds =
            [("aescbc", Kind::Aescbc), ("aesgcm", Kind::Aesgcm), ("secretbox", Kind::Secretbox)];
        kinds.into_iter().find_map(|(field, kind)| {
            let name = provider.get(field)?["keys"][0]["name"].as_str()?;
            Some((kind, Some(name.to_owned())))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;

    use super::*;

    const FILE: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, widgets.example.com]
  providers:
  - kms: {apiVersion: v2, name: sidekey, endpoint: 'unix:///x'}
  - identity: {}
- resources: [configmaps]
  providers:
  - aescbc: {keys: [{name: new, secret: c2VjcmV0}, {name: old, secret: c2VjcmV0}]}
- resources: ['*.*']
  providers:
  - identity: {}
";

    #[test]
    fn stale_is_what_another_provider_than_the_first_would_write() {
        let stanzas = Stanzas::parse(FILE).unwrap();
        let clear = Under::of(&Bytes::from_static(b"k8s\0x"));
        let new = Under::of(&Bytes::from_static(b"k8s:enc:aescbc:v1:new:x"));
        let old = Under::of(&Bytes::from_static(b"k8s:enc:aescbc:v1:old:x"));
        let kms = b"k8s:enc:kms:v2:sidekey:\x0a\x01d\x12\x10sidekey/2-abcd/x\x1a\x01s\x28\x01";
        let kms = Under::of(&Bytes::from_static(kms));
        assert_eq!(kms.key, Some(2));
        assert_eq!(stanzas.is_stale("secrets", &clear), Some(true));
        assert_eq!(stanzas.is_stale("secrets", &kms), Some(false));
        assert_eq!(stanzas.is_stale("configmaps", &new), Some(false));
        assert_eq!(stanzas.is_stale("configmaps", &old), Some(true));
        assert_eq!(stanzas.is_stale("pods", &clear), Some(false));
        assert_eq!(stanzas.resources().len(), 4);
        let three = stanzas.clone().write_key(Some(3));
        assert_eq!(three.is_stale("secrets", &kms), Some(true));
        assert_eq!(stanzas.write_key(Some(2)).is_stale("secrets", &kms), Some(false));
    }

    #[test]
    fn every_mistake_is_told_and_no_secret_is_repeated() {
        let error = Stanzas::parse("kind: X\nresources: [{resources: [A], providers: [{b: 1}]}]");
        let text = error.unwrap_err().report();
        for part in ["kind", "resources[0].resources", "resources[0].providers[0]"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let error = Stanzas::parse(
            "kind: EncryptionConfiguration\nresources: [{resources: [a], providers: [{aescbc: {keys: [{secret: c2VjcmV0}]}}]}]",
        );
        let text = error.unwrap_err().report();
        assert!(!text.contains("c2VjcmV0"), "{text}");
    }
}
