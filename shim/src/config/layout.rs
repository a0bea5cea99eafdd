//! OpenShift's and the seeds' layouts, read as they are.
//!
//! There the order of providers in an EncryptionConfiguration says what keys are for: the first
//! KMS provider writes, the others read. All resources must agree, because one shim announces one
//! key.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sidekey_core::config::Problems;

/// Names under which an EncryptionConfiguration lies in a mounted Secret.
const NAMES: [&str; 3] = ["encryption-config", "kms-encryption-config", "config.yaml"];

/// The file to read in a directory that was given as the configuration. A link that leads nowhere
/// yet counts where there is nothing better: its directory is half-written.
pub fn directory(path: &Path) -> Result<PathBuf, Problems> {
    for there in [Path::is_file, Path::is_symlink] {
        let mut files = ["shim.yaml"].iter().chain(&NAMES).map(|name| path.join(name));
        if let Some(file) = files.find(|file| there(file)) {
            return Ok(file);
        }
    }
    let text = format!("holds neither shim.yaml nor {}", NAMES.join(", "));
    Err(Problems::one("", &text))
}

/// Makes a shim document of an EncryptionConfiguration, or hands on what is none.
pub fn from_encryption_configuration(document: Value) -> Result<Value, Problems> {
    if document.get("kind").and_then(Value::as_str) != Some("EncryptionConfiguration") {
        return Ok(document);
    }
    let mut problems = Problems::default();
    let mut agreed: Option<Vec<(String, String)>> = None;
    let resources = document.get("resources").and_then(Value::as_array);
    for (index, stanza) in resources.into_iter().flatten().enumerate() {
        let keys = problems
            .within(&format!("resources[{index}]"), |problems| stanza_keys(stanza, problems));
        match &agreed {
            Some(first) if *first != keys => {
                problems.add(&format!("resources[{index}]"), "has other keys, or another order of them, than resources[0]: one shim serves one order");
            }
            Some(_) => {}
            None => agreed = Some(keys),
        }
    }
    let keys: Vec<Value> = agreed
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(|(index, (id, endpoint))| {
            let role = if index == 0 { "write" } else { "read" };
            json!({"id": id, "role": role, "endpoints": [endpoint]})
        })
        .collect();
    if keys.is_empty() && problems.is_empty() {
        problems.add("resources", "no KMS provider is in it");
    }
    problems.into_result(Some(json!({"keys": keys})))
}

/// The keys of one stanza: number and endpoint, in order.
fn stanza_keys(stanza: &Value, problems: &mut Problems) -> Vec<(String, String)> {
    let mut keys: Vec<(String, String)> = Vec::new();
    let providers = stanza.get("providers").and_then(Value::as_array);
    for (index, provider) in providers.into_iter().flatten().enumerate() {
        let Some(kms) = provider.get("kms") else { continue };
        let path = format!("providers[{index}].kms");
        let endpoint = kms.get("endpoint").and_then(Value::as_str).unwrap_or_default();
        match key_number(kms.get("name").and_then(Value::as_str).unwrap_or_default(), endpoint) {
            Some(id) => {
                let key = (id, endpoint.to_owned());
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            None => problems.add(&path, "neither its endpoint (…/kms-<keyID>.sock) nor its name (<keyID>_<resource>) holds the number of the key"),
        }
    }
    keys
}

/// From `kms-<keyID>.sock`, else from `<keyID>_<resource>` or `kms-<keyID>_<resource>`.
fn key_number(name: &str, endpoint: &str) -> Option<String> {
    let number = |text: &str| {
        let sound =
            !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        sound.then(|| text.to_owned())
    };
    let file = endpoint.rsplit('/').next().unwrap_or_default();
    file.strip_prefix("kms-")
        .and_then(|rest| rest.strip_suffix(".sock"))
        .and_then(number)
        .or_else(|| name.strip_prefix("kms-").unwrap_or(name).split('_').next().and_then(number))
}
