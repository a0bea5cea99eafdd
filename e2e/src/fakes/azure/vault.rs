//! Keys with their versions, and what is done with them.

use std::time::SystemTime;

use anyhow::{Result, anyhow};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::rsa::{
    KeySize, OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, OaepPublicEncryptingKey,
    PrivateDecryptingKey,
};
use aws_lc_rs::signature::{KeyPair, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Answer, Asked, Azure, TENANT};

/// What kind of key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// An RSA key of this size. The first of a name is always the same one, for fixtures.
    Rsa(usize),
    /// A new RSA key of 2048 bits.
    FreshRsa,
    /// An AES key of a Managed HSM.
    Aes,
    /// One of 128 bits, which A256GCM cannot use.
    ShortAes,
    /// An elliptic curve, which encrypts nothing.
    Ec,
    /// Just this AES key of a Managed HSM.
    KnownAes([u8; 32]),
}

#[derive(Debug, Default)]
pub(super) struct Key {
    /// Oldest first.
    pub(super) versions: Vec<(String, Version)>,
    pub(super) deleted: bool,
}

#[derive(Debug)]
pub(super) struct Version {
    material: Material,
    pub(super) enabled: bool,
    created: u64,
}

#[derive(Debug)]
enum Material {
    Rsa(Box<Rsa>),
    Aes(Vec<u8>),
    Ec,
}

#[derive(Debug)]
struct Rsa {
    private: OaepPrivateDecryptingKey,
    public: OaepPublicEncryptingKey,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

const FIXED: [(usize, &[u8]); 3] = [
    (2048, include_bytes!("rsa-2048.der")),
    (3072, include_bytes!("rsa-3072.der")),
    (4096, include_bytes!("rsa-4096.der")),
];

impl Version {
    pub(super) fn new(kind: KeyKind) -> Result<Self> {
        let material = match kind {
            KeyKind::Rsa(bits) => {
                let fixed = FIXED.iter().find(|(size, _)| *size == bits);
                Material::Rsa(Box::new(Rsa::new(fixed.ok_or_else(|| anyhow!("no such size"))?.1)?))
            }
            KeyKind::FreshRsa => {
                let key = PrivateDecryptingKey::generate(KeySize::Rsa2048)?;
                Material::Rsa(Box::new(Rsa::new(key.as_der()?.as_ref())?))
            }
            KeyKind::Aes | KeyKind::ShortAes => {
                let mut key = vec![0; if kind == KeyKind::Aes { 32 } else { 16 }];
                SystemRandom::new().fill(&mut key)?;
                Material::Aes(key)
            }
            KeyKind::Ec => Material::Ec,
            KeyKind::KnownAes(key) => Material::Aes(key.to_vec()),
        };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        Ok(Self { material, enabled: true, created })
    }

    /// What a rotation makes of it.
    pub(super) fn successor(&self) -> KeyKind {
        match &self.material {
            Material::Rsa(_) => KeyKind::FreshRsa,
            Material::Aes(key) if key.len() < 32 => KeyKind::ShortAes,
            Material::Aes(_) => KeyKind::Aes,
            Material::Ec => KeyKind::Ec,
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        let operations = ["encrypt", "decrypt", "sign", "verify", "wrapKey", "unwrapKey"];
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.material {
            Material::Rsa(rsa) => json!({
                "kid": kid, "kty": "RSA", "key_ops": operations,
                "n": encode(&rsa.modulus), "e": encode(&rsa.exponent),
            }),
            Material::Aes(_) => json!({"kid": kid, "kty": "oct-HSM", "key_ops": operations}),
            Material::Ec => json!({
                "kid": kid, "kty": "EC", "key_ops": ["sign", "verify"], "crv": "P-256",
                "x": encode(&[1; 32]), "y": encode(&[2; 32]),
            }),
        }
    }
}

impl Rsa {
    fn new(der: &[u8]) -> Result<Self> {
        let private = PrivateDecryptingKey::from_pkcs8(der).map_err(|error| anyhow!("{error}"))?;
        let public = OaepPublicEncryptingKey::new(private.public_key())?;
        let pair = RsaKeyPair::from_pkcs8(der).map_err(|error| anyhow!("{error}"))?;
        let numbers = numbers(pair.public_key().as_ref());
        let [modulus, exponent] = numbers.ok_or_else(|| anyhow!("no RSA key"))?;
        Ok(Self { private: OaepPrivateDecryptingKey::new(private)?, public, modulus, exponent })
    }
}

/// Modulus and exponent of a key as PKCS#1 has it: a sequence of two integers.
fn numbers(der: &[u8]) -> Option<[Vec<u8>; 2]> {
    let (_, inside, _) = element(der)?;
    let (_, modulus, rest) = element(inside)?;
    let (_, exponent, _) = element(rest)?;
    let unsigned = |bytes: &[u8]| bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
    Some([unsigned(modulus), unsigned(exponent)])
}

/// One element of DER, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, &first) = (der.first()?, der.get(1)?);
    let (length, start) = match first {
        0..=0x7f => (usize::from(first), 2),
        _ => {
            let bytes = usize::from(first & 0x7f);
            let length =
                der.get(2..2 + bytes)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, 2 + bytes)
        }
    };
    let (inside, rest) = (der.get(start..start + length)?, &der[start + length..]);
    Some((tag, inside, rest))
}

impl Azure {
    /// What a request without a token is answered.
    pub(super) fn challenge(&self) -> Answer {
        let resource = self.resource();
        let told = format!(
            r#"Bearer authorization="https://login.microsoftonline.com/{TENANT}", resource="{resource}""#
        );
        let text = "AKV10000: Request is missing a Bearer or PoP token.";
        refusal(401, "Unauthorized", None, text).with("www-authenticate", told)
    }

    /// Does what is asked, if the one who asks may.
    pub(super) fn operate(&mut self, operation: &str, asked: &Asked) -> Answer {
        let token = asked.bearer().and_then(|token| self.tokens.get(token));
        let Some(token) = token.filter(|token| token.ends > SystemTime::now()) else {
            let told = self.challenge().headers.pop().unwrap_or_default();
            let text = "[TokenExpired] Error validating token: IDX10223.";
            return refusal(401, "Unauthorized", None, text).with(told.0, told.1);
        };
        if token.resource != self.resource() {
            let text = "AKV10022: Invalid audience.";
            return refusal(401, "Unauthorized", None, text);
        }
        if self.throttled.0 > 0 {
            self.throttled.0 -= 1;
            let text = "Request was not processed because too many requests were received.";
            let seconds = self.throttled.1.as_secs().to_string();
            return refusal(429, "Throttled", None, text).with("retry-after", seconds);
        }
        if !self.clients.get(&token.client).is_some_and(|client| client.rights.contains(operation))
        {
            let text = format!(
                "Caller is not authorized to perform action on resource. Action: 'Microsoft.KeyVault/vaults/keys/{operation}/action'"
            );
            return refusal(403, "Forbidden", Some("ForbiddenByRbac"), &text);
        }
        self.use_key(operation, asked)
    }

    fn use_key(&self, operation: &str, asked: &Asked) -> Answer {
        let parts: Vec<_> =
            self.path(asked).split('/').skip(2).filter(|part| *part != operation).collect();
        let (name, asked_version) = (parts[0], parts.get(1).copied().unwrap_or_default());
        let key = self.keys.get(name).filter(|key| !key.deleted);
        let versions = key.map_or(&[][..], |key| &key.versions);
        let mut newest_first = versions.iter().rev();
        let found =
            newest_first.find(|(known, _)| asked_version.is_empty() || known == asked_version);
        let Some((version, found)) = found else {
            let text = format!(
                "A key with (name/id) {name}/{asked_version} was not found in this key vault."
            );
            return refusal(404, "KeyNotFound", None, &text);
        };
        let kid = format!("https://{}/keys/{name}/{version}", self.host);
        if operation == "get" {
            let attributes = json!({
                "enabled": found.enabled, "created": found.created, "updated": found.created,
                "recoveryLevel": "Recoverable+Purgeable", "recoverableDays": 90, "exportable": false,
            });
            return Answer::json(200, &json!({"key": found.jwk(&kid), "attributes": attributes}));
        }
        if !found.enabled {
            let text = format!("Operation {operation} is not allowed on a disabled key.");
            return refusal(403, "Forbidden", Some("KeyDisabled"), &text);
        }
        match crypt(operation, found, &asked.json()) {
            Some(mut answer) => {
                answer["kid"] = kid.into();
                Answer::json(200, &answer)
                    .with("x-ms-request-id", "00000000-0000-0000-0000-000000000000")
                    .with("x-ms-keyvault-region", "westeurope")
            }
            None => refusal(400, "BadParameter", None, "The parameter is incorrect."),
        }
    }
}

/// The answer to an operation; nothing for what cannot be done.
fn crypt(operation: &str, version: &Version, asked: &Value) -> Option<Value> {
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(asked[name].as_str()?).ok();
    let value = bytes("value")?;
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    match (&version.material, asked["alg"].as_str()?, operation) {
        (Material::Rsa(rsa), "RSA-OAEP-256", "encrypt") => {
            let mut out = vec![0; rsa.public.ciphertext_size()];
            let out = rsa.public.encrypt(&OAEP_SHA256_MGF1SHA256, &value, &mut out, None).ok()?;
            Some(json!({"value": encode(out)}))
        }
        (Material::Rsa(rsa), "RSA-OAEP-256", "decrypt") => {
            let mut out = vec![0; rsa.private.min_output_size()];
            let out = rsa.private.decrypt(&OAEP_SHA256_MGF1SHA256, &value, &mut out, None).ok()?;
            Some(json!({"value": encode(out)}))
        }
        (Material::Aes(key), "A256GCM", _) => {
            let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
            let aad = bytes("aad").unwrap_or_default();
            if operation == "encrypt" {
                let mut nonce = [0; 12];
                SystemRandom::new().fill(&mut nonce).ok()?;
                let mut out = value;
                let nonced = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonced, Aad::from(&aad), &mut out).ok()?;
                return Some(
                    json!({"value": encode(&out), "iv": encode(&nonce), "tag": encode(tag.as_ref()), "aad": encode(&aad)}),
                );
            }
            let nonce = Nonce::try_assume_unique_for_key(&bytes("iv")?).ok()?;
            let mut out = [value, bytes("tag")?].concat();
            let out = key.open_in_place(nonce, Aad::from(&aad), &mut out).ok()?;
            Some(json!({"value": encode(out)}))
        }
        _ => None,
    }
}

pub(super) fn refusal(status: u16, code: &str, inner: Option<&str>, text: &str) -> Answer {
    let mut error = json!({"code": code, "message": text});
    if let Some(inner) = inner {
        error["innererror"] = json!({"code": inner});
    }
    Answer::json(status, &json!({"error": error}))
}
