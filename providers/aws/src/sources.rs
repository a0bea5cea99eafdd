//! Where credentials come from: the files that the configuration names, or the SDK's own chain
//! (variables, profile, token, container, instance).

use std::path::Path;
use std::time::SystemTime;

use aws_config::SdkConfig;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_sts::config::{Credentials, Region};
use aws_smithy_async::rt::sleep::TokioSleep;
use sidekey_core::{Error, Files, Kind, Secret};

use crate::config::Config;
use crate::environment::Environment;
use crate::http::Http;
use crate::profile::WebIdentity;

/// What STS writes into the log of the account.
const SESSION_NAME: &str = "sidekey";

/// A role that is taken with a token.
struct TokenRole {
    sts: aws_sdk_sts::Client,
    role: WebIdentity,
    token: Secret,
}

/// The source of one key's credentials.
pub(crate) async fn source(
    config: &Config,
    files: &Files,
    sdk: &SdkConfig,
    http: &Http,
) -> Result<SharedCredentialsProvider, Error> {
    let (credentials, environment) = (config.credentials(), Environment::process());
    if let Some(role) = web_identity(config, files, &environment) {
        let token = files.secret(&role.token_file)?.clone();
        let sts = sts(config, sdk);
        return Ok(SharedCredentialsProvider::new(TokenRole { sts, role, token }));
    }
    let base = if let Some(path) = &credentials.access_key_id_file {
        let id = text(files, path)?;
        let secret = text(files, credentials.secret_access_key_file.as_deref().unwrap_or(path))?;
        let token = credentials.session_token_file.as_deref().map(|path| text(files, path));
        let keys = Credentials::new(id, secret, token.transpose()?, None, "files");
        SharedCredentialsProvider::new(keys)
    } else if credentials.has_files() {
        profile(config, files, sdk, http)
    } else {
        sdk.credentials_provider().ok_or_else(|| Error::new(Kind::Bug, "the SDK has no chain"))?
    };
    let Some(role) = credentials.role_arn else { return Ok(base) };
    let mut assume = AssumeRoleProvider::builder(role)
        .configure(&sts_config(config, sdk))
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
    let (own, any) = config.with_profile(files, environment, |profiles, name| {
        (profiles.web_identity(name), profiles.has_credentials(name))
    })?;
    if own.is_some() || any || !credentials.is_chain() {
        return own;
    }
    let token_file = environment.variable("AWS_WEB_IDENTITY_TOKEN_FILE")?;
    Some(WebIdentity {
        role_arn: environment.variable("AWS_ROLE_ARN")?,
        token_file: std::path::absolute(token_file).ok()?,
        session_name: environment.variable("AWS_ROLE_SESSION_NAME"),
    })
}

/// The profile of the files that the configuration names, and of no others.
fn profile(
    config: &Config,
    files: &Files,
    sdk: &SdkConfig,
    http: &Http,
) -> SharedCredentialsProvider {
    let credentials = config.credentials();
    let mut contents = EnvConfigFiles::builder();
    for (kind, path) in [
        (EnvConfigFileKind::Config, &credentials.config_file),
        (EnvConfigFileKind::Credentials, &credentials.shared_credentials_file),
    ] {
        if let Some(text) = path.as_deref().and_then(|path| text(files, path).ok()) {
            contents = contents.with_contents(kind, text);
        }
    }
    let provider = ProviderConfig::empty()
        .with_http_client(http.clone())
        .with_sleep_impl(TokioSleep::new())
        .with_region(sdk.region().cloned());
    let name = credentials.profile.as_deref().unwrap_or("default");
    let profile = ProfileFileCredentialsProvider::builder()
        .configure(&provider)
        .profile_files(contents.build())
        .profile_name(name);
    SharedCredentialsProvider::new(profile.build())
}

fn sts(config: &Config, sdk: &SdkConfig) -> aws_sdk_sts::Client {
    aws_sdk_sts::Client::new(&sts_config(config, sdk))
}

fn sts_config(config: &Config, sdk: &SdkConfig) -> SdkConfig {
    match config.settings().sts_endpoint {
        Some(url) => sdk.to_builder().endpoint_url(url).build(),
        None => sdk.clone(),
    }
}

/// The text of a small file, without the white space around it.
fn text(files: &Files, path: &Path) -> Result<String, Error> {
    let text = files.secret(path)?.as_text().map(str::to_owned);
    text.ok_or_else(|| Error::new(Kind::Config, format!("{} is not text", path.display())))
}

impl TokenRole {
    async fn take(&self) -> Result<Credentials, CredentialsError> {
        let token = self.token.as_text();
        let token = token.ok_or_else(|| {
            CredentialsError::invalid_configuration("the web identity token is not text")
        })?;
        let answer = self
            .sts
            .assume_role_with_web_identity()
            .role_arn(&self.role.role_arn)
            .role_session_name(self.role.session_name.as_deref().unwrap_or(SESSION_NAME))
            .web_identity_token(token)
            .send()
            .await
            .map_err(CredentialsError::provider_error)?;
        let none = || CredentialsError::unhandled("STS answered without credentials");
        let found = answer.credentials.ok_or_else(none)?;
        let end = SystemTime::try_from(found.expiration).ok();
        let token = Some(found.session_token);
        Ok(Credentials::new(found.access_key_id, found.secret_access_key, token, end, "token"))
    }
}

impl ProvideCredentials for TokenRole {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.take())
    }
}

impl std::fmt::Debug for TokenRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenRole({})", self.role.role_arn)
    }
}

/// The region, which must come from somewhere.
pub(crate) fn region(sdk: &SdkConfig) -> Result<Region, Error> {
    sdk.region().cloned().ok_or_else(|| {
        Error::new(Kind::Config, "the region of the key is not known")
            .with_hint("set kek.region, name the key by its ARN, or set AWS_REGION")
    })
}
