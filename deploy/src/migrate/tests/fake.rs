//! A server that does at will what a real one does seldom: it forgets lists, is too busy, offers
//! no patch, or goes away.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::migrate::{Resolved, Resource};

/// What is to happen instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whim {
    /// 410 to a continued list, with or without a place to go on.
    Expire { with_token: bool },
    /// This status, and so many seconds to wait.
    Refuse(u16, Option<u64>),
}

#[derive(Debug, Default)]
pub(super) struct World {
    /// Key to version, in the order of keys.
    pub(super) objects: BTreeMap<String, u64>,
    /// How often each was rewritten.
    pub(super) rewritten: BTreeMap<String, u32>,
    /// For the next continued lists.
    pub(super) lists: VecDeque<Option<Whim>>,
    /// For the next writes.
    pub(super) writes: VecDeque<Option<Whim>>,
    /// When each write came.
    pub(super) times: Vec<Instant>,
    /// Writes that are under way now, and the most that ever were.
    pub(super) under_way: usize,
    pub(super) most: usize,
    /// Lists the last object first.
    pub(super) shuffled: bool,
    /// Objects in a page at most; few unless told.
    pub(super) page: Option<usize>,
    /// What was put back.
    pub(super) put: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fake {
    pub(super) world: Arc<Mutex<World>>,
}

impl Fake {
    pub(super) fn with(keys: impl IntoIterator<Item = String>) -> Self {
        let fake = Self::default();
        fake.lock().objects = keys.into_iter().zip(1..).collect();
        fake
    }

    pub(super) fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn answer(&self, method: &str, path: &str, query: &str, body: &Bytes) -> Response<Full<Bytes>> {
        let mut world = self.lock();
        if path.ends_with("selfsubjectaccessreviews") {
            return said(201, &json!({"status": {"allowed": true}}));
        }
        if path.ends_with("/secrets") && method == "GET" && !path.contains("/namespaces/") {
            return world.list(query);
        }
        let key = path.strip_prefix("/api/v1/namespaces/").unwrap().replace("/secrets/", "/");
        if method == "GET" {
            let version = world.objects[&key];
            return said(
                200,
                &json!({"metadata": {"resourceVersion": version.to_string()}, "data": key}),
            );
        }
        world.times.push(Instant::now());
        if method == "PUT" {
            world.put.push(String::from_utf8(body.to_vec()).unwrap());
        }
        match world.writes.pop_front().flatten() {
            Some(Whim::Refuse(status, after)) => refused(status, after),
            _ => world.write(&key),
        }
    }
}

impl World {
    fn list(&mut self, query: &str) -> Response<Full<Bytes>> {
        let parameter =
            |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
        let limit: usize = parameter("limit").unwrap().parse().unwrap();
        // Pages stay small here, whatever is asked for.
        let limit = limit.min(self.page.unwrap_or(7));
        let from = parameter("continue").map(|token| token.replace('_', "/"));
        if from.is_some() {
            match self.lists.pop_front().flatten() {
                Some(Whim::Expire { with_token }) => {
                    let token = if with_token {
                        from.map(|from| format!("now:{}", from.trim_start_matches("now:")))
                    } else {
                        None
                    };
                    return said(
                        410,
                        &json!({"kind": "Status", "message": "too old", "metadata": {"continue": token.unwrap_or_default()}}),
                    );
                }
                Some(Whim::Refuse(status, after)) => return refused(status, after),
                None => {}
            }
        }
        let mut keys: Vec<&String> = self.objects.keys().collect();
        if self.shuffled {
            keys.reverse();
        }
        let from = from.map(|from| from.trim_start_matches("now:").to_owned());
        let first = from.map_or(0, |from| keys.iter().position(|key| **key == from).unwrap());
        let rest = &keys[first..];
        let items: Vec<Value> = rest.iter().take(limit).map(|key| {
            let (namespace, name) = key.split_once('/').unwrap();
            let version = self.objects[*key].to_string();
            json!({"metadata": {"namespace": namespace, "name": name, "resourceVersion": version}})
        }).collect();
        let token = rest.get(limit).map(|key| key.replace('/', "_")).unwrap_or_default();
        let left = rest.len().saturating_sub(limit);
        let metadata = match left {
            0 => json!({}),
            _ => json!({"continue": token, "remainingItemCount": left}),
        };
        said(200, &json!({"metadata": metadata, "items": items}))
    }

    fn write(&mut self, key: &str) -> Response<Full<Bytes>> {
        let Some(version) = self.objects.get_mut(key) else { return refused(404, None) };
        *version += 1000;
        let metadata = json!({"resourceVersion": version.to_string()});
        *self.rewritten.entry(key.to_owned()).or_default() += 1;
        said(200, &json!({"metadata": metadata}))
    }
}

impl tower_service::Service<Request<Body>> for Fake {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let is_write = matches!(parts.method.as_str(), "PATCH" | "PUT");
            {
                let mut world = fake.lock();
                world.under_way += usize::from(is_write);
                world.most = world.most.max(world.under_way);
            }
            // Long enough for others to be under way at the same time.
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            let query = parts.uri.query().unwrap_or_default();
            let answer = fake.answer(parts.method.as_str(), parts.uri.path(), query, &body);
            fake.lock().under_way -= usize::from(is_write);
            Ok(answer)
        })
    }
}

/// Secrets, as the only resource.
pub(super) fn secrets(patchable: bool) -> Resolved {
    let (group, version, name) = (String::new(), "v1".to_owned(), "secrets".to_owned());
    let resource = Resource { group, version, name, namespaced: true, patchable };
    Resolved { resources: vec![resource], skipped: Vec::new() }
}

fn said(status: u16, body: &Value) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.to_string().into())).unwrap()
}

fn refused(status: u16, after: Option<u64>) -> Response<Full<Bytes>> {
    let body = json!({"kind": "Status", "message": format!("refused with {status}")}).to_string();
    let mut answer = Response::builder().status(status);
    if let Some(after) = after {
        answer = answer.header("retry-after", after);
    }
    answer.body(Full::new(body.into())).unwrap()
}
