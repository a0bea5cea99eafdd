//! Which key it is, and the names of its versions.
//!
//! A version is named by 32 hex digits that Key Vault makes and never uses again: vault, name and
//! version together name key material just so. A key that was deleted, purged and made anew under
//! the same name has other versions.

use sidekey_core::{Error, KeyId, Kind, hex, sha256};
use sidekey_rest::naming::{self, scope};

/// Longest name of a key, and of a version.
const MAX_NAME: usize = 127;

/// One key of one vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kek {
    /// The vault's URL, without a slash at its end, as it was given.
    vault: String,
    name: String,
    scope: String,
}

impl Kek {
    pub(crate) fn new(vault: String, name: String) -> Self {
        let scope = scope(&[&vault.to_ascii_lowercase(), &name.to_ascii_lowercase()]);
        Self { vault, name, scope }
    }

    /// The key's name in its vault.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// For people, and as Key Vault names it: without a version, or with one.
    pub(crate) fn url(&self, version: Option<&str>) -> String {
        let (vault, name) = (&self.vault, &self.name);
        let slash = if version.is_some() { "/" } else { "" };
        format!("{vault}/keys/{name}{slash}{}", version.unwrap_or_default())
    }

    /// Our own key_id of a version.
    pub(crate) fn key_id(&self, version: &str) -> Result<KeyId, Error> {
        let (scope, version) = (self.scope.clone(), version.to_owned());
        naming::Version { scope, version }.key_id("azure")
    }

    /// The key_id that the replaced plugins give to a version.
    pub(crate) fn hashed(&self, version: &str) -> String {
        hex(&sha256(self.url(Some(version)).as_bytes()))
    }

    /// The version that a key_id names, which comes from etcd and may be forged. One that is a hash
    /// is one of the `known` versions, or none.
    pub(crate) fn version<'a>(
        &self,
        key_id: &KeyId,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, Error> {
        let text = key_id.as_str();
        if let Some(named) = naming::Version::parse("azure", text) {
            let own =
                (named.scope == self.scope && is_word(&named.version)).then_some(named.version);
            return own.ok_or_else(|| self.other(key_id));
        }
        let found = known.into_iter().find(|version| self.hashed(version) == text);
        found.map(str::to_owned).ok_or_else(|| self.other(key_id))
    }

    fn other(&self, key_id: &KeyId) -> Error {
        let text = format!(
            "{key_id} is of another key than {}, or of a version that is not known",
            self.url(None)
        );
        Error::new(Kind::KeyState, text)
            .with_hint("serve that key too, or name the version in settings.formerVersions")
    }

    /// The version that an answer says it is about, if it is about this key.
    pub(crate) fn answered(&self, kid: &str) -> Option<String> {
        let (vault, rest) = kid.split_once("/keys/")?;
        let (name, version) = rest.split_once('/')?;
        let own = vault.eq_ignore_ascii_case(&self.vault) && name.eq_ignore_ascii_case(&self.name);
        (own && is_word(version)).then(|| version.to_owned())
    }
}

/// Whether it can be the name of a key or of a version.
pub(crate) fn is_word(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kek() -> Kek {
        Kek::new("https://example.vault.azure.net".into(), "mykey".into())
    }

    #[test]
    fn the_hash_is_that_of_the_replaced_plugin() {
        let vector = "567d783db3043fe298fe0d9eeedb0029a3815cdd4fe4b059d018c91e6acffe3b";
        assert_eq!(kek().hashed("ABCD"), vector);
        let key_id = KeyId::new(vector).unwrap();
        assert_eq!(kek().version(&key_id, ["1", "ABCD"]).unwrap(), "ABCD");
        assert_eq!(kek().version(&key_id, ["1"]).unwrap_err().kind(), Kind::KeyState);
    }

    #[test]
    fn our_own_key_id_is_the_one_that_the_readme_shows_and_never_another() {
        let version = "0123456789abcdef0123456789abcdef";
        let vector = "azure/23e5bacc79a8d82dcddca268dda94008/0123456789abcdef0123456789abcdef";
        assert_eq!(kek().key_id(version).unwrap().as_str(), vector);
        assert!(include_str!("../README.md").contains(vector), "it is documented");
    }

    #[test]
    fn key_ids_are_read_as_they_are_written_and_those_of_other_keys_are_refused() {
        let key_id = kek().key_id("0123456789abcdef").unwrap();
        assert_eq!(kek().version(&key_id, []).unwrap(), "0123456789abcdef");
        let same = Kek::new("https://EXAMPLE.vault.azure.net".into(), "MyKey".into());
        assert_eq!(same.key_id("0123456789abcdef").unwrap(), key_id, "names have no case");
        for (vault, name) in
            [("https://other.vault.azure.net", "mykey"), ("https://example.vault.azure.net", "key")]
        {
            let other = Kek::new(vault.into(), name.into());
            assert_eq!(other.version(&key_id, []).unwrap_err().kind(), Kind::KeyState);
        }
        for bad in ["azure/x/1", "1", "vault/00112233445566778899aabbccddeeff/1"] {
            assert!(kek().version(&KeyId::new(bad).unwrap(), ["1"]).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_answer_about_another_key_tells_no_version() {
        let good = "https://Example.vault.azure.net/keys/myKey/ab12";
        assert_eq!(kek().answered(good).as_deref(), Some("ab12"));
        for bad in [
            "",
            "https://other.vault.azure.net/keys/mykey/ab12",
            "https://example.vault.azure.net/keys/other/ab12",
            "https://example.vault.azure.net/keys/mykey",
            "https://example.vault.azure.net/keys/mykey/",
            "https://example.vault.azure.net/keys/mykey/a/b",
            "https://example.vault.azure.net/secrets/mykey/ab12",
        ] {
            assert_eq!(kek().answered(bad), None, "{bad}");
        }
    }
}
