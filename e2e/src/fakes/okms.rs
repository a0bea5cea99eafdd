//! A fake of OVHcloud KMS (OKMS) by REST: one domain with service keys.
//!
//! What is real: certificates of clients, AES-256-GCM with the context in it, states and operations of
//! keys, pages of a list, the form of refusals and the categories of their codes. What is not: IAM's
//! policies (rights are named for each certificate), what stands in a JWE (the form here is that of
//! this fake; OKMS's own is not published), and which code just that refusal has.

mod keys;

use std::collections::{BTreeMap, BTreeSet};

use hyper::Method;
use serde_json::{Value, json};

use super::{Answer, Asked, Service};
use keys::{ServiceKey, uuid};

pub use keys::State;

/// What it takes to encrypt and decrypt with a key, and to find it by its label.
pub const USER: [&str; 3] = ["get", "encrypt", "decrypt"];
/// Keys on a page of a list, unless less is set.
const PAGE: usize = 100;

/// The service: one domain.
#[derive(Debug)]
pub struct Okms {
    /// The id of the domain.
    pub domain: String,
    /// Keys in the order in which they were made.
    keys: Vec<ServiceKey>,
    /// What the bearers of certificates may do, by the first name in them.
    rights: BTreeMap<String, BTreeSet<&'static str>>,
    /// Keys on a page of a list.
    pub page: usize,
}

/// A refusal: status, code and words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal(u16, u32, &'static str);

impl Refusal {
    pub(crate) const UNKNOWN_CLIENT: Self =
        Self(401, 50_475_011, "the client certificate is missing or not known");
    pub(crate) const FORBIDDEN: Self =
        Self(403, 16_924_673, "the identity is not authorized to perform this action");
    pub(crate) const NO_DOMAIN: Self = Self(404, 16_994_305, "domain not found");
    pub(crate) const NO_KEY: Self = Self(404, 17_190_913, "service key not found");
    pub(crate) const NO_PATH: Self = Self(404, 17_125_377, "not found");
    pub(crate) const BAD_ARGUMENT: Self = Self(400, 50_405_377, "a field is not as it must be");
    pub(crate) const BAD_STATE: Self =
        Self(400, 17_178_625, "the key is not in a state that allows this");
    pub(crate) const BAD_USAGE: Self = Self(400, 16_850_946, "the key is not for this operation");
    pub(crate) const BAD_CIPHERTEXT: Self = Self(400, 16_850_946, "decryption failed");
    const TOO_OFTEN: Self = Self(429, 50_425_858, "rate limit exceeded");
    const INTERNAL: Self = Self(500, 50_401_281, "internal error");
    const UNWELL: Self = Self(503, 50_425_858, "the service is not available");

    fn answer(self) -> Answer {
        let Self(status, code, text) = self;
        let body = json!({
            "error_id": format!("OKMS-{code:08X}"), "error_code": code, "errors": [text],
            "request_id": uuid(),
        });
        Answer::json(status, &body)
    }
}

impl Default for Okms {
    fn default() -> Self {
        let (keys, rights) = (Vec::new(), BTreeMap::new());
        Self { domain: uuid(), keys, rights, page: PAGE }
    }
}

impl Okms {
    /// Makes a symmetric key that encrypts and decrypts, and gives its id.
    pub fn create(&mut self, name: &str) -> String {
        self.insert(ServiceKey::new(name, "oct", &["encrypt", "decrypt"]))
    }

    /// Makes a key of another type or for other operations.
    pub fn create_other(&mut self, name: &str, of: &str, operations: &[&str]) -> String {
        self.insert(ServiceKey::new(name, of, operations))
    }

    /// Takes over a key of another time.
    pub fn restore(&mut self, id: &str, name: &str, material: &[u8; 32]) {
        self.insert(ServiceKey::restored(id, name, material));
    }

    fn insert(&mut self, key: ServiceKey) -> String {
        let id = key.id.clone();
        self.keys.push(key);
        id
    }

    /// A label is turned from one key to another.
    pub fn repoint(&mut self, label: &str, from: &str, to: &str) {
        self.rename(from, &format!("{label}-former"));
        self.rename(to, label);
    }

    /// Gives a key another label.
    pub fn rename(&mut self, id: &str, name: &str) {
        self.key(id).name = name.to_owned();
    }

    /// Puts a key into a state.
    pub fn set_state(&mut self, id: &str, state: State) {
        self.key(id).state = state;
    }

    #[allow(clippy::expect_used)]
    fn key(&mut self, id: &str) -> &mut ServiceKey {
        self.keys.iter_mut().find(|key| key.id == id).expect("a key that was made")
    }

    /// From now on the bearer of this certificate may do just this.
    pub fn allow(&mut self, client: &str, may: &[&'static str]) {
        self.rights.insert(client.to_owned(), may.iter().copied().collect());
    }

    /// A certificate is known no more.
    pub fn revoke(&mut self, client: &str) {
        self.rights.remove(client);
    }

    fn serve(&mut self, operation: &'static str, asked: &Asked) -> Result<Answer, Refusal> {
        let client = asked.client.as_ref().and_then(|name| self.rights.get(name));
        let rights = client.ok_or(Refusal::UNKNOWN_CLIENT)?;
        let needed = if operation == "list" { "get" } else { operation };
        if !rights.contains(needed) {
            return Err(Refusal::FORBIDDEN);
        }
        let parts: Vec<&str> = asked.path.split('/').skip(2).collect();
        if parts[0] != self.domain {
            return Err(Refusal::NO_DOMAIN);
        }
        match operation {
            "list" => return self.list(&asked.parameters()),
            "create" => {
                let key = ServiceKey::asked_for(&asked.json())?;
                let described = key.described();
                self.keys.push(key);
                return Ok(Answer::json(201, &described));
            }
            _ => {}
        }
        let at = self.keys.iter().position(|key| key.id == parts[3]).ok_or(Refusal::NO_KEY)?;
        if operation == "delete" {
            self.keys[at].is_deletable()?;
            self.keys.remove(at);
            return Ok(nothing());
        }
        self.keys[at].answer(operation, &asked.json())
    }

    /// A page of the keys in a state.
    fn list(&self, query: &BTreeMap<String, String>) -> Result<Answer, Refusal> {
        let state = query.get("state").map_or("active", String::as_str);
        let of_state = |key: &&ServiceKey| state == "all" || key.state.word() == state;
        let keys: Vec<Value> =
            self.keys.iter().filter(of_state).map(ServiceKey::described).collect();
        let number = |text: &str| text.parse::<usize>().map_err(|_| Refusal::BAD_ARGUMENT);
        let token = query.get("continuation-token");
        let start = token.map_or(Ok(0), |token| {
            number(token.strip_prefix("after/").ok_or(Refusal::BAD_ARGUMENT)?)
        })?;
        let max = query.get("max").map_or(Ok(PAGE), |max| number(max))?.min(self.page);
        let page: Vec<&Value> = keys.iter().skip(start).take(max).collect();
        let end = start + page.len();
        let answer = json!({
            "objects_list": page, "is_truncated": end < keys.len(),
            // Nothing that may stand in a query as it is.
            "continuation_token": format!("after/{end}"),
        });
        Ok(Answer::json(200, &answer))
    }
}

impl Service for Okms {
    fn operation(&self, asked: &Asked) -> Option<&'static str> {
        let parts: Vec<&str> = asked.path.split('/').skip(1).collect();
        let ["api", _, "v1", "servicekey", of_key @ ..] = parts.as_slice() else { return None };
        match (&asked.method, of_key) {
            (&Method::POST, []) => Some("create"),
            (&Method::GET, []) => Some("list"),
            (&Method::GET, [_]) => Some("get"),
            (&Method::PATCH, [_]) => Some("update"),
            (&Method::DELETE, [_]) => Some("delete"),
            (&Method::POST, [_, action]) => {
                let known = ["encrypt", "decrypt", "activate", "deactivate"];
                known.into_iter().find(|known| known == action)
            }
            _ => None,
        }
    }

    fn answer(&mut self, operation: &'static str, asked: &Asked) -> Answer {
        self.serve(operation, asked).unwrap_or_else(Refusal::answer)
    }

    fn unknown(&self, _: &Asked) -> Answer {
        Refusal::NO_PATH.answer()
    }
}

/// How OKMS refuses where too much is asked of it.
pub fn throttled() -> Answer {
    Refusal::TOO_OFTEN.answer()
}

/// What it says when it is not well.
pub fn unwell() -> [Answer; 2] {
    [Refusal::INTERNAL.answer(), Refusal::UNWELL.answer()]
}

/// An answer without a body.
pub(crate) fn nothing() -> Answer {
    Answer { status: 204, headers: Vec::new(), body: String::new() }
}
