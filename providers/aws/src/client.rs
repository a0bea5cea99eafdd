//! The client of one account, region and endpoint: the SDK's own operations over our transport.
//!
//! Keys whose settings and credentials are equal share an account, with its connections, its
//! session and its budget of retries: memory is counted here. They share nothing else: each has a
//! limit of calls of its own, so that one that hangs takes no turn from another.
//!
//! The SDK's retries, timeouts, identity cache and protection against stalled streams are off:
//! core retries, the caller has a deadline, and [`Lease`] keeps the identity. The SDK learns from
//! each answer how far this machine's clock is off, so that a call which was refused for it is
//! made once more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_sdk_kms::Client as Kms;
use aws_sdk_kms::config::{Builder, IdentityCache, Intercept};
use aws_sdk_kms::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kms::operation::decrypt::DecryptOutput;
use aws_sdk_kms::operation::encrypt::EncryptOutput;
use aws_sdk_kms::primitives::Blob;
use aws_sdk_kms::types::KeyMetadata;
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::BeforeTransmitInterceptorContextMut;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use sidekey_core::tls::Unusable;
use sidekey_core::{Digest, Error, Files, Kind};
use sidekey_rest::lease::{Held, Source};
use sidekey_rest::{Http, Learner, Lease, Limits, Proxy, SdkTransport, Shared, Trust};
use tokio::time::{Instant, timeout_at};

use crate::arn::KeyName;
use crate::codes;
use crate::config::{Config, Credentials, Settings};
use crate::dropin::environment::Environment;
use crate::dropin::retries::Budget;
use crate::not_kms;
use crate::sources::{self, Chain};

/// More than KMS ever answers.
const MAX_ANSWER: usize = 256 * 1024;
/// Between two logins that a refusal by KMS asks for.
const PACE: Duration = Duration::from_secs(10);
/// Between two looks at a key that is refused for its state.
const LOOK: Duration = Duration::from_secs(60);

/// What an account is made of: its region, and the digest of all its files.
type Making = (Option<String>, Settings, Credentials, Digest);
/// What connections are made of: the hash of the CA bundle, the time to connect, the proxy.
type Ways = (Option<[u8; 32]>, Duration, Option<String>);

/// The accounts in use, found again by what they are made of.
static ACCOUNTS: Shared<Making, Account> = Shared::new();
/// The connections in use: they outlive the credentials.
static CONNECTIONS: Shared<Ways, Http> = Shared::new();

/// What keys share.
pub(crate) struct Account {
    config: aws_sdk_kms::Config,
    http: Arc<Http>,
    pub(crate) lease: Lease<Chain>,
    budget: Option<Budget>,
    attempt: Option<Duration>,
    region: String,
    /// When credentials that KMS refused were last replaced.
    replaced: Mutex<Option<Instant>>,
}

/// A client of AWS KMS for one key.
pub(crate) struct Client {
    /// The SDK's own, for calls that are made through [`run`](Self::run).
    pub(crate) kms: Kms,
    pub(crate) account: Arc<Account>,
    transport: SdkTransport,
    /// The key as configured, in the region of the account.
    pub(crate) name: KeyName,
    /// What every ciphertext is bound to.
    context: Option<HashMap<String, String>>,
    /// When the key is deleted, if it is, and when that was last looked up for its sake.
    dying: Mutex<(Option<SystemTime>, Option<Instant>)>,
    learner: Learner,
}

/// A call that failed, and what the caller may want to know of it.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The code, if KMS gave one.
    pub(crate) code: Option<String>,
}

/// One of the calls, on one object.
#[derive(Clone, Copy)]
pub(crate) struct Deed<'a> {
    pub(crate) action: &'static str,
    pub(crate) object: &'a str,
    pub(crate) deadline: Instant,
}

impl Client {
    /// A client for `config`, on an account in use if there is one, or a new one.
    pub(crate) async fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let making = (config.region(), config.settings(), config.credentials(), files.digest());
        let account = match ACCOUNTS.find(&making) {
            Some(account) => account,
            None => {
                let account = Arc::new(Account::new(config, files).await?);
                // Another key may have made one meanwhile: then this one is used by one key alone.
                ACCOUNTS.keep(making, &account);
                account
            }
        };
        let own = account.http.separate().for_sdk(config.settings().allows_plaintext());
        let kms = Kms::from_conf(account.config.to_builder().http_client(own.clone()).build());
        let learner = Learner::new(account.http.clock().clone());
        let name = config.key().ok_or_else(|| Error::new(Kind::Config, "no key is set"))?;
        let name = name.in_region(&account.region);
        let context = Some(config.encryption_context()).filter(|context| !context.is_empty());
        Ok(Self { kms, account, transport: own, name, context, dying: Mutex::default(), learner })
    }

    /// For a call that must not be sent twice.
    pub(crate) fn once(&self) -> Builder {
        aws_sdk_kms::Config::builder().http_client(self.transport.once())
    }

    /// `kms:DescribeKey`.
    pub(crate) async fn describe(
        &self,
        object: &str,
        deadline: Instant,
    ) -> Result<KeyMetadata, Failure> {
        let deed = Deed { action: "kms:DescribeKey", object, deadline };
        let answer = self.run(deed, || self.kms.describe_key().key_id(object).send()).await?;
        let metadata = answer.key_metadata.ok_or_else(|| deed.unreadable())?;
        self.dying().0 = metadata.deletion_date.and_then(|date| SystemTime::try_from(date).ok());
        Ok(metadata)
    }

    /// When the key is deleted, as far as KMS has told.
    pub(crate) fn deletion(&self) -> Option<SystemTime> {
        self.dying().0
    }

    /// What KMS refuses for the state of the key is looked at: the key may be about to be deleted,
    /// which nobody should learn an hour later.
    async fn looked_at<T>(&self, deed: Deed<'_>, result: Result<T, Failure>) -> Result<T, Failure> {
        let now = Instant::now();
        let last = self.dying().1;
        match &result {
            Ok(_) => self.dying().0 = None,
            Err(failure)
                if failure.is("KMSInvalidStateException")
                    && last.is_none_or(|last| now - last > LOOK) =>
            {
                self.dying().1 = Some(now);
                let _ = self.describe(deed.object, deed.deadline).await;
            }
            Err(_) => {}
        }
        result
    }

    fn dying(&self) -> MutexGuard<'_, (Option<SystemTime>, Option<Instant>)> {
        self.dying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `kms:Encrypt`.
    pub(crate) async fn encrypt(
        &self,
        object: &str,
        plaintext: &[u8],
        deadline: Instant,
    ) -> Result<EncryptOutput, Failure> {
        let deed = Deed { action: "kms:Encrypt", object, deadline };
        let call = self.kms.encrypt().key_id(object).plaintext(Blob::new(plaintext));
        let sending = call.set_encryption_context(self.context.clone()).send();
        let answer = self.looked_at(deed, self.attempt(deed, sending).await).await?;
        let blob = answer.ciphertext_blob.as_ref();
        if blob.is_none_or(|blob| blob.as_ref().is_empty()) {
            return Err(deed.unreadable());
        }
        Ok(answer)
    }

    /// `kms:Decrypt`; without a key the ciphertext itself names it.
    pub(crate) async fn decrypt(
        &self,
        key: Option<&str>,
        blob: &[u8],
        deadline: Instant,
    ) -> Result<DecryptOutput, Failure> {
        let object = key.unwrap_or("the key that the data names");
        let deed = Deed { action: "kms:Decrypt", object, deadline };
        let call = self.kms.decrypt().ciphertext_blob(Blob::new(blob));
        let call = call.set_encryption_context(self.context.clone());
        let sending = call.set_key_id(key.map(str::to_owned)).send();
        let answer = self.looked_at(deed, self.attempt(deed, sending).await).await?;
        if answer.plaintext.is_none() {
            return Err(deed.unreadable());
        }
        Ok(answer)
    }

    /// Makes a call that core does not repeat, and once more if what stood in its way was mended.
    pub(crate) async fn run<T, E, F>(
        &self,
        deed: Deed<'_>,
        send: impl Fn() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        match self.attempt(deed, send()).await {
            Err(failure) if failure.error.is_mended() => self.attempt(deed, send()).await,
            done => done,
        }
    }

    /// Makes a call with credentials that are good. If AWS says that they are not, or that our time
    /// is wrong, and there are better ones now, the error says so.
    async fn attempt<T, E>(
        &self,
        deed: Deed<'_>,
        sending: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Failure>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let account = &self.account;
        let own = account.attempt.and_then(|attempt| Instant::now().checked_add(attempt));
        let limit = own.map_or(deed.deadline, |own| own.min(deed.deadline));
        let work = async {
            let used = account.lease.get(limit).await?;
            let of_clock = |error: &_| codes::is_one(code(error), codes::CLOCK);
            let (result, learned) = self.learner.attempt(sending, of_clock).await;
            let dead = |error: &_| codes::is_one(code(error), codes::CREDENTIALS);
            let mended = match result.as_ref().is_err_and(dead) {
                true => account.replace(&used, limit).await?,
                false => learned,
            };
            Ok((result, mended))
        };
        let late = |_| Err(codes::slow(deed.action, deed.object));
        let failure = match timeout_at(limit, work).await.unwrap_or_else(late) {
            Ok((Ok(answer), _)) => {
                account.budget.iter().for_each(Budget::succeeded);
                return Ok(answer);
            }
            Ok((Err(error), mended)) => {
                let code = code(&error).map(str::to_owned);
                let error = codes::explain(deed.action, deed.object, &error);
                if mended {
                    return Err(Failure { code, error: error.mended() });
                }
                Failure { code, error }
            }
            Err(error) => Failure { error, code: None },
        };
        Err(match &account.budget {
            Some(budget) => Failure { error: budget.failed(failure.error), ..failure },
            None => failure,
        })
    }
}

impl Account {
    async fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let settings = config.settings();
        let http = connections(config, files)?;
        let transport = http.for_sdk(settings.allows_plaintext());
        let sdk = load(config, files, &transport).await;
        let region = sdk.region().map(ToString::to_string).ok_or_else(|| {
            Error::new(Kind::Config, "the region of the key is not known")
                .with_hint("set kek.region, name the key by its ARN, or set AWS_REGION")
        })?;
        let lease = sources::lease(config, files, &sdk, (&http, transport)).await?;
        let config = service(&sdk, &settings).credentials_provider(sources::leased(lease.clone()));
        Ok(Self {
            config: config.build(),
            http,
            lease,
            budget: settings.retry_tokens.map(Budget::new),
            attempt: settings.attempt_timeout(),
            region,
            replaced: Mutex::default(),
        })
    }

    /// Has credentials that KMS refuses replaced; whether there are others now.
    async fn replace(
        &self,
        used: &Arc<Held<<Chain as Source>::Item>>,
        limit: Instant,
    ) -> Result<bool, Error> {
        let held = self.lease.held();
        if held.is_some_and(|held| Arc::ptr_eq(&held, used)) && !self.may_replace() {
            return Ok(false);
        }
        self.lease.discard(used);
        self.lease.get(limit).await.map(|_| true)
    }

    /// What is refused with fresh credentials is refused for another reason.
    fn may_replace(&self) -> bool {
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        let may = replaced.is_none_or(|last| last.elapsed() > PACE);
        if may {
            *replaced = Some(Instant::now());
        }
        may
    }
}

impl Deed<'_> {
    fn unreadable(&self) -> Failure {
        let (action, object) = (self.action, self.object);
        not_kms(format!("{action} on {object} was answered with something else")).into()
    }
}

impl Failure {
    /// Whether KMS gave this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, code: None }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// The code that AWS gave, if it gave one.
fn code<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Option<&str> {
    error.as_service_error()?.code()
}

/// On whose behalf the key is used, as account and ARN: key policies may ask for it, so that AWS is
/// no confused deputy.
#[derive(Debug)]
struct OnBehalf(String, String);

impl Intercept for OnBehalf {
    fn name(&self) -> &'static str {
        "OnBehalf"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        headers.try_insert("x-amz-source-account", self.0.clone())?;
        headers.try_insert("x-amz-source-arn", self.1.clone())?;
        Ok(())
    }
}

/// The service as the settings say, or variables and profile, or AWS's own rules.
fn service(sdk: &SdkConfig, settings: &Settings) -> Builder {
    let mut builder = Builder::from(sdk).identity_cache(IdentityCache::no_cache());
    if settings.endpoint.is_some() {
        builder.set_endpoint_url(settings.endpoint.clone());
    }
    builder.set_use_fips(settings.fips.or_else(|| sdk.use_fips()));
    builder.set_use_dual_stack(settings.dualstack.or_else(|| sdk.use_dual_stack()));
    match (settings.source_account(), &settings.source_arn) {
        (Some(account), Some(arn)) => builder.interceptor(OnBehalf(account.into(), arn.clone())),
        _ => builder,
    }
}

/// What the SDK makes of the environment, the profile and our settings.
async fn load(config: &Config, files: &Files, transport: &SdkTransport) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(transport.clone())
        .sleep_impl(TokioSleep::new())
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    if let Ok(name) = AppName::new(format!("sidekey-{}", sidekey_core::VERSION)) {
        loader = loader.app_name(name);
    }
    if let Some(region) = config.region() {
        loader = loader.region(Region::new(region));
    }
    let credentials = config.credentials();
    if credentials.has_files() {
        loader = loader.profile_files(sources::profile_files(&credentials, files));
        loader = loader.profile_name(credentials.profile.as_deref().unwrap_or("default"));
    }
    loader.load().await
}

/// Connections that trust what `config` says, shared with every account that trusts the same.
fn connections(config: &Config, files: &Files) -> Result<Arc<Http>, Error> {
    let (settings, environment) = (config.settings(), Environment::process());
    let path = config.ca_bundle(&environment);
    let bundle = path.as_deref().map(|path| files.secret(path)).transpose()?;
    let bundle = bundle.map(|bundle| sidekey_core::sha256(bundle.expose()));
    let (connect, proxy) = (settings.connect_timeout(), settings.proxy);
    CONNECTIONS.get((bundle, connect, proxy.clone()), || {
        // Bundles of the system, too, are given here, and hold certificates that no TLS library takes.
        let trust = Trust::new(path.as_deref(), Unusable::Skip, None, files, "settings.caBundle")?;
        let limits = Limits { connect, answer: MAX_ANSWER, ..Limits::default() };
        Ok(Http::new(&trust, Proxy::new(proxy.as_deref()), limits))
    })
}

#[cfg(test)]
mod tests;
