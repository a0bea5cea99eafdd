//! HTTP/1.1 over few kept connections, with rustls: for our own calls, and for those of the SDK.
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
use sidekey_core::Secret;
use tokio::time::{Instant, timeout};

pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod proxy;
pub(crate) mod tls;

use connect::{Origin, Ways};
use connection::{Broken, Connection, Reply};

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
    connection: Connection,
    since: Instant,
}

/// Somebody who waits for an answer on a kept connection. If he gives up, the other kept ones are
/// not trusted either: what swallows requests (a firewall that has forgotten them, an endpoint
/// that was moved) swallows those of all, and every try would be spent on one of them.
struct Waiting<'a> {
    http: &'a Http,
    origin: &'a Origin,
    answered: bool,
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
        let (origin, request) = written(&request)?;
        let reply = self.exchange(&origin, &request, limit).await?;
        let mut response = http::Response::builder().status(reply.status);
        for (name, value) in reply.headers() {
            response = response.header(name, value);
        }
        let body = SdkBody::from(reply.body.expose());
        let response = response.body(body).map_err(|error| other(error.into()))?;
        HttpResponse::try_from(response).map_err(|error| other(error.into()))
    }

    /// Sends a request, head and body, and reads the whole answer.
    pub(crate) async fn exchange(
        &self,
        origin: &Origin,
        request: &Secret,
        limit: Option<Duration>,
    ) -> Result<Reply, ConnectorError> {
        while let Some(mut connection) = self.pop(origin) {
            if !connection.is_open().await {
                continue;
            }
            let waiting = Waiting { http: self, origin, answered: false };
            match waiting.for_answer(connection.exchange(request.expose())).await {
                Ok((reply, again)) => return Ok(self.done(origin, reply, again)),
                // The other side closed it while it was idle: nothing was done with the request.
                Err(Broken::Before(_)) => break,
                Err(Broken::Amid(error)) => return Err(ConnectorError::io(error.into())),
            }
        }
        let connection = self.0.ways.connect(origin, limit).await?;
        match connection.exchange(request.expose()).await {
            Ok((reply, again)) => Ok(self.done(origin, reply, again)),
            Err(Broken::Before(error) | Broken::Amid(error)) => {
                Err(ConnectorError::io(connect::wrapped("request", origin, error)))
            }
        }
    }

    fn done(&self, origin: &Origin, reply: Reply, again: Option<Connection>) -> Reply {
        if let Some(connection) = again {
            self.put(origin.clone(), connection);
        }
        reply
    }

    /// The connection that was used last.
    fn pop(&self, origin: &Origin) -> Option<Connection> {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = idle.iter().rposition(|idle| idle.origin == *origin)?;
        Some(idle.remove(newest).connection)
    }

    fn put(&self, origin: Origin, connection: Connection) {
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
        idle.push(Idle { origin, connection, since: now });
    }
}

impl Waiting<'_> {
    async fn for_answer<T>(mut self, work: impl Future<Output = T>) -> T {
        let answer = work.await;
        self.answered = true;
        answer
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let mut idle = self.http.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|idle| idle.origin != *self.origin);
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

/// Where a request of the SDK goes, and how it is written.
fn written(request: &HttpRequest) -> Result<(Origin, Secret), ConnectorError> {
    let body = request.body().bytes();
    let body = body.ok_or_else(|| other("a body that is not in memory".into()))?;
    let uri: http::Uri = request.uri().parse().map_err(|_| bad_url(request.uri()))?;
    let origin = Origin::of(&uri).ok_or_else(|| bad_url(request.uri()))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut text = Vec::with_capacity(4096 + body.len());
    let mut line = |parts: &[&str]| {
        for part in parts {
            text.extend_from_slice(part.as_bytes());
        }
        text.extend_from_slice(b"\r\n");
    };
    line(&[request.method(), " ", path, " HTTP/1.1"]);
    // Values hold no line ends: the SDK's types see to that.
    for (name, value) in request.headers().iter() {
        if !name.eq_ignore_ascii_case("content-length") {
            line(&[name, ": ", value]);
        }
    }
    if request.headers().get("host").is_none() {
        line(&["host: ", &origin.host_header()]);
    }
    line(&["content-length: ", &body.len().to_string()]);
    line(&[]);
    text.extend_from_slice(body);
    Ok((origin, Secret::new(text)))
}

fn bad_url(url: &str) -> ConnectorError {
    ConnectorError::user(format!("{url} is no http or https URL").into())
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
