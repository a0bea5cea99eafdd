//! Whether everybody has come along; if not, who has not, and why.

use std::collections::BTreeSet;

use super::{Observation, ServerReport, ShimReport, ShimStatus};
use crate::model::KeyNumber;

impl Observation {
    /// Whether every shim has loaded a revision. All replicas must be there, and have answered.
    pub fn all_loaded(&self, revision: u64) -> Result<(), Vec<String>> {
        let mut missing = self.incomplete();
        for shim in &self.shims {
            if let Err(reason) = loaded(shim, revision) {
                missing.push(format!("shim {}: {reason}", shim.name));
            }
        }
        if self.shims.is_empty() {
            missing.push("there is no shim".to_owned());
        }
        verdict(missing)
    }

    /// Who has not loaded a revision yet, or cannot read with this key of it.
    pub fn missing_readers(&self, revision: u64, key: Option<KeyNumber>) -> Vec<String> {
        let mut missing = self.all_loaded(revision).err().unwrap_or_default();
        let Some(id) = key.map(|key| key.to_string()) else { return missing };
        let mut hashes = BTreeSet::new();
        for shim in &self.shims {
            let Some(status) = &shim.status else { continue };
            let Some(key) = status.keys.iter().find(|key| key.id == id) else { continue };
            if !key.healthy {
                let reason = key.reason.as_deref().unwrap_or("not proven yet");
                missing.push(format!("shim {}: key {id}: {reason}", shim.name));
            }
            hashes.insert(key.key_id_hash.clone().unwrap_or_else(|| "none yet".to_owned()));
        }
        // Under different KEKs or versions, one replica would write what another cannot read.
        if hashes.len() > 1 {
            let hashes = Vec::from_iter(hashes).join(", ");
            missing.push(format!("the shims know key {id} by different key_ids: {hashes}"));
        }
        missing
    }

    /// Whether every kube-apiserver has made its data keys under the key_id with this hash, for
    /// each of these names in EncryptionConfiguration: all new writes carry it from now on.
    pub fn all_announce(&self, key_id_hash: &str, names: &[&str]) -> Result<(), Vec<String>> {
        let mut missing = Vec::new();
        let running = self.servers.iter().filter(|server| !server.ending).count();
        let too_few = self.expected.filter(|&expected| (running as u64) < u64::from(expected));
        if let Some(expected) = too_few {
            missing.push(format!("{running} kube-apiservers of {expected} are there"));
        }
        if self.servers.is_empty() {
            missing.push("there is no kube-apiserver".to_owned());
        }
        for server in &self.servers {
            for reason in stale(server, key_id_hash, names) {
                missing.push(format!("kube-apiserver {}: {reason}", server.name));
            }
        }
        verdict(missing)
    }

    /// The hash of the key_id that every shim announces, if they agree; else what each says.
    pub fn announced(&self) -> Result<String, Vec<String>> {
        let mut hashes = BTreeSet::new();
        let mut missing = self.incomplete();
        for shim in &self.shims {
            let said = answer(shim).and_then(|status| {
                let reason = || status.reason.clone().unwrap_or_else(|| "nothing yet".into());
                status
                    .key_id_hash
                    .clone()
                    .ok_or_else(|| format!("announces no key_id: {}", reason()))
            });
            match said {
                Ok(hash) => drop(hashes.insert(hash)),
                Err(reason) => missing.push(format!("shim {}: {reason}", shim.name)),
            }
        }
        match hashes.len() {
            1 if missing.is_empty() => Ok(hashes.pop_first().unwrap_or_default()),
            0 if missing.is_empty() => Err(vec!["there is no shim".to_owned()]),
            0 | 1 => Err(missing),
            _ => {
                let all: Vec<String> = hashes.into_iter().collect();
                missing.push(format!("the shims announce different keys: {}", all.join(", ")));
                Err(missing)
            }
        }
    }

    /// Fewer shims than replicas are wanted.
    pub(super) fn incomplete(&self) -> Vec<String> {
        let running = self.shims.iter().filter(|shim| !shim.ending).count();
        let expected = self.expected.filter(|&expected| (running as u64) < u64::from(expected));
        let missing =
            expected.map(|expected| format!("{running} replicas of {expected} are there"));
        missing.into_iter().collect()
    }
}

fn verdict(missing: Vec<String>) -> Result<(), Vec<String>> {
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

fn answer(shim: &ShimReport) -> Result<&ShimStatus, String> {
    let silent = || shim.error.clone().unwrap_or_else(|| "did not answer".to_owned());
    shim.status.as_ref().ok_or_else(silent)
}

fn loaded(shim: &ShimReport, revision: u64) -> Result<(), String> {
    let status = answer(shim)?;
    let now = status.revision.as_deref();
    if now == Some(revision.to_string().as_str()) {
        return Ok(());
    }
    let now = now.unwrap_or("without a number");
    Err(match &status.config.refused {
        Some(refusal) => format!("is at revision {now}: {}", refusal.error),
        None => format!("is at revision {now}"),
    })
}

/// Why new writes of a server may not be under that key_id.
fn stale(server: &ServerReport, key_id_hash: &str, names: &[&str]) -> Vec<String> {
    let Some(status) = &server.status else {
        return vec![server.error.clone().unwrap_or_else(|| "did not answer".to_owned())];
    };
    let mut reasons: Vec<String> = names
        .iter()
        .filter_map(|name| match status.announced.get(*name) {
            None => Some(format!("has heard of no key_id for {name}")),
            Some(seen) if seen.key_id_hash != key_id_hash => {
                Some(format!("is at {} for {name}, since {}", seen.key_id_hash, seen.at))
            }
            Some(_) => None,
        })
        .collect();
    // It knows the key_id, and may not have been able to make a data key under it.
    if status.kms_healthy == Some(false) {
        reasons.push("its checks of the KMS providers fail".to_owned());
    }
    reasons
}
