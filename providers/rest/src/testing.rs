//! A scripted server for tests, with TLS or without, and the answers that no provider may take.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use sidekey_core::{Error, Kind};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

/// What a server was asked.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// What it answers.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The code.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
    /// How long it takes.
    pub delay: Duration,
}

type Script = Box<dyn Fn(&Seen) -> Reply + Send + Sync>;

/// A server on loopback; it ends with this.
pub struct Fake {
    address: SocketAddr,
    tls: bool,
    state: Arc<State>,
    accepting: AbortHandle,
    /// The CA of its certificate, as PEM.
    pub ca: String,
}

struct State {
    script: Script,
    /// Answered before the script is asked, one each.
    next: Mutex<VecDeque<Reply>>,
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
}

impl Reply {
    /// An answer in JSON.
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: value.to_string().into(), delay: Duration::ZERO }
    }

    /// With one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl Fake {
    /// Listens in TLS, with a certificate for `127.0.0.1` and `localhost`.
    pub async fn https(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Box::new(script), true).await
    }

    /// Listens in clear.
    pub async fn http(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Box::new(script), false).await
    }

    #[allow(clippy::expect_used)]
    async fn start(script: Script, tls: bool) -> Self {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .expect("its own key");
        let acceptor = tls.then(|| TlsAcceptor::from(Arc::new(config)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("an address");
        let (next, seen, connections) = Default::default();
        let state = Arc::new(State { script, next, seen, connections });
        let accepting = tokio::spawn(accept(listener, acceptor, state.clone())).abort_handle();
        Self { address, tls, state, accepting, ca: certified.cert.pem() }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http{}://{}", if self.tls { "s" } else { "" }, self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes its CA into a directory, for settings that name a bundle.
    pub fn write_ca(&self, dir: &std::path::Path) -> std::io::Result<PathBuf> {
        let path = dir.join(format!("ca-{}.pem", self.address.port()));
        std::fs::write(&path, &self.ca)?;
        Ok(path)
    }

    /// Answers the next request so, whatever it is.
    pub fn answer(&self, reply: Reply) {
        lock(&self.state.next).push_back(reply);
    }

    /// Forgets what was to be answered next.
    pub fn clear(&self) {
        lock(&self.state.next).clear();
    }

    /// What it was asked so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state.seen).clone()
    }

    /// How many connections were made to it so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        state.connections.fetch_add(1, Ordering::SeqCst);
        let (acceptor, state) = (acceptor.clone(), state.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| answer(state.clone(), request));
            let server = hyper::server::conn::http1::Builder::new();
            // Clients may go away at any time.
            let _ = match acceptor {
                None => server.serve_connection(TokioIo::new(stream), service).await,
                Some(acceptor) => match acceptor.accept(stream).await {
                    Ok(stream) => server.serve_connection(TokioIo::new(stream), service).await,
                    Err(_) => return,
                },
            };
        });
    }
}

async fn answer(
    state: Arc<State>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let body = body.collect().await?.to_bytes();
    let seen = Seen { method: head.method, path, headers: head.headers, body };
    let next = lock(&state.next).pop_front();
    let reply = next.unwrap_or_else(|| (state.script)(&seen));
    lock(&state.seen).push(seen);
    tokio::time::sleep(reply.delay).await;
    let mut response = http::Response::new(Full::new(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or_default();
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    Ok(response)
}

/// Answers with code 200, and redirects to `stranger`, that no call may take for its own, by name.
fn bad_answers(stranger: SocketAddr) -> Vec<(&'static str, Reply)> {
    let page = "<!DOCTYPE html><html><body>Please log in to the network: hunter2</body></html>";
    let reply = |body: Bytes| Reply { status: 200, headers: vec![], body, delay: Duration::ZERO };
    let to = |status, target: String| Reply {
        status,
        headers: vec![("location", target)],
        body: Bytes::new(),
        delay: Duration::ZERO,
    };
    let html = reply(page.into()).with("content-type", "text/html");
    vec![
        ("the page of a captive portal", html),
        ("JSON that breaks off", reply(r#"{"Plaintext":"aHVudGVyMg==","#.into())),
        ("nothing", reply(Bytes::new())),
        ("another type", reply("[7]".into())),
        ("10 MiB", reply(vec![b' '; 10 * 1024 * 1024].into())),
        ("a redirect to a stranger", to(307, format!("https://{stranger}/v1/x"))),
        ("a permanent redirect to a stranger", to(308, format!("https://{stranger}"))),
        ("a redirect to plain HTTP", to(302, format!("http://{stranger}/"))),
    ]
}

/// Runs `call` against every bad answer of `fake`: see [`takes_none_of`]. Nobody may go where a
/// redirect leads, be it to ask or only to connect.
#[allow(clippy::expect_used)]
pub async fn takes_no_bad_answer(
    fake: &Fake,
    good: impl Fn(),
    call: impl AsyncFn() -> Result<(), Error>,
) {
    // Nobody accepts: whoever connects waits in its queue.
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    stranger.set_nonblocking(true).expect("a listener that does not block");
    let address = stranger.local_addr().expect("an address");
    takes_none_of(fake, &bad_answers(address), good, call).await;
    assert!(stranger.accept().is_err(), "somebody went where a redirect leads");
}

/// Runs `call` against each of these answers of `fake`: it must end in an error that may pass, that
/// is clear, and that does not quote what was answered; and the next good answer is taken again.
pub async fn takes_none_of(
    fake: &Fake,
    answers: &[(&str, Reply)],
    good: impl Fn(),
    call: impl AsyncFn() -> Result<(), Error>,
) {
    for (name, reply) in answers {
        // Enough of them for clients that ask more than once.
        (0..8).for_each(|_| fake.answer(reply.clone()));
        let result = call().await;
        fake.clear();
        let error = result.err().unwrap_or_else(|| Error::new(Kind::Bug, "it was taken"));
        let text = error.report();
        assert!(error.kind().is_transient(), "{name}: {text}");
        assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{name}: {text}");
        assert!(text.len() < 1000 && error.hint().is_some(), "{name}: {text}");
        good();
        let after = call().await;
        assert!(after.is_ok(), "after {name}: {:?}", after.err().map(|error| error.report()));
    }
}

/// Runs `look` against descriptions of `keys` of the wrong type or size, as the vendor writes them,
/// by name: each must be refused for good, with what to do; and the right one is taken again.
pub async fn takes_no_wrong_key(
    fake: &Fake,
    keys: &[(&str, serde_json::Value)],
    look: impl AsyncFn() -> Result<(), Error>,
) {
    for (name, description) in keys {
        (0..8).for_each(|_| fake.answer(Reply::json(200, description)));
        let result = look().await;
        fake.clear();
        let error = result.err().unwrap_or_else(|| Error::new(Kind::Unavailable, "it was taken"));
        let text = error.report();
        assert!(!error.kind().is_transient() && error.hint().is_some(), "{name}: {text}");
        let after = look().await;
        assert!(after.is_ok(), "after {name}: {:?}", after.err().map(|error| error.report()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use http::header::LOCATION;
    use sidekey_core::Files;
    use sidekey_core::tls::Unusable;
    use tokio::time::Instant;

    use super::*;
    use crate::{Address, Http, Limits, Proxy, Request, Trust};

    #[tokio::test]
    #[should_panic(expected = "somebody went where a redirect leads")]
    async fn who_only_connects_where_a_redirect_leads_fails_the_suite() {
        let fake = Fake::http(|_| Reply::json(200, &serde_json::json!({}))).await;
        let files = Files::read([]).unwrap();
        let trust = Trust::new(None, Unusable::Refuse, None, &files, "caFile").unwrap();
        let http = Http::new(&trust, Proxy::default(), Limits::default());
        let address = Address::parse(&fake.url()).unwrap();
        takes_no_bad_answer(
            &fake,
            || {},
            async || {
                let deadline = Instant::now() + Duration::from_secs(10);
                let answer = http.ask(&address, Request::new(Method::GET, "/"), deadline).await?;
                if let Some(to) = answer.headers.get(LOCATION) {
                    let to = to.to_str().unwrap().split('/').nth(2).unwrap().to_owned();
                    drop(tokio::net::TcpStream::connect(to).await);
                }
                match answer.body == "{}" {
                    true => Ok(()),
                    false => Err(Error::new(Kind::Unavailable, "bad").with_hint("mend it")),
                }
            },
        )
        .await;
    }
}
