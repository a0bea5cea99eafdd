//! Why Vault did not wrap or unwrap: the state of the key tells, not the text of the answer.

use sidekey_core::{Error, Kind};
use sidekey_rest::Answer;
use tokio::time::Instant;

use crate::lineage::Lineage;
use crate::{Vault, api};

const BEHIND: &str = "a replica lags behind, or the key was restored from an old backup";

impl Vault {
    /// Whether data of `version` can be unwrapped, as far as is known.
    pub(crate) fn usable(&self, lineage: &Lineage, version: u32) -> Result<(), Error> {
        let key = self.transit.kek().shown();
        let refused = |why: String, hint: &str| {
            let text = format!("key {key}: version {version} {why}");
            Err(Error::new(Kind::KeyState, text).with_hint(hint.to_owned()))
        };
        let lowest = lineage.min_decryption;
        if version < lowest {
            return refused(
                format!("is below min_decryption_version {lowest}"),
                "lower min_decryption_version until all data has been written anew",
            );
        }
        if version > lineage.latest {
            // What this process has seen exists: the server that answers knows less.
            let seen = self.lineage().knows(version);
            let kind = if seen { Kind::Unavailable } else { Kind::KeyState };
            let newest = lineage.latest;
            let text = format!("key {key}: version {version} is newer than the newest, {newest}");
            return Err(Error::new(kind, text).with_hint(BEHIND));
        }
        if !lineage.knows(version) {
            return refused("was trimmed".into(), "restore the key from a backup");
        }
        Ok(())
    }

    /// What kept Vault from wrapping.
    pub(crate) async fn why_not_encrypted(
        &self,
        answer: &Answer,
        version: u32,
        deadline: Instant,
    ) -> Error {
        let (action, key) = ("encrypt", self.transit.kek().shown());
        let status = answer.status.as_u16();
        if !matches!(status, 400 | 403 | 404) || !api::is_vaults(answer) {
            return api::refused(answer, action, &key);
        }
        // Where the key is missing Vault answers 400 or 403, by what the policy allows.
        let lineage = match self.look(deadline).await {
            Ok(lineage) if status == 400 => lineage,
            Err(error) if status == 400 || error.kind() != Kind::Denied => return error,
            _ => return self.transit.denied(answer, action),
        };
        let (kind, hint) = if version < lineage.min_encryption {
            let hint = "the key was rotated and older versions may not encrypt: the new one is announced next";
            (Kind::KeyState, hint)
        } else if version > lineage.latest {
            (Kind::Unavailable, BEHIND)
        } else {
            (Kind::KeyState, "check the settings of the key")
        };
        api::error(kind, hint, answer, action, &key)
    }

    /// What kept Vault from unwrapping.
    pub(crate) async fn why_not_decrypted(
        &self,
        answer: &Answer,
        version: u32,
        deadline: Instant,
    ) -> Error {
        let (action, key) = ("decrypt", self.transit.kek().shown());
        let status = answer.status.as_u16();
        if !matches!(status, 400 | 403 | 404) || !api::is_vaults(answer) {
            return api::refused(answer, action, &key);
        }
        let state = match self.look(deadline).await {
            Ok(lineage) => self.usable(&lineage, version),
            Err(error) => Err(error),
        };
        match state {
            Err(error) if status == 400 || error.kind() != Kind::Denied => error,
            Ok(()) if status == 400 => api::error(Kind::Corrupt, "", answer, action, &key),
            _ => self.transit.denied(answer, action),
        }
    }
}
