//! One way to one plugin: a connection that is made when needed and made anew when it broke.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use sidekey_core::client::{self, Connection};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::{Error, Kind, QuietStream};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::Address;
use crate::tls::Identity;

/// A plugin that does not take a connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of one plugin.
pub(crate) struct Client(pub(crate) KeyManagementServiceClient<Connection>);

/// One way to one plugin.
pub(crate) struct Link {
    address: Address,
    tls: Option<Tls>,
    open: Mutex<Option<(KeyManagementServiceClient<Connection>, Connection)>>,
}

/// What an `https` link needs.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) identity: Arc<Identity>,
    pub(crate) server_name: Option<String>,
}

impl Link {
    pub(crate) fn new(address: Address, tls: Option<Tls>) -> Self {
        Self { address, tls, open: Mutex::new(None) }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The open connection, or a new one.
    pub(crate) async fn client(&self, deadline: Instant) -> Result<Client, Error> {
        if let Ok(open) = self.open.try_lock()
            && let Some((client, connection)) = &*open
            && !connection.is_closed()
        {
            return Ok(Client(client.clone()));
        }
        // Boxed, because every call would carry the room that a TLS handshake needs.
        Box::pin(self.reconnect(deadline)).await
    }

    async fn reconnect(&self, deadline: Instant) -> Result<Client, Error> {
        let limit = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let connecting = async {
            let mut open = self.open.lock().await;
            if let Some((client, connection)) = &*open
                && !connection.is_closed()
            {
                return Ok(Client(client.clone()));
            }
            *open = None;
            let (client, connection) = self.connect().await?;
            *open = Some((client.clone(), connection));
            Ok(Client(client))
        };
        tokio::time::timeout_at(limit, connecting).await.unwrap_or_else(|_| {
            Err(Error::new(Kind::Unavailable, format!("{} takes no connection", self.address)))
        })
    }

    /// Gives the connection up: it is open, but nobody answers on it.
    pub(crate) async fn hang_up(&self) {
        *self.open.lock().await = None;
    }

    async fn connect(&self) -> Result<(KeyManagementServiceClient<Connection>, Connection), Error> {
        let failed =
            |what: &str| Error::new(Kind::Unavailable, format!("cannot {what} {}", self.address));
        match &self.address {
            Address::Unix(endpoint) => {
                let stream = endpoint.connect().await.and_then(QuietStream::new);
                let stream = stream.map_err(|error| failed("connect to").with_source(error))?;
                client::open(stream, Uri::from_static("http://localhost"))
                    .await
                    .map_err(|error| failed("speak HTTP/2 with").with_source(error))
            }
            Address::Https { host, port } => {
                let tls = self.tls.as_ref().ok_or_else(|| failed("find certificates for"))?;
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.map_err(|error| failed("connect to").with_source(error))?;
                let name = tls.server_name.as_deref().unwrap_or(host);
                let stream = tls.identity.connect(stream, name).await?;
                let origin = self.address.to_string().parse();
                let origin = origin.unwrap_or_else(|_| Uri::from_static("https://localhost"));
                client::open(stream, origin)
                    .await
                    .map_err(|error| failed("speak HTTP/2 with").with_source(error))
            }
        }
    }
}
