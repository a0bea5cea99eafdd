//! The way to the plugin: one connection, made when it is needed and made anew when it broke.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sidekey_core::client::{self, ConnectError, Connection};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::{Endpoint, Error, Kind};
use tokio::time::Instant;
use tonic::Status;

/// How often a lost connection is looked after while nobody asks.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// A plugin that has let this much time pass may hang.
const HUNG: Duration = Duration::from_secs(1);
/// For a connection that nobody waits for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The plugin behind the proxy.
pub(super) struct Plugin {
    endpoint: Endpoint,
    server_uids: Vec<u32>,
    open: tokio::sync::Mutex<()>,
    current: Mutex<Option<Open>>,
    trouble: Mutex<Option<ConnectTrouble>>,
}

/// A connection and the client on it.
type Open = (KeyManagementServiceClient<Connection>, Connection);

/// Why there is no connection, and since when.
#[derive(Clone, Debug)]
pub(super) struct ConnectTrouble {
    pub(super) since: SystemTime,
    pub(super) error: String,
}

/// What went wrong on the way; not an answer of the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SocketError {
    /// Nobody listens, or there is no such socket.
    Connect,
    /// The socket may not be opened, or a uid serves it that is not accepted.
    Denied,
    /// Whoever listens does not speak HTTP/2.
    Handshake,
    /// The connection broke while a request was under way.
    Broken,
    /// No answer in the caller's time.
    Timeout,
}

sidekey_core::labels! {
    pub(super) SocketError: Connect = "connect", Denied = "denied", Handshake = "handshake",
    Broken = "broken", Timeout = "timeout",
}

impl Plugin {
    pub(super) fn new(endpoint: Endpoint, server_uids: Vec<u32>) -> Self {
        let (open, current, trouble) = Default::default();
        Self { endpoint, server_uids, open, current, trouble }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether there is a connection now.
    pub(super) fn connected(&self) -> bool {
        self.current().is_some()
    }

    /// Why there was no connection when one was last tried.
    pub(super) fn trouble(&self) -> Option<ConnectTrouble> {
        self.trouble.lock().clone()
    }

    /// Makes one call. A call that fails because the connection broke is made once more on a new
    /// one: the plugin was restarted, and all three operations may be repeated.
    pub(super) async fn call<A, F>(
        &self,
        deadline: Instant,
        send: impl Fn(KeyManagementServiceClient<Connection>) -> F,
    ) -> Result<A, PluginFailure>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let calling = async {
            let first = send(self.connection().await?).await;
            let answer = match first {
                Err(status) if client::broke(&status) => send(self.connection().await?).await,
                answer => answer,
            };
            answer.map_err(|status| match client::broke(&status) {
                true => self.broken(&status),
                false => PluginFailure::Answer(status),
            })
        };
        let began = Instant::now();
        match tokio::time::timeout_at(deadline, calling).await {
            Ok(result) => result,
            Err(_) => {
                // Whoever hangs may have been replaced by somebody who listens on the same path.
                // A caller in a hurry says nothing about that.
                if began.elapsed() >= HUNG {
                    *self.current.lock() = None;
                }
                Err(PluginFailure::Way(SocketError::Timeout, self.out_of_time()))
            }
        }
    }

    /// What a caller is told whose time is up.
    pub(super) fn out_of_time(&self) -> Error {
        let text = format!("the plugin at {} did not answer in time", self.endpoint);
        Error::new(Kind::Timeout, text)
    }

    /// Connects once, to see whether it can be done.
    pub(super) async fn try_out(&self) -> Result<(), PluginFailure> {
        match tokio::time::timeout(CONNECT_TIMEOUT, self.connection()).await {
            Ok(result) => result.map(|_| ()),
            Err(_) => {
                let text = format!("{} takes no connection", self.endpoint);
                Err(PluginFailure::Way(SocketError::Timeout, Error::new(Kind::Timeout, text)))
            }
        }
    }

    /// Keeps a connection while nobody asks, so that health and metrics tell the truth.
    pub(super) async fn look_after(&self) {
        loop {
            let known = self.trouble().is_some();
            match self.try_out().await {
                Err(failure) if !known => {
                    tracing::warn!(plugin = %self.endpoint, error = failure.text(),
                        "no connection to the plugin; requests get Unavailable until there is");
                }
                Ok(()) if known => tracing::info!(plugin = %self.endpoint, "plugin is back"),
                _ => {}
            }
            tokio::time::sleep(sidekey_core::jitter(LOOK_AFTER)).await;
        }
    }

    fn current(&self) -> Option<KeyManagementServiceClient<Connection>> {
        let current = self.current.lock();
        let (client, _) = current.as_ref().filter(|(_, connection)| !connection.is_closed())?;
        Some(client.clone())
    }

    /// The connection, or a new one: many callers at once make one.
    async fn connection(&self) -> Result<KeyManagementServiceClient<Connection>, PluginFailure> {
        if let Some(client) = self.current() {
            return Ok(client);
        }
        let _one = self.open.lock().await;
        if let Some(client) = self.current() {
            return Ok(client);
        }
        let result = self.connect().await;
        self.note(result.as_ref().err());
        let open = result?;
        let client = open.0.clone();
        *self.current.lock() = Some(open);
        Ok(client)
    }

    async fn connect(&self) -> Result<Open, PluginFailure> {
        let failed = |reason, error: Box<dyn std::error::Error + Send + Sync>, hint| {
            let text = format!("cannot connect to the plugin at {}", self.endpoint);
            let error = Error::new(Kind::Unavailable, text).with_source(error).with_hint(hint);
            PluginFailure::Way(reason, error)
        };
        let connecting = client::connect_to(&self.endpoint, &self.server_uids).await;
        connecting.map_err(|error| match error {
            ConnectError::Server { source, .. } => PluginFailure::Way(SocketError::Denied, source),
            ConnectError::Socket { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                let hint =
                    "let the proxy's user open the socket: see its mode, group and SELinux label";
                failed(SocketError::Denied, source.into(), hint)
            }
            ConnectError::Socket { source, .. } => {
                failed(SocketError::Connect, source.into(), "see whether the plugin runs")
            }
            ConnectError::Handshake { source, .. } => {
                failed(SocketError::Handshake, source.into(), "see what listens on that socket")
            }
        })
    }

    fn note(&self, failure: Option<&PluginFailure>) {
        let mut trouble = self.trouble.lock();
        *trouble = failure.map(|failure| ConnectTrouble {
            since: trouble.as_ref().map_or_else(SystemTime::now, |trouble| trouble.since),
            error: failure.text(),
        });
    }

    fn broken(&self, status: &Status) -> PluginFailure {
        let text = format!("the plugin at {} hung up: {}", self.endpoint, status.message());
        PluginFailure::Way(SocketError::Broken, Error::new(Kind::Unavailable, text))
    }
}

/// Why there is no good answer.
pub(super) enum PluginFailure {
    /// The plugin said so.
    Answer(Status),
    /// The plugin was not reached, or not heard.
    Way(SocketError, Error),
}

impl PluginFailure {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Answer(status) => status.message().to_owned(),
            Self::Way(_, error) => error.report(),
        }
    }
}
