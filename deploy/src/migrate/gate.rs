//! Which write key, and which EncryptionConfiguration, kube-apiservers know of.
//!
//! Rewriting before that would bring objects under the old key once more. One answer speaks for
//! one kube-apiserver: where there are several, each is named and asked for itself.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::digest;
use http::{Request, Uri};
use kube::{Client, Config};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, ServerReport, ServerStatus};
use crate::{Error, cluster};

/// Between two looks. Each makes kube-apiserver ask for Status, if the last time was 20 s ago.
const POLL: Duration = Duration::from_secs(2);

/// What must be so before anything is rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// This write key is announced.
    pub key_id_hash: Option<String>,
    /// The EncryptionConfiguration in use has this SHA-256.
    pub config_hash: Option<String>,
    /// The KMS providers that must announce the key; with none given, some provider must.
    pub writers: Vec<String>,
    /// Every kube-apiserver by itself; with none given, the one behind the kubeconfig.
    pub servers: Vec<Uri>,
}

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

/// Waits until every kube-apiserver is so; gives whom it asked.
///
/// One that cannot be asked is waited for, too, if it was named: whether it writes under the old
/// key is not known.
pub async fn wait(
    config: &Config,
    gate: &Gate,
    patience: Duration,
    mut tell: impl FnMut(&str),
) -> Result<Vec<String>, Error> {
    let begun = Instant::now();
    let fleet = gate.fleet(config);
    let mut told = String::new();
    loop {
        let reports = fleet.observe().await?.servers;
        if let Some(error) = reports.iter().find_map(|report| report.error.clone())
            && gate.servers.is_empty()
        {
            return Err(unasked(error));
        }
        let missing: Vec<String> = reports.iter().filter_map(|one| gate.missing(one)).collect();
        if missing.is_empty() {
            return Ok(reports.into_iter().map(|report| report.name).collect());
        }
        let reason = missing.join("; ");
        if begun.elapsed() >= patience {
            let what = format!("{} yet: {reason}", gate.unmet());
            let hint =
                "is it promoted on every replica? `sidekey status` shows it; --wait waits longer";
            return Err(Error::failed(what).hint(hint));
        }
        if told != reason {
            tell(&format!("waiting: {} yet: {reason}", gate.unmet()));
            told = reason;
        }
        sleep(POLL).await;
    }
}

async fn ask(config: &Config) -> Result<ServerStatus, Error> {
    let url = config.cluster_url.clone();
    let seen = Fleet::new().server(config.clone(), url).observe().await?;
    let report = seen.servers.into_iter().next();
    match report.map(|report| (report.status, report.error)) {
        Some((Some(status), _)) => Ok(status),
        Some((None, Some(why))) => Err(unasked(why)),
        _ => Err(unasked("it said nothing".into())),
    }
}

fn unasked(why: String) -> Error {
    Error::failed("cannot ask kube-apiserver for its write key").because(why)
}

impl Gate {
    /// Each at its own address.
    fn fleet(&self, config: &Config) -> Fleet {
        if self.servers.is_empty() {
            return Fleet::new().server(config.clone(), config.cluster_url.clone());
        }
        let add =
            |fleet: Fleet, url: &Uri| fleet.server(cluster::redirected(config, url), url.clone());
        self.servers.iter().fold(Fleet::new(), add)
    }

    /// What one kube-apiserver lacks.
    fn missing(&self, report: &ServerReport) -> Option<String> {
        let Some(status) = &report.status else {
            let why = report.error.as_deref().unwrap_or("it said nothing");
            return Some(format!("{} cannot be asked: {why}", report.name));
        };
        let key = self.key_id_hash.as_ref();
        let key = key.and_then(|hash| Announced::of(status).lacks(hash, &self.writers));
        let config =
            self.config_hash.as_ref().filter(|hash| status.config_hash.as_ref() != Some(hash));
        let config = config.map(|_| match &status.config_hash {
            Some(now) => format!("its EncryptionConfiguration is {now}"),
            None => "it does not reload its EncryptionConfiguration".to_owned(),
        });
        // The metric moves a moment before the data key is made, and the check waits for that.
        let sick = status.kms_healthy == Some(false);
        let sick = sick.then(|| "its check of the KMS providers fails".to_owned());
        let why = config.or(key).or(sick)?;
        Some(format!("{}: {why}", report.name))
    }

    fn unmet(&self) -> String {
        let key = self.key_id_hash.as_ref().map(|hash| format!("write under the key {hash}"));
        let config = self.config_hash.as_ref().map(|hash| format!("use the configuration {hash}"));
        let both: Vec<String> = key.into_iter().chain(config).collect();
        format!("kube-apiserver does not {}", both.join(" and "))
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

    fn report(config: Option<&str>, healthy: Option<bool>) -> ServerReport {
        let status = ServerStatus {
            config_hash: config.map(str::to_owned),
            kms_healthy: healthy,
            ..ServerStatus::default()
        };
        let (status, error) = (Some(status), None);
        ServerReport { name: "a".into(), ending: false, status, error }
    }

    #[test]
    fn the_configuration_must_be_the_wanted_one_and_its_providers_well() {
        let gate = Gate { config_hash: Some("sha256:2".into()), ..Gate::default() };
        let missing = |config, healthy| gate.missing(&report(config, healthy));
        assert_eq!(missing(Some("sha256:2"), None), None);
        assert_eq!(missing(Some("sha256:2"), Some(true)), None);
        assert!(missing(Some("sha256:2"), Some(false)).unwrap().contains("KMS providers"));
        let stale = missing(Some("sha256:1"), None).unwrap();
        assert_eq!(stale, "a: its EncryptionConfiguration is sha256:1");
        assert!(missing(None, Some(true)).unwrap().contains("does not reload"));
        let mut away = report(Some("sha256:2"), None);
        (away.status, away.error) = (None, Some("refused".into()));
        assert_eq!(gate.missing(&away).unwrap(), "a cannot be asked: refused");
    }

    #[test]
    fn another_key_is_another_target() {
        let (one, two) = (said(&[("a", "x")]), said(&[("a", "y")]));
        assert_ne!(one.digest(), two.digest());
        assert_eq!(one.digest(), said(&[("a", "x")]).digest());
        assert_eq!(said(&[]).digest(), None);
    }
}
