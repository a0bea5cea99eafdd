//! Who asks: the endpoints that give tokens, and the files that lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{
    KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sidekey_core::{Secret, hex, time};

use super::{MACHINE, Refusal, unauthenticated};
use crate::fakes::{Answer, Asked};

/// How long tokens live unless told otherwise.
const LIFE: Duration = Duration::from_secs(3600);
const METADATA: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const METADATA_ROOT: &str = "/computeMetadata/v1/";
const KEY_ID: &str = "0123456789abcdef0123456789abcdef01234567";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The pool that federates identities of another issuer.
const AUDIENCE: &str =
    "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster";
const ISSUER: &str = "https://issuer.example";
/// What a person's credentials consist of.
const CLIENT: [&str; 2] = ["client.apps.googleusercontent.com", "clientSecret0123456789"];

/// Tokens, and who may have which.
pub struct Tokens {
    /// How long a new one lives.
    pub life: Duration,
    /// Accounts whose keys are taken.
    pub accounts: BTreeSet<String>,
    /// Refresh tokens, and whose they are.
    pub refresh: BTreeMap<String, String>,
    /// Who may be whom.
    pub impersonators: BTreeSet<(String, String)>,
    /// What the address of subject tokens answers.
    pub subject: String,
    given: BTreeMap<String, (String, Instant)>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            life: LIFE,
            accounts: BTreeSet::new(),
            refresh: BTreeMap::new(),
            impersonators: BTreeSet::new(),
            subject: String::new(),
            given: BTreeMap::new(),
        }
    }
}

pub(super) fn operation(asked: &Asked) -> Option<&'static str> {
    let path = asked.path.as_str();
    Some(match asked.method.as_str() {
        "POST" if path == "/token" => "token",
        "POST" if path == "/v1/token" => "exchange",
        "POST" if path.ends_with(":generateAccessToken") => "impersonate",
        "POST" if path == "/authenticate" => "gce",
        "GET" if path == "/subject" => "subject",
        "GET" if path == METADATA => "metadata",
        "GET" if path.starts_with(METADATA_ROOT) => "metadata-other",
        _ => return None,
    })
}

impl Tokens {
    /// A service account, and its key as IAM gives it out.
    pub fn service_account(&mut self, email: &str, url: &str) -> Value {
        self.accounts.insert(email.to_owned());
        let text = STANDARD.encode(der());
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        let lines = lines.join("\n");
        json!({
            "type": "service_account", "project_id": "example", "private_key_id": KEY_ID,
            "private_key": format!("-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\n"),
            "client_email": email, "client_id": "1", "token_uri": format!("{url}/token"),
        })
    }

    /// A person's credentials, as gcloud writes them.
    pub fn user(&mut self, email: &str, url: &str) -> Value {
        let token = format!("1//{}", random());
        self.refresh.insert(token.clone(), email.to_owned());
        json!({
            "type": "authorized_user", "client_id": CLIENT[0], "client_secret": CLIENT[1],
            "refresh_token": token, "token_uri": format!("{url}/token"),
        })
    }

    /// The configuration of a federated identity, whose token comes from `source`; it becomes
    /// `email`, if that is given.
    pub fn external(&self, source: &Value, email: Option<&str>, url: &str) -> Value {
        let mut file = json!({
            "type": "external_account", "audience": AUDIENCE,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": format!("{url}/v1/token"), "credential_source": source,
        });
        if let Some(email) = email {
            file["service_account_impersonation_url"] = impersonation(email, url).into();
        }
        file
    }

    /// The configuration of one who becomes `email`.
    pub fn impersonated(&self, source: &Value, email: &str, url: &str) -> Value {
        json!({
            "type": "impersonated_service_account", "delegates": [],
            "source_credentials": source,
            "service_account_impersonation_url": impersonation(email, url),
        })
    }

    /// A token of the issuer that the pool trusts, and the identity that it makes.
    pub fn subject_token(subject: &str, life: Duration) -> (String, String) {
        let claims = json!({
            "iss": ISSUER, "sub": subject, "aud": AUDIENCE, "iat": now(),
            "exp": now() + life.as_secs(),
        });
        (jwt(&claims), principal(subject))
    }

    /// All tokens end at once.
    pub fn revoke(&mut self) {
        self.given.clear();
    }

    /// Whose token it is, if it is good.
    pub(super) fn identity(&self, token: Option<&str>) -> Option<&str> {
        let (who, end) = self.given.get(token?)?;
        (*end > Instant::now()).then_some(who.as_str())
    }

    pub(super) fn answer(&mut self, operation: &'static str, asked: &Asked) -> Answer {
        match operation {
            "token" => self.token(asked),
            "exchange" => self.exchange(asked),
            "impersonate" => self.impersonate(asked),
            "gce" => self.gce(asked),
            "subject" => Answer { status: 200, headers: Vec::new(), body: self.subject.clone() },
            _ => self.metadata(operation, asked),
        }
    }

    /// oauth2.googleapis.com: a signed assertion, or a refresh token.
    fn token(&mut self, asked: &Asked) -> Answer {
        let form = asked.form();
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        let who = match field("grant_type") {
            "urn:ietf:params:oauth:grant-type:jwt-bearer" => {
                let audience =
                    format!("https://{}/token", asked.header("host").unwrap_or_default());
                match verified(field("assertion"), &audience) {
                    Some(claims) if claims["scope"].as_str().is_some_and(has_scope) => {
                        let email = claims["iss"].as_str().unwrap_or_default().to_owned();
                        Some(email).filter(|email| self.accounts.contains(email))
                    }
                    _ => None,
                }
            }
            "refresh_token" => {
                let known = [field("client_id"), field("client_secret")] == CLIENT;
                self.refresh.get(field("refresh_token")).filter(|_| known).cloned()
            }
            _ => return refused("unsupported_grant_type", "Invalid grant_type"),
        };
        match who {
            Some(who) => self.grant(&who, false),
            None => refused("invalid_grant", "Invalid JWT Signature."),
        }
    }

    /// sts.googleapis.com.
    fn exchange(&mut self, asked: &Asked) -> Answer {
        let form = asked.form();
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        let expected = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("subject_token_type", "urn:ietf:params:oauth:token-type:jwt"),
        ];
        if let Some((name, _)) = expected.iter().find(|(name, value)| field(name) != *value) {
            return refused("invalid_request", &format!("Invalid value for \"{name}\""));
        }
        if !has_scope(field("scope")) {
            return refused("invalid_scope", "Some requested scopes were invalid.");
        }
        if field("audience") != AUDIENCE {
            return refused(
                "invalid_target",
                "The target service indicated by the \"audience\" parameters is invalid.",
            );
        }
        match verified(field("subject_token"), AUDIENCE).filter(|claims| claims["iss"] == ISSUER) {
            Some(claims) => {
                self.grant(&principal(claims["sub"].as_str().unwrap_or_default()), true)
            }
            None => refused(
                "invalid_grant",
                "The ID Token is stale to sign-in, or its signature is wrong.",
            ),
        }
    }

    /// iamcredentials.googleapis.com.
    fn impersonate(&mut self, asked: &Asked) -> Answer {
        let Some(who) = self.identity(asked.bearer()).map(str::to_owned) else {
            return unauthenticated().answer();
        };
        let path = asked.path.trim_start_matches("/v1/projects/-/serviceAccounts/");
        let email = path.trim_end_matches(":generateAccessToken").to_owned();
        let body = asked.json();
        let scoped = body["scope"].as_array().is_some_and(|scopes| scopes.contains(&SCOPE.into()));
        if !self.impersonators.contains(&(who, email.clone())) || !scoped {
            let text = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).";
            return Refusal(403, "PERMISSION_DENIED", text.into(), "IAM_PERMISSION_DENIED")
                .answer();
        }
        self.timed(&email)
    }

    /// What `token-url` in the configuration of GCE's cloud provider leads to.
    fn gce(&mut self, asked: &Asked) -> Answer {
        match self.identity(asked.bearer()) {
            Some(MACHINE) if asked.json()["name"] == "cluster" => self.timed("cluster"),
            _ => unauthenticated().answer(),
        }
    }

    fn timed(&mut self, who: &str) -> Answer {
        let (token, life) = (self.issue(who), self.life);
        let end = time(SystemTime::now() + life);
        Answer::json(200, &json!({"accessToken": token, "expireTime": end}))
    }

    fn metadata(&mut self, operation: &str, asked: &Asked) -> Answer {
        let plain = |status, body: &str| {
            let headers = vec![("metadata-flavor", "Google".to_owned())];
            Answer { status, headers, body: body.to_owned() }
        };
        if asked.header("metadata-flavor") != Some("Google") {
            return plain(403, "Missing Metadata-Flavor:Google header.");
        }
        if operation == "metadata-other" {
            return plain(404, "not found");
        }
        self.grant(MACHINE, false).with("metadata-flavor", "Google")
    }

    fn grant(&mut self, who: &str, exchanged: bool) -> Answer {
        let mut answer = json!({
            "access_token": self.issue(who), "expires_in": self.life.as_secs(), "token_type": "Bearer",
        });
        if exchanged {
            answer["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token".into();
        }
        Answer::json(200, &answer)
    }

    fn issue(&mut self, who: &str) -> String {
        let token = format!("ya29.{}", random());
        self.given.insert(token.clone(), (who.to_owned(), Instant::now() + self.life));
        token
    }
}

/// Whether one of some scopes is the one that Cloud KMS needs.
fn has_scope(scopes: &str) -> bool {
    scopes.split(' ').any(|scope| scope == SCOPE)
}

fn impersonation(email: &str, url: &str) -> String {
    format!("{url}/v1/projects/-/serviceAccounts/{email}:generateAccessToken")
}

fn principal(subject: &str) -> String {
    format!("principal:{AUDIENCE}/subject/{subject}")
}

fn refused(error: &str, text: &str) -> Answer {
    Answer::json(400, &json!({"error": error, "error_description": text}))
}

fn random() -> String {
    let bytes = Secret::random(24).map(|secret| hex(secret.expose()));
    // Of both cases, as theirs are.
    format!("A0{}zZ", bytes.unwrap_or_default())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The key of all accounts, and of the issuer: making one takes a while.
#[allow(clippy::expect_used)]
fn key() -> &'static KeyPair {
    static KEY: OnceLock<KeyPair> = OnceLock::new();
    KEY.get_or_init(|| KeyPair::generate(KeySize::Rsa2048).expect("an RSA key"))
}

#[allow(clippy::expect_used)]
fn der() -> Vec<u8> {
    let der: Pkcs8V1Der<'static> = key().as_der().expect("PKCS#8");
    der.as_ref().to_vec()
}

#[allow(clippy::expect_used)]
fn jwt(claims: &Value) -> String {
    let head = json!({"alg": "RS256", "typ": "JWT", "kid": KEY_ID});
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(&head), encode(claims));
    let mut signature = vec![0; key().public_modulus_len()];
    let random = SystemRandom::new();
    key().sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature).expect("it signs");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// The claims of a JWT that is good now and for this audience.
fn verified(jwt: &str, audience: &str) -> Option<Value> {
    let (text, signature) = jwt.rsplit_once('.')?;
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key().public_key().as_ref());
    public.verify(text.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
    let part = |part: &str| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
    let (head, claims) = text.split_once('.')?;
    let (head, claims): (Value, Value) = (part(head)?, part(claims)?);
    let [from, until] = ["iat", "exp"].map(|name| claims[name].as_u64());
    let (from, until) = (from?, until?);
    let timely = from <= now() + 60 && until > now() && until - from <= 3600;
    let sound = head["alg"] == "RS256" && head["kid"] == KEY_ID && claims["aud"] == audience;
    (timely && sound).then_some(claims)
}
