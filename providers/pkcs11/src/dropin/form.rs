//! In which form data is written, and whose it is that is read: ours is known by our key_ids, the
//! replaced plugin's by its own, which are CKA_IDs in hex.

use serde::Deserialize;
use sidekey_core::{Error, KeyId, Sealed, Secret, hex};

use crate::dropin::jwe;
use crate::key::Key;
use crate::object::Object;

/// How new data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Our own.
    #[default]
    Sidekey,
    /// As the replaced plugin's `aes-gcm`, which it can read.
    Keysealer,
}

/// What is to be known for both forms.
pub(crate) struct Form {
    pub(crate) format: Format,
    /// The second key of `aes-cbc`.
    pub(crate) hmac_label: Option<String>,
    pub(crate) hmac_id: Option<Vec<u8>>,
    /// Whether old data that nothing authenticates is read.
    pub(crate) read_without_integrity: bool,
}

/// The key_id of what is written with a key.
pub(crate) fn key_id(form: &Form, object: &Object) -> Result<KeyId, Error> {
    match form.format {
        Format::Sidekey => Ok(object.key_id.clone()),
        Format::Keysealer => KeyId::new(&hex(&object.id)),
    }
}

/// Wraps in the form that is set.
pub(crate) fn seal(form: &Form, key: &Key<'_>, plaintext: &[u8]) -> Result<Vec<u8>, Error> {
    match form.format {
        Format::Sidekey => key.seal(plaintext),
        Format::Keysealer => jwe::seal(key, plaintext),
    }
}

/// Unwraps what was written in the form that its key_id tells of.
pub(crate) fn open(form: &Form, key: &Key<'_>, sealed: &Sealed) -> Result<Secret, Error> {
    match hex(&key.object.id) == sealed.key_id.as_str() {
        true => jwe::open(form, key, &sealed.ciphertext),
        false => key.open(&sealed.key_id, &sealed.ciphertext),
    }
}
