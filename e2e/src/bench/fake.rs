//! Fake backends, so that a backend's own time does not hide the plugin's.
//!
//! They speak as much of AWS KMS and of Vault's transit engine as a plugin needs, over HTTP/1.1
//! on loopback, in a process of their own. A ciphertext of theirs is the plaintext behind a
//! header: it comes back as it was, and **nothing is encrypted**. They count the calls by
//! operation and keep the last Decrypt as it came, so that the same request can be sent without
//! the plugin.

mod aws;
mod process;
mod vault;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::ValueEnum;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

pub use aws::KEYS as AWS_KEYS;
pub use process::Fake;
pub use vault::{KEY as VAULT_KEY, ROLE_ID, SECRET_ID};

use crate::http::HttpClient;

/// Where the counts are; no backend has such a path.
const CALLS: &str = "/fake/calls";
/// Where the last Decrypt is.
const LAST_DECRYPT: &str = "/fake/last-decrypt";

/// The operations that every backend has, by the names that the counts have.
const ENCRYPT: &str = "Encrypt";
const DECRYPT: &str = "Decrypt";
/// Whatever was not answered as it was meant.
const REFUSED: &str = "Refused";

/// What AWS KMS takes within its region.
const SLOW: Duration = Duration::from_millis(5);

/// What a fake takes itself for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FakeKind {
    /// AWS KMS: DescribeKey, Encrypt and Decrypt of two keys.
    Aws,
    /// The same, as slow as a real one.
    SlowAws,
    /// Vault: AppRole, and a transit engine with one key.
    Vault,
}

/// Calls that a fake has answered, by operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls(pub BTreeMap<String, u64>);

/// A request as a fake got it, and what it answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Recorded {
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    pub(super) answer: String,
}

/// An operation and its answer.
struct Answer {
    operation: &'static str,
    status: StatusCode,
    body: Vec<u8>,
}

#[derive(Default)]
struct State {
    calls: BTreeMap<&'static str, u64>,
    last_decrypt: Option<(Parts, Bytes, Bytes)>,
}

impl Calls {
    /// Asks a fake.
    pub async fn of(fake: SocketAddr) -> Result<Self> {
        let answer = HttpClient::plain(fake).get(CALLS).await?.ok()?;
        serde_json::from_slice(&answer.body).context("the fake's counts cannot be read")
    }

    /// What came after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.0.iter().map(|(operation, count)| {
            let old = before.0.get(operation).copied().unwrap_or_default();
            (operation.clone(), count.saturating_sub(old))
        });
        Self(counts.filter(|(_, count)| *count > 0).collect())
    }

    /// How many of one operation.
    pub fn count(&self, operation: &str) -> u64 {
        self.0.get(operation).copied().unwrap_or_default()
    }
}

impl Recorded {
    /// The last Decrypt that a fake has answered.
    pub(super) async fn last(fake: &HttpClient) -> Result<Self> {
        let answer = fake.get(LAST_DECRYPT).await?.ok()?;
        serde_json::from_slice(&answer.body).context("the fake's record cannot be read")
    }
}

impl FakeKind {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::SlowAws => "slow-aws",
            Self::Vault => "vault",
        }
    }

    fn answer(self, head: &Parts, body: &[u8]) -> Answer {
        match self {
            Self::Aws | Self::SlowAws => aws::answer(head, body),
            Self::Vault => vault::answer(head, body),
        }
    }

    /// How long an answer takes at least.
    fn delay(self) -> Option<Duration> {
        (self == Self::SlowAws).then_some(SLOW)
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Aws | Self::SlowAws => "application/x-amz-json-1.1",
            Self::Vault => "application/json",
        })
    }
}

impl Answer {
    fn good(operation: &'static str, body: &impl Serialize) -> Self {
        // Plain structures of text cannot fail; who is answered nothing sees that.
        let body = serde_json::to_vec(body).unwrap_or_default();
        Self { operation, status: StatusCode::OK, body }
    }

    fn refused(status: StatusCode, body: &impl Serialize) -> Self {
        Self { status, ..Self::good(REFUSED, body) }
    }
}

/// Answers for as long as the process lives.
pub async fn serve(kind: FakeKind, listener: TcpListener) -> Result<()> {
    let state = Arc::new(Mutex::new(State::default()));
    loop {
        let (stream, _) = listener.accept().await.context("cannot accept")?;
        stream.set_nodelay(true)?;
        let state = state.clone();
        let service = service_fn(move |request| respond(kind, state.clone(), request));
        // A client that goes away has its reasons.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn respond(
    kind: FakeKind,
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> hyper::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if let Some(delay) = kind.delay() {
        tokio::time::sleep(delay).await;
    }
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let Answer { operation, status, body: answer } = match head.uri.path() {
        CALLS => Answer::good("", &state.calls),
        LAST_DECRYPT => Answer::good("", &state.recorded()),
        _ => kind.answer(&head, &body),
    };
    let answer = Bytes::from(answer);
    if !operation.is_empty() {
        *state.calls.entry(operation).or_default() += 1;
    }
    if operation == DECRYPT {
        state.last_decrypt = Some((head, body, answer.clone()));
    }
    let mut response = Response::new(Full::new(answer));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind.content_type());
    Ok(response)
}

impl State {
    fn recorded(&self) -> Option<Recorded> {
        let (head, body, answer) = self.last_decrypt.as_ref()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = head.headers.iter();
        Some(Recorded {
            path: head.uri.path().to_owned(),
            headers: headers
                .map(|(name, value)| (name.to_string(), text(value.as_bytes())))
                .collect(),
            body: text(body),
            answer: text(answer),
        })
    }
}

#[cfg(test)]
mod tests;
