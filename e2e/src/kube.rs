//! A Kubernetes client of just the calls that the tests need. It never
//! retries: one call is one request, and a failure is the test's to judge.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::http::{HttpClient, Response};

/// The two kinds of objects that carry plain text data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Secret, Self::ConfigMap];

    /// Its name in paths, in etcd and in EncryptionConfiguration.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
        }
    }

    /// The key under which kube-apiserver stores an object.
    pub fn etcd_key(self, namespace: &str, name: &str) -> String {
        format!("/registry/{}/{namespace}/{name}", self.plural())
    }

    fn object(self, name: &str, data: &[(&str, &str)]) -> Value {
        let encode = |text: &str| match self {
            Self::Secret => STANDARD.encode(text),
            Self::ConfigMap => text.to_owned(),
        };
        let data: Map<String, Value> =
            data.iter().map(|(key, text)| ((*key).to_owned(), encode(text).into())).collect();
        let kind = match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        };
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data})
    }

    fn data(self, object: &Value) -> Result<BTreeMap<String, String>> {
        let decode = |(key, value): (&String, &Value)| {
            let text = value.as_str().context("data is not text")?;
            let text = match self {
                Self::Secret => String::from_utf8(STANDARD.decode(text)?)?,
                Self::ConfigMap => text.to_owned(),
            };
            Ok((key.clone(), text))
        };
        object["data"].as_object().into_iter().flatten().map(decode).collect()
    }
}

/// A client of one kube-apiserver.
#[derive(Clone, Debug)]
pub struct KubeClient {
    name: String,
    http: HttpClient,
}

impl KubeClient {
    /// `name` says in messages which server was asked.
    pub fn new(name: impl Into<String>, http: HttpClient) -> Self {
        Self { name: name.into(), http }
    }

    /// The server's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates an object with text data.
    pub async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        data: &[(&str, &str)],
    ) -> Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/{}", kind.plural());
        self.send(Method::POST, &path, Some(&kind.object(name, data))).await?;
        Ok(())
    }

    /// The data of an object.
    pub async fn read(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, String>> {
        kind.data(&self.get(&path(kind, namespace, name)).await?)
    }

    /// Replaces an object, whatever its version.
    pub async fn update(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        data: &[(&str, &str)],
    ) -> Result<()> {
        let path = path(kind, namespace, name);
        self.send(Method::PUT, &path, Some(&kind.object(name, data))).await?;
        Ok(())
    }

    /// Deletes an object.
    pub async fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        self.send(Method::DELETE, &path(kind, namespace, name), None).await?;
        Ok(())
    }

    /// The data of all objects of a namespace, by name.
    pub async fn list(
        &self,
        kind: Kind,
        namespace: &str,
    ) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
        let path = format!("/api/v1/namespaces/{namespace}/{}", kind.plural());
        let list = self.get(&path).await?;
        let items = list["items"].as_array().context("a list without items")?;
        items
            .iter()
            .map(|item| {
                let name = item["metadata"]["name"].as_str().context("an object without name")?;
                Ok((name.to_owned(), kind.data(item)?))
            })
            .collect()
    }

    /// GET of any path as JSON; anything but 2xx is an error.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, None).await
    }

    /// Any request as JSON; anything but 2xx is an error.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let what = || format!("{method} {path} through {}", self.name);
        let answer = self.http.send(method.clone(), path, body).await;
        answer.and_then(Response::ok).with_context(what)?.json()
    }

    /// The same for a body that is not plain JSON, such as a patch.
    pub async fn send_as(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Value> {
        let what = || format!("{method} {path} through {}", self.name);
        let headers = [("content-type", content_type)];
        let answer = self.http.send_with(method.clone(), path, &headers, Some(body)).await;
        answer.and_then(Response::ok).with_context(what)?.json()
    }

    /// Begins a patch that never ends: the server is busy with it until what is returned is
    /// dropped.
    pub async fn hold_patch(&self, path: &str) -> Result<impl Sized + use<>> {
        self.http.hold(Method::PATCH, path, "application/merge-patch+json").await
    }

    /// GET of any path, whatever its status.
    pub async fn raw(&self, path: &str) -> Result<Response> {
        self.http.get(path).await
    }
}

fn path(kind: Kind, namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{}/{name}", kind.plural())
}
