//! Several servers of one cluster, asked as if they were one.
//!
//! The server that answered last is asked first. One that cannot be reached, is sealed, or cannot
//! serve for another reason of its own is passed over for the next. A standby's redirect is
//! followed, but the token goes only where it was meant to: to an address that is configured, or,
//! where a CA bundle is configured, to whoever it vouches for. Plain text never follows TLS.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{StatusCode, Uri};
use rustls::ClientConfig;
use sidekey_core::{Error, Kind};
use tokio::time::{Instant, timeout_at};

use crate::address::Address;
use crate::answer;
use crate::server::{Answer, Request, Server};

/// A standby sends to the active server, which may just have changed.
const MAX_REDIRECTS: u32 = 2;

/// How long is waited for one server while there is another to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// For a connection.
    pub(crate) connect: Duration,
    /// For an answer, the connection included.
    pub(crate) request: Duration,
}

/// How servers are trusted.
#[derive(Clone, Default)]
pub(crate) struct Trust {
    /// For TLS, if any address needs it.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// What every server's certificate is for, where that is not its host.
    pub(crate) name: Option<String>,
    /// Whether the CA bundle was chosen for these servers, and is not the system's.
    pub(crate) is_own: bool,
}

/// The servers of one cluster.
pub(crate) struct Client {
    servers: Vec<Arc<Server>>,
    /// The one that answered last.
    preferred: AtomicUsize,
    /// Where a standby sent us: asked before all others, until it fails.
    active: Mutex<Option<Arc<Server>>>,
    trust: Trust,
    limits: Limits,
}

impl Client {
    /// A client that has not asked anything yet.
    pub(crate) fn new(addresses: &[Address], trust: Trust, limits: Limits) -> Result<Self, Error> {
        let servers = addresses
            .iter()
            .map(|address| Ok(Arc::new(trust.server(address.clone())?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let (preferred, active) = (AtomicUsize::new(0), Mutex::default());
        Ok(Self { servers, preferred, active, trust, limits })
    }

    /// The server that is asked first.
    pub(crate) fn address(&self) -> Option<Address> {
        let candidates = self.candidates();
        candidates.first().map(|(_, server)| server.address().clone())
    }

    /// Asks one server after the other until one has an answer of its own, good or bad. The last
    /// one gets all the time that is left.
    pub(crate) async fn ask(&self, request: &Request, deadline: Instant) -> Result<Answer, Error> {
        let mut candidates = self.candidates();
        if request.once {
            candidates.truncate(1);
        }
        let last = candidates.len().saturating_sub(1);
        let mut failure = None;
        for (turn, (index, server)) in candidates.into_iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let limits = match u32::try_from(last - turn).unwrap_or(u32::MAX) {
                0 => Limits { connect: left, request: left },
                // Those that come after it must have their turn within the caller's time.
                others => self.limits.within(left / others.saturating_add(1)),
            };
            match self.ask_one(&server, request, limits).await {
                Ok(answer) => {
                    match index {
                        Some(index) => self.preferred.store(index, Ordering::Relaxed),
                        None => *self.active() = Some(server),
                    }
                    return Ok(answer);
                }
                Err(error) => {
                    // Whoever a standby sent us to is as lost as the standby.
                    *self.active() = None;
                    if turn != last {
                        tracing::debug!(server = %server.address(), error = %error.report(),
                            "asking the next server");
                    }
                    failure = Some(worse(failure, error));
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::Config, "no address is set")))
    }

    /// All servers in the order in which they are asked, with their places in the configuration.
    fn candidates(&self) -> Vec<(Option<usize>, Arc<Server>)> {
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.servers.len();
        let known = (0..count).map(|turn| {
            let index = (first + turn) % count;
            (Some(index), self.servers[index].clone())
        });
        match self.active().clone() {
            None => known.collect(),
            Some(active) => {
                let others = known.filter(|(_, server)| !Arc::ptr_eq(server, &active));
                std::iter::once((None, active.clone())).chain(others).collect()
            }
        }
    }

    fn active(&self) -> std::sync::MutexGuard<'_, Option<Arc<Server>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one server, and whom it sends us to.
    async fn ask_one(
        &self,
        server: &Arc<Server>,
        request: &Request,
        limits: Limits,
    ) -> Result<Answer, Error> {
        let deadline = Instant::now() + limits.request;
        let mut server = server.clone();
        let mut redirects = 0;
        loop {
            let asking = server.ask(request, limits.connect);
            let answer = timeout_at(deadline, asking).await.unwrap_or_else(|_| {
                let text = format!("{}: no answer in time", server.address());
                Err(Error::new(Kind::Timeout, text))
            })?;
            match answer.status {
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                    redirects += 1;
                    if redirects > MAX_REDIRECTS {
                        let text = format!("{}: redirects without end", server.address());
                        return Err(Error::new(Kind::Unavailable, text)
                            .with_hint("the cluster may be electing its active server"));
                    }
                    server = self.redirected(&server, request, &answer)?;
                    *self.active() = Some(server.clone());
                }
                status if answer::is_of_the_server(status) => {
                    return Err(answer::refused(&answer, &server.address().to_string()));
                }
                _ => return Ok(answer),
            }
        }
    }

    /// Where a standby sends us, if we may go there.
    fn redirected(
        &self,
        from: &Server,
        request: &Request,
        answer: &Answer,
    ) -> Result<Arc<Server>, Error> {
        let refused = |why: &str| {
            let text = format!("{}: its redirect is not followed: {why}", from.address());
            Error::new(Kind::Unavailable, text)
        };
        let uri = answer.location.as_ref().and_then(|location| location.to_str().ok());
        let uri: Option<Uri> = uri.and_then(|uri| uri.parse().ok());
        let uri = uri.ok_or_else(|| refused("it leads nowhere"))?;
        let address = Address::of(&uri).ok_or_else(|| {
            refused("it leads nowhere").with_hint("set api_addr on every Vault server")
        })?;
        if uri.path() != format!("/v1/{}", request.path) {
            return Err(refused("it leads to another path"));
        }
        let known = self.servers.iter().find(|server| *server.address() == address);
        if let Some(server) = known {
            return Ok(server.clone());
        }
        if !address.is_tls() || !self.trust.is_own {
            let text = format!("{address} is not configured");
            return Err(refused(&text).with_hint(
                "add it to settings.addresses, or set settings.tls.caFile so that it can be trusted",
            ));
        }
        match self.active().clone() {
            Some(server) if *server.address() == address => Ok(server),
            _ => Ok(Arc::new(self.trust.server(address)?)),
        }
    }
}

impl Limits {
    fn within(self, share: Duration) -> Self {
        Self { connect: self.connect.min(share), request: self.request.min(share) }
    }
}

impl Trust {
    fn server(&self, address: Address) -> Result<Server, Error> {
        Server::new(address, self.tls.clone(), self.name.as_deref())
    }
}

/// Of several failures the one that an operator can do most about: not the last of them, which
/// may be a server that is down on purpose.
fn worse(old: Option<Error>, new: Error) -> Error {
    match old {
        Some(old) if !old.kind().is_transient() || new.kind() == Kind::Timeout => old,
        _ => new,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};
    use rustls::RootCertStore;

    use super::*;

    fn client(is_own: bool) -> Client {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let trust = Trust { tls: Some(Arc::new(tls)), name: None, is_own };
        let limits = Limits { connect: Duration::from_secs(1), request: Duration::from_secs(1) };
        let address = |text| Address::parse(text).unwrap();
        let addresses = [address("https://one:8200"), address("https://two:8200")];
        Client::new(&addresses, trust, limits).unwrap()
    }

    /// Where a redirect to `location` leads.
    fn follow(client: &Client, location: &str) -> Option<String> {
        let request = Request {
            method: Method::GET,
            path: "transit/keys/kms".into(),
            body: Default::default(),
            namespace: None,
            token: None,
            index: None,
            once: false,
        };
        let location = HeaderValue::try_from(location).ok();
        let status = StatusCode::TEMPORARY_REDIRECT;
        let answer = Answer { status, location, index: None, body: Default::default() };
        let server = client.redirected(&client.servers[0], &request, &answer).ok()?;
        Some(server.address().to_string())
    }

    #[test]
    fn the_token_goes_only_where_it_was_meant_to() {
        let (own, system) = (client(true), client(false));
        let path = "/v1/transit/keys/kms";
        for client in [&own, &system] {
            let two = follow(client, &format!("https://TWO:8200{path}"));
            assert_eq!(two.as_deref(), Some("https://two:8200"), "it is configured");
            for stranger in ["http://two:8200", "http://evil", "ftp://two:8200", "//two:8200", ""] {
                assert_eq!(follow(client, &format!("{stranger}{path}")), None, "{stranger}");
            }
            assert_eq!(follow(client, "https://two:8200/v1/sys/seal"), None);
            assert_eq!(follow(client, &format!("https://u:p@two:8200{path}")), None);
        }
        let third = format!("https://three:8200{path}");
        assert_eq!(follow(&own, &third).as_deref(), Some("https://three:8200"), "its CA vouches");
        assert_eq!(follow(&system, &third), None, "the CAs of the system vouch for anybody");
    }
}
