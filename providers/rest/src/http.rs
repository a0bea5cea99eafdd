//! HTTP/1.1 over a connection pool.
//!
//! hyper-util's client with rustls under it, and `tower` layers around it: a [`Bounded`] service
//! lets so many calls run at a time, and ends each at its own deadline, the wait for its turn
//! included. Users with [limits of their own](Http::separate) add up. There may be more connections
//! than calls for a moment: one that another call did not wait for any more is still finished. No
//! more than the limit of one user are kept idle for each server, and none for longer than a
//! minute. Redirects are not followed: they are answers.
//!
//! It refuses to repeat anything, with one exception: a request that met a kept connection which
//! had gone stale is sent once more, on a new one. What must be sent [`once`](Request::once) is
//! never sent again, and goes over a new connection from the start.

pub(crate) mod exchange;
mod proxy;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode};
use sidekey_core::{Error, Kind, jitter};
use tokio::time::{Instant, timeout_at};
use tower::limit::ConcurrencyLimit;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};
use zeroize::Zeroizing;

use crate::address::Address;
use crate::clock::Clock;
use crate::tls::Trust;
use exchange::Transport;

pub use proxy::Proxy;

/// Longer than any KMS asks to be left alone; what asks for more is none.
const LONGEST_REST: Duration = Duration::from_secs(60);

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
    /// Calls at a time, and idle connections to one server; who comes later waits for its turn.
    pub calls: usize,
    /// Longest answer, in bytes.
    pub answer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connect: Duration::from_millis(1500), calls: 32, answer: 1024 * 1024 }
    }
}

/// A service that serves so many calls at a time, each until its own deadline.
#[derive(Clone)]
pub(crate) struct Bounded<C>(ConcurrencyLimit<BoxCloneSyncService<C, Answer, Error>>);

/// A pooled client for any number of servers that are trusted alike; cheap to clone.
#[derive(Clone)]
pub struct Http {
    pub(crate) transport: Arc<Transport>,
    stack: Bounded<(Address, Request)>,
}

impl Http {
    /// A client that has not connected to anybody yet.
    pub fn new(trust: &Trust, proxy: Proxy, limits: Limits) -> Self {
        Self::over(Arc::new(Transport::new(trust, proxy, limits)))
    }

    fn over(transport: Arc<Transport>) -> Self {
        let asked = transport.clone();
        let ask = move |(address, request): (Address, Request)| {
            let transport = asked.clone();
            async move { transport.ask(&address, &request).await }
        };
        Self { stack: Bounded::new(transport.limits.calls, ask), transport }
    }

    /// The same connections with a limit of calls of its own: one that hangs takes no turn from
    /// those of another.
    #[must_use]
    pub fn separate(&self) -> Self {
        Self::over(self.transport.clone())
    }

    /// Asks one server, and reads the whole answer.
    pub async fn ask(
        &self,
        address: &Address,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        self.stack.run((address.clone(), request), deadline).await
    }

    /// The time as the servers have it.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.transport.clock
    }
}

impl Answer {
    /// How long the server wants to be left alone, if it is too busy and says so (`Retry-After`):
    /// never less, whatever jitter takes.
    pub fn retry_after(&self) -> Option<Duration> {
        let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        let text = self.headers.get(RETRY_AFTER).filter(|_| busy.contains(&self.status))?;
        let seconds = text.to_str().ok()?.trim().parse().ok()?;
        Some(jitter(Duration::from_secs(seconds).min(LONGEST_REST) * 6 / 5))
    }
}

impl Request {
    /// A request that may be sent again, without headers or body.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Self { method, path: path.into(), headers, body, once: false }
    }
}

impl<C: Send + 'static> Bounded<C> {
    pub(crate) fn new<F>(
        calls: usize,
        serve: impl Fn(C) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        Self(ConcurrencyLimit::new(BoxCloneSyncService::new(service_fn(serve)), calls))
    }

    pub(crate) async fn run(&self, call: C, deadline: Instant) -> Result<Answer, Error> {
        let late = |_| {
            Err(Error::new(Kind::Timeout, "no answer in time")
                .with_hint("check the network, and whether the KMS is slow"))
        };
        timeout_at(deadline, self.0.clone().oneshot(call)).await.unwrap_or_else(late)
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
