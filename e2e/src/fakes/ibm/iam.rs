//! The part of IBM's IAM that gives out tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde_json::json;
use sidekey_core::hex;

use super::keys::{random, uuid};
use crate::fakes::Answer;

const API_KEY: &str = "urn:ibm:params:oauth:grant-type:apikey";
const COMPUTE: &str = "urn:ibm:params:oauth:grant-type:cr-token";

/// What somebody may do.
type Rights = BTreeSet<&'static str>;

/// Who has which credentials, and the tokens that were given.
#[derive(Debug)]
pub(super) struct Iam {
    pub(super) life: Duration,
    api_keys: BTreeMap<String, Rights>,
    /// By id, name and token of the compute resource.
    profiles: Vec<([String; 3], Rights)>,
    tokens: BTreeMap<String, (SystemTime, Rights)>,
}

/// What is known of the one who asks.
pub(super) enum Known<'a> {
    /// That is no token.
    Nobody,
    /// It has expired, or was revoked.
    Refused,
    /// It may do this.
    May(&'a Rights),
}

impl Default for Iam {
    fn default() -> Self {
        Self {
            life: Duration::from_secs(3600),
            api_keys: BTreeMap::new(),
            profiles: Vec::new(),
            tokens: BTreeMap::new(),
        }
    }
}

impl Iam {
    pub(super) fn api_key(&mut self, may: &[&'static str]) -> String {
        // Letters of both cases and digits, as they have.
        let key = format!("aB9_{}", hex(&random(20)));
        self.api_keys.insert(key.clone(), may.iter().copied().collect());
        key
    }

    pub(super) fn trust(&mut self, (id, name): (&str, &str), token: &str, may: &[&'static str]) {
        let known = [id, name, token].map(str::to_owned);
        self.profiles.push((known, may.iter().copied().collect()));
    }

    pub(super) fn delete_api_key(&mut self, key: &str) {
        self.api_keys.remove(key);
    }

    pub(super) fn revoke_all(&mut self) {
        self.tokens.clear();
    }

    pub(super) fn set_rights(&mut self, may: &[&'static str]) {
        let rights: Rights = may.iter().copied().collect();
        let profiles = self.profiles.iter_mut().map(|(_, rights)| rights);
        let tokens = self.tokens.values_mut().map(|(_, rights)| rights);
        for known in self.api_keys.values_mut().chain(profiles).chain(tokens) {
            known.clone_from(&rights);
        }
    }

    pub(super) fn who(&self, authorization: Option<&str>) -> Known<'_> {
        let token = authorization.and_then(|sent| sent.strip_prefix("Bearer "));
        match token.map(|token| self.tokens.get(token)) {
            None => Known::Nobody,
            Some(Some((until, rights))) if *until > SystemTime::now() => Known::May(rights),
            Some(_) => Known::Refused,
        }
    }

    pub(super) fn answer(&mut self, form: &BTreeMap<String, String>) -> Answer {
        let field = |name: &str| form.get(name).map(String::as_str).filter(|text| !text.is_empty());
        let rights = match field("grant_type") {
            Some(API_KEY) => match field("apikey").and_then(|key| self.api_keys.get(key)) {
                Some(rights) => rights,
                None => return refused("BXNIM0415E", "Provided API key could not be found."),
            },
            Some(COMPUTE) => {
                let (id, name) = (field("profile_id"), field("profile_name"));
                if id.is_none() && name.is_none() {
                    return refused("BXNIM0109E", "Property missing or empty: profile_id");
                }
                let trusted = self.profiles.iter().find(|([known, called, token], _)| {
                    id.is_none_or(|id| id == known)
                        && name.is_none_or(|name| name == called)
                        && field("cr_token") == Some(token)
                });
                match trusted {
                    Some((_, rights)) => rights,
                    None => return refused("BXNIM0407E", "The token is not trusted."),
                }
            }
            _ => return refused("BXNIM0109E", "Property missing or empty: grant_type"),
        };
        // As long as those of IAM, and of the same alphabet.
        let token = format!("eyJraWQiOiJ4In0.{}.{}", hex(&random(64)), hex(&random(32)));
        let until = SystemTime::now() + self.life;
        self.tokens.insert(token.clone(), (until, rights.clone()));
        let epoch = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Answer::json(
            200,
            &json!({
                "access_token": token, "refresh_token": "not_supported", "token_type": "Bearer",
                "expires_in": self.life.as_secs(), "expiration": epoch, "scope": "ibm openid",
            }),
        )
    }
}

fn refused(code: &str, message: &str) -> Answer {
    let context = json!({"requestId": uuid(), "requestType": "incoming.Identity_Token"});
    Answer::json(400, &json!({"errorCode": code, "errorMessage": message, "context": context}))
}
