//! Fakes of vendors' services, for the KMSs that cannot be had here.
//!
//! They are fakes and their tests call them so. But they are honest: cryptography is real, keys have
//! versions and states, tokens are issued, expire and are checked, and refusals have the vendor's own
//! bodies. With `--all` the vendor's own Go client proves each of them, and what was said then is kept
//! as fixtures: the provider and the fake of its tests cannot share one misreading.
//!
//! A [`Fake`] is a [`Service`] in clear behind a [`Gateway`], which ends TLS, counts and can be hurt. One
//! whose clients show certificates ends TLS itself, behind a gateway that forwards bytes.

pub mod azure;
pub mod gcp;
pub mod ibm;
pub mod okms;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidekey_core::certificate::Certificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::gateway::Gateway;
use crate::pki::{Authority, CertificateFiles};
use crate::scratch::Scratch;

/// What a fake takes itself for. It is asked on one thread at a time.
pub trait Service: Send + 'static {
    /// The name of the operation, by which calls are counted; nothing for a path that it does not have.
    fn operation(&self, asked: &Asked) -> Option<&'static str>;

    /// The answer to an operation.
    fn answer(&mut self, operation: &'static str, asked: &Asked) -> Answer;

    /// The answer to what is no operation.
    fn unknown(&self, asked: &Asked) -> Answer {
        let text = format!("no such path: {} {}", asked.method, asked.path);
        Answer::json(404, &serde_json::json!({"error": text}))
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: Method,
    /// The path, as it came.
    pub path: String,
    /// What stands behind the question mark.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The first name in the certificate that the client has shown.
    pub client: Option<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
}

/// One call, as a client made it and as it was answered. Tokens are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The operation.
    pub operation: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// What was sent.
    pub request: String,
    /// The HTTP status.
    pub status: u16,
    /// What was answered.
    pub answer: String,
}

/// A running fake; it ends when it is dropped.
#[derive(Debug)]
pub struct Fake<S> {
    state: Arc<State<S>>,
    gateway: Gateway,
    plain: SocketAddr,
    ca: PathBuf,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct State<S> {
    service: Mutex<S>,
    /// Given to the next calls of an operation, in the place of the service's own.
    next: Mutex<BTreeMap<&'static str, VecDeque<Answer>>>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    exchanges: Mutex<Vec<Exchange>>,
}

impl Asked {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The fields of a form.
    pub fn form(&self) -> BTreeMap<String, String> {
        fields(&String::from_utf8_lossy(&self.body))
    }

    /// The parameters behind the question mark.
    pub fn parameters(&self) -> BTreeMap<String, String> {
        fields(&self.query)
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The token that came along.
    pub fn bearer(&self) -> Option<&str> {
        self.header(AUTHORIZATION.as_str())?.strip_prefix("Bearer ")
    }
}

impl Answer {
    /// An answer in JSON.
    pub fn json(status: u16, value: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: value.to_string() }
    }

    /// With one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl<S: Service> Fake<S> {
    /// Starts it on loopback, in TLS; its CA is written into the scratch directory.
    pub async fn start(scratch: &Scratch, name: &str, service: S) -> Result<Self> {
        Self::start_as(scratch, name, &[], service).await
    }

    /// The same for those who find it under the names of the vendor's hosts.
    pub async fn start_as(
        scratch: &Scratch,
        name: &str,
        hosts: &[&str],
        service: S,
    ) -> Result<Self> {
        let (certificate, ca) = identity(scratch, name, hosts)?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a fake")?;
        let gateway = Gateway::tls(listener.local_addr()?, &certificate).await?;
        Self::serve(listener, gateway, None, ca, service)
    }

    /// The same for those who show certificates of this authority. Who shows none is let in, and is
    /// nobody.
    pub async fn start_mutual(
        scratch: &Scratch,
        name: &str,
        clients: &Authority,
        service: S,
    ) -> Result<Self> {
        let (certificate, ca) = identity(scratch, name, &[])?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a fake")?;
        let gateway = Gateway::start(listener.local_addr()?).await?;
        let tls = clients.acceptor_of_clients(&certificate)?;
        Self::serve(listener, gateway, Some(tls), ca, service)
    }

    fn serve(
        listener: TcpListener,
        gateway: Gateway,
        tls: Option<TlsAcceptor>,
        ca: PathBuf,
        service: S,
    ) -> Result<Self> {
        let plain = listener.local_addr()?;
        let state = Arc::new(State {
            service: Mutex::new(service),
            next: Mutex::default(),
            calls: Mutex::default(),
            exchanges: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, tls, state.clone()));
        Ok(Self { state, gateway, plain, ca, accepting })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// Where it can be asked past the gateway, in clear if its clients show no certificates: as a
    /// metadata server, or a proxy on the node.
    pub fn plain(&self) -> SocketAddr {
        self.plain
    }

    /// The CA of its certificate, in PEM.
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// What stands in front of it: faults are made there.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// The service, to look at it or to change its keys, tokens and rights.
    pub fn service(&self) -> MutexGuard<'_, S> {
        lock(&self.state.service)
    }

    /// Answers the next `times` calls of an operation so.
    pub fn refuse(&self, operation: &'static str, times: usize, answer: &Answer) {
        let answers = std::iter::repeat_n(answer.clone(), times);
        lock(&self.state.next).entry(operation).or_default().extend(answers);
    }

    /// How often an operation was asked for.
    pub fn calls(&self, operation: &str) -> u64 {
        lock(&self.state.calls).get(operation).copied().unwrap_or_default()
    }

    /// All calls so far.
    pub fn all_calls(&self) -> u64 {
        lock(&self.state.calls).values().sum()
    }

    /// All that was said, for fixtures.
    pub fn exchanges(&self) -> Vec<Exchange> {
        lock(&self.state.exchanges).clone()
    }
}

/// Set to write down anew what vendors' own clients and the fakes say to each other.
pub const RECORD: &str = "SIDEKEY_RECORD";

impl Exchange {
    /// What was said without what differs from call to call: names and types in the place of values.
    /// Of the path ids are left out, of keys and of versions, but nothing of the query.
    pub fn shape(&self) -> Value {
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let hex = |part: &str| part.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
        let lasts = |part: &&str| !(part.is_empty() || part.len() >= 32 && hex(part));
        let path: Vec<_> = path.split('/').filter(lasts).collect();
        let request = match serde_json::from_str(&self.request) {
            Ok(value) => types(&value),
            Err(_) => fields(&self.request).into_keys().map(|name| (name, "text")).collect(),
        };
        let answer = types(&serde_json::from_str(&self.answer).unwrap_or_default());
        serde_json::json!({
            "operation": self.operation, "method": self.method, "status": self.status,
            "path": path.join("/"), "query": fields(query), "request": request, "answer": answer,
        })
    }
}

/// What a value is made of.
fn types(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            map.iter().map(|(name, value)| (name.clone(), types(value))).collect()
        }
        Value::Array(items) => items.iter().take(1).map(types).collect(),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "bool".into(),
        Value::Null => Value::Null,
    }
}

impl<S> Drop for Fake<S> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The certificate of a fake, and the file of its CA.
fn identity(scratch: &Scratch, name: &str, hosts: &[&str]) -> Result<(CertificateFiles, PathBuf)> {
    let dir = scratch.subdir(name)?;
    let authority = Authority::new(name)?;
    let names = [&["localhost", "127.0.0.1", name], hosts].concat();
    Ok((authority.peer(&dir, name, &names)?, authority.file(&dir)?))
}

async fn accept<S: Service>(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State<S>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (state, tls) = (state.clone(), tls.clone());
        // Clients may go away at any time.
        connections.spawn(async move {
            let Some(tls) = tls else { return converse(stream, None, state).await };
            if let Ok(stream) = tls.accept(stream).await {
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let client = shown.and_then(|leaf| Certificate::parse(leaf).ok());
                let client = client.and_then(|leaf| leaf.identities().into_iter().next());
                converse(stream, client, state).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection of a client until either goes away.
async fn converse<S: Service>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Option<String>,
    state: Arc<State<S>>,
) {
    let service = service_fn(move |request| answer(state.clone(), client.clone(), request));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer<S: Service>(
    state: Arc<State<S>>,
    client: Option<String>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let asked = Asked {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body: body.collect().await?.to_bytes(),
        client,
    };
    let answer = state.answer(&asked);
    let mut response = Response::new(Full::new(answer.body.into()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    Ok(response)
}

impl<S: Service> State<S> {
    fn answer(&self, asked: &Asked) -> Answer {
        let mut service = lock(&self.service);
        let Some(operation) = service.operation(asked) else { return service.unknown(asked) };
        *lock(&self.calls).entry(operation).or_default() += 1;
        let next = lock(&self.next).get_mut(operation).and_then(VecDeque::pop_front);
        let answer = next.unwrap_or_else(|| service.answer(operation, asked));
        let path = match asked.query.as_str() {
            "" => asked.path.clone(),
            query => format!("{}?{query}", asked.path),
        };
        lock(&self.exchanges).push(Exchange {
            operation: operation.to_owned(),
            method: asked.method.to_string(),
            path,
            request: String::from_utf8_lossy(&asked.body).into_owned(),
            status: answer.status,
            answer: answer.body.clone(),
        });
        answer
    }
}

/// Fields of a form or of a query.
fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

/// What was percent-encoded.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.filter(|_| *first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_tells_operations_paths_and_versions_of_an_api_apart_but_no_values() {
        let said = |path: &str, request: &str| {
            let (request, answer) = (request.to_owned(), r#"{"kid":"k","n":[1,2]}"#.to_owned());
            let (operation, method) = ("encrypt".to_owned(), "POST".to_owned());
            Exchange { operation, method, path: path.to_owned(), request, status: 200, answer }
                .shape()
        };
        let one = said("/keys/etcd/0123456789abcdef0123456789abcdef/encrypt?v=1", r#"{"a":"x"}"#);
        assert_eq!(one, said("/keys/etcd//encrypt?v=1", r#"{"a":"y"}"#));
        assert_ne!(one, said("/keys/etcd/wrap?v=1", r#"{"a":"x"}"#));
        assert_ne!(one, said("/keys/etcd/encrypt?v=2", r#"{"a":"x"}"#));
        assert_ne!(one, said("/keys/etcd/encrypt?v=1", r#"{"a":1}"#));
        assert_ne!(one, said("/keys/etcd/encrypt?v=1", "b=x"));
    }

    #[test]
    fn forms_are_read_as_they_were_meant() {
        let read = fields("grant_type=urn%3Aibm&apikey=a+b%2Bc&empty=&odd=%zz");
        let expected =
            [("apikey", "a b+c"), ("empty", ""), ("grant_type", "urn:ibm"), ("odd", "%zz")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }
}
