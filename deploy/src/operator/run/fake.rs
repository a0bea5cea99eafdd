//! An API server in the test's own hands.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// What is answered to a method, a path and a body: a status and a body.
type Handler = dyn Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync;

#[derive(Clone)]
struct Fake(Arc<Handler>);

/// A client of one that answers so.
pub(crate) fn client(
    handler: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> Client {
    Client::new(Fake(Arc::new(handler)), "default")
}

/// The answer where there is nothing.
pub(crate) fn absent() -> (u16, Value) {
    (404, json!({"kind": "Status", "code": 404, "message": "not found", "reason": "NotFound"}))
}

impl tower_service::Service<Request<Body>> for Fake {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let handler = self.0.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, answer) = handler(parts.method.as_str(), parts.uri.path(), &body);
            let answer = Full::new(Bytes::from(answer.to_string()));
            Ok(Response::builder().status(status).body(answer).unwrap())
        }
        .boxed()
    }
}
