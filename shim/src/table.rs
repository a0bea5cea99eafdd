//! The routing table: one pointer, so that Status, Encrypt and Decrypt change together.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidekey_core::config::{KeyNumber, KeyRole};
use sidekey_core::{Error, KeyId, Kind, split_shim_prefix};

use crate::config::Mode;
use crate::key::RoutedKey;

/// What is loaded.
pub(crate) struct RoutingTable {
    pub(crate) mode: Mode,
    pub(crate) writer: Arc<RoutedKey>,
    pub(crate) keys: BTreeMap<KeyNumber, (KeyRole, Arc<RoutedKey>)>,
}

/// Where a ciphertext belongs, and under which key_id its provider knows it.
pub(crate) struct Route {
    pub(crate) key: Arc<RoutedKey>,
    pub(crate) key_id: KeyId,
}

impl RoutingTable {
    /// Finds the key that wrote. `legacy` is the key of what was written without the shim, on the
    /// listener that was asked. Nothing is ever tried: a key_id names its key, or it is refused.
    pub(crate) fn route(&self, whole: KeyId, legacy: Option<KeyNumber>) -> Result<Route, Error> {
        if self.mode == Mode::Forward {
            return Ok(Route { key: self.writer.clone(), key_id: whole });
        }
        let (prefix, inner) = split_shim_prefix(whole.as_str());
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
        if !key.spec.matches(prefix.fingerprint) {
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
        Error::new(Kind::KeyState, text)
            .with_hint("bring the key back as a read key; nothing is lost")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use proptest::prelude::*;
    use sidekey_core::NO_FINGERPRINT;
    use sidekey_core::config::ProbeOptions;

    use super::*;
    use crate::config::UpstreamSpec;
    use crate::key::Inherited;
    use crate::upstream::Upstream;

    fn key(id: u64, fingerprint: &str) -> Arc<RoutedKey> {
        let second = Duration::from_secs(1);
        let options = ProbeOptions { interval: second, timeout: second, coast: second };
        let spec = UpstreamSpec {
            fingerprint: fingerprint.into(),
            endpoints: Vec::new(),
            canary: None,
            tls: None,
            server_uids: Vec::new(),
            external: false,
        };
        let (duty, none) = ((KeyRole::Read, options), Inherited::default());
        let upstream = Upstream::new(Vec::new());
        RoutedKey::new(KeyNumber(id), spec, upstream, Mode::Route, duty, none, Arc::default())
    }

    /// Key 2 writes, key 1 reads, key 3 has no fingerprint.
    fn table() -> RoutingTable {
        let writer = key(2, "bbbbbbbb");
        let keys = [
            (KeyRole::Read, key(1, "aaaaaaaa")),
            (KeyRole::Write, writer.clone()),
            (KeyRole::Read, key(3, NO_FINGERPRINT)),
        ];
        let keys = keys.into_iter().map(|(role, key)| (key.id, (role, key))).collect();
        RoutingTable { mode: Mode::Route, writer, keys }
    }

    fn routed(key_id: &str, legacy: Option<u64>) -> Result<(u64, String), String> {
        let route = table().route(KeyId::new(key_id).unwrap(), legacy.map(KeyNumber));
        route.map(|r| (r.key.id.0, r.key_id.to_string())).map_err(|error| error.report())
    }

    #[test]
    fn what_the_shim_wrote_goes_to_the_key_that_wrote_it() {
        assert_eq!(routed("sidekey/1-aaaaaaaa/v/7", None), Ok((1, "v/7".into())));
        assert_eq!(routed("sidekey/2-bbbbbbbb/v/7", Some(1)), Ok((2, "v/7".into())));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_hash_and_loaded_keys() {
        let error = routed("sidekey/9-aaaaaaaa/x", Some(1)).err().unwrap_or_default();
        assert!(error.contains("sha256:") && error.contains("1, 2, 3"), "{error}");
    }

    #[test]
    fn a_fingerprint_of_another_kek_is_never_guessed_over() {
        assert!(routed("sidekey/1-bbbbbbbb/x", Some(1)).is_err());
        assert!(routed("sidekey/1-aaaaaaaaaa/x", Some(1)).is_err());
    }

    #[test]
    fn a_fingerprint_that_was_unknown_at_either_time_matches() {
        assert_eq!(routed("sidekey/3-cccccccc/x", None), Ok((3, "x".into())));
        assert_eq!(routed("sidekey/1-00000000/x", None), Ok((1, "x".into())));
    }

    #[test]
    fn what_was_written_without_the_shim_goes_to_the_listeners_legacy_key() {
        assert_eq!(routed("vault-7", Some(1)), Ok((1, "vault-7".into())));
        assert_eq!(routed("sidekey/broken", Some(1)), Ok((1, "sidekey/broken".into())));
        assert!(routed("vault-7", None).is_err());
        assert!(routed("vault-7", Some(8)).is_err());
    }

    proptest! {
        #[test]
        fn any_key_id_goes_to_the_key_that_it_names_or_is_refused(
            scheme in prop_oneof![4 => Just("sidekey/"), 1 => Just(""), 1 => Just("sidekey")],
            number in prop_oneof![4 => "[0-4]", 1 => "0?[0-9]{1,21}", 1 => "\\PC{0,3}"],
            fingerprint in prop_oneof![4 => "aaaaaaaa|bbbbbbbb|00000000", 1 => "[0-9a-fA-F]{0,70}"],
            rest in "/?\\PC{0,30}", legacy in prop::option::of(0u64..5),
        ) {
            let text = format!("{scheme}{number}-{fingerprint}{rest}");
            let Ok(whole) = KeyId::new(&text) else { return Ok(()) };
            match table().route(whole, legacy.map(KeyNumber)) {
                Ok(route) => {
                    let (id, spec) = (route.key.id, &route.key.spec);
                    let own = format!("sidekey/{id}-{fingerprint}/{}", route.key_id);
                    // It is this key's by its name, or it names none and is the legacy key's.
                    let named = text == own && spec.matches(&fingerprint);
                    let nameless = route.key_id.as_str() == text && legacy == Some(id.0);
                    prop_assert!(named || nameless, "{text:?} went to key {id}");
                }
                Err(error) => {
                    prop_assert!(matches!(error.kind(), Kind::KeyState | Kind::Invalid));
                    prop_assert!(error.report().len() < 1024, "{}", error.report());
                }
            }
        }
    }

    #[test]
    fn in_forward_mode_key_ids_pass_untouched() {
        let table = RoutingTable { mode: Mode::Forward, ..table() };
        let route = table.route(KeyId::new("sidekey/9-ffff/x").unwrap(), None).ok();
        assert_eq!(route.map(|r| r.key_id.to_string()).as_deref(), Some("sidekey/9-ffff/x"));
    }
}
