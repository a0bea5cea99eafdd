//! A fake of Google Cloud KMS, of the endpoints that give tokens for it, and of a metadata server.
//!
//! What is real: AES-256-GCM, versions and their states, purposes, CRC32C on what comes and goes,
//! permissions, signatures of JWTs, tokens that end, the bodies of refusals. What is not: IAM's
//! policies (rights are named for each identity), the hours that a new primary version may take to
//! be used (it is at once, unless [`lags`](Gcp::lags) is set), HSMs and external keys.

mod keys;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Answer, Asked, Service};
pub use keys::Key;
pub use tokens::Tokens;

/// The rights of the role that encrypts and decrypts, and the one to look at a key.
pub const ENCRYPT: &str = "cloudkms.cryptoKeyVersions.useToEncrypt";
/// To unwrap.
pub const DECRYPT: &str = "cloudkms.cryptoKeyVersions.useToDecrypt";
/// To look at a key.
pub const LOOK: &str = "cloudkms.cryptoKeys.get";

/// The identity of the machine that has the metadata server.
pub const MACHINE: &str = "machine@example.iam.gserviceaccount.com";

/// The service.
#[derive(Default)]
pub struct Gcp {
    /// Keys by their names.
    pub keys: BTreeMap<String, Key>,
    /// What each identity may do.
    pub rights: BTreeMap<String, BTreeSet<String>>,
    /// Tokens, who has them, and until when.
    pub tokens: Tokens,
    /// The primary version that encryption still takes, if it has not heard of another one.
    pub lags: Option<u64>,
    /// Answers with a checksum that is wrong.
    pub wrong_sums: bool,
    /// Answers in the name of this key.
    pub wrong_name: Option<String>,
    /// Asks nobody who he is, as emulators do.
    pub emulates: bool,
}

/// A refusal: status of HTTP, its name, words, and a reason.
pub(crate) struct Refusal(u16, &'static str, String, &'static str);

type Result<T> = std::result::Result<T, Refusal>;

impl Gcp {
    /// A key that encrypts, with one version; its name.
    pub fn create_key(&mut self, id: &str) -> String {
        let name = format!("projects/example/locations/europe-west3/keyRings/etcd/cryptoKeys/{id}");
        self.keys.insert(name.clone(), Key::new("ENCRYPT_DECRYPT"));
        name
    }

    /// A key that has been elsewhere before, with the material of its versions, oldest first.
    pub fn restore_key(&mut self, name: &str, materials: &[[u8; 32]]) {
        self.keys.insert(name.to_owned(), Key::restored(materials));
    }

    /// A key by its name.
    ///
    /// # Panics
    /// If there is none.
    pub fn key(&mut self, name: &str) -> &mut Key {
        self.keys.get_mut(name).unwrap_or_else(|| panic!("no key {name}"))
    }

    /// From now on an identity may do just this.
    pub fn allow(&mut self, identity: &str, rights: &[&str]) {
        let rights = rights.iter().map(|right| (*right).to_owned()).collect();
        self.rights.insert(identity.to_owned(), rights);
    }

    fn may(&self, asked: &Asked, right: &str, name: &str) -> Result<()> {
        if self.emulates {
            return Ok(());
        }
        let who = self.tokens.identity(asked.bearer()).ok_or_else(unauthenticated)?;
        if self.rights.get(who).is_some_and(|rights| rights.contains(right)) {
            return Ok(());
        }
        let text =
            format!("Permission '{right}' denied on resource '{name}' (or it may not exist).");
        Err(Refusal(403, "PERMISSION_DENIED", text, "IAM_PERMISSION_DENIED"))
    }

    /// The key and the version that a name speaks of.
    fn find(&self, name: &str) -> Result<(&str, &Key, Option<u64>)> {
        let missing = || Refusal(404, "NOT_FOUND", format!("{name} not found."), "");
        let (key, version) = match name.split_once("/cryptoKeyVersions/") {
            Some((key, version)) => (key, Some(version.parse().map_err(|_| missing())?)),
            None => (name, None),
        };
        let (name, key) = self.keys.get_key_value(key).ok_or_else(missing)?;
        Ok((name, key, version))
    }

    fn get(&self, name: &str, asked: &Asked) -> Result<Value> {
        self.may(asked, LOOK, name)?;
        let (name, key, _) = self.find(name)?;
        // Google's Go client asks for enumerations as numbers.
        let numbers = asked.parameters().values().any(|alt| alt.contains("enum-encoding=int"));
        Ok(key.describe(self.wrong_name.as_deref().unwrap_or(name), numbers))
    }

    fn encrypt(&self, name: &str, asked: &Asked) -> Result<Value> {
        self.may(asked, ENCRYPT, name)?;
        let (found, key, version) = self.find(name)?;
        let body = asked.json();
        let (plaintext, summed) = field(&body, "plaintext")?;
        let (aad, bound) = field(&body, "additionalAuthenticatedData")?;
        if plaintext.is_empty() || plaintext.len() > 64 << 10 || aad.len() > 64 << 10 {
            return Err(invalid("plaintext must be 1 to 64 KiB"));
        }
        let version = version.or(self.lags).unwrap_or(key.primary);
        let ciphertext = key.encrypt(found, version, &plaintext, &aad)?;
        let named = self.wrong_name.as_deref().unwrap_or(found);
        let mut answer = json!({
            "name": format!("{named}/cryptoKeyVersions/{version}"),
            "ciphertext": keys::text(&ciphertext),
            "ciphertextCrc32c": self.sum(&ciphertext),
            "protectionLevel": "SOFTWARE",
        });
        // What is false is not written.
        if summed {
            answer["verifiedPlaintextCrc32c"] = true.into();
        }
        if bound {
            answer["verifiedAdditionalAuthenticatedDataCrc32c"] = true.into();
        }
        Ok(answer)
    }

    fn decrypt(&self, name: &str, asked: &Asked) -> Result<Value> {
        self.may(asked, DECRYPT, name)?;
        let (found, key, version) = self.find(name)?;
        if version.is_some() {
            return Err(invalid("name must be that of a CryptoKey"));
        }
        let body = asked.json();
        let (ciphertext, _) = field(&body, "ciphertext")?;
        let (aad, _) = field(&body, "additionalAuthenticatedData")?;
        let (plaintext, used) = key.decrypt(found, &ciphertext, &aad)?;
        let mut answer = json!({
            "plaintext": keys::text(&plaintext),
            "plaintextCrc32c": self.sum(&plaintext),
            "protectionLevel": "SOFTWARE",
        });
        if used == key.primary {
            answer["usedPrimary"] = true.into();
        }
        Ok(answer)
    }

    /// Which of some rights the caller has.
    fn permissions(&self, name: &str, asked: &Asked) -> Result<Value> {
        let who = self.tokens.identity(asked.bearer()).ok_or_else(unauthenticated)?;
        self.find(name)?;
        let body = asked.json();
        let wanted = body["permissions"].as_array().cloned().unwrap_or_default();
        let mine = self.rights.get(who).cloned().unwrap_or_default();
        let has = |right: &&Value| right.as_str().is_some_and(|right| mine.contains(right));
        let has: Vec<&Value> = wanted.iter().filter(has).collect();
        Ok(if has.is_empty() { json!({}) } else { json!({"permissions": has}) })
    }

    fn sum(&self, bytes: &[u8]) -> String {
        (keys::crc32c(bytes) ^ u32::from(self.wrong_sums)).to_string()
    }
}

impl Service for Gcp {
    fn operation(&self, asked: &Asked) -> Option<&'static str> {
        let path = asked.path.as_str();
        let of_key = path.starts_with("/v1/projects/") && path.contains("/cryptoKeys/");
        Some(match (asked.method.as_str(), path.rsplit_once(':').map(|(_, verb)| verb)) {
            ("POST", Some("encrypt")) if of_key => "encrypt",
            ("POST", Some("decrypt")) if of_key => "decrypt",
            ("POST", Some("testIamPermissions")) if of_key => "permissions",
            ("GET", _) if of_key => "describe",
            _ => return tokens::operation(asked),
        })
    }

    fn answer(&mut self, operation: &'static str, asked: &Asked) -> Answer {
        let path = asked.path.trim_start_matches("/v1/");
        let name = path.rsplit_once(':').map_or(path, |(name, _)| name);
        let answered = match operation {
            "describe" => self.get(path, asked),
            "encrypt" => self.encrypt(name, asked),
            "decrypt" => self.decrypt(name, asked),
            "permissions" => self.permissions(name, asked),
            _ => return self.tokens.answer(operation, asked),
        };
        match answered {
            Ok(value) => Answer::json(200, &value),
            Err(refusal) => refusal.answer(),
        }
    }

    fn unknown(&self, _: &Asked) -> Answer {
        Refusal(404, "NOT_FOUND", "Requested entity was not found.".into(), "").answer()
    }
}

impl Refusal {
    fn answer(self) -> Answer {
        let Self(code, status, message, reason) = self;
        let mut error = json!({"code": code, "message": message, "status": status});
        if !reason.is_empty() {
            error["details"] = json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason, "domain": "googleapis.com",
                "metadata": {"service": "cloudkms.googleapis.com"},
            }]);
        }
        Answer::json(code, &json!({"error": error}))
    }
}

/// What Cloud KMS says when it is asked too often.
pub fn throttled() -> Answer {
    let text = "Quota exceeded for quota metric 'Cryptographic requests' and limit 'Cryptographic requests per minute' of service 'cloudkms.googleapis.com'.";
    let refusal = Refusal(429, "RESOURCE_EXHAUSTED", text.into(), "RATE_LIMIT_EXCEEDED");
    refusal.answer().with("retry-after", "1")
}

/// What it says when it is not well.
pub fn unavailable() -> Answer {
    Refusal(503, "UNAVAILABLE", "The service is currently unavailable.".into(), "").answer()
}

fn unauthenticated() -> Refusal {
    let text = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.";
    Refusal(401, "UNAUTHENTICATED", text.into(), "ACCESS_TOKEN_EXPIRED")
}

fn invalid(text: &str) -> Refusal {
    Refusal(400, "INVALID_ARGUMENT", text.to_owned(), "")
}

/// Bytes that were sent, and whether a sum came with them, which must be theirs.
fn field(body: &Value, name: &str) -> Result<(Vec<u8>, bool)> {
    let text = body[name].as_str().unwrap_or_default();
    let bytes = keys::bytes(text).ok_or_else(|| invalid("Base64 decoding failed"))?;
    let given = match &body[format!("{name}Crc32c")] {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_u64(),
        _ => return Ok((bytes, false)),
    };
    if given != Some(u64::from(keys::crc32c(&bytes))) {
        let text =
            format!("The checksum in field {name}_crc32c did not match the data in field {name}.");
        return Err(invalid(&text));
    }
    Ok((bytes, true))
}
