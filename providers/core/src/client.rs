//! A KMS v2 client over one unix connection, as lean as the server beside it.
//!
//! It sends the authority `localhost`, as kube-apiserver 1.32 and later do. One
//! client is one connection: it never reconnects and never retries, so that the
//! caller sees every fault.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;

use crate::Endpoint;
use crate::proto::v2::key_management_service_client::KeyManagementServiceClient;

/// One HTTP/2 connection to a plugin; clones share it.
#[derive(Clone, Debug)]
pub struct Connection {
    requests: http2::SendRequest<Body>,
}

/// Why a plugin could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or the socket may not be opened.
    #[error("cannot connect to {endpoint}")]
    Socket {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Whoever listens does not speak HTTP/2.
    #[error("{endpoint} does not speak HTTP/2")]
    Handshake {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: hyper::Error,
    },
}

/// Opens a connection to the plugin at `endpoint`: the generated client on our own transport.
pub async fn connect(
    endpoint: &Endpoint,
) -> Result<KeyManagementServiceClient<Connection>, ConnectError> {
    let stream = endpoint
        .connect()
        .await
        .map_err(|source| ConnectError::Socket { endpoint: endpoint.clone(), source })?;
    over(stream, Uri::from_static("http://localhost"))
        .await
        .map_err(|source| ConnectError::Handshake { endpoint: endpoint.clone(), source })
}

/// Speaks KMS v2 over a stream that is already open, TLS included; `origin` becomes the
/// authority of every request.
pub async fn over<T>(
    stream: T,
    origin: Uri,
) -> Result<KeyManagementServiceClient<Connection>, hyper::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    open(stream, origin).await.map(|(client, _)| client)
}

/// Like [`over`], with the connection itself, for those who keep it and must see it close.
pub async fn open<T>(
    stream: T,
    origin: Uri,
) -> Result<(KeyManagementServiceClient<Connection>, Connection), hyper::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, driver) =
        http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await?;
    // The driver ends with the last clone of the connection, or when the peer goes away;
    // callers learn of the latter from their own request.
    tokio::spawn(driver);
    let connection = Connection { requests };
    Ok((KeyManagementServiceClient::with_origin(connection.clone(), origin), connection))
}

impl Connection {
    /// Whether the peer has gone away: a request would fail.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }
}

impl tower_service::Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}
