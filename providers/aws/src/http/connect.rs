//! New connections: name, TCP, TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_smithy_runtime_api::client::result::ConnectorError;
use http::Uri;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::proxy::Proxy;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    tls: bool,
    host: String,
    port: u16,
}

/// How connections are made.
pub(crate) struct Ways {
    tls: Arc<rustls::ClientConfig>,
    connect_timeout: Duration,
    proxy: Option<Proxy>,
}

impl Origin {
    /// Where `uri` leads.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Some(Self { tls, host: uri.host()?.to_owned(), port })
    }

    /// As it is signed: the port only where it is unusual.
    pub(crate) fn host_header(&self) -> String {
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// The host without the brackets of an IPv6 address.
    fn name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl Ways {
    /// TLS with these roots, this long for each address, and perhaps through a proxy.
    pub(crate) fn new(
        tls: Arc<rustls::ClientConfig>,
        connect_timeout: Duration,
        proxy: Option<Proxy>,
    ) -> Self {
        Self { tls, connect_timeout, proxy }
    }

    /// Opens a connection.
    pub(crate) async fn connect(
        &self,
        origin: &Origin,
        limit: Option<Duration>,
    ) -> Result<Connection, ConnectorError> {
        let limit = limit.unwrap_or(self.connect_timeout);
        if !origin.tls {
            return Ok(Connection::new(self.open(origin, limit).await?));
        }
        let stream = self.reach(origin, limit).await?;
        let name = ServerName::try_from(origin.name().to_owned())
            .map_err(|error| ConnectorError::user(error.into()))?;
        let shaking = TlsConnector::from(self.tls.clone()).connect(name, stream);
        // Two round trips and a signature, where TCP has one.
        let stream = match timeout(limit * 2, shaking).await {
            Ok(Ok(stream)) => stream,
            // No waiting mends it: the bundle or what answers there is the wrong one.
            Ok(Err(error)) if is_distrust(&error) => {
                return Err(ConnectorError::user(wrapped("TLS", origin, error)));
            }
            Ok(Err(error)) => return Err(ConnectorError::io(wrapped("TLS", origin, error))),
            Err(_) => return Err(late("TLS", origin)),
        };
        Ok(Connection::new(stream))
    }

    /// The other end, through the proxy if there is one for it.
    async fn reach(&self, origin: &Origin, limit: Duration) -> Result<TcpStream, ConnectorError> {
        let proxy = self.proxy.as_ref();
        let Some(proxy) = proxy.filter(|proxy| proxy.serves(&origin.host, origin.port)) else {
            return self.open(origin, limit).await;
        };
        if proxy.host.is_empty() {
            // Its URL may hold a password.
            let text = "HTTPS_PROXY names no proxy that can be used: write http://host:port, or \
                        put the host in NO_PROXY";
            return Err(ConnectorError::user(text.into()));
        }
        let first = Origin { tls: false, host: proxy.host.clone(), port: proxy.port };
        let stream = self.open(&first, limit).await?;
        match timeout(limit * 2, proxy.tunnel(stream, &origin.host, origin.port)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(ConnectorError::io(wrapped("tunnel", origin, error))),
            Err(_) => Err(late("tunnel", origin)),
        }
    }

    /// The first address that answers.
    async fn open(&self, origin: &Origin, limit: Duration) -> Result<TcpStream, ConnectorError> {
        let mut last = None;
        for address in addresses(origin).await? {
            last = Some(match timeout(limit, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true).map_err(|e| ConnectorError::io(e.into()))?;
                    return Ok(stream);
                }
                Ok(Err(error)) => ConnectorError::io(wrapped("connection", origin, error)),
                Err(_) => late("connection", origin),
            });
        }
        let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        Err(last.unwrap_or_else(|| ConnectorError::io(wrapped("connection", origin, none()))))
    }
}

/// Names are looked up anew for each connection: KMS moves.
async fn addresses(origin: &Origin) -> Result<Vec<SocketAddr>, ConnectorError> {
    if let Ok(address) = origin.name().parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, origin.port)]);
    }
    let found = tokio::net::lookup_host((origin.name(), origin.port)).await;
    let found = found.map_err(|error| ConnectorError::io(wrapped("name lookup", origin, error)))?;
    Ok(found.collect())
}

/// Whether the certificate that the other end has shown is not trusted.
fn is_distrust(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

pub(super) fn wrapped(
    what: &str,
    origin: &Origin,
    error: io::Error,
) -> Box<dyn std::error::Error + Send + Sync> {
    let text = format!("{what} to {}:{} failed: {error}", origin.host, origin.port);
    io::Error::new(error.kind(), text).into()
}

fn late(what: &str, origin: &Origin) -> ConnectorError {
    let text = format!("{what} to {}:{} took too long", origin.host, origin.port);
    ConnectorError::timeout(text.into())
}
