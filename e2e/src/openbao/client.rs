//! A client of OpenBao's HTTP API as an operator uses it. Nothing is retried.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Value, json};

use crate::http::{HttpClient, Response};
use crate::wait::{PATIENCE, eventually};

/// A client with one token, in one namespace.
#[derive(Clone, Debug)]
pub struct Bao {
    http: HttpClient,
    namespace: String,
}

/// One transit key.
#[derive(Clone, Debug)]
pub struct TransitKey {
    bao: Bao,
    mount: String,
    name: String,
}

impl Bao {
    pub(super) fn new(http: HttpClient) -> Self {
        Self { http, namespace: String::new() }
    }

    /// The same client in a namespace, such as `team` or `team/inner`.
    pub fn within(&self, namespace: &str) -> Self {
        let namespace = format!("{}/", namespace.trim_matches('/'));
        Self { http: self.http.clone(), namespace }
    }

    /// The transport, for calls that need the status.
    pub fn http(&self) -> &HttpClient {
        &self.http
    }

    /// Any call, whatever its status.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response> {
        let path = format!("/v1/{}{path}", self.namespace);
        self.http.send(method, &path, body).await
    }

    /// Reads; the answer is the whole document.
    pub async fn read(&self, path: &str) -> Result<Value> {
        self.done(Method::GET, path, None).await
    }

    /// Writes; the answer is the whole document, null if there is none.
    pub async fn write(&self, path: &str, body: &Value) -> Result<Value> {
        self.done(Method::POST, path, Some(body)).await
    }

    /// Deletes.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.done(Method::DELETE, path, None).await.map(drop)
    }

    /// Writes, and has the answer wrapped: what comes back is the token of a
    /// wrapped answer, which can be unwrapped once.
    pub async fn write_wrapped(&self, path: &str, body: &Value, ttl: &str) -> Result<String> {
        let what = format!("cannot write {path}, wrapped");
        let full = format!("/v1/{}{path}", self.namespace);
        let headers = [("x-vault-wrap-ttl", ttl)];
        let answer = self.http.send_with(Method::POST, &full, &headers, Some(body)).await?;
        let answer = answer.ok().with_context(|| what.clone())?.json()?;
        let token = answer["wrap_info"]["token"].as_str();
        Ok(token.with_context(|| format!("{what}: no token came back"))?.to_owned())
    }

    /// Makes a namespace, and gives a client in it.
    pub async fn make_namespace(&self, name: &str) -> Result<Self> {
        self.write(&format!("sys/namespaces/{name}"), &json!({})).await?;
        Ok(self.within(&format!("{}{name}", self.namespace)))
    }

    /// Mounts a secrets engine.
    pub async fn enable(&self, engine: &str, mount: &str) -> Result<()> {
        self.write(&format!("sys/mounts/{mount}"), &json!({"type": engine})).await.map(drop)
    }

    /// Mounts an auth method.
    pub async fn enable_auth(&self, method: &str, mount: &str) -> Result<()> {
        self.write(&format!("sys/auth/{mount}"), &json!({"type": method})).await.map(drop)
    }

    /// Writes a policy: rules of a path and what may be done there.
    pub async fn policy(&self, name: &str, rules: &[(&str, &[&str])]) -> Result<()> {
        let rules: serde_json::Map<String, Value> = rules
            .iter()
            .map(|(path, capabilities)| ((*path).to_owned(), json!({"capabilities": capabilities})))
            .collect();
        let policy = json!({"path": rules}).to_string();
        let path = format!("sys/policies/acl/{name}");
        self.write(&path, &json!({"policy": policy})).await.map(drop)
    }

    /// Makes a transit key on a mount that exists.
    pub async fn make_key(&self, mount: &str, name: &str) -> Result<TransitKey> {
        let key = self.key(mount, name);
        self.write(&key.path("keys"), &json!({"type": "aes256-gcm96"})).await?;
        Ok(key)
    }

    /// A transit key that may or may not exist.
    pub fn key(&self, mount: &str, name: &str) -> TransitKey {
        TransitKey { bao: self.clone(), mount: mount.to_owned(), name: name.to_owned() }
    }

    /// Answers 429 to whatever comes to this mount beyond `rate` a second; a
    /// client that has gone beyond it gets nothing else until the limit ends.
    pub async fn limit(&self, name: &str, mount: &str, rate: f64) -> Result<()> {
        let path = format!("{}{mount}/", self.namespace);
        let quota = json!({"path": path, "rate": rate, "block_interval": "10m"});
        self.write(&format!("sys/quotas/rate-limit/{name}"), &quota).await.map(drop)
    }

    /// Ends such a limit.
    pub async fn unlimit(&self, name: &str) -> Result<()> {
        self.delete(&format!("sys/quotas/rate-limit/{name}")).await
    }

    async fn done(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let what = format!("openbao: {method} {}{path}", self.namespace);
        let answer = self.call(method, path, body).await?.ok().with_context(|| what.clone())?;
        if answer.body.is_empty() { Ok(Value::Null) } else { answer.json().context(what) }
    }
}

impl TransitKey {
    /// As `-vault-key-path` wants it: `<mount>/keys/<name>`.
    pub fn key_path(&self) -> String {
        self.path("keys")
    }

    /// Its mount.
    pub fn mount(&self) -> &str {
        &self.mount
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the server tells of it.
    pub async fn describe(&self) -> Result<Value> {
        Ok(self.bao.read(&self.path("keys")).await?["data"].take())
    }

    /// Whether the server has it.
    pub async fn exists(&self) -> Result<bool> {
        let answer = self.bao.call(Method::GET, &self.path("keys"), None).await?;
        ensure!(matches!(answer.status, 200 | 404), "{}: {}", answer.status, answer.text());
        Ok(answer.status == 200)
    }

    /// A new version, with which is written from now on; tells its number.
    pub async fn rotate(&self) -> Result<u64> {
        self.bao.write(&format!("{}/rotate", self.path("keys")), &json!({})).await?;
        self.describe().await?["latest_version"].as_u64().context("no latest_version")
    }

    /// Sets options such as `min_decryption_version` or `deletion_allowed`.
    pub async fn configure(&self, options: &Value) -> Result<()> {
        self.bao.write(&format!("{}/config", self.path("keys")), options).await.map(drop)
    }

    /// Removes all versions below that one for ever.
    pub async fn trim(&self, min_available: u64) -> Result<()> {
        let minima = json!({
            "min_decryption_version": min_available,
            "min_encryption_version": min_available,
        });
        self.configure(&minima).await?;
        let order = json!({"min_available_version": min_available});
        self.bao.write(&format!("{}/trim", self.path("keys")), &order).await.map(drop)
    }

    /// Deletes it with all that it has ever encrypted.
    pub async fn delete(&self) -> Result<()> {
        self.configure(&json!({"deletion_allowed": true})).await?;
        self.bao.delete(&self.path("keys")).await
    }

    /// Waits until the second in which its first version was made is over: the
    /// server tells the age of a key in whole seconds.
    pub async fn outlive_its_second(&self) -> Result<()> {
        let made = self.describe().await?["keys"]["1"].as_u64().context("no version 1")?;
        eventually("the key is a second old", PATIENCE, async || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            ensure!(now > made, "it is still the same second");
            Ok(())
        })
        .await
    }

    /// Makes it again: the same name, another key.
    pub async fn recreate(&self) -> Result<()> {
        let order = json!({"type": "aes256-gcm96"});
        self.bao.write(&self.path("keys"), &order).await.map(drop)
    }

    /// Encrypts as a client without associated data does.
    pub async fn encrypt(&self, plaintext: &[u8]) -> Result<String> {
        let order = json!({"plaintext": STANDARD.encode(plaintext)});
        let answer = self.bao.write(&self.path("encrypt"), &order).await?;
        let text = answer["data"]["ciphertext"].as_str();
        Ok(text.context("no ciphertext came back")?.to_owned())
    }

    /// `mount/verb/name`.
    pub fn path(&self, verb: &str) -> String {
        format!("{}/{verb}/{}", self.mount, self.name)
    }
}
