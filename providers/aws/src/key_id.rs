//! The key_id of this provider: the key's ARN and, after a slash, the id of its key material.
//!
//! ```text
//! arn:aws:kms:us-east-1:111122223333:key/1234abcd-…                     ARN alone, the fallback
//! arn:aws:kms:us-east-1:111122223333:key/1234abcd-…/96083e4fb6dbc41d…   with the material
//! ```
//! The ARN alone is also what the plugin that we replace writes when its `--key` is an ARN.

use sidekey_core::{Error, KeyId, Kind};

use crate::arn::{KeyArn, KeyName};

/// What a key_id names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) arn: KeyArn,
    pub(crate) material: Option<String>,
}

/// Which key may unwrap a ciphertext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Just this one.
    Key(KeyArn),
    /// This one or, where the alias has pointed elsewhere before, any key of its account and
    /// region: the key_id of the old plugin names no key.
    OrNeighbour(KeyArn),
}

impl Version {
    /// Reads one of our own key_ids.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(arn) = KeyArn::parse(text) {
            return Some(Self { arn, material: None });
        }
        let (arn, material) = text.rsplit_once('/')?;
        let sound = is_material(material);
        sound.then_some(())?;
        Some(Self { arn: KeyArn::parse(arn)?, material: Some(material.to_owned()) })
    }

    /// As it is announced.
    pub(crate) fn key_id(&self) -> Result<KeyId, Error> {
        match &self.material {
            Some(material) => KeyId::new(&format!("{}/{material}", self.arn)),
            None => KeyId::new(&self.arn.to_string()),
        }
    }
}

/// The form of an id of key material: hex, 64 digits at AWS.
pub(crate) fn is_material(text: &str) -> bool {
    (8..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Finds the key for what `key_id` names, which comes from etcd and may be forged. `name` is the
/// key as configured, `current` the one that it stands for now.
///
/// No key outside the configured one's reach is ever named: only the KEK itself, a replica of it,
/// or, where an alias is configured, a key that this alias may have pointed at.
pub(crate) fn target(key_id: &KeyId, name: &KeyName, current: &KeyArn) -> Result<Target, Error> {
    let unknown = |why: &str, hint: &'static str| {
        Err(Error::new(Kind::KeyState, format!("key_id {key_id} {why}")).with_hint(hint))
    };
    if let Some(version) = Version::parse(key_id.as_str()) {
        if version.arn.is_same_key(current) {
            return Ok(Target::Key(current.clone()));
        }
        if name.is_alias() && version.arn.is_neighbour(current) {
            return Ok(Target::Key(version.arn));
        }
        return unknown(
            "names another key than the configured one",
            "serve that key too, as a key of its own",
        );
    }
    match KeyName::parse(key_id.as_str()) {
        Some(KeyName::Id(id)) if id == current.id() => Ok(Target::Key(current.clone())),
        Some(alias @ (KeyName::Alias(_) | KeyName::AliasArn { .. })) => {
            // The replica of a multi-region key has its alias in its own region.
            let scope = match &alias {
                KeyName::AliasArn { scope, .. } if current.is_multi_region() => {
                    scope.in_region(current.region()).is_neighbour(current)
                }
                KeyName::AliasArn { scope, .. } => scope.is_neighbour(current),
                _ => true,
            };
            if !scope {
                return unknown(
                    "is an alias of another account or region",
                    "serve the key behind it too, as a key of its own",
                );
            }
            let target = if name.is_alias() { Target::OrNeighbour } else { Target::Key };
            Ok(target(current.clone()))
        }
        _ => unknown(
            "was not written by this provider, nor by aws-encryption-provider with this key",
            "serve the key that wrote it too, as a key of its own",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "arn:aws:kms:us-east-1:111122223333:key/aaaaaaaa-12ab-34cd-56ef-1234567890ab";
    const B: &str = "arn:aws:kms:us-east-1:111122223333:key/bbbbbbbb-12ab-34cd-56ef-1234567890ab";
    const FOREIGN: &str = "arn:aws:kms:us-east-1:999922223333:key/bbbbbbbb";

    fn material() -> String {
        "0123456789abcdef".repeat(4)
    }

    fn find(key_id: &str, name: &str) -> Result<Target, Kind> {
        let key_id = KeyId::new(key_id).unwrap();
        let name = KeyName::parse(name).unwrap();
        target(&key_id, &name, &KeyArn::parse(A).unwrap()).map_err(|error| error.kind())
    }

    fn key(arn: &str) -> Result<Target, Kind> {
        Ok(Target::Key(KeyArn::parse(arn).unwrap()))
    }

    #[test]
    fn key_ids_are_read_as_they_are_written() {
        for text in [A.to_owned(), format!("{A}/{}", material())] {
            let version = Version::parse(&text).unwrap();
            assert_eq!(version.key_id().unwrap().as_str(), text);
        }
        for text in ["", "alias/x", &format!("{A}/"), &format!("{A}/xyz"), &format!("{A}/a/b")] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn own_key_ids_lead_to_the_key_that_they_name() {
        assert_eq!(find(A, A), key(A));
        assert_eq!(find(&format!("{A}/{}", material()), A), key(A));
        assert_eq!(find(B, A), Err(Kind::KeyState));
        assert_eq!(find(FOREIGN, A), Err(Kind::KeyState));
    }

    #[test]
    fn data_from_before_an_alias_was_moved_stays_readable() {
        assert_eq!(find(&format!("{B}/{}", material()), "alias/etcd"), key(B));
        assert_eq!(find(FOREIGN, "alias/etcd"), Err(Kind::KeyState));
        let any = Target::OrNeighbour(KeyArn::parse(A).unwrap());
        assert_eq!(find("alias/etcd", "alias/etcd"), Ok(any));
    }

    #[test]
    fn key_ids_of_the_replaced_plugin_lead_to_the_configured_key() {
        assert_eq!(find("alias/etcd", A), key(A));
        assert_eq!(find("arn:aws:kms:us-east-1:111122223333:alias/etcd", A), key(A));
        assert_eq!(find("aaaaaaaa-12ab-34cd-56ef-1234567890ab", A), key(A));
        for other in [
            "arn:aws:kms:us-east-1:999922223333:alias/etcd",
            "bbbbbbbb-12ab-34cd-56ef-1234567890ab",
            "local/abc/1",
            "a b",
        ] {
            assert_eq!(find(other, A), Err(Kind::KeyState), "{other}");
        }
    }

    #[test]
    fn a_replica_reads_what_another_region_wrote() {
        let here = KeyArn::parse("arn:aws:kms:us-east-1:111122223333:key/mrk-1").unwrap();
        let there = format!("arn:aws:kms:eu-west-1:111122223333:key/mrk-1/{}", material());
        let name = KeyName::Arn(here.clone());
        let found = target(&KeyId::new(&there).unwrap(), &name, &here);
        assert_eq!(found.ok(), Some(Target::Key(here.clone())));
        // What the old plugin wrote there under an alias.
        let of_account = |account: &str| {
            let alias = format!("arn:aws:kms:eu-west-1:{account}:alias/etcd");
            target(&KeyId::new(&alias).unwrap(), &name, &here).ok()
        };
        assert_eq!(of_account("111122223333"), Some(Target::Key(here.clone())));
        assert_eq!(of_account("999922223333"), None);
    }
}
