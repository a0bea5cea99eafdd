//! The KMS v2 `key_id`: its limits, its hash, and the prefix that the shim puts before it.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use serde_json::Value;

use crate::{Error, Kind};

/// Longest key_id that kube-apiserver accepts, in bytes.
pub const MAX_KEY_ID: usize = 1024;

/// What the shim puts before a provider's key_id: `sidekey/<keyID>-<fingerprint>/`.
const SHIM_SCHEME: &str = "sidekey/";

/// A fingerprint that says nothing: nothing is known of the KEK.
pub const NO_FINGERPRINT: &str = "00000000";

/// Names one KEK and the exact version of it; cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(Arc<str>);

/// The shim's part of a key_id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShimPrefix<'a> {
    /// The sequence number of the key in its control plane.
    pub key: u64,
    /// The short fingerprint of its KEK, lower-case hex.
    pub fingerprint: &'a str,
}

impl KeyId {
    /// Checks the protocol's limits: 1 to 1024 bytes, printable.
    pub fn new(text: &str) -> Result<Self, Error> {
        check(text)?;
        Ok(Self(text.into()))
    }

    /// The text as it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The provider's own part of it: what the shim has put before it is taken off.
    #[must_use]
    pub fn without_shim_prefix(self) -> Self {
        match split_shim_prefix(&self.0) {
            (Some(_), inner) => Self(inner.into()),
            (None, _) => self,
        }
    }

    /// The form in which kube-apiserver's own metrics show a key_id, so that dashboards join.
    pub fn hash(&self) -> String {
        format!("sha256:{}", hex(&sha256(self.0.as_bytes())))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits the shim's prefix off, so that a provider can read what was written through a shim.
///
/// Everything in a key_id comes from etcd and may be forged: what does not have exactly the
/// shim's form is not a prefix, and the whole text is left for the provider to refuse.
pub fn split_shim_prefix(key_id: &str) -> (Option<ShimPrefix<'_>>, &str) {
    let parsed = key_id.strip_prefix(SHIM_SCHEME).and_then(|rest| {
        let (label, rest) = rest.split_once('/')?;
        let (key, fingerprint) = label.split_once('-')?;
        let canonical = !key.starts_with('0') && key.bytes().all(|b| b.is_ascii_digit());
        if !canonical || !is_fingerprint(fingerprint) || rest.is_empty() {
            return None;
        }
        Some((ShimPrefix { key: key.parse().ok()?, fingerprint }, rest))
    });
    match parsed {
        Some((prefix, rest)) => (Some(prefix), rest),
        None => (None, key_id),
    }
}

/// The short fingerprint of a key's `kek` section, as the shim puts it into key_ids;
/// [`NO_FINGERPRINT`] for none. Whoever writes the shim's files must come to the same.
pub fn fingerprint(kek: &Value) -> String {
    if kek.is_null() {
        return NO_FINGERPRINT.to_owned();
    }
    // Maps are sorted, so that the order of fields does not matter.
    hex(&sha256(kek.to_string().as_bytes())[..4])
}

/// Whether a text has the form of a fingerprint: 4 to 64 lower-case hex digits.
pub fn is_fingerprint(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (4..=64).contains(&text.len()) && text.bytes().all(hex)
}

/// The limits that kube-apiserver enforces on every answer and on every read from etcd.
fn check(text: &str) -> Result<(), Error> {
    let invalid = |why: &str| Error::new(Kind::Invalid, format!("key_id {why}"));
    if text.is_empty() {
        return Err(invalid("is empty"));
    }
    if text.len() > MAX_KEY_ID {
        return Err(invalid(&format!("has {} bytes, at most {MAX_KEY_ID} allowed", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(invalid("holds control characters"));
    }
    Ok(())
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_shim_prefix_is_split_off() {
        let (prefix, rest) = split_shim_prefix("sidekey/12-0a1b2c3d/local/x/1");
        assert_eq!(prefix, Some(ShimPrefix { key: 12, fingerprint: "0a1b2c3d" }));
        assert_eq!(rest, "local/x/1");
    }

    #[test]
    fn a_prefix_of_the_shim_is_taken_off() {
        let inner = |text: &str| KeyId::new(text).map(|id| id.without_shim_prefix().to_string());
        assert_eq!(inner("sidekey/3-abcd/local/1").ok().as_deref(), Some("local/1"));
        assert_eq!(inner("local/1").ok().as_deref(), Some("local/1"));
    }

    #[test]
    fn what_is_not_exactly_a_prefix_is_left_alone() {
        for text in [
            "sidekey/",
            "sidekey/1/x",
            "sidekey/1-abcd",
            "sidekey/1-abcd/",
            "sidekey/01-abcd/x",
            "sidekey/0-abcd/x",
            "sidekey/-abcd/x",
            "sidekey/+1-abcd/x",
            "sidekey/1-ABCD/x",
            "sidekey/1-abc/x",
            "sidekey/99999999999999999999-abcd/x",
            "Sidekey/1-abcd/x",
            "x",
            "",
        ] {
            assert_eq!(split_shim_prefix(text), (None, text));
        }
    }

    #[test]
    fn a_fingerprint_follows_the_kek_and_not_the_order_of_its_fields() {
        let print = |text: &str| fingerprint(&serde_json::from_str(text).unwrap_or_default());
        assert_eq!(print(r#"{"a": 1, "b": [2]}"#), print(r#"{"b": [2], "a": 1}"#));
        assert_ne!(print(r#"{"a": 1}"#), print(r#"{"a": 2}"#));
        assert_eq!(print("null"), NO_FINGERPRINT);
        // Stored data carries it: it must never come out otherwise.
        assert_eq!(print(r#"{"mount":"transit","key":"kms"}"#), "b560393e");
    }

    #[test]
    fn hash_has_the_form_of_kube_apiservers_metrics() {
        let hash = KeyId::new("1").map(|id| id.hash()).unwrap_or_default();
        assert_eq!(hash, "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b");
    }

    #[test]
    fn limits_are_those_of_the_protocol() {
        assert!(KeyId::new(&"k".repeat(MAX_KEY_ID)).is_ok());
        assert!(KeyId::new(&"k".repeat(MAX_KEY_ID + 1)).is_err());
        assert!(KeyId::new("").is_err());
        assert!(KeyId::new("a\nb").is_err());
    }

    proptest! {
        #[test]
        fn splitting_never_panics_and_loses_nothing(text in ".{0,80}", tail in "(sidekey/)?[0-9]{0,3}-?[0-9a-f]{0,9}/?.{0,9}") {
            for text in [text, tail] {
                let (prefix, rest) = split_shim_prefix(&text);
                match prefix {
                    None => prop_assert_eq!(rest, text.as_str()),
                    Some(p) => prop_assert_eq!(
                        format!("sidekey/{}-{}/{rest}", p.key, p.fingerprint), text),
                }
            }
        }
    }
}
