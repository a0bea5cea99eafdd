//! What of an observation is not as it should be.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::{SecretEncryption, names};

use super::{Observation, ProviderReport, ServerReport, ShimReport};

/// How it should be, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// The published revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Roles by the numbers of the keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, String>,
    /// Names of the shim in EncryptionConfiguration; empty: `sidekey`, and what begins with
    /// `sidekey-`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// What is not as it should be, a line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// What is wrong.
    pub wrong: Vec<String>,
    /// Who could not be asked.
    pub silent: Vec<String>,
}

impl Findings {
    /// Whether all is well.
    pub fn is_empty(&self) -> bool {
        self.wrong.is_empty() && self.silent.is_empty()
    }
}

impl Wanted {
    /// What a document says; which revision that is nobody knows.
    pub fn of(document: &SecretEncryption) -> Self {
        let keys = document.spec.keys.iter();
        let keys = keys.map(|key| (key.id.to_string(), key.role.to_string())).collect();
        let stanzas = document.spec.stanzas.iter().map(|stanza| names::stanza_name(&stanza.name));
        let names = [names::PROVIDER_NAME.to_owned()].into_iter().chain(stanzas).collect();
        Self { revision: None, keys, names }
    }

    fn concerns(&self, name: &str) -> bool {
        if self.names.is_empty() {
            return name == "sidekey" || name.starts_with("sidekey-");
        }
        self.names.iter().any(|wanted| wanted == name)
    }
}

impl Observation {
    /// Compares it with how it should be.
    pub fn judge(&self, wanted: &Wanted) -> Findings {
        let mut findings = Findings::default();
        findings.wrong.extend(self.incomplete());
        for shim in &self.shims {
            judge_shim(shim, wanted, &mut findings);
        }
        for provider in &self.providers {
            judge_provider(provider, &mut findings);
        }
        let hashes = self.shims.iter().filter_map(|shim| shim.status.as_ref()?.key_id_hash.clone());
        let mut hashes: Vec<String> = hashes.collect();
        hashes.sort();
        hashes.dedup();
        if hashes.len() > 1 {
            let text = format!("the shims announce different keys: {}", hashes.join(", "));
            findings.wrong.push(text);
        }
        let announced = (hashes.len() == 1).then(|| hashes[0].as_str());
        for server in &self.servers {
            judge_server(server, announced, wanted, &mut findings);
        }
        findings
    }
}

fn judge_shim(shim: &ShimReport, wanted: &Wanted, findings: &mut Findings) {
    let name = &shim.name;
    let Some(status) = &shim.status else {
        let why = shim.error.as_deref().unwrap_or("did not answer");
        findings.silent.push(format!("shim {name}: {why}"));
        return;
    };
    let mut wrong = |text: String| findings.wrong.push(format!("shim {name}: {text}"));
    let published = wanted.revision.map(|revision| revision.to_string());
    if let Some(published) =
        published.filter(|published| status.revision.as_ref() != Some(published))
    {
        let now = status.revision.as_deref().unwrap_or("without a number");
        wrong(format!("is at revision {now}, published is {published}"));
    }
    if let Some(refusal) = &status.config.refused {
        wrong(format!("refuses a newer configuration: {}", refusal.error));
    }
    if !status.healthy {
        wrong(format!("is not healthy: {}", status.reason.as_deref().unwrap_or("unknown reason")));
    }
    for key in status.keys.iter().filter(|key| !key.healthy) {
        let reason = key.reason.as_deref().unwrap_or("not proven yet");
        wrong(format!("{} key {} cannot be used: {reason}", key.role, key.id));
    }
    if wanted.keys.is_empty() {
        return;
    }
    for (id, role) in &wanted.keys {
        match status.keys.iter().find(|key| key.id == *id) {
            None => wrong(format!("does not have key {id} ({role})")),
            Some(key) if key.role != *role => {
                wrong(format!("has key {id} as {}, it should be {role}", key.role));
            }
            Some(_) => {}
        }
    }
    for key in status.keys.iter().filter(|key| !wanted.keys.contains_key(&key.id)) {
        wrong(format!("has key {} ({}), which the file does not name", key.id, key.role));
    }
}

fn judge_provider(provider: &ProviderReport, findings: &mut Findings) {
    let name = &provider.name;
    let Some(status) = &provider.status else {
        let why = provider.error.as_deref().unwrap_or("did not answer");
        findings.silent.push(format!("provider {name}: {why}"));
        return;
    };
    let mut wrong = |text: String| findings.wrong.push(format!("provider {name}: {text}"));
    if let Some(refusal) = &status.config.refused {
        wrong(format!("refuses a newer configuration: {}", refusal.error));
    }
    for key in &status.keys {
        if !key.healthy {
            let reason = key.reason.as_deref().unwrap_or("not proven yet");
            wrong(format!("key {} is not healthy: {reason}", key.id));
        }
        if let Some(refused) = &key.refused {
            wrong(format!("key {} does not use its changed files: {}", key.id, refused.error));
        }
    }
}

fn judge_server(
    server: &ServerReport,
    announced: Option<&str>,
    wanted: &Wanted,
    findings: &mut Findings,
) {
    let name = &server.name;
    let Some(status) = &server.status else {
        let why = server.error.as_deref().unwrap_or("did not answer");
        findings.silent.push(format!("kube-apiserver {name}: {why}"));
        return;
    };
    let mut wrong = |text: String| findings.wrong.push(format!("kube-apiserver {name}: {text}"));
    if status.kms_healthy == Some(false) {
        wrong("its checks of the KMS providers fail".to_owned());
    }
    if status.reload_failed {
        wrong("its last reload of EncryptionConfiguration failed: see its log".to_owned());
    }
    for missing in wanted.names.iter().filter(|name| !status.announced.contains_key(*name)) {
        wrong(format!("has heard of no key_id for {missing}"));
    }
    let Some(announced) = announced else { return };
    for (provider, seen) in &status.announced {
        if wanted.concerns(provider) && seen.key_id_hash != announced {
            let (hash, at) = (&seen.key_id_hash, &seen.at);
            wrong(format!(
                "is at {hash} for {provider}, since {at}; the shims announce {announced}"
            ));
        }
    }
}
