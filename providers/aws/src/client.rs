//! The client of one account, region and endpoint, and the three calls that are made with it.
//!
//! Keys whose settings and credentials are equal share a client, with its connections, its
//! session and its budget of retries: memory is counted here. They share nothing else, and no
//! call waits for another one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_kms::config::retry::RetryConfig;
use aws_sdk_kms::config::timeout::TimeoutConfig;
use aws_sdk_kms::config::{AppName, IdentityCache, StalledStreamProtectionConfig};
use aws_sdk_kms::operation::decrypt::DecryptOutput;
use aws_sdk_kms::operation::encrypt::EncryptOutput;
use aws_sdk_kms::primitives::Blob;
use aws_sdk_kms::types::KeyMetadata;
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use sidekey_core::{Error, Files, Kind};
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, Credentials, Settings};
use crate::environment::Environment;
use crate::http::Http;
use crate::http::connect::Ways;
use crate::http::tls;
use crate::identity::Identity;
use crate::retries::Budget;
use crate::source_arn::SourceArn;
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
}

/// The clients in use, found again by what they are made of.
static CLIENTS: LazyLock<Mutex<Vec<(Making, Weak<Client>)>>> = LazyLock::new(Mutex::default);
/// The connections in use: they outlive the credentials.
static CONNECTIONS: LazyLock<Mutex<Vec<(Trust, Weak<Http>)>>> = LazyLock::new(Mutex::default);

/// A client of AWS KMS.
pub(crate) struct Client {
    kms: aws_sdk_kms::Client,
    identity: Identity,
    budget: Budget,
    attempt: Option<Duration>,
    region: String,
    /// Keeps the connections for the next client.
    _http: Arc<Http>,
}

/// A call that failed, and what the caller may want to know of it.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// A permission is missing, and nothing else.
    pub(crate) lacks_permission: bool,
    /// Another key than the one that was named wrapped the data.
    pub(crate) wrong_key: bool,
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
        if let Some(client) = find(&CLIENTS, &making) {
            return Ok(client);
        }
        let client = Arc::new(Self::new(config, files).await?);
        // Another key may have made one meanwhile: then this one is used by one key alone.
        keep(&CLIENTS, making, &client);
        Ok(client)
    }

    async fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let settings = config.settings();
        let http = connections(config, files)?;
        let sdk = load(config, files, &http).await;
        let region = sources::region(&sdk)?;
        let identity = Identity::new(sources::source(config, files, &sdk, &http).await?);
        let mut builder = aws_sdk_kms::config::Builder::from(&sdk)
            .region(region.clone())
            .credentials_provider(identity.clone())
            .identity_cache(IdentityCache::no_cache())
            // The runtime retries, within the caller's time, and every try has its own limit.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        if let Some(fips) = settings.fips {
            builder = builder.use_fips(fips);
        }
        if let Some(dualstack) = settings.dualstack {
            builder = builder.use_dual_stack(dualstack);
        }
        if let Some(source) = SourceArn::of(&settings)? {
            builder = builder.interceptor(source);
        }
        Ok(Self {
            kms: aws_sdk_kms::Client::from_conf(builder.build()),
            identity,
            budget: Budget::new(settings.retry_tokens()),
            attempt: settings.attempt_timeout(),
            region: region.to_string(),
            _http: http,
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
        key: &str,
        deadline: Instant,
    ) -> Result<KeyMetadata, Failure> {
        let call = || self.kms.describe_key().key_id(key).send();
        let answer = self.run("kms:DescribeKey", key, deadline, call).await?;
        answer.key_metadata.ok_or_else(|| empty("kms:DescribeKey", key))
    }

    /// `kms:Encrypt`.
    pub(crate) async fn encrypt(
        &self,
        key: &str,
        plaintext: &[u8],
        context: &HashMap<String, String>,
        deadline: Instant,
    ) -> Result<EncryptOutput, Failure> {
        let call = || {
            self.kms
                .encrypt()
                .key_id(key)
                .plaintext(Blob::new(plaintext))
                .set_encryption_context(given(context))
                .send()
        };
        self.run("kms:Encrypt", key, deadline, call).await
    }

    /// `kms:Decrypt`; without a key the ciphertext itself names it.
    pub(crate) async fn decrypt(
        &self,
        key: Option<&str>,
        ciphertext: &[u8],
        context: &HashMap<String, String>,
        deadline: Instant,
    ) -> Result<DecryptOutput, Failure> {
        let call = || {
            self.kms
                .decrypt()
                .set_key_id(key.map(str::to_owned))
                .ciphertext_blob(Blob::new(ciphertext))
                .set_encryption_context(given(context))
                .send()
        };
        self.run("kms:Decrypt", key.unwrap_or("the key of the data"), deadline, call).await
    }

    /// Makes a call with credentials that are good, and again with new ones if AWS says that
    /// they are not.
    async fn run<T, E, F>(
        &self,
        action: &str,
        object: &str,
        deadline: Instant,
        call: impl Fn() -> F,
    ) -> Result<T, Failure>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let limit = self.limit(deadline);
        self.within(action, object, limit, self.identity.ready()).await??;
        let used = self.identity.access_key_id();
        let mut result = self.within(action, object, limit, call()).await?;
        if result.as_ref().is_err_and(refusal::concerns_credentials) {
            let renewing = self.identity.refused(used.as_deref());
            self.within(action, object, limit, renewing).await??;
            result = self.within(action, object, limit, call()).await?;
        }
        match result {
            Ok(answer) => {
                self.budget.succeeded();
                Ok(answer)
            }
            Err(error) => Err(self.failure(action, object, &error)),
        }
    }

    fn limit(&self, deadline: Instant) -> Instant {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        now + self.attempt.unwrap_or_else(|| left.mul_f32(SHARE))
    }

    async fn within<T>(
        &self,
        action: &str,
        object: &str,
        limit: Instant,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        timeout_at(limit, work).await.map_err(|_| {
            let error = self.budget.failed(refusal::slow(action, object));
            Failure::from(error)
        })
    }

    fn failure<E>(&self, action: &str, object: &str, error: &SdkError<E, HttpResponse>) -> Failure
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let mut explained = refusal::explain(action, object, error);
        if refusal::concerns_credentials(error) {
            explained = explained.after_reload();
        }
        Failure {
            error: self.budget.failed(explained),
            lacks_permission: refusal::lacks_permission(error),
            wrong_key: refusal::names_wrong_key(error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, lacks_permission: false, wrong_key: false }
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

/// Connections that trust what `config` says, shared with every client that trusts the same.
fn connections(config: &Config, files: &Files) -> Result<Arc<Http>, Error> {
    let bundle = config.ca_bundle(&Environment::process());
    let bundle = bundle.map(|path| files.secret(&path)).transpose()?;
    let trust = Trust {
        bundle: bundle.map(|bundle| sidekey_core::sha256(bundle.expose())),
        connect_timeout: config.settings().connect_timeout(),
    };
    if let Some(http) = find(&CONNECTIONS, &trust) {
        return Ok(http);
    }
    let ways = Ways::new(tls::client(bundle)?, trust.connect_timeout);
    let http = Arc::new(Http::new(ways));
    keep(&CONNECTIONS, trust, &http);
    Ok(http)
}

fn find<K: PartialEq, V>(table: &Mutex<Vec<(K, Weak<V>)>>, key: &K) -> Option<Arc<V>> {
    let table = table.lock().unwrap_or_else(PoisonError::into_inner);
    table.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.upgrade())
}

fn keep<K: PartialEq, V>(table: &Mutex<Vec<(K, Weak<V>)>>, key: K, value: &Arc<V>) {
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    table.retain(|(_, value)| value.strong_count() > 0);
    table.push((key, Arc::downgrade(value)));
}

fn given(context: &HashMap<String, String>) -> Option<HashMap<String, String>> {
    (!context.is_empty()).then(|| context.clone())
}

fn empty(action: &str, object: &str) -> Failure {
    Error::new(Kind::Bug, format!("{action} on {object} was answered with nothing")).into()
}
