//! What `sidekey census -o json` has found, as far as it concerns what may go.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::Error;

/// A count says nothing of what was written after it.
const FRESH: Duration = Duration::from_secs(3600);

/// What a census says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// What may go, as two counts with a compaction between them have shown.
    pub unused: Option<String>,
    /// Objects by number of key or name of provider, of a plain count.
    pub counted: BTreeMap<String, u64>,
}

impl Proof {
    /// Reads the answer to `sidekey census`, with or without `--may-drop`.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let wrong = |why: String| {
            Error::usage(format!("cannot use {}", path.display()))
                .because(why)
                .hint("give what `sidekey census --may-drop KEYID -o json` prints")
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        Self::read(&value, SystemTime::now()).map_err(wrong)
    }

    fn read(value: &Value, now: SystemTime) -> Result<Self, String> {
        let mut proof = Self::default();
        if let Some(answer) = value["mayDrop"].as_str() {
            let finished = value["finished"].as_str().unwrap_or_default();
            let finished = humantime::parse_rfc3339_weak(finished)
                .map_err(|_| "it does not say when it was finished".to_owned())?;
            if now.duration_since(finished).is_ok_and(|age| age > FRESH) {
                return Err("it is more than an hour old: count again".to_owned());
            }
            let subject = &value["subject"];
            let key = subject["key"].as_u64().map(|key| key.to_string());
            let subject = key.or_else(|| subject["name"].as_str().map(str::to_owned));
            if answer == "yes" {
                if value["counted"].as_u64().unwrap_or_default() == 0 {
                    return Err("it has counted nothing at all: count the etcd and the prefix of \
                                kube-apiserver"
                        .to_owned());
                }
                proof.unused = subject;
            }
            return Ok(proof);
        }
        let resources = value["resources"].as_array().ok_or("it is no census")?;
        for row in resources.iter().flat_map(|resource| resource["under"].as_array()).flatten() {
            let objects = row["objects"].as_u64().unwrap_or_default();
            for name in [row["keyID"].as_u64().map(|id| id.to_string()), text(&row["provider"])] {
                *proof.counted.entry(name.unwrap_or_default()).or_default() += objects;
            }
        }
        Ok(proof)
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_fresh_yes_proves_anything() {
        let now = humantime::parse_rfc3339_weak("2026-01-01T00:30:00Z").unwrap();
        let answer = |may: &str, at: &str| json!({"mayDrop": may, "subject": {"key": 1}, "finished": at, "objects": 0, "counted": 40});
        let yes = Proof::read(&answer("yes", "2026-01-01T00:00:00Z"), now).unwrap();
        assert_eq!(yes.unused.as_deref(), Some("1"));
        for other in ["no", "not-yet", "unknown"] {
            let proof = Proof::read(&answer(other, "2026-01-01T00:00:00Z"), now).unwrap();
            assert_eq!(proof.unused, None, "{other}");
        }
        assert!(Proof::read(&answer("yes", "2025-12-31T23:00:00Z"), now).is_err());
        assert!(Proof::read(&json!({"mayDrop": "yes"}), now).is_err());
        for counted in [json!(0), json!(null)] {
            let mut nothing = answer("yes", "2026-01-01T00:00:00Z");
            nothing["counted"] = counted;
            assert!(Proof::read(&nothing, now).unwrap_err().contains("has counted nothing"));
        }
        assert!(Proof::read(&json!({}), now).is_err());
    }

    #[test]
    fn a_count_is_told_by_key_and_by_name() {
        let census = json!({"resources": [
            {"resource": "secrets", "under": [
                {"kind": "kms-v2", "provider": "sidekey", "keyID": 1, "objects": 3},
                {"kind": "clear", "objects": 2},
            ]},
            {"resource": "configmaps", "under": [{"provider": "sidekey", "keyID": 1, "objects": 4}]},
        ]});
        let proof = Proof::read(&census, SystemTime::now()).unwrap();
        assert_eq!((proof.counted["1"], proof.counted["sidekey"]), (7, 7));
        assert_eq!(proof.unused, None, "one count is not enough");
    }
}
