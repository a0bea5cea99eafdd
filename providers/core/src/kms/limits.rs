//! The limits of the KMS v2 protocol, checked here and nowhere else.
//!
//! kube-apiserver enforces them on our answers and again on every read from etcd: an object
//! written with a bad annotation would never be readable again. So what leaves this process is
//! held to them as strictly as what enters it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::proto::v2::{DecryptRequest, EncryptResponse};
use crate::{Error, KeyId, Kind, Sealed, Secret};

/// Longest wrapped key, in bytes.
pub const MAX_CIPHERTEXT: usize = 1024;
/// Longest plaintext that can be wrapped: kube-apiserver sends 32 bytes.
pub(crate) const MAX_PLAINTEXT: usize = 1024;
/// All annotation keys and values together, in bytes.
pub const MAX_ANNOTATIONS: usize = 32 * 1024;
/// Longest request identifier that is logged.
const MAX_UID: usize = 256;

/// Checks an Encrypt request.
pub(crate) fn check_encrypt(uid: &str, plaintext: &Secret) -> Result<(), Error> {
    check_uid(uid)?;
    match plaintext.expose().len() {
        0 => Err(invalid("plaintext is empty")),
        len if len > MAX_PLAINTEXT => {
            Err(invalid(&format!("plaintext has {len} bytes, at most {MAX_PLAINTEXT} allowed")))
        }
        _ => Ok(()),
    }
}

/// Checks a Decrypt request of this `uid`.
pub(crate) fn check_decrypt(uid: &str, request: DecryptRequest) -> Result<Sealed, Error> {
    check_uid(uid)?;
    let DecryptRequest { ciphertext, key_id, annotations, .. } = request;
    let sealed = Sealed { key_id: KeyId::new(&key_id)?, ciphertext, annotations };
    check_sealed(&sealed)?;
    Ok(sealed)
}

impl TryFrom<EncryptResponse> for Sealed {
    type Error = Error;

    /// What a plugin has answered, if it is within the limits.
    fn try_from(answer: EncryptResponse) -> Result<Self, Error> {
        let EncryptResponse { ciphertext, key_id, annotations } = answer;
        let sealed = Self { key_id: KeyId::new(&key_id)?, ciphertext, annotations };
        check_sealed(&sealed)?;
        Ok(sealed)
    }
}

impl Sealed {
    /// Asks a plugin to decrypt it.
    pub fn request(self, uid: &str) -> DecryptRequest {
        let Self { key_id, ciphertext, annotations } = self;
        let (key_id, uid) = (key_id.as_str().to_owned(), uid.to_owned());
        DecryptRequest { ciphertext, uid, key_id, annotations }
    }
}

/// Checks what is stored in etcd, on its way in or out.
pub fn check_sealed(sealed: &Sealed) -> Result<(), Error> {
    match sealed.ciphertext.len() {
        0 => return Err(invalid("ciphertext is empty")),
        len if len > MAX_CIPHERTEXT => {
            let text = format!("ciphertext has {len} bytes, at most {MAX_CIPHERTEXT} allowed");
            return Err(invalid(&text));
        }
        _ => {}
    }
    check_annotations(&sealed.annotations)
}

fn check_annotations(annotations: &BTreeMap<String, Bytes>) -> Result<(), Error> {
    let mut total = 0;
    for (name, value) in annotations {
        if !is_fully_qualified(name) {
            let shown: String = name.chars().take(80).collect();
            return Err(invalid(&format!(
                "annotation {shown:?} is not a fully qualified domain name"
            )));
        }
        total += name.len() + value.len();
    }
    if total > MAX_ANNOTATIONS {
        return Err(invalid(&format!(
            "annotations have {total} bytes, at most {MAX_ANNOTATIONS} allowed"
        )));
    }
    Ok(())
}

/// Checks a request identifier: the caller chooses it, and it goes to the log.
fn check_uid(uid: &str) -> Result<(), Error> {
    if uid.len() > MAX_UID {
        return Err(invalid(&format!("uid has {} bytes, at most {MAX_UID} allowed", uid.len())));
    }
    if uid.chars().any(char::is_control) {
        return Err(invalid("uid holds control characters"));
    }
    Ok(())
}

/// What of a request identifier goes to the log: one that is refused for its length would fill it.
pub(crate) fn shown_uid(uid: &str) -> &str {
    match uid.char_indices().nth(MAX_UID) {
        Some((end, _)) => &uid[..end],
        None => uid,
    }
}

/// RFC 1123 as kube-apiserver reads it: at least two labels of lower-case letters, digits and
/// inner dashes, one closing dot allowed.
fn is_fully_qualified(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        label.len() <= 63
            && edge(label.bytes().next())
            && edge(label.bytes().last())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= 253 && name.contains('.') && name.split('.').all(label)
}

fn invalid(text: &str) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn annotation_names_follow_kube_apiservers_rule() {
        for good in ["a.b", "version.local.sidekey.dev", "x-1.y2", "a.b."] {
            assert!(is_fully_qualified(good), "{good}");
        }
        for bad in ["", ".", "a", "a.", "A.b", "a..b", "-a.b", "a-.b", "a_b.c", "a.b..", " a.b"] {
            assert!(!is_fully_qualified(bad), "{bad}");
        }
        assert!(!is_fully_qualified(&format!("{}.b", "a".repeat(64))));
    }

    proptest! {
        #[test]
        fn no_request_panics(
            ciphertext in proptest::collection::vec(any::<u8>(), 0..1100),
            uid in ".{0,300}",
            key_id in ".{0,1100}",
            name in ".{0,80}",
        ) {
            let annotations = BTreeMap::from([(name, Bytes::from(ciphertext.clone()))]);
            let _ = check_encrypt(&uid, &Secret::new(ciphertext.clone()));
            let ciphertext = Bytes::from(ciphertext);
            let request = DecryptRequest { ciphertext, uid: uid.clone(), key_id, annotations };
            if let Err(error) = check_decrypt(&uid, request) {
                prop_assert_eq!(error.kind(), Kind::Invalid);
            }
        }
    }

    #[test]
    fn a_uid_cannot_fill_the_log() {
        assert_eq!(shown_uid("6f1c"), "6f1c");
        assert_eq!(shown_uid(&"ä".repeat(300)), "ä".repeat(MAX_UID));
    }
}
