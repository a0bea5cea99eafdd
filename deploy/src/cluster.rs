//! How a cluster's API is reached, as kubectl reaches it.

use std::path::PathBuf;

use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::Error;

/// Which cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Access {
    /// Kubeconfig of the cluster [default: $KUBECONFIG, ~/.kube/config, or the pod's own account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Access {
    /// What the kubeconfig, or the pod that this runs in, says.
    pub async fn config(&self) -> Result<Config, Error> {
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let unreadable = |file: String, error| {
            Error::usage(format!("cannot use {file}"))
                .because(error)
                .hint("give the cluster's kubeconfig with --kubeconfig")
        };
        if let Some(path) = &self.kubeconfig {
            let name = path.display().to_string();
            let file = Kubeconfig::read_from(path).map_err(|e| unreadable(name.clone(), e))?;
            let config = Config::from_custom_kubeconfig(file, &options).await;
            return config.map_err(|error| unreadable(name, error));
        }
        match Config::from_kubeconfig(&options).await {
            Ok(config) => Ok(config),
            Err(error) if self.context.is_some() => {
                Err(unreadable("the default kubeconfig".into(), error))
            }
            Err(error) => {
                Config::incluster().map_err(|_| unreadable("the default kubeconfig".into(), error))
            }
        }
    }

    /// A client; nothing is asked yet.
    pub async fn client(&self) -> Result<Client, Error> {
        let config = self.config().await?;
        let server = config.cluster_url.to_string();
        Client::try_from(config).map_err(|error| {
            Error::failed(format!("cannot make a client for {server}")).because(error)
        })
    }
}

/// The same at another address, under the name that the kubeconfig's server has: that is the one in
/// its certificate.
pub fn redirected(config: &Config, server: &Uri) -> Config {
    let mut config = config.clone();
    let host = config.cluster_url.host();
    let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
    config.tls_server_name = config.tls_server_name.or(host);
    // An address in the control plane's network is not behind the proxy to the cluster.
    config.proxy_url = None;
    config.cluster_url = server.clone();
    config
}

/// Reads the address of a server, as a flag has it.
pub fn server(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|error| format!("it is no URL: {error}"))?;
    let sound = url.scheme_str() == Some("https") && url.path() == "/" && url.query().is_none();
    if sound { Ok(url) } else { Err("it is https://HOST:PORT, and nothing after it".into()) }
}

/// A failed call of the API: what was to be done, why it failed, and what may help.
pub fn refused(what: impl Into<String>, error: kube::Error) -> Error {
    let hint = match &error {
        kube::Error::Api(status) => match status.code {
            401 => Some("the credentials of the kubeconfig are not accepted: are they expired?"),
            403 => Some("the user of the kubeconfig lacks the right: see `kubectl auth can-i`"),
            _ => None,
        },
        kube::Error::HyperError(_) | kube::Error::Service(_) => {
            Some("cannot reach the API server: is it up, and is the kubeconfig the right one?")
        }
        _ => None,
    };
    let failed = match error {
        // Its own text would be followed by the whole of the answer.
        kube::Error::Api(status) if !status.message.is_empty() => {
            Error::failed(what).because(status.message)
        }
        error => Error::failed(what).because(error),
    };
    match hint {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}
