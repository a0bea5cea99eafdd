//! Where credentials come from: the files that the configuration names, or the SDK's own chain
//! (variables, profile, token, container, instance). A [`Lease`] keeps them.
//!
//! A token is taken from the same reading of all files, never half-written, and sent by us: the
//! SDK's own provider knows no other endpoint of STS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::timeout::TimeoutConfig;
use aws_credential_types::Credentials;
use aws_credential_types::credential_fn::provide_credentials_fn;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_sts::Client as Sts;
use aws_smithy_async::rt::sleep::TokioSleep;
use sidekey_core::{Error, Files, Kind, Secret, sha256};
use sidekey_rest::lease::{Grant, Source};
use sidekey_rest::{Clock, Http, Learner, Lease, SdkTransport};
use tokio::time::Instant;

use crate::codes;
use crate::config::{self, Config};
use crate::dropin::environment::Environment;
use crate::profile::WebIdentity;

/// What STS writes into the log of the account.
const SESSION_NAME: &str = "sidekey";
/// STS locks nothing: a trust policy that was mended counts soon.
const PAUSE: Duration = Duration::from_secs(30);
/// For requests of the SDK that bring no deadline: those who make them have one.
const OWN_TIME: Duration = Duration::from_secs(20);

/// One source, by the clock of AWS.
pub(crate) struct Chain {
    provider: SharedCredentialsProvider,
    clock: Arc<Clock>,
    /// Of the SDK's client of STS.
    learner: Learner,
}

impl Source for Chain {
    type Item = Credentials;

    async fn fetch(&self, _: Instant) -> Result<Grant<Credentials>, Error> {
        // A role that is taken with other credentials is signed for. What a source of credentials
        // says of a refusal differs: any may be for the time.
        let found = self.learner.call(|| self.provider.provide_credentials(), |_| true).await;
        let item = found.and_then(sound).map_err(|error| codes::no_credentials(&error))?;
        let life = item.expiry().map(|end| self.clock.until(end));
        Ok(Grant { item, life })
    }
}

/// They are written into heads of requests, where a second line would be another header. Secret
/// keys are not, and may hold anything.
fn sound(credentials: Credentials) -> Result<Credentials, CredentialsError> {
    let texts = [Some(credentials.access_key_id()), credentials.session_token()];
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if texts.into_iter().flatten().all(is_word) {
        return Ok(credentials);
    }
    let what = "access key id or session token is empty, or more than one word";
    Err(CredentialsError::invalid_configuration(what))
}

/// The credentials of one key, which nobody has asked for yet.
pub(crate) async fn lease(
    config: &Config,
    files: &Files,
    sdk: &SdkConfig,
    (http, transport): (&Http, SdkTransport),
) -> Result<Lease<Chain>, Error> {
    let provider = provider(config, files, sdk, transport).await?;
    let mut identity = format!("{:?} {:?}", config.credentials(), sdk.region()).into_bytes();
    let environment = Environment::process();
    let named = config.named_files(files, &environment);
    for path in config.credential_files(&environment).into_iter().chain(named) {
        identity.extend(files.secret(&path).map(|file| sha256(file.expose())).unwrap_or_default());
    }
    let clock = http.clock().clone();
    let chain = Chain { provider, learner: Learner::new(clock.clone()), clock };
    Ok(Lease::new(chain, sha256(&identity), PAUSE))
}

async fn provider(
    config: &Config,
    files: &Files,
    sdk: &SdkConfig,
    transport: SdkTransport,
) -> Result<SharedCredentialsProvider, Error> {
    let (credentials, environment) = (config.credentials(), Environment::process());
    let sts = match config.settings().sts_endpoint {
        Some(url) => sdk.to_builder().endpoint_url(url).build(),
        None => sdk.clone(),
    };
    if let Some(role) = web_identity(config, files, &environment) {
        let token = files.secret(&role.token_file)?.clone();
        return Ok(token_role(Sts::new(&sts), role, token));
    }
    let base = if let Some(path) = &credentials.access_key_id_file {
        let id = text(files, path)?;
        let secret = text(files, credentials.secret_access_key_file.as_deref().unwrap_or(path))?;
        let token = credentials.session_token_file.as_deref().map(|path| text(files, path));
        let keys = Credentials::new(id, secret, token.transpose()?, None, "files");
        SharedCredentialsProvider::new(keys)
    } else if credentials.has_files() {
        let provider = ProviderConfig::empty()
            .with_http_client(transport)
            .with_sleep_impl(TokioSleep::new())
            .with_retry_config(RetryConfig::disabled())
            .with_timeout_config(TimeoutConfig::disabled())
            .with_region(sdk.region().cloned());
        let profile = ProfileFileCredentialsProvider::builder()
            .configure(&provider)
            .profile_files(profile_files(&credentials, files))
            .profile_name(credentials.profile.as_deref().unwrap_or("default"));
        SharedCredentialsProvider::new(profile.build())
    } else {
        sdk.credentials_provider().ok_or_else(|| Error::new(Kind::Bug, "the SDK has no chain"))?
    };
    let Some(role) = credentials.role_arn else { return Ok(base) };
    let mut assume = AssumeRoleProvider::builder(role)
        .configure(&sts)
        .session_name(credentials.session_name.as_deref().unwrap_or(SESSION_NAME));
    if let Some(id) = credentials.external_id {
        assume = assume.external_id(id);
    }
    if let Some(region) = sdk.region() {
        assume = assume.region(region.clone());
    }
    Ok(SharedCredentialsProvider::new(assume.build_from_provider(base).await))
}

/// The role that is taken with a token, whoever names it: the configuration, the profile in use,
/// or the variables, in the order of the SDK's chain.
fn web_identity(config: &Config, files: &Files, environment: &Environment) -> Option<WebIdentity> {
    let credentials = config.credentials();
    if let Some(token_file) = credentials.web_identity_token_file.clone() {
        let (role_arn, session_name) = (credentials.role_arn?, credentials.session_name);
        return Some(WebIdentity { role_arn, token_file, session_name });
    }
    // A role on top of what the profile gives is for the SDK.
    if credentials.role_arn.is_some() {
        return None;
    }
    let profiles = config.profiles(files, environment)?;
    let own = profiles.web_identity();
    if own.is_some() || profiles.has_credentials() || !credentials.is_chain() {
        return own;
    }
    let token_file = environment.variable("AWS_WEB_IDENTITY_TOKEN_FILE")?;
    Some(WebIdentity {
        role_arn: environment.variable("AWS_ROLE_ARN")?,
        token_file: std::path::absolute(token_file).ok()?,
        session_name: environment.variable("AWS_ROLE_SESSION_NAME"),
    })
}

/// The files that the configuration names, and no others, as the SDK reads them.
pub(crate) fn profile_files(credentials: &config::Credentials, files: &Files) -> EnvConfigFiles {
    let both = (credentials.config_file.as_ref(), credentials.shared_credentials_file.as_ref());
    contents(both, files)
}

/// What two files of profiles hold; what is in neither is as good as an empty one.
pub(crate) fn contents(
    (config, shared): (Option<&PathBuf>, Option<&PathBuf>),
    files: &Files,
) -> EnvConfigFiles {
    let both = [(EnvConfigFileKind::Config, config), (EnvConfigFileKind::Credentials, shared)];
    // Always both: the SDK panics where there is none.
    let text = |path: Option<&PathBuf>| text(files, path?).ok();
    both.into_iter()
        .map(|(kind, path)| (kind, text(path).unwrap_or_default()))
        .fold(EnvConfigFiles::builder(), |all, (kind, text)| all.with_contents(kind, text))
        .build()
}

/// The text of a small file, without the white space around it.
fn text(files: &Files, path: &Path) -> Result<String, Error> {
    let text = files.secret(path)?.as_text().map(str::to_owned);
    text.ok_or_else(|| Error::new(Kind::Config, format!("{} is not text", path.display())))
}

/// A role that is taken with a token.
fn token_role(sts: Sts, role: WebIdentity, token: Secret) -> SharedCredentialsProvider {
    let all = Arc::new((sts, role, token));
    SharedCredentialsProvider::new(provide_credentials_fn(move || {
        let all = all.clone();
        async move {
            let (sts, role, token) = &*all;
            let token = token.as_text().ok_or_else(|| {
                CredentialsError::invalid_configuration("the web identity token is not text")
            })?;
            let call = sts.assume_role_with_web_identity().role_arn(&role.role_arn);
            let name = role.session_name.as_deref().unwrap_or(SESSION_NAME);
            let answer = call.role_session_name(name).web_identity_token(token).send().await;
            let found = answer.map_err(CredentialsError::provider_error)?.credentials;
            let none = || CredentialsError::unhandled("STS answered without credentials");
            let found = found.ok_or_else(none)?;
            let end = SystemTime::try_from(found.expiration).ok();
            let token = Some(found.session_token);
            Ok(Credentials::new(found.access_key_id, found.secret_access_key, token, end, "token"))
        }
    }))
}

/// A lease as the SDK asks for it.
pub(crate) fn leased(lease: Lease<Chain>) -> SharedCredentialsProvider {
    SharedCredentialsProvider::new(provide_credentials_fn(move || {
        let lease = lease.clone();
        async move {
            let held = lease.get(Instant::now() + OWN_TIME).await;
            held.map(|held| held.item.clone()).map_err(CredentialsError::provider_error)
        }
    }))
}
