//! What k8s-cloudkms-plugin writes and reads.
//!
//! It stores the ciphertext as Cloud KMS gave it, bound to nothing, without annotations. Its key_id
//! is the name of the version that was used, with `:` and a suffix if it was given one. When it
//! reads it takes the key from the key_id, and lets Cloud KMS find the version.

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::{Error, KeyId};
use sidekey_rest::Address;

use crate::Gcp;
use crate::config::Config;
use crate::name::{FORM, Named};

/// What is written in the form of that plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PluginFormat {
    /// What its key_ids end with: the way there to have all data written anew.
    pub(crate) key_suffix: String,
}

impl PluginFormat {
    /// The key_id of a version.
    pub(crate) fn key_id(&self, version: &str) -> Result<KeyId, Error> {
        match self.key_suffix.as_str() {
            "" => KeyId::new(version),
            suffix => KeyId::new(&format!("{version}:{suffix}")),
        }
    }
}

/// The key, and the version if there is one, that a key_id of that plugin's names.
pub(crate) fn named(key_id: &KeyId) -> Option<Named<'_>> {
    Named::parse(key_id.as_str()).filter(|named| matches!(named.rest.as_bytes(), [] | [b':', ..]))
}

/// Reports mistakes in what is there for the sake of that plugin.
pub(crate) fn check(config: &Config, problems: &mut Problems) {
    let Config { settings, credentials, .. } = config;
    for (index, pattern) in settings.also_reads.iter().enumerate() {
        if !Named::parse(pattern).is_some_and(|named| named.is_key(true)) {
            problems.add(&format!("settings.alsoReads[{index}]"), FORM);
        }
    }
    let is_near = |at: Address| !at.is_tls() && !at.is_exposed();
    if credentials.anonymous && !config.endpoint().is_ok_and(is_near) {
        problems.add("credentials.anonymous", "is for an emulator at http://localhost alone");
    }
    if credentials.file.is_some() && credentials.gce_config.is_some() {
        problems.add("credentials.file", "excludes gceConfig");
    }
}

impl Gcp {
    /// The version of our key that a key_id of that plugin's names.
    pub(crate) fn written(&self, key_id: &KeyId) -> Option<u64> {
        named(key_id).filter(|named| named.key == self.key)?.version
    }

    /// The key that a key_id of that plugin's names, if that is ours or one that the configuration
    /// allows.
    pub(crate) fn adopted<'a>(&self, key_id: &'a KeyId) -> Option<&'a str> {
        let mut patterns = std::iter::once(&self.key).chain(&self.settings.also_reads);
        let named = named(key_id)?;
        let fits = |pattern: &String| Named::parse(pattern).is_some_and(|with| named.fits(&with));
        patterns.any(fits).then_some(named.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "projects/p/locations/global/keyRings/r/cryptoKeys/k";

    #[test]
    fn key_ids_are_written_and_read_as_that_plugin_has_them() {
        let version = format!("{KEY}/cryptoKeyVersions/7");
        for (suffix, expected) in [("", version.clone()), ("s:2", format!("{version}:s:2"))] {
            let key_id = PluginFormat { key_suffix: suffix.into() }.key_id(&version).unwrap();
            assert_eq!(key_id.as_str(), expected);
            let named = named(&key_id).unwrap();
            assert_eq!((named.key, named.version), (KEY, Some(7)));
        }
        for (text, known) in [
            (KEY.to_owned(), true),
            (format!("{KEY}:suffix"), true),
            (format!("{KEY}/cryptoKeyVersions/x"), false),
            (format!("{KEY}/other"), false),
            (format!("gcp/{KEY}"), false),
        ] {
            assert_eq!(named(&KeyId::new(&text).unwrap()).is_some(), known, "{text}");
        }
    }
}
