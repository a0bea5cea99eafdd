//! A cluster in memory: objects by their paths, and a list of all that was written.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as Task, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use kube::Client;
use kube::client::Body;
use kube::runtime::events::{Recorder, Reporter};
use serde_json::{Value, json};

use crate::operator::context::{Context, Options};
use crate::operator::metrics::Metrics;
use crate::operator::quiet::Quiet;

/// What is there, and what was done.
#[derive(Debug, Default)]
pub(in crate::operator) struct World {
    /// By path, such as `/api/v1/namespaces/a/pods/b`.
    pub(in crate::operator) objects: BTreeMap<String, Value>,
    /// Method and path of every write, with its body.
    pub(in crate::operator) writes: Vec<(String, Value)>,
    /// What the next writes are answered with, instead of being done.
    pub(in crate::operator) refusals: VecDeque<u16>,
    /// The path of every read.
    pub(in crate::operator) reads: Vec<String>,
    /// Paths that may not be read.
    pub(in crate::operator) forbidden: Vec<String>,
    /// How many of the next reads are answered with an error.
    pub(in crate::operator) fails: usize,
    version: u64,
}

/// A cluster in memory.
#[derive(Clone, Debug, Default)]
pub(in crate::operator) struct Fake(Arc<Mutex<World>>);

impl Fake {
    pub(in crate::operator) fn context(&self) -> Context {
        let client = Client::new(self.clone(), "default");
        let reporter = Reporter { controller: "sidekey".into(), instance: None };
        Context {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            metrics: Metrics::default(),
            options: Options::default(),
            quiet: Quiet::default(),
        }
    }

    pub(in crate::operator) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Puts an object in, as if it had always been there.
    pub(in crate::operator) fn put(&self, path: &str, object: Value) {
        let mut world = self.lock();
        world.keep(path, object);
    }

    pub(in crate::operator) fn at(&self, path: &str) -> Value {
        self.lock().objects.get(path).cloned().unwrap_or_default()
    }

    /// Method and path of all that was written since the last time.
    pub(in crate::operator) fn written(&self) -> Vec<String> {
        self.lock().writes.drain(..).map(|(what, _)| what).collect()
    }
}

impl World {
    fn keep(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn read(&self, path: &str, query: &str) -> (u16, Value) {
        if let Some(object) = self.objects.get(path) {
            return (200, object.clone());
        }
        if path.rsplit('/').next().is_some_and(|last| last.contains('-')) {
            return (404, status(404));
        }
        if self.forbidden.iter().any(|forbidden| forbidden == path) {
            return (403, status(403));
        }
        let inside = |other: &str| {
            other.strip_prefix(path).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned)
        };
        if let Some((group, plural)) = path.rsplit_once('/')
            && !path.contains("/namespaces")
        {
            // Those of all namespaces.
            let of = |other: &str| {
                let rest = other.strip_prefix(group)?.strip_prefix("/namespaces/")?;
                Some(rest.split('/').nth(1)? == plural)
            };
            let all = self.objects.iter().filter(|(other, _)| of(other) == Some(true));
            let items: Vec<&Value> =
                all.map(|(_, object)| object).filter(|object| selected(object, query)).collect();
            return (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
        }
        let all = self.objects.iter();
        let all = all.filter(|(other, _)| inside(other).is_some_and(|rest| !rest.contains('/')));
        let items: Vec<&Value> =
            all.map(|(_, object)| object).filter(|object| selected(object, query)).collect();
        (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
    }

    fn write(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.writes.push((format!("{method} {path}"), body.clone()));
        if let Some(code) = self.refusals.pop_front() {
            return (code, status(code));
        }
        let before = self.objects.get(path).cloned();
        match (method, before) {
            ("POST", _) if path.ends_with("/eviction") => {
                let path = path.trim_end_matches("/eviction");
                let uid = &body["deleteOptions"]["preconditions"]["uid"];
                if self.objects.get(path).is_none_or(|pod| pod["metadata"]["uid"] != *uid) {
                    return (409, status(409));
                }
                self.objects.remove(path);
                (201, json!({"kind": "Status", "status": "Success"}))
            }
            ("POST", None) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{path}/{name}");
                (201, self.keep(&path, body))
            }
            ("PUT", Some(before)) => {
                let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
                if version(&before) != version(&body) {
                    return (409, status(409));
                }
                (200, self.keep(path, body))
            }
            ("PATCH", before) => {
                let mut object = before.unwrap_or_else(|| json!({}));
                merge(&mut object, &body);
                (200, self.keep(path, object))
            }
            ("DELETE", Some(_)) => {
                self.objects.remove(path);
                (200, json!({"kind": "Status", "status": "Success"}))
            }
            ("POST", _) if path.ends_with("/jobs") || path.ends_with("/secrets") => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                (201, self.keep(&format!("{path}/{name}"), body))
            }
            _ => (404, status(404)),
        }
    }
}

impl tower_service::Service<Request<Body>> for Fake {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Task<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let path = parts.uri.path();
            let mut world = fake.lock();
            let (code, answer) = match parts.method.as_str() {
                "GET" => {
                    world.reads.push(path.to_owned());
                    match world.fails {
                        0 => world.read(path, parts.uri.query().unwrap_or_default()),
                        _ => {
                            world.fails -= 1;
                            (500, status(500))
                        }
                    }
                }
                method => {
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    world.write(method, path, body)
                }
            };
            let answer = Full::new(answer.to_string().into());
            Ok(Response::builder().status(code).body(answer).unwrap())
        })
    }
}

fn selected(object: &Value, query: &str) -> bool {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
    let selector = selector.unwrap_or_default().replace("%3D", "=").replace("%2C", ",");
    let selector = selector.replace("%2F", "/");
    selector.split(',').filter(|pair| !pair.is_empty()).all(|pair| {
        let labels = &object["metadata"]["labels"];
        match pair.split_once('=') {
            Some((key, value)) => labels[key] == value,
            None => labels.get(pair).is_some(),
        }
    })
}

/// As a merge patch does it.
fn merge(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key.as_str()], value);
        }
    }
}

fn status(code: u16) -> Value {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "Refused",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": format!("refused with {code}"), "reason": reason,
    })
}
