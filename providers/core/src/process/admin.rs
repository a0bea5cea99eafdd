//! The admin endpoints: liveness, readiness, health, metrics and status.
//!
//! `/livez` says that the process runs and never looks at the KMS: a restart does not mend a KMS.
//! `/readyz` lists what the start still waits for, and says when the process is ending and serves
//! on for its clients. `/healthz` is for the probes of the plugins that
//! we replace: ok while every key's Status is. What tells more than that is served on loopback
//! and on the admin socket only, and what changes state on the admin socket alone.

use std::net::IpAddr;
use std::sync::Arc;

use http::{Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use serde_json::Value;

use crate::process::HealthOptions;
use crate::process::telemetry::LevelHandle;

/// What probes ask for.
const PROBED: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// What the admin endpoints ask of a process.
pub trait Source: Send + Sync + 'static {
    /// What the start still waits for, or the end, one line each.
    fn pending(&self) -> Vec<String>;
    /// What does not work now, one line each.
    fn sick(&self) -> Vec<String>;
    /// Everything there is to know, without secrets.
    fn status(&self) -> Value;
    /// Metrics in OpenMetrics text.
    fn metrics(&self) -> String;
    /// A page for people, served on `/`, if there is one.
    fn page(&self) -> Option<String> {
        None
    }
}

/// How far a caller is trusted, by the way it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// An address that others can reach: only probes.
    Network,
    /// Loopback: everything that can be read, by who names it as loopback.
    Loopback,
    /// A client with a certificate that is listed: everything that can be read.
    Certificate,
    /// The admin socket: everything.
    Socket,
}

/// Answers admin requests that came by one way.
pub(crate) struct Admin {
    source: Arc<dyn Source>,
    level: LevelHandle,
    reach: Reach,
    /// Nothing but these paths, if they are set.
    replacing: Option<HealthOptions>,
}

impl Reach {
    /// By the address that a listener is bound to.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_loopback() { Self::Loopback } else { Self::Network }
    }
}

impl Admin {
    pub(crate) fn new(source: Arc<dyn Source>, level: LevelHandle, reach: Reach) -> Self {
        Self { source, level, reach, replacing: None }
    }

    /// Answers at the paths of a replaced plugin and nowhere else.
    pub(crate) fn replacing(mut self, paths: HealthOptions) -> Self {
        self.replacing = Some(paths);
        self
    }

    pub(crate) fn answer(&self, request: &http::Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        // What is served to everybody needs no name.
        let guarded = self.replacing.is_none() && !PROBED.contains(&path);
        if guarded && self.reach == Reach::Loopback && !names_loopback(request.headers()) {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "this address is served to callers that name it: use 127.0.0.1 or localhost\n",
            );
        }
        self.route(request.method(), path, request.uri().query())
    }

    fn route(&self, method: &Method, path: &str, query: Option<&str>) -> Response<Full<Bytes>> {
        if let Some(paths) = &self.replacing {
            return self.replaced(method, path, paths);
        }
        match path {
            "/livez" => self.read(method, Reach::Network, || text(StatusCode::OK, "ok\n")),
            "/readyz" => self.read(method, Reach::Network, || verdict(self.source.pending())),
            "/healthz" => self.read(method, Reach::Network, || self.health()),
            "/metrics" => self.read(method, Reach::Loopback, || self.metrics()),
            "/status" => self.read(method, Reach::Loopback, || self.status()),
            "/" => self.read(method, Reach::Loopback, || self.page()),
            "/log-level" => self.level(method, query),
            _ => not_found(),
        }
    }

    fn replaced(
        &self,
        method: &Method,
        path: &str,
        paths: &HealthOptions,
    ) -> Response<Full<Bytes>> {
        let is = |wanted: &Option<String>| wanted.as_deref() == Some(path);
        if is(&paths.livez) {
            self.read(method, Reach::Network, || text(StatusCode::OK, "ok\n"))
        } else if is(&paths.healthz) {
            self.read(method, Reach::Network, || self.health())
        } else if is(&paths.metrics) {
            self.read(method, Reach::Network, || self.metrics())
        } else {
            text(StatusCode::NOT_FOUND, "not found\n")
        }
    }

    fn read(
        &self,
        method: &Method,
        needed: Reach,
        answer: impl FnOnce() -> Response<Full<Bytes>>,
    ) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        }
        if self.reach < needed {
            return text(
                StatusCode::FORBIDDEN,
                "not served on an address that others can reach: bind admin to 127.0.0.1 or use adminSocket\n",
            );
        }
        answer()
    }

    fn health(&self) -> Response<Full<Bytes>> {
        verdict(self.source.sick())
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        typed(StatusCode::OK, OPEN_METRICS, self.source.metrics())
    }

    fn status(&self) -> Response<Full<Bytes>> {
        typed(StatusCode::OK, "application/json", format!("{:#}\n", self.source.status()))
    }

    fn page(&self) -> Response<Full<Bytes>> {
        match self.source.page() {
            Some(page) => typed(StatusCode::OK, "text/html; charset=utf-8", page),
            None => not_found(),
        }
    }

    /// `GET` shows the level, `PUT /log-level?level=debug` changes it.
    fn level(&self, method: &Method, query: Option<&str>) -> Response<Full<Bytes>> {
        if self.reach < Reach::Socket {
            return text(
                StatusCode::FORBIDDEN,
                "served on the admin socket only: set adminSocket\n",
            );
        }
        let asked = query.and_then(|query| query.strip_prefix("level="));
        match (method, asked) {
            (&Method::GET, _) => text(StatusCode::OK, &format!("{}\n", self.level.level())),
            (&Method::PUT, Some(level)) if self.level.change(level) => {
                // Not `level`: in JSON that is the level of the line itself.
                tracing::info!(to = level, "log level changed");
                text(StatusCode::OK, &format!("{level}\n"))
            }
            _ => text(
                StatusCode::BAD_REQUEST,
                "use PUT /log-level?level= with one of error, warn, info, debug, trace, off\n",
            ),
        }
    }
}

/// Whether a request means this machine itself. A web page whose name is made to resolve to
/// loopback (DNS rebinding) comes from the administrator's own browser, but with that name as host.
/// A request without a host comes from no browser.
fn names_loopback(headers: &header::HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(authority) = http::uri::Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    // Rebinding takes a name: an address comes from a proxy that passes its own caller's host on.
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn not_found() -> Response<Full<Bytes>> {
    let known = "not found: try /livez /readyz /healthz /metrics /status /log-level\n";
    text(StatusCode::NOT_FOUND, known)
}

fn verdict(reasons: Vec<String>) -> Response<Full<Bytes>> {
    if reasons.is_empty() {
        return text(StatusCode::OK, "ok\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, &format!("{}\n", reasons.join("\n")))
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body.to_owned())
}

fn typed(status: StatusCode, content: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = header::HeaderValue::from_static(content);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_as(host: &str) -> bool {
        let mut headers = header::HeaderMap::new();
        headers.insert(header::HOST, header::HeaderValue::from_bytes(host.as_bytes()).unwrap());
        names_loopback(&headers)
    }

    #[test]
    fn no_name_but_localhost_leads_to_loopback() {
        let known = ["localhost", "LOCALHOST:8090", "127.0.0.1:8090", "127.1.2.3", "[::1]:8090"];
        // As a reverse proxy in the same pod passes them on.
        let passed_on = ["10.0.0.7:8443", "[fd00::2]"];
        for host in known.into_iter().chain(passed_on) {
            assert!(asked_as(host), "{host}");
        }
        for host in ["rebound.example:8090", "localhost.example", "", "a b"] {
            assert!(!asked_as(host), "{host}");
        }
        assert!(names_loopback(&header::HeaderMap::new()));
    }
}
