//! One endpoint of a key: a connection that is made when needed and made anew when it broke, and
//! what is known of the plugin behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::Uri;
use parking_lot::MutexGuard;
use sidekey_core::client::{self, ConnectError, Connection};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::{Error, KeyId, Kind};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::call::{CallFailure, Client};
use crate::config::Address;
use crate::metrics::ShimMetrics;
use crate::probe::Found;
use crate::tls::{Identity, Server};

/// A plugin that does not take a connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One endpoint of a key.
pub(crate) struct Link {
    address: Address,
    /// The uids that may serve a unix socket.
    server_uids: Vec<u32>,
    tls: Option<Tls>,
    pub(crate) metrics: Arc<ShimMetrics>,
    open: Mutex<Option<OpenLink>>,
    /// Connections so far: a new one may lead to a new process.
    made: AtomicU64,
    /// It could not be reached, or did not answer in its time, and no probe has succeeded since.
    failing: AtomicBool,
    known: parking_lot::Mutex<Known>,
    /// The probe under way, or the last one.
    pub(crate) probing: parking_lot::Mutex<Option<watch::Receiver<Option<Found>>>>,
}

/// What an `https` link needs.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) identity: Arc<Identity>,
    pub(crate) server_name: Option<String>,
}

/// What probes and answers have told.
#[derive(Default)]
pub(crate) struct Known {
    /// The key_id under which it writes.
    pub(crate) reported: Option<KeyId>,
    /// When the key was last proven, as it said.
    pub(crate) proof: Option<Instant>,
    /// The connection on which its Status was last ok.
    pub(crate) good: u64,
    /// When it was last found to have the KEK that wrote.
    pub(crate) checked: Option<Checked>,
    /// Whether it has ever read something that was written before.
    pub(crate) has_read: bool,
}

/// For which process and version the KEK was checked, and when.
pub(crate) struct Checked {
    pub(crate) number: u64,
    pub(crate) key_id: Option<KeyId>,
    /// Whether there was something to read.
    pub(crate) read: bool,
    pub(crate) at: Instant,
}

struct OpenLink {
    stub: KeyManagementServiceClient<Connection>,
    connection: Connection,
    number: u64,
    /// Who serves an `https` link.
    server: Option<Server>,
}

impl Link {
    pub(crate) fn new(
        address: Address,
        server_uids: Vec<u32>,
        tls: Option<Tls>,
        metrics: Arc<ShimMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            server_uids,
            tls,
            metrics,
            open: Mutex::new(None),
            made: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            known: parking_lot::Mutex::default(),
            probing: parking_lot::Mutex::default(),
        })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }

    /// Whether it said that it writes under this key_id.
    pub(crate) fn reports(&self, key_id: &KeyId) -> bool {
        self.known().reported.as_ref() == Some(key_id)
    }

    /// The open connection, or a new one.
    pub(crate) async fn client(self: &Arc<Self>, deadline: Instant) -> Result<Client, CallFailure> {
        if let Ok(open) = self.open.try_lock()
            && let Some(client) = self.usable(open.as_ref())
        {
            return Ok(client);
        }
        // Boxed, because every call would carry the room that a TLS handshake needs.
        Box::pin(self.reconnect(deadline)).await.map_err(|error| {
            self.metrics.unconnected.inc();
            self.set_failing(true);
            CallFailure::Unanswered(error)
        })
    }

    /// Gives the connection up: it is open, but nobody answers on it.
    pub(crate) async fn hang_up(&self) {
        *self.open.lock().await = None;
    }

    /// What is open, unless its server would not be accepted now: our CA may have changed.
    fn usable(self: &Arc<Self>, open: Option<&OpenLink>) -> Option<Client> {
        let open = open.filter(|open| {
            !open.connection.is_closed() && open.server.as_ref().is_none_or(Server::is_trusted)
        })?;
        let (link, number, stub) = (self.clone(), open.number, open.stub.clone());
        Some(Client { link, number, stub, deadline: None })
    }

    async fn reconnect(self: &Arc<Self>, deadline: Instant) -> Result<Client, Error> {
        let limit = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let connecting = async {
            let mut open = self.open.lock().await;
            if let Some(client) = self.usable(open.as_ref()) {
                return Ok(client);
            }
            if open.take().is_some_and(|open| !open.connection.is_closed()) {
                tracing::info!(endpoint = %self.address,
                    "connection given up: the server's certificate is no longer accepted");
            }
            let (stub, connection, server) = self.connect().await?;
            let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
            *open = Some(OpenLink { stub: stub.clone(), connection, number, server });
            Ok(Client { link: self.clone(), number, stub, deadline: None })
        };
        tokio::time::timeout_at(limit, connecting).await.unwrap_or_else(|_| {
            Err(Error::new(Kind::Unavailable, format!("{} takes no connection", self.address)))
        })
    }

    async fn connect(
        &self,
    ) -> Result<(KeyManagementServiceClient<Connection>, Connection, Option<Server>), Error> {
        let failed =
            |what: &str| Error::new(Kind::Unavailable, format!("cannot {what} {}", self.address));
        match &self.address {
            Address::Unix(endpoint) => {
                let opened = client::connect_to(endpoint, &self.server_uids).await;
                let (stub, connection) = opened.map_err(|error| match error {
                    ConnectError::Server { source, .. } => source,
                    error => Error::new(Kind::Unavailable, "no connection").with_source(error),
                })?;
                Ok((stub, connection, None))
            }
            Address::Https { host, port } => {
                let tls = self.tls.as_ref().ok_or_else(|| failed("find certificates for"))?;
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.map_err(|error| failed("connect to").with_source(error))?;
                let name = tls.server_name.as_deref().unwrap_or(host);
                let stream = tls.identity.connect(stream, name).await?;
                let server = tls.identity.server(&stream, name);
                let origin = self.address.to_string().parse();
                let origin = origin.unwrap_or_else(|_| Uri::from_static("https://localhost"));
                let (stub, connection) = client::open(stream, origin)
                    .await
                    .map_err(|error| failed("speak HTTP/2 with").with_source(error))?;
                Ok((stub, connection, server))
            }
        }
    }
}
