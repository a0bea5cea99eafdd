//! kube-apiserver's EncryptionConfiguration: what kube-apiserver itself would refuse, and what it
//! would take though it is dangerous.

use std::collections::BTreeMap;

use serde_json::Value;
use sidekey_core::Endpoint;

use super::documents::Document;
use super::sockets::on_host;
use super::{Area, Findings, Options};

pub(super) fn examine(documents: &[Document], options: &Options, findings: &mut Findings) {
    for document in documents.iter().filter(|document| document.is_encryption()) {
        let before = findings.0.len();
        judge(document, options, findings);
        if findings.0.len() == before {
            findings.ok(Area::Encryption, document.path.display(), "is sound");
        }
    }
}

fn judge(document: &Document, options: &Options, findings: &mut Findings) {
    let (subject, value) = (document.path.display().to_string(), &document.value);
    if value["kind"] != "EncryptionConfiguration" {
        let fix = "kube-apiserver wants kind EncryptionConfiguration, apiserver.config.k8s.io/v1";
        findings.problem(Area::Encryption, &subject, "is no EncryptionConfiguration", fix);
        return;
    }
    let none = Vec::new();
    let stanzas = value["resources"].as_array().unwrap_or(&none);
    if stanzas.is_empty() {
        let fix = "list what is to be encrypted: secrets, configmaps";
        findings.problem(Area::Encryption, &subject, "names no resources", fix);
    }
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (index, stanza) in stanzas.iter().enumerate() {
        let place = format!("{subject} resources[{index}]");
        order(&place, stanza, findings);
        for kms in kms_of(stanza) {
            provider(&place, kms, options, findings);
            let name = kms["name"].as_str().unwrap_or_default();
            *names.entry(name.to_owned()).or_default() += 1;
        }
    }
    for (name, _) in names.iter().filter(|(_, count)| **count > 1) {
        let text = format!("the name {name:?} is there more than once");
        let fix = "give each stanza a name of its own: sidekey, sidekey-<stanza>";
        findings.problem(Area::Encryption, &subject, text, fix);
    }
}

fn kms_of(stanza: &Value) -> impl Iterator<Item = &Value> {
    let providers = stanza["providers"].as_array().into_iter().flatten();
    providers.map(|provider| &provider["kms"]).filter(|kms| kms.is_object())
}

/// The first one writes; `identity` reads what is in clear and belongs to the end.
fn order(place: &str, stanza: &Value, findings: &mut Findings) {
    let providers: Vec<&Value> = stanza["providers"].as_array().into_iter().flatten().collect();
    let identity = providers.iter().position(|provider| provider.get("identity").is_some());
    match identity {
        Some(0) => findings.warning(
            Area::Encryption,
            place,
            "identity is first: new objects are stored in clear",
            "put it last once every kube-apiserver has this file",
        ),
        Some(at) if at + 1 < providers.len() => findings.warning(
            Area::Encryption,
            place,
            "identity is not last: what comes after it is never used",
            "put it last",
        ),
        None => findings.warning(
            Area::Encryption,
            place,
            "there is no identity: objects that are still in clear cannot be read",
            "add `identity: {}` at the end, unless a census shows none in clear",
        ),
        Some(_) => {}
    }
    if providers.is_empty() {
        findings.problem(
            Area::Encryption,
            place,
            "has no providers",
            "add the shim, then identity",
        );
    }
}

fn provider(place: &str, kms: &Value, options: &Options, findings: &mut Findings) {
    let name = kms["name"].as_str().unwrap_or_default();
    let place = format!("{place} {name}");
    if name.is_empty() || name.contains(':') {
        let fix = "give it a name without a colon; stored objects carry it";
        findings.problem(Area::Encryption, &place, format!("{name:?} is no name"), fix);
    }
    let v2 = kms["apiVersion"] == "v2";
    if !v2 {
        let fix = "set apiVersion: v2; KMS v1 is deprecated, and off by default since 1.29";
        findings.problem(Area::Encryption, &place, "is not KMS v2", fix);
    }
    if v2 && kms.get("cachesize").is_some_and(|size| !size.is_null()) {
        let fix = "take cachesize out: kube-apiserver refuses it with v2";
        findings.problem(Area::Encryption, &place, "has a cachesize", fix);
    }
    match kms["timeout"].as_str().map(sidekey_core::config::parse_duration) {
        Some(Ok(time)) if time.is_zero() => {
            findings.problem(Area::Encryption, &place, "its timeout is zero", "set timeout: 5s");
        }
        Some(Err(text)) => {
            let text = format!("its timeout cannot be read: {text}");
            findings.problem(Area::Encryption, &place, text, "set timeout: 5s");
        }
        _ => {}
    }
    let endpoint = kms["endpoint"].as_str().unwrap_or_default();
    match endpoint.parse::<Endpoint>() {
        Err(error) => {
            let fix = "write endpoint: unix:///var/run/kmsplugin/kms.sock";
            findings.problem(Area::Encryption, &place, error.to_string(), fix);
        }
        Ok(parsed) if !endpoint.starts_with("unix://") => {
            let text = format!("{parsed} must begin with unix://");
            findings.problem(Area::Encryption, &place, text, "write unix:// before it");
        }
        Ok(parsed) => {
            let here = on_host(parsed, options);
            if here.path().is_some_and(|path| !path.exists()) {
                let text = format!("its endpoint {here} is not there");
                let fix = "start the shim, and mount the directory of sockets into kube-apiserver";
                findings.problem(Area::Encryption, &place, text, fix);
            }
        }
    }
}
