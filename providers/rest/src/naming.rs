//! key_ids of the form `vendor/<scope>/<version>`, and names that are looked up.
//!
//! The scope is a hash over what makes the KEK just that one (tenant, key ring, name, time of
//! creation), in full: key_ids are public, such names need not be. The version is the vendor's own.

use sidekey_core::{Error, KeyId, Kind, hex, sha256};

/// As much of the hash as tells any two keys apart.
const SCOPE: usize = 16;

/// One version of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Which key: the hash of all that it is named by.
    pub scope: String,
    /// Which version of it: a word of the vendor's.
    pub version: String,
}

/// The scope that these parts make; no other parts make the same.
pub fn scope(parts: &[&str]) -> String {
    let mut text = Vec::new();
    for part in parts {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    hex(&sha256(&text)[..SCOPE])
}

/// The one active key that has a name, or a label, of those that were found.
pub fn only(name: &str, mut found: Vec<String>) -> Result<String, Error> {
    match (found.pop(), found.len()) {
        (Some(id), 0) => Ok(id),
        // While a name goes from one key to another it may be that of none or of both.
        (last, others) => {
            let count = others + usize::from(last.is_some());
            let text = format!("{count} active keys are found by the name {name:?}, and not one");
            let hint = "give it to just one active key, which our credentials may find";
            Err(Error::new(Kind::Unavailable, text).with_hint(hint))
        }
    }
}

impl Version {
    /// Its key_id.
    pub fn key_id(&self, vendor: &str) -> Result<KeyId, Error> {
        KeyId::new(&format!("{vendor}/{}/{}", self.scope, self.version))
    }

    /// What a key_id names, which may be forged: `None` if it is not of this form.
    pub fn parse(vendor: &str, key_id: &str) -> Option<Self> {
        let rest = key_id.strip_prefix(vendor)?.strip_prefix('/')?;
        let (scope, version) = rest.split_once('/')?;
        let hex = scope.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let word = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let sound = scope.len() == 2 * SCOPE && hex && !version.is_empty();
        (sound && version.bytes().all(word))
            .then(|| Self { scope: scope.to_owned(), version: version.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_ids_are_read_as_they_are_written_and_nothing_else_is() {
        let version = Version { scope: scope(&["vault", "key"]), version: "7f-3".into() };
        let key_id = version.key_id("azure").unwrap();
        assert_eq!(Version::parse("azure", key_id.as_str()), Some(version.clone()));
        let good = key_id.as_str();
        for bad in [
            "",
            "azure",
            "azure/",
            "azure//1",
            &good.replace("azure", "gcp"),
            &format!("{good}/1"),
            &format!("{good} "),
            &good.to_uppercase(),
            &good[..good.len() - 4],
        ] {
            assert_eq!(Version::parse("azure", bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_is_that_of_one_key_or_of_none_that_is_taken() {
        let of = |ids: &[&str]| only("etcd", ids.iter().map(|&id| id.to_owned()).collect());
        assert_eq!(of(&["a"]).ok().as_deref(), Some("a"));
        for (ids, count) in [(&[][..], "0 active"), (&["a", "b"], "2 active")] {
            let error = of(ids).unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.report().contains(count), "{}", error.report());
        }
    }

    #[test]
    fn other_parts_make_another_scope() {
        assert_ne!(scope(&["ab", "c"]), scope(&["a", "bc"]));
        assert_ne!(scope(&["a", ""]), scope(&["a"]));
    }
}
