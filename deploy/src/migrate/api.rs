//! Requests that are sent until they are answered for good.
//!
//! Who rewrites everything must give way to everybody else: how many requests are under way is
//! halved when the server says that it is too busy, and grows again slowly; nobody sends anything
//! before the time that the server asked for is over.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Error, Options};

/// Who asks, in kube-apiserver's audit log and metrics.
const USER_AGENT: &str = concat!("sidekey-migrate/", env!("CARGO_PKG_VERSION"));

/// How often a request is sent whose answer speaks of a fault of the server.
const TRIES: u32 = 5;

/// Rests between tries: doubled each time, between these.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Longer than that no Retry-After is obeyed.
const LONGEST_OBEDIENCE: Duration = Duration::from_secs(60);

/// Longest reason that is kept for a person to read.
const LONGEST_REASON: usize = 300;

/// One request, which may have to be sent more than once.
#[derive(Clone, Debug)]
pub(super) struct Call {
    method: Method,
    path: String,
    accept: &'static str,
    content: Option<(&'static str, Bytes)>,
    /// Whether the rate limit counts it.
    pub(super) is_write: bool,
}

/// What the server said in the end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// There is no use in going on.
#[derive(Debug)]
pub(super) enum Lost {
    /// Nobody answers.
    Unreachable(kube::Error, Duration),
    /// It has been too busy for us for too long.
    TooBusy(Duration),
    /// We are not, or no longer, let in.
    Unauthorized(String),
}

/// The API server, and how hard it may be driven.
pub(super) struct Api {
    client: Client,
    patience: Duration,
    rate: Option<Duration>,
    most: f64,
    state: Mutex<State>,
    jitter: RandomState,
}

struct State {
    /// How many writes may be under way.
    limit: f64,
    /// Nothing is sent before.
    resume: Instant,
    /// No write is sent before: the rate limit.
    next: Instant,
    /// When the server last did what it was asked for.
    served: Instant,
    tick: u64,
}

/// The parts of a `Status` that say why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) message: String,
    pub(super) metadata: StatusMeta,
}

/// Where an expired list can be taken up again.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusMeta {
    pub(super) r#continue: String,
}

impl Call {
    pub(super) fn get(path: impl Into<String>) -> Self {
        let accept = "application/json";
        Self { method: Method::GET, path: path.into(), accept, content: None, is_write: false }
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub(super) fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let content = Some(("application/json", body.into()));
        Self { method: Method::POST, content, ..Self::get(path) }
    }

    pub(super) fn put(path: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { method: Method::PUT, is_write: true, ..Self::post(path, body) }
    }

    pub(super) fn patch(path: impl Into<String>, kind: &'static str, body: &'static str) -> Self {
        let content = Some((kind, Bytes::from_static(body.as_bytes())));
        Self { method: Method::PATCH, content, is_write: true, ..Self::get(path) }
    }

    pub(super) fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    fn request(&self) -> Result<Request<Body>, kube::Error> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::ACCEPT, self.accept)
            .header(header::USER_AGENT, USER_AGENT);
        let mut body = Body::empty();
        if let Some((kind, bytes)) = &self.content {
            request = request.header(header::CONTENT_TYPE, *kind);
            body = Body::from(bytes.clone());
        }
        request.body(body).map_err(kube::Error::HttpError)
    }
}

impl Answer {
    /// Why it was refused, in one line and without any value of the object.
    pub(super) fn reason(&self) -> String {
        let status: Status = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = match status.message.is_empty() {
            true => format!("the server answered {}", self.status),
            false => without_values(&status.message),
        };
        text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST_REASON).collect()
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status.is_success()
    }
}

/// Validation quotes what it refuses, and that may be a secret.
fn without_values(message: &str) -> String {
    let mut kept = String::new();
    let mut rest = message;
    while let Some(at) = rest.find(" value: ") {
        let (before, value) = rest.split_at(at + " value: ".len());
        kept.push_str(before);
        kept.push('…');
        let Some(quoted) = value.strip_prefix('"') else { return kept };
        let mut escaped = false;
        let end = quoted.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some(end) = end else { return kept };
        rest = &quoted[end + 1..];
    }
    kept.push_str(rest);
    kept
}

impl Api {
    pub(super) fn new(client: &Client, options: &Options) -> Self {
        let now = Instant::now();
        let most = options.concurrency.get() as f64;
        let rate = options.rate.map(|rate| Duration::from_secs(1) / rate.get());
        let state = State { limit: most, resume: now, next: now, served: now, tick: 0 };
        Self {
            client: client.clone(),
            patience: options.patience,
            rate,
            most,
            state: Mutex::new(state),
            jitter: RandomState::new(),
        }
    }

    /// How many writes may be under way now.
    pub(super) fn limit(&self) -> usize {
        self.state().limit as usize
    }

    /// Sends a request until there is an answer that another try would not change.
    pub(super) async fn send(&self, call: &Call) -> Result<Answer, Lost> {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            self.admission(call.is_write).await;
            tries += 1;
            let (answer, after) = match self.once(call).await {
                Ok(answered) => answered,
                Err(error) => {
                    let silent = self.silent_for();
                    if silent > self.patience {
                        return Err(Lost::Unreachable(error, silent));
                    }
                    sleep(self.rest(tries)).await;
                    continue;
                }
            };
            match answer.status {
                StatusCode::UNAUTHORIZED => return Err(Lost::Unauthorized(answer.reason())),
                StatusCode::TOO_MANY_REQUESTS => {
                    let silent = self.silent_for();
                    if silent > self.patience {
                        return Err(Lost::TooBusy(silent));
                    }
                    self.slow_down(after.unwrap_or_else(|| self.rest(tries)));
                }
                StatusCode::SERVICE_UNAVAILABLE if begun.elapsed() < self.patience => {
                    self.slow_down(after.unwrap_or_else(|| self.rest(tries)));
                }
                status if status.is_server_error() && tries < TRIES => {
                    sleep(after.unwrap_or_else(|| self.rest(tries))).await;
                }
                status => {
                    if !status.is_server_error() {
                        self.served();
                    }
                    return Ok(answer);
                }
            }
        }
    }

    /// A rest before the next try, longer each time, and never the same for two.
    pub(super) fn rest(&self, tries: u32) -> Duration {
        let full = FIRST_REST.saturating_mul(1 << tries.saturating_sub(1).min(8)).min(LONGEST_REST);
        full.mul_f64(0.5 + self.chance() / 2.0)
    }

    async fn once(&self, call: &Call) -> Result<(Answer, Option<Duration>), kube::Error> {
        let answer = self.client.send(call.request()?).await?;
        let status = answer.status();
        let after = answer.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
        let after = after.map(|s| Duration::from_secs(s).min(LONGEST_OBEDIENCE));
        let body = answer.into_body().collect_bytes().await?;
        Ok((Answer { status, body }, after))
    }

    /// Waits until the server, and the rate limit for writes, allow another request.
    async fn admission(&self, is_write: bool) {
        loop {
            let until = {
                let mut state = self.state();
                let now = Instant::now();
                match self.rate {
                    _ if state.resume > now => state.resume,
                    Some(_) if is_write && state.next > now => state.next,
                    Some(gap) if is_write => {
                        state.next = now + gap;
                        return;
                    }
                    _ => return,
                }
            };
            sleep_until(until).await;
        }
    }

    /// The server is too busy: fewer at a time from now on, and nobody before it is time.
    fn slow_down(&self, rest: Duration) {
        let spread = rest.mul_f64(1.0 + self.chance() / 4.0);
        let mut state = self.state();
        let now = Instant::now();
        // Those that were under way together are answered together: that is one cause.
        if state.resume <= now {
            state.limit = (state.limit / 2.0).max(1.0);
        }
        state.resume = state.resume.max(now + spread);
    }

    fn served(&self) {
        let mut state = self.state();
        state.served = Instant::now();
        state.limit = (state.limit + 1.0 / state.limit).min(self.most);
    }

    fn silent_for(&self) -> Duration {
        self.state().served.elapsed()
    }

    /// Between 0 and 1.
    fn chance(&self) -> f64 {
        let mut state = self.state();
        state.tick += 1;
        self.jitter.hash_one(state.tick) as f64 / u64::MAX as f64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("limit", &self.limit()).finish_non_exhaustive()
    }
}

impl Lost {
    /// What it means for the whole run.
    pub(super) fn into_error(self, what: &str) -> Error {
        let shown =
            |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs()));
        match self {
            Self::Unreachable(error, silent) => {
                let what = format!("{what}: no answer from the API server for {}", shown(silent));
                crate::cluster::refused(what, error)
            }
            Self::TooBusy(silent) => {
                Error::failed(format!("{what}: the API server was too busy for {}", shown(silent)))
                    .hint("try again later, with a lower --concurrency or a --rate")
            }
            Self::Unauthorized(reason) => Error::failed(format!("{what}: {reason}"))
                .hint("the credentials of the kubeconfig are not accepted: are they expired?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_quotes_no_value_of_the_object() {
        let quoted = r#"Secret "a" is invalid: data[x]: Invalid value: "geh\"eim": must be b, y: Unsupported value: "z": no"#;
        let wanted = r#"Secret "a" is invalid: data[x]: Invalid value: …: must be b, y: Unsupported value: …: no"#;
        assert_eq!(without_values(quoted), wanted);
        let structured = "spec: Invalid value: map[a:geheim b:1]: bad";
        assert_eq!(without_values(structured), "spec: Invalid value: …");
        assert_eq!(without_values("a \"quoted\" word"), "a \"quoted\" word");
    }

    #[test]
    fn an_answer_without_a_status_still_has_a_reason() {
        let answer =
            Answer { status: StatusCode::BAD_GATEWAY, body: Bytes::from_static(b"<html>") };
        assert_eq!(answer.reason(), "the server answered 502 Bad Gateway");
    }
}
