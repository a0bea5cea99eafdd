//! An API server in memory that knows server-side apply as far as it matters here: what a manager
//! applied before and does not any more is gone, items of lists go by their id, name or type, and
//! `managedFields` say who owns what.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as Task, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use kube::Client;
use kube::api::DynamicObject;
use kube::client::Body;
use kube::runtime::events::{Recorder, Reporter};
use serde_json::{Map, Value, json};

use crate::operator::context::{Context, Options};
use crate::operator::metrics::Metrics;
use crate::operator::quiet::Quiet;

#[derive(Default)]
pub(super) struct World {
    /// Objects by path.
    pub(super) objects: BTreeMap<String, Value>,
    /// Every write that came, as `VERB path`.
    pub(super) writes: Vec<String>,
    /// Events, as `reason note`.
    pub(super) events: Vec<String>,
    /// How many requests came.
    pub(super) requests: usize,
    /// Namespaces that are not there.
    pub(super) absent: Vec<String>,
    applied: BTreeMap<(String, String), Value>,
}

#[derive(Clone, Default)]
pub(super) struct Fake {
    world: Arc<Mutex<World>>,
}

pub(super) fn secret(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

impl Fake {
    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(super) fn context(&self) -> Context {
        let client = Client::new(self.clone(), "default");
        let reporter = Reporter { controller: "sidekey".into(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        let (metrics, options) = (Metrics::default(), Options::default());
        Context { client, recorder, metrics, options, quiet: Quiet::default() }
    }

    pub(super) fn at(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    pub(super) fn put(&self, path: &str, object: Value) {
        self.lock().objects.insert(path.to_owned(), object);
    }

    pub(super) fn put_secret(&self, namespace: &str, name: &str, data: &[(&str, &[u8])]) {
        let data: BTreeMap<&str, k8s_openapi::ByteString> = data
            .iter()
            .map(|(key, bytes)| (*key, k8s_openapi::ByteString(bytes.to_vec())))
            .collect();
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "data": data});
        self.put(&secret(namespace, name), object);
    }

    /// What one entry of a Secret holds.
    pub(super) fn content(&self, namespace: &str, name: &str, key: &str) -> Option<Vec<u8>> {
        let object = self.at(&secret(namespace, name))?;
        let data: k8s_openapi::ByteString =
            serde_json::from_value(object["data"].get(key)?.clone()).unwrap();
        Some(data.0)
    }

    pub(super) fn object(&self, path: &str) -> DynamicObject {
        serde_json::from_value(self.at(path).unwrap()).unwrap()
    }

    pub(super) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        change(self.lock().objects.get_mut(path).unwrap());
    }

    pub(super) fn forget_writes(&self) {
        self.lock().writes.clear();
    }
}

impl World {
    fn answer(&mut self, method: &str, path: &str, query: &str, kind: &str, body: Value) -> Value {
        let absent = self.absent.iter().any(|gone| path.contains(&format!("/{gone}/")));
        if path.contains("/events") {
            let text = |name: &str| body[name].as_str().unwrap_or_default();
            self.events.push(format!("{} {}", text("reason"), text("note")));
            return body;
        }
        if method != "GET" {
            self.writes.push(format!("{method} {path}"));
            if absent {
                return failure(404, "namespace not found");
            }
        }
        match method {
            "GET" if path.ends_with("/secrets") => self.list(path, query),
            "GET" => self.objects.get(path).cloned().unwrap_or_else(|| failure(404, "not found")),
            "POST" => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return failure(409, "already exists");
                }
                self.objects.insert(path, body.clone());
                body
            }
            _ if kind.contains("merge-patch") => {
                let object = self.objects.get_mut(path).unwrap();
                merge_patch(object, &body);
                object.clone()
            }
            _ => self.apply(path, query, body),
        }
    }

    fn list(&self, path: &str, query: &str) -> Value {
        let query = query.replace("%3D", "=").replace("%2F", "/");
        let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
        let (label, value) = selector.unwrap().split_once('=').unwrap();
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(&format!("{path}/")))
            .map(|(_, object)| object)
            .filter(|object| object["metadata"]["labels"][label] == value)
            .collect();
        json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": items})
    }

    fn apply(&mut self, path: &str, query: &str, body: Value) -> Value {
        let parameter = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            pair.unwrap_or_default().to_owned()
        };
        let manager = parameter("fieldManager");
        let of_status = path.ends_with("/status");
        assert_eq!(parameter("force") == "true", !of_status, "{path}");
        let path = path.trim_end_matches("/status").to_owned();
        let key = (format!("{path} {of_status}"), manager.clone());
        let before = self.applied.insert(key, body.clone());
        let before = before.filter(|_| self.objects.contains_key(&path)).unwrap_or_default();
        let object = self.objects.entry(path).or_insert_with(|| json!({"metadata": {}}));
        let spec = object["spec"].clone();
        remove(object, &before, &body);
        add(object, &body);
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let changed = i64::from(object["spec"] != spec);
        object["metadata"]["generation"] = (generation + changed).into();
        let mut owned = body;
        for name in ["apiVersion", "kind", "metadata"] {
            owned.as_object_mut().unwrap().remove(name);
        }
        let entry = json!({
            "manager": manager, "operation": "Apply", "fieldsType": "FieldsV1",
            "subresource": if of_status { "status" } else { "" }, "fieldsV1": fields(&owned),
        });
        let managed = &mut object["metadata"]["managedFields"];
        if !managed.is_array() {
            *managed = json!([]);
        }
        let list = managed.as_array_mut().unwrap();
        list.retain(|other| {
            other["manager"] != entry["manager"] || other["subresource"] != entry["subresource"]
        });
        list.push(entry);
        object.clone()
    }
}

fn item_key(value: &Value) -> Option<(&'static str, Value)> {
    ["id", "name", "type"].into_iter().find_map(|k| Some((k, value.get(k)?.clone())))
}

/// The item of a list with the same key.
fn same<'a>(list: &'a mut Value, item: &Value) -> Option<&'a mut Value> {
    let key = item_key(item)?;
    list.as_array_mut()?.iter_mut().find(|other| item_key(other).as_ref() == Some(&key))
}

/// What was applied before and is not any more.
fn remove(object: &mut Value, before: &Value, now: &Value) {
    let Value::Object(fields) = before else { return };
    for (name, old) in fields {
        if now.get(name).is_none() {
            if let Some(map) = object.as_object_mut() {
                map.remove(name);
            }
            continue;
        }
        match old {
            Value::Array(items) => {
                for item in items.iter().filter(|item| item_key(item).is_some()) {
                    let mut list = now[name].clone();
                    match same(&mut list, item) {
                        Some(now) => {
                            if let Some(there) = same(&mut object[name], item) {
                                remove(there, item, &now.clone());
                            }
                        }
                        None => object[name]
                            .as_array_mut()
                            .unwrap()
                            .retain(|other| item_key(other) != item_key(item)),
                    }
                }
            }
            Value::Object(_) => remove(&mut object[name], old, &now[name]),
            _ => {}
        }
    }
}

fn add(object: &mut Value, body: &Value) {
    match body {
        Value::Object(fields) => {
            if !object.is_object() {
                *object = Value::Object(Map::new());
            }
            for (name, value) in fields {
                add(&mut object[name], value);
            }
        }
        Value::Array(items) if items.iter().all(|item| item_key(item).is_some()) => {
            if !object.is_array() {
                *object = json!([]);
            }
            for item in items {
                match same(object, item) {
                    Some(there) => add(there, item),
                    None => object.as_array_mut().unwrap().push(item.clone()),
                }
            }
        }
        value => *object = value.clone(),
    }
}

fn merge_patch(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            merge_patch(&mut object[name], value);
        }
    }
}

fn fields(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            map.iter().map(|(name, value)| (format!("f:{name}"), fields(value))).collect()
        }
        Value::Array(items) if items.iter().all(|item| item.get("type").is_some()) => {
            let key = |item: &Value| format!("k:{}", json!({"type": item["type"]}));
            items.iter().map(|item| (key(item), fields(item))).collect()
        }
        _ => json!({}),
    }
}

fn failure(code: u16, message: &str) -> Value {
    let reason = if code == 404 { "NotFound" } else { "AlreadyExists" };
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": message, "reason": reason,
    })
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
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let kind = parts.headers.get("content-type").map(|kind| kind.to_str().unwrap());
            let (method, path) = (parts.method.as_str(), parts.uri.path());
            let query = parts.uri.query().unwrap_or_default();
            fake.lock().requests += 1;
            let answer = fake.lock().answer(method, path, query, kind.unwrap_or_default(), body);
            let code = match answer["kind"] == "Status" {
                true => u16::try_from(answer["code"].as_u64().unwrap()).unwrap(),
                false => 200,
            };
            let body = Full::new(answer.to_string().into());
            Ok(Response::builder().status(code).body(body).unwrap())
        })
    }
}
