//! Tokens of service accounts, minted by the API server that a kubeconfig names and kept fresh in
//! a file.
//!
//! A provider of a hosted control plane logs in at its vendor with a token of the hosted cluster.
//! Who mints it runs beside the provider, and starts before the API server that it asks: so it
//! waits, however long that takes, and whoever reads the file finds a whole token or none.
//!
//! It refuses to give up, unless it was asked for one token only, and to write a token that is
//! not for the audience that was asked for.
//!
//! The one invariant: **the file is never without a token once it has one**. It is replaced in one
//! step, well before the old token ends.

mod keep;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::Uri;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, Config};
use sidekey_core::Secret;

use crate::cluster::{Access, redirected, refused};
use crate::model::{Account, names};
use crate::{Error, files};

pub use keep::{Event, Pace, keep, once};

/// For one call.
const CALL: Duration = Duration::from_secs(10);
/// Its owner and its owner's group may read it.
const MODE: u32 = 0o640;

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Order {
    /// How the API server is reached: looked at anew for each token.
    pub access: Access,
    /// Where it is, if not where the kubeconfig says.
    pub server: Option<Uri>,
    /// Whose token.
    pub account: Account,
    /// Whom it is for.
    pub audience: String,
    /// How long it is asked for.
    pub expiry: Duration,
    /// Where it goes.
    pub file: PathBuf,
    /// Whether to make a service account that is not there.
    pub create: bool,
}

/// A token that is in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Until when it is good, by the API server's clock.
    pub expires: SystemTime,
    /// How long it is good from when it was got.
    pub life: Duration,
    /// Whether its service account had to be made.
    pub created: bool,
}

/// Why there is no token.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub error: Error,
    /// Whether it stays so until somebody changes something.
    pub lasting: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, lasting: false }
    }
}

impl Order {
    /// Gets a token, and puts it in the place of the one that is there.
    pub async fn write(&self) -> Result<Written, Failure> {
        let (token, written) = self.mint(&self.client().await?).await?;
        files::replace(&self.file, token.expose(), MODE)?;
        Ok(written)
    }

    async fn client(&self) -> Result<Client, Error> {
        let mut config: Config = self.access.config().await?;
        if let Some(server) = &self.server {
            config = redirected(&config, server);
        }
        config.connect_timeout = Some(CALL);
        config.read_timeout = Some(CALL);
        let server = config.cluster_url.to_string();
        Client::try_from(config).map_err(|error| {
            Error::failed(format!("cannot make a client for {server}")).because(error)
        })
    }

    async fn mint(&self, client: &Client) -> Result<(Secret, Written), Failure> {
        let api: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.account.namespace);
        let mut created = false;
        let answer = match self.ask(&api).await {
            Err(kube::Error::Api(status)) if status.code == 404 && self.create => {
                created = self.make_account(&api).await?;
                self.ask(&api).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| self.refusal(error))?;
        let (token, expires, life) = self.check(answer)?;
        Ok((token, Written { expires, life, created }))
    }

    async fn ask(&self, api: &Api<ServiceAccount>) -> Result<TokenRequest, kube::Error> {
        let spec = TokenRequestSpec {
            audiences: Some(vec![self.audience.clone()]),
            expiration_seconds: i64::try_from(self.expiry.as_secs()).ok(),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        api.create_token_request(&self.account.name, &PostParams::default(), &request).await
    }

    /// Whether it was us who made it.
    async fn make_account(&self, api: &Api<ServiceAccount>) -> Result<bool, Error> {
        let name = Some(self.account.name.clone());
        let metadata = ObjectMeta { name, ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        let manager = Some(names::FIELD_MANAGER.to_owned());
        let parameters = PostParams { field_manager: manager, ..PostParams::default() };
        match api.create(&parameters, &account).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => {
                Err(refused(format!("cannot create service account {}", self.account), error))
            }
        }
    }

    fn refusal(&self, error: kube::Error) -> Failure {
        let code = match &error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        };
        let what = format!(
            "no token of service account {} for audience {:?}",
            self.account, self.audience
        );
        match code {
            400 | 422 => {
                let error = Error::usage(what).because(text_of(error)).hint(
                    "the API server refuses what was asked for: see --token-audience and --expiry",
                );
                Failure { error, lasting: true }
            }
            404 => Error::failed(what).because(text_of(error)).hint("make the account").into(),
            _ => refused(what, error).into(),
        }
    }

    /// A token for another audience would be refused by the vendor, with less to say.
    fn check(&self, answer: TokenRequest) -> Result<(Secret, SystemTime, Duration), Failure> {
        let (spec, status) = (answer.spec.unwrap_or_default(), answer.status.unwrap_or_default());
        let Some(token) = status.token.filter(|token| !token.is_empty()) else {
            let text = format!("the API server's answer has no token of {}", self.account);
            return Err(Error::failed(text).into());
        };
        let token = Secret::new(token.into_bytes());
        let audiences = spec.audiences.unwrap_or_default();
        if !audiences.contains(&self.audience) {
            let text = format!(
                "the API server gave a token of {} for {:?}, and not for audience {:?}",
                self.account, audiences, self.audience
            );
            let hint = "name an audience that it gives tokens for with --token-audience";
            return Err(Failure { error: Error::usage(text).hint(hint), lasting: true });
        }
        let expires = status.expiration_timestamp.map(|time| SystemTime::from(time.0));
        let left = expires.and_then(|end| end.duration_since(SystemTime::now()).ok());
        let granted = spec.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let granted = granted.map(Duration::from_secs);
        // The clocks may differ; the shorter one is right enough.
        let life = left.into_iter().chain(granted).min().unwrap_or(self.expiry);
        let expires = expires.unwrap_or_else(|| SystemTime::now() + life);
        Ok((token, expires, life))
    }
}

fn text_of(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}
