//! moto as a process under test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};

use crate::aws::{ACCOUNT, KmsOwner, REGION};
use crate::http::HttpClient;
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::python::{MOTO, Python};
use crate::wait::PATIENCE;

/// Closes moto's gaps and simulates what it lacks.
const LAUNCHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/aws.py");

/// A running moto: KMS, STS and instance metadata on one port of loopback.
#[derive(Debug)]
pub struct Moto {
    process: Process,
    port: Port,
}

/// A simulated answer of KMS or STS, or a delay before its real one.
#[derive(Clone, Debug)]
pub struct KmsFault {
    rule: Value,
}

impl KmsFault {
    /// An error such as `ThrottlingException`, as KMS words it.
    pub fn error(name: &str, message: &str) -> Self {
        Self { rule: json!({"type": name, "message": message}) }
    }

    /// A lie: this answer in the place of the real one.
    pub fn answer(answer: Value) -> Self {
        Self { rule: json!({"answer": answer}) }
    }

    /// The real answer, but so much later.
    pub fn slow(delay: Duration) -> Self {
        Self { rule: json!({"seconds": delay.as_secs_f64()}) }
    }

    /// With this HTTP status in the place of 400.
    pub fn status(self, status: u16) -> Self {
        self.with("status", status)
    }

    /// Only for this operation, such as `DescribeKey`.
    pub fn on(self, operation: &str) -> Self {
        self.with("operation", operation)
    }

    /// Only where the request's KeyId contains this.
    pub fn of_key(self, part: &str) -> Self {
        self.with("key", part)
    }

    /// Only so many times.
    pub fn times(self, times: u32) -> Self {
        self.with("times", times)
    }

    fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.rule[field] = value.into();
        self
    }
}

impl Moto {
    /// Starts one, its log in `dir`, and waits until it answers.
    pub async fn start(dir: &Path) -> Result<Self> {
        let python = Python::with(&MOTO).await?;
        let port = Port::free()?;
        let process = Spec::new("moto", python.program, dir.join("moto.log"))
            .args(["-B", LAUNCHER])
            .arg(port.number().to_string())
            .env("PYTHONPATH", python.packages)
            .start()?;
        let mut moto = Self { process, port };
        let http = moto.http();
        let ready = async || http.get("/control").await?.ok().map(drop);
        moto.process.wait_until("it answers", PATIENCE, ready).await?;
        Ok(moto)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// As AWS_ENDPOINT_URL wants it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The one who owns the keys.
    pub fn owner(&self) -> KmsOwner {
        KmsOwner::new(self.address())
    }

    /// The process, to be paused and resumed. It keeps its keys in memory.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Puts a key there that has been before, by its id and its material in hex, oldest first; tells
    /// its ARN.
    pub async fn restore_key(&self, id: &str, materials: &[String]) -> Result<String> {
        self.control(json!({"restore": {"id": id, "materials": materials}})).await?;
        Ok(format!("arn:aws:kms:{REGION}:{ACCOUNT}:key/{id}"))
    }

    /// From now on requests fail so, by the first fault that fits; none heals it.
    pub async fn faults(&self, faults: &[KmsFault]) -> Result<()> {
        let rules: Vec<&Value> = faults.iter().map(|fault| &fault.rule).collect();
        self.control(json!({"faults": rules})).await.map(drop)
    }

    /// The web identity tokens that are good from now on.
    pub async fn accept_tokens(&self, tokens: &[&str]) -> Result<()> {
        self.control(json!({"tokens": tokens})).await.map(drop)
    }

    /// Any web identity token is good from now on.
    pub async fn accept_any_token(&self) -> Result<()> {
        self.control(json!({"tokens": null})).await.map(drop)
    }

    /// The access keys that are good from now on, beside those of sessions.
    pub async fn accept_access_keys(&self, keys: &[&str]) -> Result<()> {
        self.control(json!({"access_keys": keys})).await.map(drop)
    }

    /// From now on the signatures of this access key are checked, as those of sessions are.
    pub async fn check_signatures(&self, access_key: &str, secret: &str) -> Result<()> {
        self.control(json!({"secrets": {access_key: secret}})).await.map(drop)
    }

    /// How long new sessions last, however long they were asked for.
    pub async fn limit_sessions(&self, length: Duration) -> Result<()> {
        self.control(json!({"session_seconds": length.as_secs_f64()})).await.map(drop)
    }

    /// All sessions so far get this error, such as `ExpiredTokenException`.
    pub async fn revoke_sessions(&self, error: &str) -> Result<()> {
        self.control(json!({"revoke": error})).await.map(drop)
    }

    /// The same for the sessions that were opened with this web identity token.
    pub async fn revoke_sessions_of(&self, token: &str, error: &str) -> Result<()> {
        self.control(json!({"revoke": error, "of": token})).await.map(drop)
    }

    /// The web identity token behind each session so far, by its access key.
    pub async fn sessions(&self) -> Result<BTreeMap<String, String>> {
        let state = self.state().await?;
        let sessions = state["sessions"].as_object().context("no sessions")?;
        let token = |session: &Value| session["token"].as_str().unwrap_or_default().to_owned();
        Ok(sessions.iter().map(|(key, session)| (key.clone(), token(session))).collect())
    }

    /// What nobody may ever see: the secret keys and tokens of all sessions so far.
    pub async fn session_secrets(&self) -> Result<Vec<String>> {
        let state = self.state().await?;
        let sessions = state["sessions"].as_object().context("no sessions")?;
        let secrets = sessions.values().filter_map(|session| session["secrets"].as_array());
        Ok(secrets.flatten().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Whether KMS tells the ids of key material, as it did not always.
    pub async fn tell_material_ids(&self, whether: bool) -> Result<()> {
        self.control(json!({"material_ids": whether})).await.map(drop)
    }

    /// How often an operation was called, other than by the owner; all of KMS for `""`.
    pub async fn calls(&self, operation: &str) -> Result<u64> {
        let state = self.state().await?;
        let calls = state["calls"].as_object().context("no calls")?;
        let kms = ["Encrypt", "Decrypt", "DescribeKey"];
        let mine = |name: &str| match operation {
            "" => kms.contains(&name),
            one => one == name,
        };
        Ok(calls.iter().filter(|(name, _)| mine(name)).filter_map(|(_, n)| n.as_u64()).sum())
    }

    /// The last KMS request's access key (`access_key`) and source headers.
    pub async fn last(&self) -> Result<Value> {
        Ok(self.state().await?["last"].take())
    }

    async fn state(&self) -> Result<Value> {
        self.http().get("/control").await?.ok()?.json()
    }

    async fn control(&self, wanted: Value) -> Result<Value> {
        self.http().send(Method::PUT, "/control", Some(&wanted)).await?.ok()?.json()
    }

    fn http(&self) -> HttpClient {
        HttpClient::plain(self.address())
    }
}
