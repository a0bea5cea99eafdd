//! Whom to ask: arguments that several commands share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use kube::Config;
use sidekey_core::config::parse_duration;

use crate::Error;
use crate::cluster::Access;
use crate::fleet::{Address, Credentials, Fleet, Pods, SHIM_PORT};
use crate::model::SecretEncryption;

/// Whom to ask.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct FleetArgs {
    #[command(flatten)]
    pub(super) access: Access,
    /// Namespace of the control plane: its pods' shims are asked, through kubelet
    #[arg(short, long)]
    pub(super) namespace: Option<String>,
    /// Labels of the kube-apiserver pods [default: app=kube-apiserver]
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Container of kube-apiserver in them [default: kube-apiserver]
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// Port of the shims' admin server in the pods
    #[arg(long, value_name = "PORT", default_value_t = SHIM_PORT)]
    shim_port: u16,
    /// That port is the shims' adminTls: use --ca, --cert and --key
    #[arg(long)]
    shim_tls: bool,
    /// Admin server of a shim: unix:///path, http://127.0.0.1:port or https://host:port; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    shim: Vec<String>,
    /// Admin server of a provider, in the same forms; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    provider: Vec<String>,
    #[command(flatten)]
    credentials: Credentials,
    /// Kubeconfig of the hosted cluster: the kube-apiservers in the pods are asked
    #[arg(long, value_name = "FILE")]
    hosted_kubeconfig: Option<PathBuf>,
    /// Port of kube-apiserver in the pods
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    hosted_port: u16,
    /// Ask every kube-apiserver that the cluster of --kubeconfig names as its own
    #[arg(long)]
    standalone: bool,
    /// URL of a kube-apiserver, reached with --kubeconfig's credentials; may be repeated
    #[arg(long, value_name = "URL")]
    server: Vec<Uri>,
    /// How long to wait for each replica
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: String,
}

/// The control plane that a file names.
#[derive(Clone, Debug, Default)]
pub(super) struct Plane {
    pub(super) namespace: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) container: Option<String>,
}

impl Plane {
    pub(super) fn of(document: &SecretEncryption) -> Self {
        let plane = &document.spec.control_plane;
        Self {
            namespace: document.namespace.clone(),
            labels: plane.selector.clone(),
            container: Some(plane.container.clone()),
        }
    }
}

impl FleetArgs {
    /// The fleet; `plane` counts where the command line says nothing.
    pub(super) async fn fleet(&self, plane: &Plane) -> Result<Fleet, Error> {
        let mut fleet = Fleet::new().timeout(self.limit()?);
        for text in &self.shim {
            fleet = fleet.shim(Address::parse(text, &self.credentials)?);
        }
        for text in &self.provider {
            fleet = fleet.provider(Address::parse(text, &self.credentials)?);
        }
        let namespace = self.namespace.as_ref().or(plane.namespace.as_ref());
        // Whoever names shims means those.
        let in_pods = namespace.filter(|_| self.shim.is_empty() || self.namespace.is_some());
        if let Some(namespace) = in_pods {
            fleet = fleet.pods(self.pods(namespace, plane).await?);
            if let Some(path) = &self.hosted_kubeconfig {
                fleet = fleet.hosted(kubeconfig(path).await?, self.hosted_port);
            }
        } else if self.hosted_kubeconfig.is_some() {
            return Err(Error::usage(
                "--hosted-kubeconfig needs the namespace of the control plane",
            )
            .hint("add -n, or name each kube-apiserver with --server and --kubeconfig"));
        } else if self.shim.is_empty() && self.provider.is_empty() && !self.asks_servers() {
            return Err(Error::usage("nobody is to be asked").hint(
                "give -n NAMESPACE, -f FILE with a namespace, --shim ADDRESS, or --standalone",
            ));
        }
        if self.asks_servers() {
            let config = self.access.config().await?;
            if self.standalone {
                fleet = fleet.standalone(config.clone());
            }
            for url in &self.server {
                fleet = fleet.server(config.clone(), url.clone());
            }
        }
        Ok(fleet)
    }

    /// Whether anybody is named.
    pub(super) fn asks_somebody(&self) -> bool {
        self.uses_cluster() || !self.shim.is_empty() || !self.provider.is_empty()
    }

    /// Whether the cluster of --kubeconfig has a part in it.
    pub(super) fn uses_cluster(&self) -> bool {
        self.namespace.is_some() || self.asks_servers()
    }

    /// The API whose stored objects are encrypted: that of the kube-apiservers that are asked.
    pub(super) async fn stored(&self) -> Result<Config, Error> {
        match &self.hosted_kubeconfig {
            Some(path) => kubeconfig(path).await,
            None if self.asks_servers() => self.access.config().await,
            None => Err(Error::usage("it is not said which kube-apiservers must follow").hint(
                "give --hosted-kubeconfig for a hosted cluster, or --standalone if --kubeconfig is the cluster itself",
            )),
        }
    }

    fn asks_servers(&self) -> bool {
        self.standalone || !self.server.is_empty()
    }

    pub(super) fn limit(&self) -> Result<Duration, Error> {
        parse_duration(&self.timeout).map_err(|text| Error::usage(format!("--timeout: {text}")))
    }

    async fn pods(&self, namespace: &str, plane: &Plane) -> Result<Pods, Error> {
        let labels = match &self.selector {
            Some(text) => labels(text)?,
            None if plane.labels.is_empty() => labels("app=kube-apiserver")?,
            None => plane.labels.clone(),
        };
        let container = self.container.clone().or_else(|| plane.container.clone());
        let container = container.unwrap_or_else(|| "kube-apiserver".to_owned());
        let client = self.access.client().await?;
        let pods = Pods::new(client, namespace, labels, container).port(self.shim_port);
        Ok(if self.shim_tls { pods.tls(self.credentials.clone()) } else { pods })
    }
}

/// Reads a SecretEncryption, with every mistake in it; `-` is stdin.
pub(super) fn read_document(path: &Path) -> Result<SecretEncryption, Error> {
    let unreadable = |error| Error::usage(format!("cannot read {}", path.display())).because(error);
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    SecretEncryption::parse(&text.map_err(unreadable)?).map_err(|problems| {
        Error::usage(sidekey_core::mistakes(&path.display().to_string(), &problems))
    })
}

async fn kubeconfig(path: &Path) -> Result<Config, Error> {
    Access { kubeconfig: Some(path.to_owned()), context: None }.config().await
}

/// `key=value,key=value`
fn labels(text: &str) -> Result<BTreeMap<String, String>, Error> {
    let pairs = text.split(',').map(|pair| pair.split_once('='));
    let pairs: Option<BTreeMap<String, String>> =
        pairs.map(|pair| pair.map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))).collect();
    pairs
        .filter(|pairs| pairs.keys().all(|key| !key.is_empty() && !key.ends_with('!')))
        .ok_or_else(|| Error::usage(format!("--selector {text:?} is not key=value,key=value")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_pairs_and_nothing_else() {
        let read = labels("app=kube-apiserver, tier=control-plane").unwrap();
        assert_eq!(read["tier"], "control-plane");
        for bad in ["", "app", "app!=x", "=x", "app=a,"] {
            assert!(labels(bad).is_err(), "{bad:?}");
        }
    }
}
