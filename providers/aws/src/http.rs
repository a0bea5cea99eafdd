//! The SDK's HTTP client: HTTP/1.1 over few kept connections, with rustls.
//!
//! Ours, because the SDK's own brings a resolver, a proxy matcher, a pool with its own tasks and
//! the system's whole store of roots into every process, for calls of a kilobyte each. Every call
//! made here can be repeated without harm, so that one that meets a connection which the other
//! side has just closed is sent once more on a fresh one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::client::conn::http1::SendRequest;
use sidekey_core::Secret;
use tokio::time::{Instant, timeout};

pub(crate) mod connect;
pub(crate) mod proxy;
pub(crate) mod tls;

use connect::{Origin, Ways};

/// No answer of KMS, STS or IMDS is longer.
const MAX_ANSWER: usize = 256 * 1024;
/// Connections that are kept, over all; a storm of Decrypts needs as many as it has calls.
const MAX_IDLE: usize = 64;
/// How long a connection is kept that nobody needs: longer than from one probe to the next.
const KEEP: Duration = Duration::from_secs(90);
/// Of those that a storm has left behind, all but this many go sooner.
const CALM: usize = 4;
/// And this is sooner.
const KEEP_AFTER_STORM: Duration = Duration::from_secs(10);

/// Kept connections, and how to make new ones; cheap to clone.
#[derive(Clone)]
pub(crate) struct Http(Arc<Inner>);

struct Inner {
    ways: Ways,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    origin: Origin,
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// A connection of one request, and whether it served another one before.
struct Taken {
    sender: SendRequest<Full<Bytes>>,
    used: bool,
}

/// The client with the times that one kind of call asks for.
struct Timed {
    http: Http,
    connect: Option<Duration>,
    read: Option<Duration>,
}

impl Http {
    /// Nothing is connected yet.
    pub(crate) fn new(ways: Ways) -> Self {
        Self(Arc::new(Inner { ways, idle: Mutex::default() }))
    }

    /// For the SDK: a request to any URL.
    async fn call(
        &self,
        request: HttpRequest,
        limit: Option<Duration>,
    ) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(|error| other(error.into()))?;
        let (origin, request) = prepare(request)?;
        let (head, body) = self.exchange(&origin, request, limit).await?.into_parts();
        let response = http::Response::from_parts(head, SdkBody::from(body));
        HttpResponse::try_from(response).map_err(|error| other(error.into()))
    }

    /// Sends a request, and reads the whole answer.
    pub(crate) async fn exchange(
        &self,
        origin: &Origin,
        request: Request<Full<Bytes>>,
        limit: Option<Duration>,
    ) -> Result<Response<Bytes>, ConnectorError> {
        loop {
            let Taken { mut sender, used } = self.take(origin, limit).await?;
            let answer = sender.send_request(request.clone()).await;
            let response = match answer {
                Ok(response) => response,
                // The other side closed it while it was idle: nothing was done with the request.
                Err(error) if used && lost(&error) => continue,
                Err(error) => return Err(connect::broken(origin, &error)),
            };
            let (head, body) = response.into_parts();
            let body = read(body).await?;
            self.put(origin.clone(), sender);
            return Ok(Response::from_parts(head, body));
        }
    }

    /// The connection that was used last, as long as it is open, or a new one.
    async fn take(
        &self,
        origin: &Origin,
        limit: Option<Duration>,
    ) -> Result<Taken, ConnectorError> {
        while let Some(mut sender) = self.pop(origin) {
            if sender.ready().await.is_ok() {
                return Ok(Taken { sender, used: true });
            }
        }
        let sender = self.0.ways.connect(origin, limit).await?;
        Ok(Taken { sender, used: false })
    }

    fn pop(&self, origin: &Origin) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = idle.iter().rposition(|idle| idle.origin == *origin)?;
        Some(idle.remove(newest).sender)
    }

    fn put(&self, origin: Origin, sender: SendRequest<Full<Bytes>>) {
        let now = Instant::now();
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rest, mut left) = (idle.len(), MAX_IDLE - 1);
        // The oldest stand first.
        idle.retain(|idle| {
            let age = now - idle.since;
            let keep = age < if rest > CALM { KEEP_AFTER_STORM } else { KEEP };
            rest -= 1;
            keep && left.checked_sub(1).inspect(|less| left = *less).is_some()
        });
        if !sender.is_closed() {
            idle.push(Idle { origin, sender, since: now });
        }
    }
}

impl HttpConnector for Timed {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (http, connect, read) = (self.http.clone(), self.connect, self.read);
        HttpConnectorFuture::new(async move {
            let call = http.call(request, connect);
            match read {
                None => call.await,
                Some(limit) => timeout(limit, call).await.unwrap_or_else(|_| {
                    let text = format!("no answer within {limit:?}");
                    Err(ConnectorError::timeout(text.into()))
                }),
            }
        })
    }
}

impl HttpClient for Http {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let (connect, read) = (settings.connect_timeout(), settings.read_timeout());
        SharedHttpConnector::new(Timed { http: self.clone(), connect, read })
    }
}

/// Turns a request to a URL into one for a connection.
fn prepare(request: Request<SdkBody>) -> Result<(Origin, Request<Full<Bytes>>), ConnectorError> {
    let (mut head, body) = request.into_parts();
    let body = body.bytes().ok_or_else(|| other("a body that is not in memory".into()))?;
    let body = Full::new(Bytes::copy_from_slice(body));
    let origin = Origin::of(&head.uri).ok_or_else(|| {
        ConnectorError::user(format!("{} is no http or https URL", head.uri).into())
    })?;
    if !head.headers.contains_key(header::HOST) {
        let host = HeaderValue::from_str(&origin.host_header()).map_err(|e| other(e.into()))?;
        head.headers.insert(header::HOST, host);
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse::<Uri>().map_err(|error| other(error.into()))?;
    head.version = http::Version::HTTP_11;
    Ok((origin, Request::from_parts(head, body)))
}

/// Reads an answer, which may hold a key in clear: the buffer is wiped when it is dropped.
async fn read(mut body: hyper::body::Incoming) -> Result<Bytes, ConnectorError> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(MAX_ANSWER);
    let mut whole = Vec::with_capacity(expected.min(MAX_ANSWER));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ConnectorError::io(error.into()))?;
        let Some(data) = frame.data_ref() else { continue };
        if whole.len() + data.len() > MAX_ANSWER {
            return Err(other("the answer is too long".into()));
        }
        whole.extend_from_slice(data);
    }
    Ok(Bytes::from_owner(Wiped(Secret::new(whole))))
}

/// Bytes that are wiped when the last one who uses them is done.
pub(crate) struct Wiped(pub(crate) Secret);

impl AsRef<[u8]> for Wiped {
    fn as_ref(&self) -> &[u8] {
        self.0.expose()
    }
}

/// Whether the connection ended before an answer began.
fn lost(error: &hyper::Error) -> bool {
    error.is_canceled() || error.is_closed() || error.is_incomplete_message()
}

fn other(error: Box<dyn std::error::Error + Send + Sync>) -> ConnectorError {
    ConnectorError::other(error, None)
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timed")
    }
}

#[cfg(test)]
mod tests;
