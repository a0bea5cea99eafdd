//! Looks at a node, and at a cluster, for everything that keeps encryption from working or will
//! do so soon, and says what to do about it.
//!
//! It only looks: no socket, file or setting is changed, and nothing is encrypted or decrypted.

mod certificates;
mod disk;
mod documents;
mod encryption;
mod manifest;
mod reach;
mod replicas;
mod sockets;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::fleet::{Fleet, Wanted};

pub use reach::clock;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Options {
    /// What static pods mount: `kube-apiserver/`, `shim/` and one directory for each vendor.
    pub config_dir: PathBuf,
    /// Where sockets are.
    pub socket_dir: PathBuf,
    /// kube-apiserver's static manifest.
    pub manifest: PathBuf,
    /// EncryptionConfiguration, if it is not in the directory of configurations.
    pub encryption_config: Option<PathBuf>,
    /// Where the binaries are; else `$PATH`.
    pub bin_dir: Option<PathBuf>,
    /// For one answer.
    pub timeout: Duration,
    /// A certificate that ends sooner is a warning.
    pub expiry: Duration,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Of what kind.
    pub area: Area,
    /// How it is.
    pub level: Level,
    /// What.
    pub subject: String,
    /// What was seen.
    pub text: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// Sockets and their directory.
    Socket,
    /// Configuration files.
    Configuration,
    /// kube-apiserver's own.
    Encryption,
    /// TLS files.
    Certificate,
    /// This host's clock.
    Clock,
    /// Servers elsewhere.
    Network,
    /// Keys, as those who serve them see them.
    Key,
    /// Which revision is in use.
    Revision,
    /// Room for files.
    Disk,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Well.
    Ok,
    /// It works, but should be looked at.
    Warning,
    /// It does not work.
    Problem,
}

/// What was found so far.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Default for Options {
    fn default() -> Self {
        Self {
            config_dir: "/etc/sidekey".into(),
            socket_dir: "/var/run/kmsplugin".into(),
            manifest: "/etc/kubernetes/manifests/kube-apiserver.yaml".into(),
            encryption_config: None,
            bin_dir: None,
            timeout: Duration::from_secs(5),
            expiry: Duration::from_secs(14 * 24 * 3600),
        }
    }
}

impl Area {
    /// As it is shown.
    pub fn label(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Configuration => "configuration",
            Self::Encryption => "encryption",
            Self::Certificate => "certificate",
            Self::Clock => "clock",
            Self::Network => "network",
            Self::Key => "key",
            Self::Revision => "revision",
            Self::Disk => "disk",
        }
    }
}

impl Findings {
    fn ok(&mut self, area: Area, subject: impl ToString, text: impl Into<String>) {
        self.add(area, Level::Ok, subject, text, None);
    }

    fn warning(&mut self, area: Area, subject: impl ToString, text: impl Into<String>, fix: &str) {
        self.add(area, Level::Warning, subject, text, Some(fix));
    }

    fn problem(&mut self, area: Area, subject: impl ToString, text: impl Into<String>, fix: &str) {
        self.add(area, Level::Problem, subject, text, Some(fix));
    }

    fn add(
        &mut self,
        area: Area,
        level: Level,
        subject: impl ToString,
        text: impl Into<String>,
        fix: Option<&str>,
    ) {
        let (subject, text) = (subject.to_string(), text.into());
        self.0.push(Finding { area, level, subject, text, fix: fix.map(str::to_owned) });
    }
}

/// Looks at everything on this host.
pub async fn examine(options: &Options) -> Vec<Finding> {
    let mut findings = Findings::default();
    let documents = documents::read(options, &mut findings);
    documents::judge(&documents, options, &mut findings).await;
    let sockets = sockets::examine(&documents, options, &mut findings).await;
    encryption::examine(&documents, options, &mut findings);
    manifest::examine(options, &mut findings);
    certificates::examine(&documents, options, &mut findings);
    reach::examine(&documents, options, &mut findings).await;
    replicas::compare(&documents, &sockets, &mut findings);
    disk::examine(options, &mut findings);
    findings.0
}

/// Looks at all replicas of a cluster.
pub async fn examine_cluster(fleet: &Fleet, wanted: &Wanted) -> Vec<Finding> {
    let mut findings = Findings::default();
    replicas::observe(fleet, wanted, &mut findings).await;
    findings.0
}
