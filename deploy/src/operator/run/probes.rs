//! What kubelet asks: `/healthz`, whether the process runs, and `/readyz`, whether it can answer
//! others, with a line for everything that is still missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::serve::{Answer, Site, text};
use super::shelf::Shelf;
use crate::operator::webhook::Certificate;

/// What must be there before anybody is answered.
pub(super) struct Probes {
    encryptions: Shelf,
    certificate: Certificate,
    ending: AtomicBool,
}

impl Probes {
    pub(super) fn new(encryptions: Shelf, certificate: Certificate) -> Self {
        Self { encryptions, certificate, ending: AtomicBool::new(false) }
    }

    /// What is missing, one line each.
    fn pending(&self) -> Vec<&'static str> {
        let mut pending = Vec::new();
        if !self.encryptions.is_synced() {
            pending.push("waiting for the list of SecretEncryptions");
        }
        if !self.certificate.is_there() {
            pending.push("waiting for the certificate in Secret sidekey-operator-tls");
        }
        if self.ending.load(Ordering::Relaxed) {
            pending.push("ending");
        }
        pending
    }

    /// Nobody new should come.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    fn route(&self, method: &Method, path: &str) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        }
        match path {
            "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match self.pending().as_slice() {
                [] => text(StatusCode::OK, "ok\n"),
                some => text(StatusCode::SERVICE_UNAVAILABLE, some.join("\n") + "\n"),
            },
            _ => text(StatusCode::NOT_FOUND, "not found: try /healthz /readyz\n"),
        }
    }
}

impl Site for Probes {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer> {
        let answer = self.route(request.method(), request.uri().path());
        async move { answer }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use kube::runtime::watcher::Event;

    use super::*;

    #[tokio::test]
    async fn readiness_names_everything_that_is_missing_and_health_does_not_care() {
        let probes = Probes::new(Shelf::whole(), Certificate::default());
        let ask = async |path: &str| {
            let answer = probes.route(&Method::GET, path);
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        let (status, body) = ask("/readyz").await;
        assert_eq!((status, body.lines().count()), (503, 2), "{body}");
        assert!(body.contains("SecretEncryptions") && body.contains("sidekey-operator-tls"));
        assert_eq!(ask("/healthz").await.0, 200);
        probes.encryptions.take(Event::Init);
        probes.encryptions.take(Event::InitDone);
        assert!(!ask("/readyz").await.1.contains("SecretEncryptions"));
        probes.end();
        assert!(ask("/readyz").await.1.contains("ending"));
        assert_eq!(ask("/nothing").await.0, 404);
        assert_eq!(probes.route(&Method::POST, "/healthz").status().as_u16(), 405);
    }
}
