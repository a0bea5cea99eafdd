//! The fake of Vault: a login by AppRole and one key of a transit engine.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Answer, DECRYPT, ENCRYPT};

/// The key that it has, in the engine at `transit`.
pub const KEY: &str = "bench";
/// Who may log in.
pub const ROLE_ID: &str = "fake-role-id";
/// What proves it.
pub const SECRET_ID: &str = "fake-secret-id";

const TOKEN: &str = "fake-token";
const TOKEN_HEADER: &str = "x-vault-token";

/// When the key's only version was made.
const MADE: u64 = 1_700_000_000;

/// A ciphertext is as long as that of Vault: nonce, plaintext, tag.
const PREFIX: &str = "vault:v1:";
const NONCE: &[u8; 12] = b"fake nonce..";
const TAG: &[u8; 16] = b"fake tag........";

#[derive(Deserialize)]
struct Login<'a> {
    role_id: &'a str,
    secret_id: &'a str,
}

#[derive(Deserialize)]
struct Encrypt<'a> {
    plaintext: &'a str,
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    ciphertext: &'a str,
}

#[derive(Deserialize)]
struct Decrypt<'a> {
    #[serde(borrow)]
    ciphertext: Option<&'a str>,
    #[serde(borrow)]
    batch_input: Option<Vec<Wrapped<'a>>>,
}

#[derive(Serialize)]
struct Data<T> {
    data: T,
}

#[derive(Serialize)]
struct Encrypted {
    ciphertext: String,
    key_version: u32,
}

#[derive(Serialize)]
struct Decrypted {
    plaintext: String,
}

#[derive(Serialize)]
struct Batch {
    batch_results: Vec<Decrypted>,
}

pub(super) fn answer(head: &Parts, body: &[u8]) -> Answer {
    let path = head.uri.path().strip_prefix("/v1/").unwrap_or_default();
    if path == "auth/approle/login" {
        return login(body).unwrap_or_else(|| refused(400, "invalid role or secret ID"));
    }
    if head.headers.get(TOKEN_HEADER).is_none_or(|token| token != TOKEN) {
        return refused(403, "permission denied");
    }
    let Some((call, KEY)) = path.strip_prefix("transit/").and_then(|path| path.split_once('/'))
    else {
        return refused(404, "the fake has no such path");
    };
    let done = match call {
        "keys" if head.method == Method::GET => Some(read()),
        "encrypt" => encrypt(body),
        "decrypt" => decrypt(body),
        _ => None,
    };
    done.unwrap_or_else(|| refused(400, "invalid request"))
}

fn refused(status: u16, why: &str) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or_default();
    Answer::refused(status, &json!({"errors": [why]}))
}

fn login(body: &[u8]) -> Option<Answer> {
    let Login { role_id, secret_id } = serde_json::from_slice(body).ok()?;
    (role_id == ROLE_ID && secret_id == SECRET_ID).then(|| {
        let auth = json!({"client_token": TOKEN, "lease_duration": 3600, "renewable": false});
        Answer::good("Login", &json!({"auth": auth}))
    })
}

fn read() -> Answer {
    let key = json!({
        "name": KEY,
        "type": "aes256-gcm96",
        "latest_version": 1,
        "min_decryption_version": 1,
        "min_encryption_version": 0,
        "keys": {"1": MADE},
    });
    Answer::good("ReadKey", &Data { data: key })
}

fn encrypt(body: &[u8]) -> Option<Answer> {
    let asked: Encrypt<'_> = serde_json::from_slice(body).ok()?;
    let mut sealed = NONCE.to_vec();
    sealed.extend(STANDARD.decode(asked.plaintext).ok()?);
    sealed.extend_from_slice(TAG);
    let ciphertext = format!("{PREFIX}{}", STANDARD.encode(sealed));
    Some(Answer::good(ENCRYPT, &Data { data: Encrypted { ciphertext, key_version: 1 } }))
}

/// A batch is one call.
fn decrypt(body: &[u8]) -> Option<Answer> {
    let asked: Decrypt<'_> = serde_json::from_slice(body).ok()?;
    if let Some(batch) = asked.batch_input {
        let results = batch.iter().map(|one| unwrap(one.ciphertext));
        let data = Batch { batch_results: results.collect::<Option<_>>()? };
        return Some(Answer::good(DECRYPT, &Data { data }));
    }
    Some(Answer::good(DECRYPT, &Data { data: unwrap(asked.ciphertext?)? }))
}

fn unwrap(ciphertext: &str) -> Option<Decrypted> {
    let sealed = STANDARD.decode(ciphertext.strip_prefix(PREFIX)?).ok()?;
    let plaintext = sealed.strip_prefix(NONCE)?.strip_suffix(TAG)?;
    Some(Decrypted { plaintext: STANDARD.encode(plaintext) })
}
