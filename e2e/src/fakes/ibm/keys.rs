//! Keys of the fake Key Protect: versions, states, wrapping, refusals.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sidekey_core::hex;

use crate::fakes::Answer;

/// Longest plaintext, in bytes.
const MAX_PLAINTEXT: usize = 4096;
/// Longest additional data, in characters, and most of them.
const MAX_AAD: (usize, usize) = (255, 126);
/// The form of a wrapped key.
const FORM: &str = "4.0.0";
/// Nothing here depends on when a key was made.
const CREATED: &str = "2026-11-01T08:00:00Z";

/// The state of a key, by Key Protect's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It may be used.
    Active = 1,
    /// Somebody has disabled it.
    Suspended = 2,
    /// Its expiration date has passed: it unwraps.
    Deactivated = 3,
    /// It was deleted.
    Destroyed = 5,
}

/// One key.
#[derive(Debug)]
pub(super) struct RootKey {
    id: String,
    name: String,
    extractable: bool,
    pub(super) state: State,
    pub(super) ring: String,
    /// For so many wrappings the version before the newest is used.
    pub(super) lag: usize,
    rotated: bool,
    versions: Vec<(String, RandomizedNonceKey)>,
}

/// A wrapped key, inside its base64.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    ciphertext: String,
    iv: String,
    version: String,
    /// The version of the key that wrapped it.
    handle: String,
}

/// A refusal: status, code and words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal(u16, &'static str, &'static str);

impl Refusal {
    pub(super) const BAD_TOKEN: Self = Self(
        400,
        "BEARER_SUB_EXTRACTION_ERR",
        "Extracting the subject from the bearer token failed: Make sure the bearer token passed is the correct one",
    );
    pub(super) const UNAUTHORIZED: Self = Self(
        401,
        "UNAUTHORIZED_ERR",
        "Unauthorized: The user does not have access to the specified resource",
    );
    pub(super) const NO_INSTANCE: Self =
        Self(400, "INVALID_FIELD_ERR", "The header `bluemix-instance` is required");
    pub(super) const NO_KEY: Self = Self(404, "KEY_NOT_FOUND_ERR", "Key does not exist");
    pub(super) const BAD_BODY: Self = Self(400, "BAD_BODY_ERR", "Invalid body data was passed");
    const BAD_FIELD: Self = Self(400, "INVALID_FIELD_ERR", "A field is not as it must be");
    const CIPHERTEXT: Self = Self(
        422,
        "UNPROCESSABLE_CIPHERTEXT_ERR",
        "The provided ciphertext is invalid or corrupted",
    );
    const STATE: Self = Self(409, "KEY_ACTION_INVALID_STATE_ERR", "Key is not in a valid state");
    const EXPIRED: Self = Self(
        400,
        "KEY_EXPIRED_ERR",
        "The action could not be performed on the key because the key is expired",
    );
    const DELETED: Self = Self(
        410,
        "KEY_DELETED_ERR",
        "Key has already been deleted: Please delete references to this key",
    );
    const NO_ROOT: Self =
        Self(400, "KEY_ROOT_REQ_ERR", "Requested action can only be completed with a root key");
    const TOO_OFTEN: Self = Self(
        409,
        "KEY_ROTATION_NOT_PERMITTED",
        "This root key has been rotated within the last hour: Only one `rotate` action per hour is permitted",
    );

    pub(super) fn answer(self, operation: &str) -> Answer {
        let Self(status, code, message) = self;
        let text = format!(
            "{operation} could not be performed: Please see `reasons` for more details ({code})"
        );
        let reason = json!({
            "code": code, "message": message, "status": status,
            "moreInfo": "https://cloud.ibm.com/apidocs/key-protect",
        });
        let refused = json!({"errorMsg": text, "reasons": [reason]});
        Answer::json(status, &collection("error", refused))
    }
}

impl RootKey {
    pub(super) fn new(name: &str, extractable: bool) -> Self {
        let id = uuid();
        // The first version has the key's own id.
        let versions = vec![(id.clone(), material())];
        let (name, ring) = (name.to_owned(), "default".to_owned());
        let state = State::Active;
        Self { id, name, extractable, state, ring, lag: 0, rotated: false, versions }
    }

    pub(super) fn restored(id: &str, versions: &[(String, [u8; 32])]) -> Self {
        let version = |(id, material): &(String, [u8; 32])| (id.clone(), usable(material));
        let versions = versions.iter().map(version).collect();
        Self { id: id.to_owned(), versions, ..Self::new("kms", false) }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn newest(&self) -> &str {
        self.versions.last().map_or("", |(version, _)| version)
    }

    pub(super) fn rotate(&mut self) -> String {
        let version = uuid();
        self.versions.push((version.clone(), material()));
        version
    }

    pub(super) fn answer(&mut self, operation: &str, body: &Value) -> Result<Answer, Refusal> {
        use State::{Active, Deactivated, Destroyed, Suspended};
        match (operation, self.state) {
            ("metadata", _) => return Ok(Answer::json(200, &collection("key", self.described()))),
            (_, Destroyed) => return Err(Refusal::DELETED),
            ("wrap" | "rotate", _) if self.extractable => return Err(Refusal::NO_ROOT),
            ("wrap", Deactivated) => return Err(Refusal::EXPIRED),
            ("wrap" | "unwrap" | "rotate", Suspended) | ("enable", Active | Deactivated) => {
                return Err(Refusal::STATE);
            }
            ("disable", Suspended | Deactivated) => return Err(Refusal::STATE),
            _ => {}
        }
        let nothing = Answer { status: 204, headers: Vec::new(), body: String::new() };
        match operation {
            "wrap" => return self.wrap(body),
            "unwrap" => return self.unwrap(body),
            "rotate" if std::mem::replace(&mut self.rotated, true) => {
                return Err(Refusal::TOO_OFTEN);
            }
            "rotate" => drop(self.rotate()),
            "disable" => self.state = Suspended,
            "enable" => self.state = Active,
            "delete" => {
                self.state = Destroyed;
                return Ok(Answer::json(200, &collection("key", self.described())));
            }
            _ => return Err(Refusal::BAD_BODY),
        }
        Ok(nothing)
    }

    pub(super) fn described(&self) -> Value {
        let mut described = json!({
            "type": "application/vnd.ibm.kms.key+json", "id": self.id, "name": self.name,
            "state": self.state as u8, "extractable": self.extractable, "imported": false,
            "crn": format!("crn:v1:bluemix:public:kms:us-south:a/0:fake:key:{}", self.id),
            "keyRingID": self.ring, "algorithmType": "AES", "createdBy": "IBMid-0",
            "creationDate": CREATED, "lastUpdateDate": CREATED,
            "keyVersion": {"id": self.newest(), "creationDate": CREATED},
            "dualAuthDelete": {"enabled": false},
            "deleted": self.state == State::Destroyed,
        });
        if self.versions.len() > 1 {
            described["lastRotateDate"] = CREATED.into();
        }
        described
    }

    fn wrap(&mut self, body: &Value) -> Result<Answer, Refusal> {
        let aad = aad(body)?;
        let lags = self.lag > 0 && self.versions.len() > 1;
        self.lag = self.lag.saturating_sub(1);
        let (version, key) = &self.versions[self.versions.len() - 1 - usize::from(lags)];
        let given = body.get("plaintext").map(|text| text.as_str().ok_or(Refusal::BAD_BODY));
        // Without a plaintext, or with an empty one, Key Protect makes a data key.
        let plaintext = match given.transpose()?.filter(|text| !text.is_empty()) {
            Some(text) => STANDARD.decode(text).map_err(|_| Refusal::BAD_FIELD)?,
            None => random(32),
        };
        if plaintext.len() > MAX_PLAINTEXT {
            return Err(Refusal::BAD_FIELD);
        }
        let ciphertext = seal(version, key, &plaintext, &aad)?;
        let mut answer = json!({
            "ciphertext": ciphertext, "keyVersion": {"id": version, "creationDate": CREATED},
        });
        if body["plaintext"].as_str().is_none_or(str::is_empty) {
            answer["plaintext"] = STANDARD.encode(&plaintext).into();
        }
        Ok(Answer::json(200, &answer))
    }

    /// With the same key under its newest version, where that is another one.
    fn unwrap(&self, body: &Value) -> Result<Answer, Refusal> {
        let aad = aad(body)?;
        let text = body["ciphertext"].as_str().ok_or(Refusal::BAD_BODY)?;
        let (version, plaintext) = self.open(text, &aad).ok_or(Refusal::CIPHERTEXT)?;
        let mut answer = json!({
            "plaintext": STANDARD.encode(&plaintext),
            "keyVersion": {"id": version, "creationDate": CREATED},
        });
        if let Some((newest, key)) = self.versions.last().filter(|(newest, _)| *newest != version) {
            answer["ciphertext"] = seal(newest, key, &plaintext, &aad)?.into();
            answer["rewrappedKeyVersion"] = json!({"id": newest, "creationDate": CREATED});
        }
        Ok(Answer::json(200, &answer))
    }

    fn open(&self, text: &str, aad: &[u8]) -> Option<(String, Vec<u8>)> {
        let envelope: Envelope = serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()?;
        let (_, key) = self.versions.iter().find(|(version, _)| *version == envelope.handle)?;
        let nonce = Nonce::try_assume_unique_for_key(&STANDARD.decode(envelope.iv).ok()?).ok()?;
        let mut data = STANDARD.decode(envelope.ciphertext).ok()?;
        let opened = key.open_in_place(nonce, Aad::from(aad), &mut data).ok()?.to_vec();
        (envelope.version == FORM).then_some((envelope.handle, opened))
    }
}

fn seal(
    version: &str,
    key: &RandomizedNonceKey,
    plaintext: &[u8],
    aad: &[u8],
) -> Result<String, Refusal> {
    let mut data = plaintext.to_vec();
    let nonce = key.seal_in_place_append_tag(Aad::from(aad), &mut data);
    let nonce = nonce.map_err(|_| Refusal::BAD_FIELD)?;
    let nonce: &[u8; NONCE_LEN] = nonce.as_ref();
    let envelope = Envelope {
        ciphertext: STANDARD.encode(&data),
        iv: STANDARD.encode(nonce),
        version: FORM.to_owned(),
        handle: version.to_owned(),
    };
    serde_json::to_vec(&envelope).map(|text| STANDARD.encode(text)).map_err(|_| Refusal::BAD_BODY)
}

/// Texts and the borders between them.
fn aad(body: &Value) -> Result<Vec<u8>, Refusal> {
    let texts: Vec<String> = match body.get("aad") {
        None => Vec::new(),
        Some(texts) => serde_json::from_value(texts.clone()).map_err(|_| Refusal::BAD_BODY)?,
    };
    let (length, count) = MAX_AAD;
    if texts.len() > count || texts.iter().any(|text| text.chars().count() > length) {
        return Err(Refusal::BAD_FIELD);
    }
    let bound = texts
        .iter()
        .flat_map(|text| (text.len() as u64).to_be_bytes().into_iter().chain(text.bytes()));
    Ok(bound.collect())
}

/// One resource, as Key Protect wraps it up.
pub(super) fn collection(of: &str, resource: Value) -> Value {
    json!({
        "metadata": {
            "collectionType": format!("application/vnd.ibm.kms.{of}+json"), "collectionTotal": 1,
        },
        "resources": [resource],
    })
}

fn material() -> RandomizedNonceKey {
    usable(&random(32))
}

#[allow(clippy::expect_used)]
fn usable(material: &[u8]) -> RandomizedNonceKey {
    RandomizedNonceKey::new(&AES_256_GCM, material).expect("a key of 32 bytes")
}

/// Random bytes.
#[allow(clippy::expect_used)]
pub(super) fn random(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    aws_lc_rs::rand::fill(&mut bytes).expect("random bytes");
    bytes
}

/// A random id.
pub(super) fn uuid() -> String {
    let hex = hex(&random(16));
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}
