//! The calls to the transit engine.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method};
use serde::{Deserialize, Serialize};
use sidekey_core::{Error, KeyId, Kind, Secret};
use sidekey_rest::{Answer, Request, json, read};
use zeroize::Zeroizing;

use crate::api;
use crate::config::Kek;
use crate::lineage::{Lineage, RawKey};

/// The type that an encrypt call asks for. Where the key exists, Vault does not look at it. Where
/// it is missing and the policy allows to create it, Vault would make one of this type: it cannot,
/// because this type cannot encrypt, and answers 400. So no call of ours ever makes a key, whatever
/// the policy says.
const NEVER_MADE: &str = "ecdsa-p256";

/// The paths of one key.
pub(crate) struct Transit {
    kek: Kek,
    namespace: Option<HeaderValue>,
}

#[derive(Serialize)]
struct Encrypt<'a> {
    plaintext: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    associated_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_version: Option<u32>,
    r#type: &'a str,
}

/// One ciphertext and what it is bound to; nothing in the form of vault-kubernetes-kms.
#[derive(Serialize)]
pub(crate) struct Bound<'a> {
    ciphertext: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    associated_data: Option<String>,
}

#[derive(Serialize)]
struct Batch<'a> {
    batch_input: [&'a Bound<'a>; 2],
}

#[derive(Deserialize)]
struct Data<T> {
    data: T,
}

#[derive(Deserialize)]
struct Encrypted {
    ciphertext: String,
    key_version: Option<u32>,
}

#[derive(Deserialize)]
struct Decrypted<'a> {
    #[serde(borrow)]
    plaintext: Option<&'a str>,
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    batch_results: Vec<Decrypted<'a>>,
}

impl<'a> Bound<'a> {
    pub(crate) fn new(ciphertext: &'a str, key_id: Option<&KeyId>) -> Self {
        Self { ciphertext, associated_data: key_id.map(aad) }
    }
}

impl Transit {
    pub(crate) fn new(kek: &Kek) -> Result<Self, Error> {
        Ok(Self { kek: kek.clone(), namespace: api::namespace(&kek.namespace)? })
    }

    pub(crate) fn kek(&self) -> &Kek {
        &self.kek
    }

    /// Asks for the state of the key.
    pub(crate) fn look(&self) -> Request {
        self.request(Method::GET, "keys", Bytes::new())
    }

    /// Reads it.
    pub(crate) fn seen(&self, answer: &Answer) -> Result<Lineage, Error> {
        let (action, key) = ("read", self.kek.shown());
        if answer.status.as_u16() == 404 && api::is_vaults(answer) {
            let hint = "the key, its mount or its namespace does not exist: it is never made by this provider";
            return Err(api::error(Kind::KeyState, hint, answer, action, &key));
        }
        if !answer.status.is_success() {
            return Err(self.refused(answer, action, &format!("read on {}", self.path("keys"))));
        }
        let raw: Data<RawKey> = read(&answer.body, &format!("{action} on {key}"))?;
        Lineage::new(&self.kek, raw.data)
    }

    /// Asks to wrap under one version, or under the newest; bound to `key_id`, if there is one.
    pub(crate) fn encrypt(
        &self,
        key_id: Option<&KeyId>,
        version: Option<u32>,
        plaintext: &[u8],
    ) -> Request {
        let plaintext = Zeroizing::new(STANDARD.encode(plaintext));
        let body = Encrypt {
            plaintext: &plaintext,
            associated_data: key_id.map(aad),
            key_version: version,
            r#type: NEVER_MADE,
        };
        self.request(Method::POST, "encrypt", json(&body))
    }

    /// Reads what was wrapped, and under which version.
    pub(crate) fn encrypted(&self, answer: &Answer) -> Result<(Bytes, u32), Error> {
        let of = format!("encrypt on {}", self.kek.shown());
        let found: Data<Encrypted> = read(&answer.body, &of)?;
        let Encrypted { ciphertext, key_version } = found.data;
        let written = crate::lineage::version_of(ciphertext.as_bytes());
        let agreed = written.filter(|written| key_version.is_none_or(|used| used == *written));
        let version = agreed
            .ok_or_else(|| odd(&format!("{of}: Vault does not say which version it used")))?;
        Ok((Bytes::from(ciphertext.into_bytes()), version))
    }

    /// Asks to unwrap one ciphertext.
    pub(crate) fn decrypt(&self, bound: &Bound<'_>) -> Request {
        self.request(Method::POST, "decrypt", json(bound))
    }

    /// Reads what was unwrapped.
    pub(crate) fn decrypted(&self, answer: &Answer) -> Result<Secret, Error> {
        let of = format!("decrypt on {}", self.kek.shown());
        let found: Data<Decrypted<'_>> = read(&answer.body, &of)?;
        plaintext(found.data.plaintext, &of)
    }

    /// Asks to unwrap two ciphertexts at once.
    pub(crate) fn decrypt_both(&self, first: &Bound<'_>, second: &Bound<'_>) -> Request {
        self.request(Method::POST, "decrypt", json(&Batch { batch_input: [first, second] }))
    }

    /// Reads which of two could be unwrapped: the first, and whether the second.
    pub(crate) fn decrypted_both(&self, answer: &Answer) -> Result<(Option<Secret>, bool), Error> {
        let of = format!("decrypt on {}", self.kek.shown());
        let found: Data<Results<'_>> = read(&answer.body, &of)?;
        let text = |index: usize| {
            let result = found.data.batch_results.get(index);
            result.and_then(|result| result.plaintext).filter(|text| !text.is_empty())
        };
        let first = text(0).map(|first| plaintext(Some(first), &of)).transpose()?;
        Ok((first, text(1).is_some()))
    }

    /// Asks for a new version of the key.
    pub(crate) fn rotate(&self) -> Request {
        let mut request = self.request(Method::POST, "keys", Bytes::from_static(b"{}"));
        request.path.push_str("/rotate");
        request.once = true;
        request
    }

    /// Whether it was made.
    pub(crate) fn rotated(&self, answer: &Answer) -> Result<(), Error> {
        if answer.status.is_success() {
            return Ok(());
        }
        let right = format!("update on {}/rotate; serving does not need it", self.path("keys"));
        Err(self.refused(answer, "rotate", &right))
    }

    /// What a refusal of a call means, when the key itself is in order.
    pub(crate) fn denied(&self, answer: &Answer, call: &str) -> Error {
        let path = self.path(call);
        let right = format!("update on {path}; if it does, the token is no longer valid");
        self.refused(answer, call, &right)
    }

    /// The error that a refusal is; `right` is what the policy must allow.
    fn refused(&self, answer: &Answer, action: &str, right: &str) -> Error {
        let key = self.kek.shown();
        match answer.status.as_u16() {
            403 if api::is_vaults(answer) => {
                let hint = format!("the policy must allow {right}");
                api::error(Kind::Denied, &hint, answer, action, &key)
            }
            _ => api::refused(answer, action, &key),
        }
    }

    fn path(&self, call: &str) -> String {
        let Kek { mount, key, .. } = &self.kek;
        format!("{mount}/{call}/{key}")
    }

    fn request(&self, method: Method, call: &str, body: Bytes) -> Request {
        api::request(method, &self.path(call), self.namespace.as_ref(), body)
    }
}

fn plaintext(text: Option<&str>, of: &str) -> Result<Secret, Error> {
    let wrong = || odd(&format!("{of}: the answer holds no plaintext"));
    let bytes = STANDARD.decode(text.ok_or_else(wrong)?).map_err(|_| wrong())?;
    Ok(Secret::new(bytes))
}

/// An answer that no Vault gives. It may pass: a proxy answered in its place.
fn odd(text: &str) -> Error {
    Error::new(Kind::Unavailable, text)
        .with_hint("see whether it is Vault that answers; nothing was stored")
}

/// Binds a ciphertext to its key_id, so that neither can be exchanged.
fn aad(key_id: &KeyId) -> String {
    STANDARD.encode(format!("sidekey-vault/1/{key_id}"))
}
