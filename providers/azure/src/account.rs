//! What keys of one vault and one identity share: connections and the token; and, whoever they are,
//! how long the vault wants to be left alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sidekey_core::{Digest, Error, Files, Kind, sha256};
use sidekey_rest::{Answer, Http, Lease, Limits, Proxy, Shared, Trust, tls};
use tokio::time::{Instant, sleep_until};

use crate::client::Deed;
use crate::config::{Config, Credentials, Place, Settings};
use crate::identity::{Entra, Identity};

/// For how long a refused login is not repeated: what was wrong may be mended by then at the issuer.
pub(crate) const PAUSE: Duration = Duration::from_secs(60);
/// More than Key Vault ever answers.
const MAX_ANSWER: usize = 256 * 1024;

/// What an account is made of: where everything is, and the digest of all files.
type Making = (Place, Settings, Credentials, Digest);
/// Until when a vault wants to be left alone.
type Pause = Mutex<Option<Instant>>;
/// What connections are made of: the hash of the CA bundle, the proxy.
type Ways = (Option<[u8; 32]>, Option<String>);

/// The accounts in use, found again by what they are made of.
static ACCOUNTS: Shared<Making, Account> = Shared::new();
/// The connections in use: they outlive the credentials.
static CONNECTIONS: Shared<Ways, Http> = Shared::new();
/// The pauses of vaults, by their hosts: accounts that differ call the same one.
static PAUSES: Shared<String, Pause> = Shared::new();

/// What keys share.
pub(crate) struct Account {
    pub(crate) http: Arc<Http>,
    pub(crate) place: Place,
    pub(crate) lease: Lease<Entra>,
    /// The end of the certificate that we log in with, if we do.
    certified: Option<SystemTime>,
    pause: Arc<Pause>,
}

impl Account {
    /// The account of `config`, which may be in use already.
    pub(crate) fn shared(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        let place = config.place(files)?;
        let (settings, credentials) = (config.settings.clone(), config.credentials.clone());
        let making = (place.clone(), settings, credentials, files.digest());
        ACCOUNTS.get(making, || Self::new(config, place, files))
    }

    fn new(config: &Config, place: Place, files: &Files) -> Result<Self, Error> {
        let http = connections(config, files)?;
        let identity = Identity::new(config, files)?;
        let certified = identity.login.certified();
        let lease = identity.lease(&place, (*http).clone())?;
        let pause = PAUSES.get(place.host.clone(), || Ok::<_, Error>(Pause::default()))?;
        Ok(Self { http, place, lease, certified, pause })
    }

    /// When the certificate that we log in with ends, or the token where there is none.
    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        self.certified.or_else(|| self.lease.expiry())
    }

    /// Waits as long as Key Vault has asked for, if the caller has that time.
    pub(crate) async fn wait(&self, deed: &Deed) -> Result<(), Error> {
        let Some(until) = self.pause().filter(|until| *until > Instant::now()) else {
            return Ok(());
        };
        if until < deed.deadline {
            sleep_until(until).await;
            return Ok(());
        }
        let text =
            format!("{} on {}: the vault has asked not to be called now", deed.action, deed.object);
        Err(Error::new(Kind::Throttled, text)
            .with_hint("its limit is shared by all who use it")
            .without_retry())
    }

    /// Takes note of how long Key Vault wants to be left alone.
    pub(crate) fn observe(&self, answer: &Answer) {
        if let Some(pause) = answer.retry_after() {
            *self.pause() = Some(Instant::now() + pause);
        }
    }

    fn pause(&self) -> MutexGuard<'_, Option<Instant>> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections that trust what `config` says, shared with every account that trusts the same.
fn connections(config: &Config, files: &Files) -> Result<Arc<Http>, Error> {
    let set = config.settings.ca_file.as_deref();
    let bundle = tls::bundle(set).map(|path| files.secret(&path)).transpose()?;
    let bundle = bundle.map(|bundle| sha256(bundle.expose()));
    CONNECTIONS.get((bundle, config.settings.proxy.clone()), || {
        let trust = Trust::of_settings(set, files, "settings.caFile")?;
        let limits = Limits { answer: MAX_ANSWER, ..Limits::default() };
        Ok(Http::new(&trust, Proxy::new(config.settings.proxy.as_deref()), limits))
    })
}
