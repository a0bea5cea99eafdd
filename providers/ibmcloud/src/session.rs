//! A login at IBM's IAM that keys share, and the token that it gave.
//!
//! Keys with the same credentials share one login and one set of connections. What they are made of
//! is hashed, contents of files included, so that changed credentials make another session, which is
//! tried beside the old one.

use std::sync::Arc;
use std::time::Duration;

use sidekey_core::{Error, Files, hex, sha256};
use sidekey_rest::oauth::TokenEndpoint;
use sidekey_rest::{Http, Lease, Limits, Proxy, Shared, fingerprint};

use crate::config::Config;

/// For how long a refused credential is not sent again: IAM locks nobody out, and what was wrong
/// may be mended there by then.
const PAUSE: Duration = Duration::from_secs(60);

/// Sessions in use, by the hash of what they are made of.
static SESSIONS: Shared<[u8; 32], Session> = Shared::new();

/// One login, and the connections that are used with it.
pub(crate) struct Session {
    pub(crate) http: Http,
    pub(crate) lease: Lease<TokenEndpoint>,
}

impl Session {
    /// The session of this configuration, which may be in use already.
    pub(crate) fn shared(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        let made_of = fingerprint(&config.login(), &config.files(), files);
        SESSIONS.get(made_of, || Self::new(config, files))
    }

    fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let http = Http::new(&config.trust(files)?, Proxy::new(None), Limits::default());
        let secret = config.secret(files)?;
        let credential = format!("{}\n{}", config.login(), hex(&sha256(secret.expose())));
        let endpoint = config.token_endpoint(&http, secret)?;
        Ok(Self { http, lease: Lease::new(endpoint, sha256(credential.as_bytes()), PAUSE) })
    }
}
