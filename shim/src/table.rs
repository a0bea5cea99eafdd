//! The routing table: one pointer, so that Status, Encrypt and Decrypt change together.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidekey_core::config::KeyNumber;
use sidekey_core::{Error, KeyId, Kind, split_shim_prefix};

use crate::config::{Mode, Role};
use crate::key::Key;

/// What is loaded.
pub(crate) struct Table {
    pub(crate) mode: Mode,
    pub(crate) writer: Arc<Key>,
    pub(crate) keys: BTreeMap<KeyNumber, (Role, Arc<Key>)>,
}

/// Where a ciphertext belongs, and under which key_id its provider knows it.
pub(crate) struct Route {
    pub(crate) key: Arc<Key>,
    pub(crate) key_id: KeyId,
}

impl Table {
    /// Finds the key that wrote. `legacy` is the key of what was written without the shim, on the
    /// listener that was asked. Nothing is ever tried: a key_id names its key, or it is refused.
    pub(crate) fn route(&self, key_id: &str, legacy: Option<KeyNumber>) -> Result<Route, Error> {
        let whole = KeyId::new(key_id)?;
        if self.mode == Mode::Forward {
            return Ok(Route { key: self.writer.clone(), key_id: whole });
        }
        let (prefix, inner) = split_shim_prefix(key_id);
        let Some(prefix) = prefix else {
            let id = legacy.ok_or_else(|| {
                self.unknown(&whole, "was not written through the shim, and no legacyKey is set")
            })?;
            let (_, key) = self.keys.get(&id).ok_or_else(|| self.unknown(&whole, "has no key"))?;
            return Ok(Route { key: key.clone(), key_id: whole });
        };
        let Some((_, key)) = self.keys.get(&KeyNumber(prefix.key)) else {
            let text = format!("was written under key {}, which is not loaded", prefix.key);
            return Err(self.unknown(&whole, &text));
        };
        if !key.matches(prefix.fingerprint) {
            let text = format!(
                "was written under key {} with fingerprint {}, but the loaded key {} has {}",
                prefix.key, prefix.fingerprint, prefix.key, key.spec.fingerprint
            );
            return Err(self.unknown(&whole, &text));
        }
        Ok(Route { key: key.clone(), key_id: KeyId::new(inner)? })
    }

    fn unknown(&self, key_id: &KeyId, why: &str) -> Error {
        let loaded: Vec<String> = self.keys.keys().map(ToString::to_string).collect();
        let text = format!("key_id {} {why}; loaded keys: {}", key_id.hash(), loaded.join(", "));
        Error::new(Kind::KeyState, text).with_hint("bring the key back as a read key; nothing is lost")
    }
}
