//! A small HTTP/1.1 client that never retries: what fails is seen to fail.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long a request may take, its connection included.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The whole body.
    pub body: Bytes,
}

impl Response {
    /// An error that quotes the body unless the status is 2xx.
    pub fn ok(self) -> Result<Self> {
        if !(200..300).contains(&self.status) {
            let text = self.text();
            let shown: String = text.trim().chars().take(600).collect();
            bail!("status {}: {shown}", self.status);
        }
        Ok(self)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| {
            format!("not JSON: {}", self.text().chars().take(200).collect::<String>())
        })
    }
}

/// One server, some open connections to it, and how to authenticate.
#[derive(Clone)]
pub struct HttpClient {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    tls: Option<TlsConnector>,
    bearer: Option<String>,
    keeps: bool,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl HttpClient {
    /// Plain HTTP, for loopback only.
    pub fn plain(address: SocketAddr) -> Self {
        Self::new(address, None, None)
    }

    /// HTTPS with a bearer token.
    pub fn tls(address: SocketAddr, tls: TlsConnector, bearer: Option<String>) -> Self {
        Self::new(address, Some(tls), bearer)
    }

    fn new(address: SocketAddr, tls: Option<TlsConnector>, bearer: Option<String>) -> Self {
        let idle = Mutex::default();
        Self { shared: Arc::new(Shared { address, tls, bearer, keeps: true, idle }) }
    }

    /// The same server, with a connection of its own for each request: behind a
    /// balancer each is then led to a server that is ready at that moment.
    pub fn connecting_anew(&self) -> Self {
        let Shared { address, tls, bearer, .. } = &*self.shared;
        let (tls, bearer, idle) = (tls.clone(), bearer.clone(), Mutex::default());
        Self { shared: Arc::new(Shared { address: *address, tls, bearer, keeps: false, idle }) }
    }

    /// The same server, asked by whoever has this token.
    pub fn with_bearer(&self, bearer: &str) -> Self {
        Self::new(self.shared.address, self.shared.tls.clone(), Some(bearer.to_owned()))
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// GET, whatever the status.
    pub async fn get(&self, path: &str) -> Result<Response> {
        self.send(Method::GET, path, None).await
    }

    /// POST of JSON, whatever the status.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Any request, sent once.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response> {
        self.send_with(method, path, &[], body).await
    }

    /// Any request with headers of its own, sent once.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Response> {
        let what = format!("{method} {path} at {}", self.shared.address);
        let exchange = self.exchange(method, path, headers, body);
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(answer) => answer.context(what),
            Err(_) => bail!("{what}: no answer within {} s", TIMEOUT.as_secs()),
        }
    }

    /// Begins a request whose body never comes: a server with TLS is busy with it until what is
    /// returned is dropped.
    pub async fn hold(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
    ) -> Result<impl Sized + use<>> {
        let Shared { address, tls, bearer, .. } = &*self.shared;
        let (tls, bearer) = tls.as_ref().zip(bearer.as_ref()).context("no TLS, or no token")?;
        let tcp = TcpStream::connect(address).await?;
        let mut stream = tls.connect(ServerName::from(address.ip()), tcp).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {bearer}\r\n\
             content-type: {content_type}\r\ncontent-length: 2\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        Ok(stream)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Response> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.shared.address.to_string())
            .header(header::ACCEPT, "application/json, */*");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.shared.bearer {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let bytes = match body {
            Some(value) => {
                let named = |(name, _): &(&str, &str)| *name == header::CONTENT_TYPE.as_str();
                if !headers.iter().any(named) {
                    request = request.header(header::CONTENT_TYPE, "application/json");
                }
                Bytes::from(value.to_string())
            }
            None => Bytes::new(),
        };
        let mut connection = self.connection().await?;
        connection.ready().await?;
        let answer = connection.send_request(request.body(Full::new(bytes))?).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        if self.shared.keeps {
            self.idle().push(connection);
        }
        Ok(Response { status, body })
    }

    /// An idle connection that is still open, or a new one.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>> {
        let idle = {
            let mut idle = self.idle();
            idle.retain(|connection| !connection.is_closed());
            idle.pop()
        };
        match idle {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let tcp = TcpStream::connect(self.shared.address).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.shared.tls else {
            let (sender, connection) = handshake(TokioIo::new(tcp)).await?;
            tokio::spawn(connection);
            return Ok(sender);
        };
        let name = ServerName::from(self.shared.address.ip());
        let stream = tls.connect(name, tcp).await.context("TLS handshake")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SendRequest<Full<Bytes>>>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").field("address", &self.shared.address).finish_non_exhaustive()
    }
}
