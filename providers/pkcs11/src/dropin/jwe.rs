//! Ciphertexts of the replaced plugin: JWE in its compact form, with quirks of its own.
//!
//! `aes-gcm` is read and written, `aes-cbc` and `rsa-oaep` are read. The header is authenticated as
//! it was received; the `kid` in it is the label of a key or a hash, and decides nothing here: which
//! key it is says the key_id.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, ObjectClass, ObjectHandle};
use serde::Deserialize;
use serde_json::json;
use sidekey_core::{Error, Kind, Secret};

use crate::codes::explain;
use crate::dropin::form::Form;
use crate::key::{Key, oaep};
use crate::library::Link;
use crate::object::{Algorithm, Object};

/// What the replaced plugin writes.
const IV: usize = 16;
/// What PKCS#11 allows.
const MAX_IV: usize = 256;
const TAG: usize = 16;
const BLOCK: usize = 16;

#[derive(Deserialize)]
struct Header {
    alg: String,
    enc: String,
    #[serde(rename = "_thales_aad")]
    length: Option<String>,
}

/// The parts of a JWE.
struct Parts<'a> {
    /// As it was received.
    header: &'a str,
    key: Vec<u8>,
    iv: Vec<u8>,
    sealed: Vec<u8>,
    tag: Vec<u8>,
}

/// As the replaced plugin's `aes-gcm`.
pub(crate) fn seal(key: &Key<'_>, plaintext: &[u8]) -> Result<Vec<u8>, Error> {
    if !key.is_aes() {
        let text =
            "settings.format keysealer is for AES keys alone: nothing else is written in that form";
        return Err(Error::new(Kind::Config, text));
    }
    let header = format!(
        r#"{{"alg":"dir","kid":{},"enc":"A{}GCM"}}"#,
        json!(label(key.object)),
        key.object.bits
    );
    let header = URL_SAFE_NO_PAD.encode(header);
    let (iv, sealed) = key.seal_gcm(IV, header.as_bytes(), plaintext)?;
    let (sealed, tag) = sealed.split_at(sealed.len().saturating_sub(TAG));
    let [iv, sealed, tag] = [&*iv, sealed, tag].map(|part| URL_SAFE_NO_PAD.encode(part));
    Ok(format!("{header}..{iv}.{sealed}.{tag}").into_bytes())
}

/// Any of the families that are read here.
pub(crate) fn open(form: &Form, key: &Key<'_>, jwe: &[u8]) -> Result<Secret, Error> {
    let parts = Parts::of(jwe).ok_or_else(|| corrupt("it is no JWE"))?;
    let header = URL_SAFE_NO_PAD.decode(parts.header).unwrap_or_default();
    let header: Header =
        serde_json::from_slice(&header).map_err(|_| corrupt("its header cannot be read"))?;
    match (&*header.alg, &*header.enc) {
        ("dir", "A128GCM" | "A192GCM" | "A256GCM") if key.is_aes() => parts.open_gcm(key),
        ("A256CBC", "A256CBC") if key.is_aes() => parts.open_cbc(form, key, &header),
        ("RSA-OAEP-256" | "RSA-OAEP", "A256GCM") if !key.is_aes() => parts.open_rsa(key),
        _ => Err(corrupt("it is of no family of this key")),
    }
}

impl<'a> Parts<'a> {
    fn of(jwe: &'a [u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(jwe).ok()?.split('.');
        let header = parts.next()?;
        let mut bytes = || URL_SAFE_NO_PAD.decode(parts.next()?).ok();
        let (key, iv, sealed, tag) = (bytes()?, bytes()?, bytes()?, bytes()?);
        parts.next().is_none().then_some(Self { header, key, iv, sealed, tag })
    }

    fn open_gcm(&self, key: &Key<'_>) -> Result<Secret, Error> {
        if !self.key.is_empty() || !(1..=MAX_IV).contains(&self.iv.len()) || self.tag.len() != TAG {
            return Err(corrupt("its parts have the wrong length"));
        }
        let sealed = [&*self.sealed, &*self.tag].concat();
        key.open_gcm(&self.iv, self.header.as_bytes(), &sealed)
    }

    /// AES-CBC without padding, but with a block of zeros too many, and the length of the plaintext in
    /// the header; then HMAC over all of it.
    fn open_cbc(&self, form: &Form, key: &Key<'_>, header: &Header) -> Result<Secret, Error> {
        let length = header.length.as_deref().and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let length = length.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        let length = length.and_then(|bytes| usize::try_from(u64::from_be_bytes(bytes)).ok());
        let length = length.filter(|length| (1..=self.sealed.len()).contains(length));
        let iv = <[u8; BLOCK]>::try_from(&*self.iv).ok();
        let Some((length, iv)) = length.zip(iv).filter(|_| self.sealed.len().is_multiple_of(BLOCK))
        else {
            return Err(corrupt("its parts have the wrong length"));
        };
        self.check_mac(form, key)?;
        let blocks = &self.sealed[..length.next_multiple_of(BLOCK)];
        let plaintext = key.decrypt(&Mechanism::AesCbc(iv), blocks)?;
        Ok(Secret::new(plaintext.expose()[..length].to_vec()))
    }

    fn check_mac(&self, form: &Form, key: &Key<'_>) -> Result<(), Error> {
        let second = hmac_key(form, key.link)?;
        let failed = |failure| explain("sign", &"the HMAC key", &failure);
        let mac = |data: &[u8]| key.link.session.sign(&Mechanism::Sha256Hmac, second, data);
        // In bytes, where the standard counts bits.
        let length = (self.header.len() as u64).to_be_bytes();
        let data = [self.header.as_bytes(), &self.iv, &self.sealed, &length].concat();
        if verify_slices_are_equal(&mac(&data).map_err(failed)?, &self.tag).is_ok() {
            return Ok(());
        }
        // What early releases have written: the MAC of nothing.
        if verify_slices_are_equal(&mac(&[]).map_err(failed)?, &self.tag).is_err() {
            return Err(corrupt("its MAC is wrong"));
        }
        if !form.read_without_integrity {
            let text = "it was written by an early release of the replaced plugin, whose MAC authenticates nothing";
            return Err(corrupt(text).with_hint("settings.readWithoutIntegrity reads it, altered or not: turn it on only until everything has been written anew"));
        }
        tracing::warn!(key = %key.keys, "data without integrity was decrypted, as settings.readWithoutIntegrity says: whoever can write to etcd may have altered it");
        Ok(())
    }

    /// The HSM opens the key, and we what is encrypted with it.
    fn open_rsa(&self, key: &Key<'_>) -> Result<Secret, Error> {
        // Older data names the other hash, and has this one all the same.
        let key = key.decrypt(&oaep(Algorithm::RsaOaep256), &self.key)?;
        let altered = |_| corrupt("it does not authenticate");
        let key = UnboundKey::new(&AES_256_GCM, key.expose()).map_err(altered)?;
        let nonce = Nonce::try_assume_unique_for_key(&self.iv).map_err(altered)?;
        let mut sealed = [&*self.sealed, &*self.tag].concat();
        let aad = Aad::from(self.header.as_bytes());
        let opened = LessSafeKey::new(key).open_in_place(nonce, aad, &mut sealed);
        let length = opened.map_err(altered)?.len();
        sealed.truncate(length);
        Ok(Secret::new(sealed))
    }
}

/// The second key of `aes-cbc`.
fn hmac_key(form: &Form, link: &Link) -> Result<ObjectHandle, Error> {
    let mut template = vec![Attribute::Class(ObjectClass::SECRET_KEY), Attribute::Token(true)];
    template.extend(form.hmac_label.as_ref().map(|text| Attribute::Label(text.clone().into())));
    template.extend(form.hmac_id.clone().map(Attribute::Id));
    if template.len() == 2 {
        let text = "data of the family aes-cbc has a second key, and nothing says which";
        return Err(
            Error::new(Kind::KeyState, text).with_hint("set settings.hmacLabel or settings.hmacId")
        );
    }
    let failed = |failure| explain("look", &"the HMAC key", &failure);
    match link.session.find_objects(&template).map_err(failed)?[..] {
        [key] => Ok(key),
        [] => Err(Error::new(Kind::KeyState, "the HMAC key is not in the token")),
        _ => Err(Error::new(Kind::KeyState, "several keys could be the HMAC key")
            .with_hint("set settings.hmacId")),
    }
}

/// As the token has it.
fn label(object: &Object) -> String {
    let label = object.attributes.iter().find_map(|attribute| match attribute {
        Attribute::Label(label) => Some(String::from_utf8_lossy(label).into_owned()),
        _ => None,
    });
    label.unwrap_or_default()
}

fn corrupt(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("ciphertext of k8s-kms-plugin: {what}"))
}
