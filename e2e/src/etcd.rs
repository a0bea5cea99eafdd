//! A real etcd on loopback, and what is really stored in it.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::golang;
use crate::http::HttpClient;
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// Keys per page of a listing, so that no answer grows too large.
const PAGE: usize = 500;

/// A stored key, as etcd holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, such as `/registry/secrets/default/x`.
    pub key: String,
    /// The value, byte for byte.
    pub value: Vec<u8>,
    /// The revision of its last change.
    pub mod_revision: i64,
}

/// One etcd member.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    client: Port,
    _peer: Port,
    http: HttpClient,
}

impl Etcd {
    /// Starts it with its data and log in `dir`, and waits until it is healthy.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_on(Ipv4Addr::LOCALHOST, dir).await
    }

    /// The same on another address of this host.
    pub async fn start_on(ip: Ipv4Addr, dir: &Path) -> Result<Self> {
        let program = golang::ETCD.build_async().await?;
        let (client, peer) = (Port::free_on(ip)?, Port::free()?);
        let client_url = format!("http://{}", client.address());
        let peer_url = format!("http://{}", peer.address());
        let spec = Spec::new("etcd", program, dir.join("etcd.log"))
            .arg("--data-dir")
            .arg(dir.join("etcd"))
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            // The disk of a test machine need not survive a power cut.
            .arg("--unsafe-no-fsync");
        let http = HttpClient::plain(client.address());
        let mut etcd = Self { process: spec.start()?, client, _peer: peer, http };
        etcd.wait_healthy().await?;
        Ok(etcd)
    }

    /// For kube-apiserver's `--etcd-servers`.
    pub fn url(&self) -> String {
        format!("http://{}", self.client.address())
    }

    /// The process, to be paused, killed and started again.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Waits until it answers again after a restart or a pause.
    pub async fn wait_healthy(&mut self) -> Result<()> {
        let http = self.http.clone();
        self.process
            .wait_until("/health answers", PATIENCE, async || {
                let health = http.get("/health").await?.ok()?.json()?;
                if health["health"] != "true" {
                    bail!("{health}");
                }
                Ok(())
            })
            .await
    }

    /// The stored bytes of one key; a missing key is an error.
    pub async fn raw(&self, key: &str) -> Result<Vec<u8>> {
        let answer = self.call("kv/range", &json!({"key": STANDARD.encode(key)})).await?;
        let found = entries(&answer)?.pop();
        Ok(found.with_context(|| format!("etcd has no {key}"))?.value)
    }

    /// All entries whose keys begin with `prefix`, in order.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        let end = STANDARD.encode(after_prefix(prefix));
        let mut from = prefix.as_bytes().to_vec();
        let mut all = Vec::new();
        loop {
            let query = json!({"key": STANDARD.encode(&from), "range_end": end, "limit": PAGE});
            let page = entries(&self.call("kv/range", &query).await?)?;
            let full = page.len() == PAGE;
            all.extend(page);
            match all.last() {
                Some(last) if full => from = [last.key.as_bytes(), &[0]].concat(),
                _ => return Ok(all),
            }
        }
    }

    /// The store's revision now.
    pub async fn revision(&self) -> Result<i64> {
        let query = json!({"key": STANDARD.encode("\0"), "count_only": true});
        integer(&self.call("kv/range", &query).await?["header"]["revision"])
    }

    /// Forgets all values older than now, as a cluster does every few minutes.
    pub async fn compact(&self) -> Result<()> {
        let revision = self.revision().await?;
        let order = json!({"revision": revision.to_string(), "physical": true});
        self.call("kv/compaction", &order).await?;
        Ok(())
    }

    /// Stores a value as it is, under kube-apiserver's nose.
    pub async fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
        self.call("kv/put", &body).await.map(drop)
    }

    /// Deletes a key in the same way.
    pub async fn delete(&self, key: &str) -> Result<()> {
        self.call("kv/deleterange", &json!({"key": STANDARD.encode(key)})).await.map(drop)
    }

    /// What `etcdctl snapshot save` would write.
    pub async fn snapshot(&self) -> Result<Vec<u8>> {
        let answer = self.http.post("/v3/maintenance/snapshot", &json!({})).await?.ok()?;
        let mut file = Vec::new();
        for line in answer.text().lines().filter(|line| !line.trim().is_empty()) {
            let part: Value = serde_json::from_str(line).context("a part of the snapshot")?;
            let blob = part["result"]["blob"].as_str().unwrap_or_default();
            file.extend(STANDARD.decode(blob).context("a part of the snapshot")?);
        }
        Ok(file)
    }

    /// Any call of the JSON gateway, such as `kv/range`.
    pub async fn call(&self, method: &str, body: &Value) -> Result<Value> {
        let path = format!("/v3/{method}");
        self.http.post(&path, body).await?.ok().with_context(|| format!("etcd {path}"))?.json()
    }
}

pub(crate) fn entries(answer: &Value) -> Result<Vec<Entry>> {
    let found = answer["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let decode = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        STANDARD.decode(text).with_context(|| format!("etcd answered bad base64: {text}"))
    };
    found
        .iter()
        .map(|entry| {
            Ok(Entry {
                key: String::from_utf8(decode(&entry["key"])?).context("key is not text")?,
                value: decode(&entry["value"])?,
                mod_revision: integer(&entry["mod_revision"])?,
            })
        })
        .collect()
}

/// The gateway writes 64-bit numbers as strings.
fn integer(value: &Value) -> Result<i64> {
    let text = value.as_str().with_context(|| format!("etcd answered {value} for a number"))?;
    text.parse().with_context(|| format!("etcd answered {text:?} for a number"))
}

/// The first key behind all that begin with `prefix`.
fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_sibling() {
        assert_eq!(after_prefix("/registry/secrets/"), b"/registry/secrets0");
        assert_eq!(after_prefix(""), b"\0");
    }
}
