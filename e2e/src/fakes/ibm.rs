//! A fake of IBM Key Protect and of the part of IAM that gives out its tokens.
//!
//! What a wrapped key looks like, and how additional data goes into it, is not published: the form
//! here is that of this fake, with AES-GCM in it. Requests, answers, codes and states are Key
//! Protect's as far as its documentation and its own client tell.

mod iam;
mod keys;
mod recorded;

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::{Answer, Asked, Service};

pub use keys::State;
pub use recorded::Conversation;

use iam::{Iam, Known};
use keys::{Refusal, RootKey, uuid};

/// What a caller may do with an instance: the role Reader has the first three.
pub const READER: [&str; 3] = ["metadata", "wrap", "unwrap"];

/// The fake: one IAM and any number of instances.
#[derive(Debug, Default)]
pub struct KeyProtect {
    iam: Iam,
    /// Keys by instance and id.
    keys: BTreeMap<(String, String), RootKey>,
    /// The headers of the last call of each operation; of the token its kind alone.
    headers: BTreeMap<&'static str, BTreeMap<String, String>>,
}

impl KeyProtect {
    /// Makes a root key in an instance, and gives its id.
    pub fn create(&mut self, instance: &str) -> String {
        self.insert(instance, RootKey::new("kms", false))
    }

    /// Puts a root key there that has been before, with the ids and the material of its versions.
    pub fn restore(&mut self, instance: &str, id: &str, versions: &[(String, [u8; 32])]) {
        self.insert(instance, RootKey::restored(id, versions));
    }

    /// Makes a key that cannot wrap.
    pub fn create_standard(&mut self, instance: &str) -> String {
        self.insert(instance, RootKey::new("password", true))
    }

    /// The id of a new instance.
    pub fn instance(&self) -> String {
        uuid()
    }

    fn insert(&mut self, instance: &str, key: RootKey) -> String {
        let id = key.id().to_owned();
        self.keys.insert((instance.to_owned(), id.clone()), key);
        id
    }

    /// A new version of a key; gives its id.
    pub fn rotate(&mut self, id: &str) -> String {
        self.key(id).rotate()
    }

    /// Puts a key into a state.
    pub fn set_state(&mut self, id: &str, state: State) {
        self.key(id).state = state;
    }

    /// Moves a key into a key ring.
    pub fn set_ring(&mut self, id: &str, ring: &str) {
        self.key(id).ring = ring.to_owned();
    }

    /// The id of a key's newest version.
    pub fn newest(&mut self, id: &str) -> String {
        self.key(id).newest().to_owned()
    }

    /// The newest version is not used for the next wrappings: not all servers know it yet.
    pub fn lag(&mut self, id: &str, wrappings: usize) {
        self.key(id).lag = wrappings;
    }

    #[allow(clippy::expect_used)]
    fn key(&mut self, id: &str) -> &mut RootKey {
        let mut found = self.keys.iter_mut().filter(|((_, known), _)| known == id);
        found.next().expect("a key that was made").1
    }

    /// A new API key of a service ID that may do this, everywhere.
    pub fn api_key(&mut self, may: &[&'static str]) -> String {
        self.iam.api_key(may)
    }

    /// Lets a trusted profile be taken by this token of a compute resource.
    pub fn trust(&mut self, profile: (&str, &str), token: &str, may: &[&'static str]) {
        self.iam.trust(profile, token, may);
    }

    /// An API key is gone; tokens that it gave live on.
    pub fn delete_api_key(&mut self, key: &str) {
        self.iam.delete_api_key(key);
    }

    /// All tokens that were given are refused from now on.
    pub fn revoke_tokens(&mut self) {
        self.iam.revoke_all();
    }

    /// How long tokens live that are given from now on.
    pub fn set_token_life(&mut self, life: Duration) {
        self.iam.life = life;
    }

    /// From now on all service IDs and profiles may do this alone.
    pub fn set_rights(&mut self, may: &[&'static str]) {
        self.iam.set_rights(may);
    }

    /// The headers of the last call of an operation, in lower case.
    pub fn headers(&self, operation: &str) -> BTreeMap<String, String> {
        self.headers.get(operation).cloned().unwrap_or_default()
    }

    fn serve(&mut self, operation: &'static str, asked: &Asked) -> Result<Answer, Refusal> {
        match self.iam.who(asked.header("authorization")) {
            Known::Nobody => return Err(Refusal::BAD_TOKEN),
            Known::Refused => return Err(Refusal::UNAUTHORIZED),
            Known::May(rights) if !rights.contains(operation) => return Err(Refusal::UNAUTHORIZED),
            Known::May(_) => {}
        }
        let instance = asked.header("bluemix-instance").ok_or(Refusal::NO_INSTANCE)?.to_owned();
        if operation == "create" {
            return self.create_asked(&instance, asked);
        }
        let id = asked.path.split('/').nth(4).unwrap_or_default();
        let found = self.keys.get_mut(&(instance, id.to_owned()));
        let ring = asked.header("x-kms-key-ring");
        let found = found.filter(|key| ring.is_none_or(|ring| ring == key.ring));
        let key = found.ok_or(Refusal::NO_KEY)?;
        key.answer(operation, &asked.json())
    }

    fn create_asked(&mut self, instance: &str, asked: &Asked) -> Result<Answer, Refusal> {
        let body = asked.json();
        let wanted = &body["resources"][0];
        let name = wanted["name"].as_str().ok_or(Refusal::BAD_BODY)?;
        let extractable = wanted["extractable"].as_bool().unwrap_or(true);
        let key = RootKey::new(name, extractable);
        let answer = keys::collection("key", key.described());
        self.insert(instance, key);
        Ok(Answer::json(201, &answer))
    }
}

impl Service for KeyProtect {
    fn operation(&self, asked: &Asked) -> Option<&'static str> {
        let parts: Vec<&str> = asked.path.split('/').skip(1).collect();
        match (&asked.method, parts.as_slice()) {
            (&Method::POST, ["identity" | "oidc", "token"]) => Some("token"),
            (&Method::POST, ["api", "v2", "keys"]) => Some("create"),
            (&Method::DELETE, ["api", "v2", "keys", _]) => Some("delete"),
            (&Method::GET, ["api", "v2", "keys", _, "metadata"]) => Some("metadata"),
            (&Method::POST, ["api", "v2", "keys", _, "actions", action]) => {
                let known = ["wrap", "unwrap", "rotate", "disable", "enable"];
                known.into_iter().find(|known| known == action)
            }
            _ => None,
        }
    }

    fn answer(&mut self, operation: &'static str, asked: &Asked) -> Answer {
        let sent = asked.headers.iter().filter_map(|(name, value)| {
            let value = value.to_str().ok()?;
            let secret = name.as_str() == "authorization";
            let value = if secret { value.split(' ').next().unwrap_or_default() } else { value };
            Some((name.as_str().to_owned(), value.to_owned()))
        });
        self.headers.insert(operation, sent.collect());
        if operation == "token" {
            return self.iam.answer(&asked.form());
        }
        self.serve(operation, asked).unwrap_or_else(|refusal| refusal.answer(operation))
    }

    fn unknown(&self, _: &Asked) -> Answer {
        Refusal::NO_KEY.answer("find")
    }
}

/// How Key Protect refuses where too much is asked of it.
pub fn throttled(seconds: u32) -> Answer {
    let text = "Too Many Requests: Rate limit exceeded";
    let body = json!({
        "metadata": {"collectionType": "application/vnd.ibm.kms.error+json", "collectionTotal": 1},
        "resources": [{"errorMsg": text}],
    });
    Answer::json(429, &body).with("retry-after", seconds.to_string())
}
