//! The client of one account, region and endpoint.
//!
//! Keys whose settings and credentials are equal share a client, with its connections, its
//! session and its budget of retries: memory is counted here. They share nothing else, and no
//! call waits for another one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_kms::config::endpoint::{DefaultResolver, Params, ResolveEndpoint};
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_types::service_config::ServiceConfigKey;
use sidekey_core::{Error, Files, Kind, Secret};
use tokio::time::{Instant, timeout_at};

use crate::calls::{self, Decrypted, Encrypted, Metadata};
use crate::config::{Config, Credentials, Settings};
use crate::environment::Environment;
use crate::http::Http;
use crate::http::connect::Ways;
use crate::http::proxy::Proxy;
use crate::http::tls;
use crate::identity::Identity;
use crate::retries::Budget;
use crate::shared::Shared;
use crate::wire::{Refusal, Wire};
use crate::{refusal, sources};

/// A try gets this part of the time that is left, so that there is some for another one.
const SHARE: f32 = 0.6;

/// What tells one client from another: the digest is that of all their files.
#[derive(PartialEq)]
struct Making {
    region: Option<String>,
    settings: Settings,
    credentials: Credentials,
    files: sidekey_core::Digest,
}

/// What tells one set of connections from another.
#[derive(PartialEq)]
struct Trust {
    bundle: Option<[u8; 32]>,
    connect_timeout: Duration,
    proxy: Option<String>,
}

/// The clients in use, found again by what they are made of.
static CLIENTS: Shared<Making, Client> = Shared::new();
/// The connections in use: they outlive the credentials.
static CONNECTIONS: Shared<Trust, Http> = Shared::new();

/// A client of AWS KMS.
pub(crate) struct Client {
    pub(crate) wire: Wire,
    identity: Identity,
    budget: Option<Budget>,
    attempt: Option<Duration>,
    region: String,
}

/// A call that failed, and what the caller may want to know of it.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// A permission is missing, and nothing else.
    pub(crate) lacks_permission: bool,
    /// Another key than the one that was named wrapped the data.
    pub(crate) wrong_key: bool,
    /// AWS is at it already.
    pub(crate) under_way: bool,
}

/// One of the calls, on one object.
#[derive(Clone, Copy)]
struct Deed<'a> {
    action: &'static str,
    target: &'static str,
    object: &'a str,
    deadline: Instant,
}

impl Client {
    /// A client for `config`: one in use if there is one, or a new one.
    pub(crate) async fn shared(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        let making = Making {
            region: config.region(),
            settings: config.settings(),
            credentials: config.credentials(),
            files: files.digest(),
        };
        if let Some(client) = CLIENTS.find(&making) {
            return Ok(client);
        }
        let client = Arc::new(Self::new(config, files).await?);
        // Another key may have made one meanwhile: then this one is used by one key alone.
        CLIENTS.keep(making, &client);
        Ok(client)
    }

    async fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let settings = config.settings();
        let http = connections(config, files)?;
        let sdk = load(config, files, &http).await;
        let region = sources::region(&sdk)?.to_string();
        let identity = Identity::new(sources::source(config, files, &sdk, &http).await?);
        let url = endpoint(&settings, &sdk, &region).await?;
        Ok(Self {
            wire: Wire::new(http, &url, &region, &settings)?,
            identity,
            budget: settings.retry_tokens().map(Budget::new),
            attempt: settings.attempt_timeout(),
            region,
        })
    }

    /// The region that it speaks to.
    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// Who we are.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// `kms:DescribeKey`.
    pub(crate) async fn describe(
        &self,
        object: &str,
        deadline: Instant,
    ) -> Result<Metadata, Failure> {
        let (action, target) = ("kms:DescribeKey", "TrentService.DescribeKey");
        let deed = Deed { action, target, object, deadline };
        let answer = self.run(deed, || calls::describe(object)).await?;
        calls::described(answer.expose()).ok_or_else(|| deed.unreadable())
    }

    /// A call that names a key and nothing else.
    pub(crate) async fn on_key(
        &self,
        (action, target): (&'static str, &'static str),
        object: &str,
        deadline: Instant,
    ) -> Result<Secret, Failure> {
        let deed = Deed { action, target, object, deadline };
        self.run(deed, || calls::describe(object)).await
    }

    /// `kms:Encrypt`.
    pub(crate) async fn encrypt(
        &self,
        object: &str,
        plaintext: &[u8],
        context: &BTreeMap<String, String>,
        deadline: Instant,
    ) -> Result<Encrypted, Failure> {
        let (action, target) = ("kms:Encrypt", "TrentService.Encrypt");
        let deed = Deed { action, target, object, deadline };
        let answer = self.run(deed, || calls::encrypt(object, plaintext, context)).await?;
        calls::encrypted(answer.expose()).ok_or_else(|| deed.unreadable())
    }

    /// `kms:Decrypt`; without a key the ciphertext itself names it.
    pub(crate) async fn decrypt(
        &self,
        key: Option<&str>,
        blob: &[u8],
        context: &BTreeMap<String, String>,
        deadline: Instant,
    ) -> Result<Decrypted, Failure> {
        let (action, target) = ("kms:Decrypt", "TrentService.Decrypt");
        let object = key.unwrap_or("the key that the data names");
        let deed = Deed { action, target, object, deadline };
        let answer = self.run(deed, || calls::decrypt(key, blob, context)).await?;
        calls::decrypted(answer.expose()).ok_or_else(|| deed.unreadable())
    }

    /// Makes a call with credentials that are good, and again with new ones if AWS says that
    /// they are not, or at another time if it says that ours is wrong.
    async fn run(
        &self,
        deed: Deed<'_>,
        body: impl Fn() -> Option<Secret>,
    ) -> Result<Secret, Failure> {
        let work = async {
            let (first, used) = self.once(deed, &body).await?;
            let Err(refusal) = &first else { return Ok(first) };
            if refusal.code().is_some_and(refusal::concerns_credentials) {
                self.identity.refused(Some(&used)).await?;
            } else if !refusal.is_of_clock() {
                return Ok(first);
            }
            Ok((self.once(deed, &body).await?).0)
        };
        let limit = self.limit(deed.deadline);
        let result = timeout_at(limit, work)
            .await
            .unwrap_or_else(|_| Err(Failure::from(refusal::slow(deed.action, deed.object))));
        match result {
            Ok(Ok(answer)) => {
                if let Some(budget) = &self.budget {
                    budget.succeeded();
                }
                Ok(answer)
            }
            Ok(Err(refusal)) => Err(self.counted(deed.failure(refusal))),
            Err(failure) => Err(self.counted(failure)),
        }
    }

    /// One request, and the access key that it was made with.
    async fn once(
        &self,
        deed: Deed<'_>,
        body: &impl Fn() -> Option<Secret>,
    ) -> Result<(Result<Secret, Refusal>, String), Failure> {
        let credentials = self.identity.credentials().await?;
        let body = body().ok_or_else(|| {
            Error::new(Kind::Bug, format!("{} cannot be written as JSON", deed.action))
        })?;
        let answer = self.wire.call(deed.target, body, &credentials).await;
        Ok((answer, credentials.access_key_id().to_owned()))
    }

    fn limit(&self, deadline: Instant) -> Instant {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        now + self.attempt.unwrap_or_else(|| left.mul_f32(SHARE))
    }

    fn counted(&self, failure: Failure) -> Failure {
        match &self.budget {
            Some(budget) => Failure { error: budget.failed(failure.error), ..failure },
            None => failure,
        }
    }
}

impl Deed<'_> {
    fn failure(&self, refusal: Refusal) -> Failure {
        let code = refusal.code().unwrap_or_default();
        let (lacks_permission, wrong_key) =
            (refusal::lacks_permission(code), code == "IncorrectKeyException");
        let under_way = code == "ConflictException";
        let renewable = refusal::concerns_credentials(code);
        let error = refusal::explain(self.action, self.object, refusal);
        let error = if renewable { error.after_reload() } else { error };
        Failure { error, lacks_permission, wrong_key, under_way }
    }

    fn unreadable(&self) -> Failure {
        let what = format!("{} on {} was answered with something else", self.action, self.object);
        Error::new(Kind::Unavailable, what)
            .with_hint("see whether the endpoint is AWS KMS and whether a proxy stands between")
            .into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, lacks_permission: false, wrong_key: false, under_way: false }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// What the SDK makes of the environment, the profile and our settings.
async fn load(config: &Config, files: &Files, http: &Http) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http.clone())
        .sleep_impl(TokioSleep::new());
    if let Ok(name) = AppName::new(format!("sidekey-{}", sidekey_core::VERSION)) {
        loader = loader.app_name(name);
    }
    if let Some(region) = config.region() {
        loader = loader.region(Region::new(region));
    }
    let credentials = config.credentials();
    if credentials.has_files() {
        let mut contents = EnvConfigFiles::builder();
        let both: [(_, &Option<PathBuf>); 2] = [
            (EnvConfigFileKind::Config, &credentials.config_file),
            (EnvConfigFileKind::Credentials, &credentials.shared_credentials_file),
        ];
        for (kind, path) in both {
            let secret = path.as_deref().and_then(|path| files.secret(path).ok());
            if let Some(text) = secret.and_then(|secret| secret.as_text()) {
                contents = contents.with_contents(kind, text);
            }
        }
        loader = loader.profile_files(contents.build());
        loader = loader.profile_name(credentials.profile.as_deref().unwrap_or("default"));
    }
    loader.load().await
}

/// Where KMS is: as the settings say, or variables and profile, or AWS's own rules.
async fn endpoint(settings: &Settings, sdk: &SdkConfig, region: &str) -> Result<String, Error> {
    let bad = |error: &dyn std::error::Error| {
        Error::new(Kind::Config, format!("there is no endpoint of KMS for {region}: {error}"))
            .with_hint("check kek.region, settings.fips and settings.dualstack")
    };
    let key = ServiceConfigKey::builder()
        .service_id("KMS")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .map_err(|error| bad(&error))?;
    let named = || sdk.service_config().and_then(|service| service.load_config(key));
    let url = settings.endpoint.clone().or_else(named);
    let url = url.or_else(|| sdk.endpoint_url().map(str::to_owned));
    let params = Params::builder()
        .region(region)
        .set_endpoint(url)
        .set_use_fips(settings.fips.or_else(|| sdk.use_fips()))
        .set_use_dual_stack(settings.dualstack.or_else(|| sdk.use_dual_stack()))
        .build()
        .map_err(|error| bad(&error))?;
    let found = DefaultResolver::new().resolve_endpoint(&params).await;
    found.map(|endpoint| endpoint.url().to_owned()).map_err(|error| bad(&*error))
}

/// Connections that trust what `config` says, shared with every client that trusts the same.
fn connections(config: &Config, files: &Files) -> Result<Arc<Http>, Error> {
    let (settings, environment) = (config.settings(), Environment::process());
    let bundle = config.ca_bundle(&environment);
    let bundle = bundle.map(|path| files.secret(&path)).transpose()?;
    let trust = Trust {
        bundle: bundle.map(|bundle| sidekey_core::sha256(bundle.expose())),
        connect_timeout: settings.connect_timeout(),
        proxy: settings.proxy.clone().or_else(|| environment.proxy()),
    };
    if let Some(http) = CONNECTIONS.find(&trust) {
        return Ok(http);
    }
    let direct = environment.no_proxy().unwrap_or_default();
    let proxy = trust.proxy.as_deref();
    let proxy =
        proxy.map(|url| Proxy::parse(url, &direct).unwrap_or_else(|| Proxy::unusable(&direct)));
    let ways = Ways::new(tls::client(bundle)?, trust.connect_timeout, proxy);
    let http = Arc::new(Http::new(ways));
    CONNECTIONS.keep(trust, &http);
    Ok(http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_endpoint_is_the_one_that_is_named_or_the_one_that_aws_has_there() {
        let sdk = SdkConfig::builder().build();
        let find = async |settings: serde_json::Value, region: &str| {
            let settings: Settings = serde_json::from_value(settings).unwrap();
            endpoint(&settings, &sdk, region).await.map_err(|error| error.kind())
        };
        let json = |text: &str| serde_json::from_str(text).unwrap();
        let cases = [
            ("{}", "eu-west-1", "https://kms.eu-west-1.amazonaws.com"),
            ("{}", "cn-north-1", "https://kms.cn-north-1.amazonaws.com.cn"),
            (r#"{"fips": true}"#, "us-gov-west-1", "https://kms-fips.us-gov-west-1.amazonaws.com"),
            (r#"{"dualstack": true}"#, "us-east-1", "https://kms.us-east-1.api.aws"),
            (
                r#"{"fips": true, "dualstack": true}"#,
                "us-east-1",
                "https://kms-fips.us-east-1.api.aws",
            ),
            (r#"{"endpoint": "https://vpce-1.kms:8443"}"#, "us-east-1", "https://vpce-1.kms:8443"),
        ];
        for (settings, region, expected) in cases {
            let found = find(json(settings), region).await;
            assert_eq!(found.as_deref(), Ok(expected), "{settings} in {region}");
        }
        // A URL is no name that could be turned into another one.
        let both = json(r#"{"endpoint": "https://vpce-1.kms", "fips": true}"#);
        assert_eq!(find(both, "us-east-1").await, Err(Kind::Config));
    }
}
