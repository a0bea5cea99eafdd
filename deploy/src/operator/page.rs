//! A page to look at: every control plane, its keys, replicas and rotation. Nothing can be changed
//! here.
//!
//! It is behind the cluster's own authentication and authorization: a caller shows a token of the
//! cluster, and sees the SecretEncryptions that `kubectl get` would show him. What it shows comes
//! from objects that others write: all of it is escaped, and the browser is told to run and to
//! fetch nothing, should that ever fail.

mod gate;
mod html;
mod overview;
mod plane;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use kube::Client;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use self::gate::{Gate, Right, User, token};
use super::metrics::Metrics;
use super::run::{Answer, Name, Shelf, Site, text, typed};
use super::status::Status;
use crate::Error;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// Shows the SecretEncryptions on a shelf to those who may see them.
pub(crate) struct Page {
    encryptions: Shelf,
    metrics: Metrics,
    gate: Gate,
}

/// One control plane, as it is shown.
pub(super) struct Plane {
    pub(super) name: Name,
    pub(super) status: Status,
    /// The generation of the spec, which the status may not know yet.
    pub(super) generation: i64,
}

/// Why somebody does not see what he asks for.
enum Refusal {
    /// Who is it?
    Unknown,
    /// He may not, and this is the right that he lacks.
    Forbidden(String),
    /// There is no such thing.
    Absent,
    /// The API server did not say whether he may.
    Unanswered(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Unanswered(error)
    }
}

impl Page {
    /// Asks the API server who may see what.
    pub(crate) fn new(client: &Client, encryptions: Shelf, metrics: Metrics) -> Self {
        Self { encryptions, metrics, gate: Gate::new(client) }
    }

    async fn respond(&self, method: &Method, path: &str, headers: &HeaderMap) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "nothing can be changed here: use GET\n");
        }
        let shown = match self.user(headers).await {
            Ok(user) => self.route(path, &user).await,
            Err(refusal) => Err(refusal),
        };
        let answer = shown.unwrap_or_else(|refusal| refuse(&refusal));
        guarded(answer)
    }

    async fn user(&self, headers: &HeaderMap) -> Result<User, Refusal> {
        let token = headers.get(AUTHORIZATION).and_then(token).ok_or(Refusal::Unknown)?;
        self.gate.user(&token).await?.ok_or(Refusal::Unknown)
    }

    async fn route(&self, path: &str, user: &User) -> Result<Answer, Refusal> {
        match path {
            "/" => {
                let (planes, all) = self.visible(user).await?;
                let page = overview::render(&planes, all, self.encryptions.is_synced());
                Ok(typed(StatusCode::OK, HTML, page))
            }
            "/status.json" => {
                let (planes, _) = self.visible(user).await?;
                let list: Vec<Value> = planes.iter().map(Plane::document).collect();
                let document = json!({"controlPlanes": list});
                Ok(typed(StatusCode::OK, "application/json", format!("{document:#}\n")))
            }
            "/metrics" => {
                self.require(user, &Right::Metrics).await?;
                let text = self.metrics.text(&self.encryptions.all());
                Ok(typed(StatusCode::OK, OPEN_METRICS, text))
            }
            _ => {
                let name = named(path).ok_or(Refusal::Absent)?;
                // Before it is said whether there is such a thing.
                self.require(user, &Right::See(name.clone())).await?;
                let object = self.encryptions.find(&name).ok_or(Refusal::Absent)?;
                Ok(typed(StatusCode::OK, HTML, plane::render(&Plane::of(&object))))
            }
        }
    }

    /// The control planes that somebody may see, and whether these are all.
    async fn visible(&self, user: &User) -> Result<(Vec<Plane>, bool), Refusal> {
        let objects = self.encryptions.all();
        if self.gate.may(user, &Right::SeeAll).await? {
            return Ok((objects.iter().map(|object| Plane::of(object)).collect(), true));
        }
        let names = objects.iter().map(|object| Name::of(object)).collect();
        let seen = self.gate.may_see(user, names).await?;
        let seen = objects.iter().filter(|object| seen.contains(&Name::of(object)));
        let planes: Vec<Plane> = seen.map(|object| Plane::of(object)).collect();
        if planes.is_empty() {
            return Err(Refusal::Forbidden(Right::SeeAll.question()));
        }
        Ok((planes, false))
    }

    async fn require(&self, user: &User, right: &Right) -> Result<(), Refusal> {
        match self.gate.may(user, right).await? {
            true => Ok(()),
            false => Err(Refusal::Forbidden(right.question())),
        }
    }
}

impl Site for Page {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer> {
        async move {
            let path = request.uri().path();
            self.respond(request.method(), path, request.headers()).await
        }
        .boxed()
    }
}

impl Plane {
    fn of(object: &DynamicObject) -> Self {
        Self {
            name: Name::of(object),
            status: Status::of(object),
            generation: object.metadata.generation.unwrap_or_default(),
        }
    }

    fn document(&self) -> Value {
        json!({
            "namespace": self.name.namespace,
            "name": self.name.name,
            "generation": self.generation,
            "status": self.status,
        })
    }
}

/// The control plane in a path.
fn named(path: &str) -> Option<Name> {
    let (namespace, name) = path.strip_prefix("/planes/")?.split_once('/')?;
    let sound = |text: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        !text.is_empty() && text.len() <= 253 && text.bytes().all(plain)
    };
    (sound(namespace) && sound(name))
        .then(|| Name { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn refuse(refusal: &Refusal) -> Answer {
    let (status, page) = match refusal {
        Refusal::Unknown => (StatusCode::UNAUTHORIZED, html::unknown()),
        Refusal::Forbidden(question) => (StatusCode::FORBIDDEN, html::forbidden(question)),
        Refusal::Absent => (StatusCode::NOT_FOUND, html::absent()),
        Refusal::Unanswered(error) => {
            tracing::warn!(error = %error.report(), "cannot ask who may see the page");
            (StatusCode::SERVICE_UNAVAILABLE, html::unanswered())
        }
    };
    let mut answer = typed(status, HTML, page);
    if status == StatusCode::UNAUTHORIZED {
        for way in ["Bearer", "Basic realm=\"Sidekey\", charset=\"UTF-8\""] {
            answer.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(way));
        }
    }
    answer
}

/// What a browser is told not to do.
fn guarded(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    let policy = HeaderValue::try_from(html::policy()).ok();
    headers.extend(policy.map(|policy| (http::header::CONTENT_SECURITY_POLICY, policy)));
    for (name, value) in [
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}
