//! How a plugin is reached: by its unix socket, or by mutual TLS.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use hyper::Uri;
use sidekey_core::Endpoint;
use sidekey_core::client::{Connection, connect, open};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::ports::Port;

/// Where a plugin listens.
#[derive(Clone)]
pub enum Reach {
    /// A unix socket.
    Socket(Endpoint),
    /// A port, which is ours as long as this lives, and how to greet whoever listens there.
    Tls(Arc<Port>, TlsConnector),
}

impl Reach {
    /// Opens a connection.
    pub async fn connect(&self) -> Result<KeyManagementServiceClient<Connection>> {
        match self {
            Self::Socket(endpoint) => Ok(connect(endpoint).await?),
            Self::Tls(port, connector) => tls(port.address(), connector).await,
        }
    }
}

async fn tls(
    address: SocketAddr,
    connector: &TlsConnector,
) -> Result<KeyManagementServiceClient<Connection>> {
    let stream = TcpStream::connect(address).await?;
    // As the shim does it: small requests must not wait for more.
    stream.set_nodelay(true)?;
    let stream = connector.connect(ServerName::from(address.ip()), stream).await?;
    let origin = Uri::try_from(format!("https://{address}"))?;
    let (client, _) = open(stream, origin).await.context("no HTTP/2 behind TLS")?;
    Ok(client)
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(endpoint) => fmt::Display::fmt(endpoint, f),
            Self::Tls(port, _) => write!(f, "https://{}", port.address()),
        }
    }
}
