//! TLS streams to servers that speak something else than HTTP, over the kit's way to connect.

use std::io;
use std::time::Duration;

use http::Uri;
use http::uri::InvalidUri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use sidekey_core::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::address::Address;
use crate::http::exchange::{Resolver, broken, https, names, tcp};
use crate::tls::Trust;

/// Opens streams to servers that are trusted alike; cheap to clone. No proxy stands between: those
/// for HTTPS let nothing else pass.
#[derive(Clone)]
pub struct Dialer {
    connector: HttpsConnector<HttpConnector<Resolver>>,
    /// The setting that names the CA bundle, for hints.
    bundle: &'static str,
}

/// An open stream.
pub struct Stream(TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>);

impl Dialer {
    /// `connect` bounds a connection, all addresses of the host together. No protocol is agreed on
    /// inside TLS.
    pub fn new(trust: &Trust, connect: Duration) -> Self {
        let trust = trust.without_protocol();
        Self { connector: https(tcp(names(), connect), &trust), bundle: trust.setting }
    }

    /// Opens one.
    pub async fn open(&self, address: &Address) -> Result<Stream, Error> {
        let lost = |error| self.broken(address, "no connection", error);
        let uri: Uri =
            address.to_string().parse().map_err(|error: InvalidUri| lost(error.into()))?;
        let stream = self.connector.clone().oneshot(uri).await.map_err(lost)?;
        Ok(Stream(TokioIo::new(stream)))
    }

    /// The error that a broken stream is; `text` says what broke.
    pub fn broken(
        &self,
        address: &Address,
        text: &str,
        error: Box<dyn std::error::Error + Send + Sync>,
    ) -> Error {
        broken(address, &address.authority(), self.bundle, text, error)
    }
}

impl Stream {
    /// Sends all of it.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    /// Reads until `buffer` is full.
    pub async fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(buffer).await.map(drop)
    }
}
