//! Which write key the kube-apiserver on the other end knows of.
//!
//! Rewriting before that would bring objects under the old key once more. One answer speaks for
//! one kube-apiserver; that all of them follow is for `rotate` to see to.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::digest;
use http::Request;
use kube::{Client, Config};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, ServerStatus};
use crate::{Error, cluster};

/// Between two looks. Each makes kube-apiserver ask for Status, if the last time was 20 s ago.
const POLL: Duration = Duration::from_secs(2);

/// The newest hash of a key_id that each provider has announced, by the provider's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced(pub BTreeMap<String, String>);

impl Announced {
    fn of(status: &ServerStatus) -> Self {
        let hashes = status.announced.iter();
        Self(hashes.map(|(name, said)| (name.clone(), said.key_id_hash.clone())).collect())
    }

    /// Something that changes when any of them does.
    pub fn digest(&self) -> Option<String> {
        let parts: Vec<&str> = self.0.iter().flat_map(|(a, b)| [a.as_str(), b.as_str()]).collect();
        (!parts.is_empty()).then(|| format!("sha256:{}", sha256(&parts)))
    }

    /// Why these providers do not announce `hash`; with none given, some provider must.
    pub fn lacks(&self, hash: &str, writers: &[String]) -> Option<String> {
        let said = |name: &String| match self.0.get(name) {
            Some(now) if now == hash => None,
            Some(now) => Some(format!("{name} announces {now}")),
            None => Some(format!("{name} has announced nothing")),
        };
        if writers.is_empty() {
            let someone = self.0.values().any(|now| now == hash);
            let all: Vec<String> = self.0.keys().filter_map(said).collect();
            let none = || "no KMS v2 provider has announced anything".to_owned();
            return match (someone, all.is_empty()) {
                (true, _) => None,
                (false, true) => Some(none()),
                (false, false) => Some(all.join(", ")),
            };
        }
        let missing: Vec<String> = writers.iter().filter_map(said).collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    }
}

/// Asks the kube-apiserver on the other end.
pub async fn announced(config: &Config) -> Result<Announced, Error> {
    ask(config).await.map(|status| Announced::of(&status))
}

/// Waits until kube-apiserver announces the write key, and has a data key under it.
pub async fn wait(
    config: &Config,
    hash: &str,
    writers: &[String],
    patience: Duration,
    mut tell: impl FnMut(&str),
) -> Result<(), Error> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let status = ask(config).await?;
        let sick = status.kms_healthy == Some(false);
        // The metric moves a moment before the data key is made, and the check waits for that.
        let sick = sick.then(|| "its check of the KMS providers fails".to_owned());
        let lacks = Announced::of(&status).lacks(hash, writers);
        let Some(reason) = lacks.or(sick) else { return Ok(()) };
        if begun.elapsed() >= patience {
            let what = format!("kube-apiserver does not write under the key {hash} yet: {reason}");
            let hint =
                "is it promoted on every replica? `sidekey status` shows it; --wait waits longer";
            return Err(Error::failed(what).hint(hint));
        }
        if !told {
            told = true;
            tell(&format!("waiting for kube-apiserver to write under {hash}: {reason}"));
        }
        sleep(POLL).await;
    }
}

async fn ask(config: &Config) -> Result<ServerStatus, Error> {
    let url = config.cluster_url.clone();
    let seen = Fleet::new().server(config.clone(), url).observe().await?;
    let report = seen.servers.into_iter().next();
    let failed =
        |why: String| Error::failed("cannot ask kube-apiserver for its write key").because(why);
    match report.map(|report| (report.status, report.error)) {
        Some((Some(status), _)) => Ok(status),
        Some((None, Some(why))) => Err(failed(why)),
        _ => Err(failed("it said nothing".into())),
    }
}

#[derive(Debug, Deserialize)]
struct Namespace {
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    uid: String,
}

/// What tells clusters apart: the uid of the kube-system namespace.
pub async fn cluster_id(client: &Client) -> Result<String, Error> {
    let request = Request::get("/api/v1/namespaces/kube-system").body(Vec::new());
    let what = "cannot read the namespace kube-system";
    let request = request.map_err(|error| Error::failed(what).because(error))?;
    let namespace: Namespace =
        client.request(request).await.map_err(|error| cluster::refused(what, error))?;
    Ok(namespace.metadata.uid)
}

pub(super) fn sha256(parts: &[&str]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pairs: &[(&str, &str)]) -> Announced {
        Announced(pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
    }

    #[test]
    fn every_provider_that_writes_must_announce_the_key() {
        let now =
            said(&[("sidekey", "sha256:2"), ("sidekey-tokens", "sha256:1"), ("old", "sha256:0")]);
        let writers = ["sidekey".to_owned(), "sidekey-tokens".to_owned()];
        let lacks = now.lacks("sha256:2", &writers).unwrap();
        assert_eq!(lacks, "sidekey-tokens announces sha256:1");
        assert_eq!(now.lacks("sha256:2", &writers[..1]), None);
        assert_eq!(now.lacks("sha256:2", &[]), None, "somebody does");
        assert!(now.lacks("sha256:9", &[]).is_some());
        assert!(said(&[]).lacks("sha256:9", &[]).is_some());
    }

    #[test]
    fn another_key_is_another_target() {
        let (one, two) = (said(&[("a", "x")]), said(&[("a", "y")]));
        assert_ne!(one.digest(), two.digest());
        assert_eq!(one.digest(), said(&[("a", "x")]).digest());
        assert_eq!(said(&[]).digest(), None);
    }
}
