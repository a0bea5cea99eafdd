//! HTTP/1.1 over a connection pool.
//!
//! hyper-util's client with rustls under it, and `tower` layers around it: a [`Bounded`] service
//! lets so many calls run at a time, so that there are never more connections than that, and ends
//! each at its own deadline, the wait for its turn included. Redirects are not followed: they are
//! answers.
//!
//! It refuses to repeat anything, with one exception: a request that met a kept connection which
//! had gone stale is sent once more, on a new one. What must be sent [`once`](Request::once) is
//! never sent again, and goes over a new connection from the start.

mod exchange;
mod proxy;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use sidekey_core::{Error, Kind};
use tokio::time::{Instant, timeout_at};
use tower::limit::ConcurrencyLimit;
use tower::{Service, ServiceExt};
use zeroize::Zeroizing;

use crate::address::Address;
use crate::clock::Clock;
use crate::tls::Trust;
use exchange::Transport;

pub use proxy::Proxy;

/// What is asked of a server. Not `Debug`: there are secrets in it.
#[derive(Clone)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Path and query, from the first slash on; of parts that need no escaping any more.
    pub path: String,
    /// Headers; `Host` is that of the address, unless it is here.
    pub headers: HeaderMap,
    /// The body: see [`json`](crate::json) for one that is wiped.
    pub body: Bytes,
    /// Whether to do it twice is something else than to do it once.
    pub once: bool,
}

/// What a server answered, good or bad. Not `Debug`: there are secrets in it.
#[derive(Clone)]
pub struct Answer {
    /// The code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body, wiped when its last copy is gone.
    pub body: Bytes,
}

/// Bounds of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a connection, all addresses of the host together.
    pub connect: Duration,
    /// Calls at a time, and so connections; who comes later waits for its turn.
    pub calls: usize,
    /// Longest answer, in bytes.
    pub answer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connect: Duration::from_millis(1500), calls: 32, answer: 1024 * 1024 }
    }
}

/// A call on its way through the layers. Not `Debug`: there are secrets in it.
pub struct Call {
    pub(crate) address: Option<Address>,
    pub(crate) request: Request,
    pub(crate) deadline: Instant,
}

/// A service that serves so many calls at a time, each until its own deadline.
pub(crate) struct Bounded<S>(ConcurrencyLimit<S>);

/// The future of every service here.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Answer, Error>> + Send>>;

/// A pooled client for any number of servers that are trusted alike; cheap to clone.
#[derive(Clone)]
pub struct Http {
    pub(crate) transport: Arc<Transport>,
    stack: Bounded<Direct>,
}

/// One request to the address that it names.
#[derive(Clone)]
struct Direct(Arc<Transport>);

impl Http {
    /// A client that has not connected to anybody yet.
    pub fn new(trust: &Trust, proxy: Proxy, limits: Limits) -> Self {
        let transport = Arc::new(Transport::new(trust, proxy, limits));
        Self { stack: Bounded::new(Direct(transport.clone()), limits.calls), transport }
    }

    /// The same connections with a limit of calls of its own: one that hangs takes no turn from
    /// those of another.
    #[must_use]
    pub fn separate(&self) -> Self {
        let transport = self.transport.clone();
        Self { stack: Bounded::new(Direct(transport.clone()), transport.limits.calls), transport }
    }

    /// Asks one server, and reads the whole answer.
    pub async fn ask(
        &self,
        address: &Address,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        self.stack.run(Call { address: Some(address.clone()), request, deadline }).await
    }

    /// The time as the servers have it.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.transport.clock
    }
}

impl Request {
    /// A request that may be sent again, without headers or body.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Self { method, path: path.into(), headers, body, once: false }
    }
}

impl Service<Call> for Direct {
    type Response = Answer;
    type Error = Error;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Answering {
        let transport = self.0.clone();
        Box::pin(async move {
            let address = call.address.as_ref();
            let address = address.ok_or_else(|| Error::new(Kind::Config, "no address is set"))?;
            transport.ask(address, &call.request).await
        })
    }
}

impl<S> Bounded<S>
where
    S: Service<Call, Response = Answer, Error = Error, Future = Answering> + Clone,
{
    pub(crate) fn new(service: S, calls: usize) -> Self {
        Self(ConcurrencyLimit::new(service, calls))
    }

    pub(crate) async fn run(&self, call: Call) -> Result<Answer, Error> {
        let deadline = call.deadline;
        let late = |_| {
            Err(Error::new(Kind::Timeout, "no answer in time")
                .with_hint("check the network, and whether the KMS is slow"))
        };
        timeout_at(deadline, self.0.clone().oneshot(call)).await.unwrap_or_else(late)
    }
}

impl<S: Clone> Clone for Bounded<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A value of a header that is wiped when its last copy is gone, and never shown.
pub fn secret_header(text: &str) -> Result<http::HeaderValue, Error> {
    let bytes = Bytes::from_owner(Zeroizing::new(text.as_bytes().to_vec()));
    let mut header = http::HeaderValue::from_maybe_shared(bytes)
        .map_err(|_| Error::new(Kind::Config, "a secret holds characters that no header has"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests;
