//! The socket proxy: mutual TLS on one side, the unix socket of a KMS v2 plugin on the other.
//!
//! It lets the shim reach a plugin in another pod or on another node, where a unix socket cannot
//! be shared. The plugin needs no change and may be anybody's.
//!
//! It refuses plaintext off loopback, clients without a certificate, names that are not on its
//! list, operations that the list does not allow, and messages beyond the limits of the protocol.
//! It never decides anything about keys: what the plugin answers is passed on, gRPC code included.
//!
//! The one invariant: **no request reaches the plugin but from a client whose certificate is
//! trusted and whose name may do just that, as the list says at this moment**.

mod command;
mod config;
mod leg;
mod metrics;
mod plugin;
pub(crate) mod probe;
mod server;
mod status;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use sidekey_core::app::{App, Begun, ConfigState};
use sidekey_core::kms::{RequestError, StatusReport};
use sidekey_core::process::listen;
use sidekey_core::server::{Stopper, stopper};
use sidekey_core::telemetry::RateLimit;
use sidekey_core::{Connections, Error, Kind, SingleFlight, Source, Watcher};
use tokio::task::{AbortHandle, JoinHandle};

use crate::tls::{Identity, MAX_STRANGERS};
pub use command::run;
pub use config::{Access, Clients, ProxyConfig};
use metrics::ProxyMetrics;
use plugin::Plugin;

/// What every connection and the admin endpoints share.
struct Shared {
    started: SystemTime,
    /// The address that was bound, with the port that was picked.
    address: SocketAddr,
    identity: Option<Arc<Identity>>,
    clients: ArcSwap<Clients>,
    plugin: ArcSwap<Plugin>,
    /// The Status that is being asked for, by plugin and moment.
    status_flights: SingleFlight<(usize, u64), Result<StatusReport, RequestError>>,
    drain: ArcSwap<Duration>,
    /// Connections before their clients are known. They take no place from others.
    strangers: Connections,
    metrics: ProxyMetrics,
    config: ConfigState,
    rejections_logged: RateLimit,
}

impl Shared {
    /// Clients that are known.
    fn connections(&self) -> &Connections {
        &self.metrics.connections
    }
}

/// A running proxy.
pub struct Proxy {
    shared: Arc<Shared>,
    config: ProxyConfig,
    stopper: Stopper,
    server: JoinHandle<()>,
    /// Looks after the connection to the plugin in use.
    keeper: AbortHandle,
}

impl Proxy {
    /// Binds and serves. A plugin that is not there yet is waited for; certificates are not.
    pub async fn start(
        config: ProxyConfig,
        source: &str,
        watcher: &Watcher,
    ) -> Result<Self, Error> {
        let (identity, clients) = match &config.access {
            Access::Plaintext => (None, Clients::default()),
            Access::Mutual { files, clients } => {
                (Some(Identity::load(files.clone())?), clients.clone())
            }
        };
        let hint = "choose another address; port 0 picks a free one";
        let listener = listen("address", config.listen, hint).await?;
        let address = listener.local_addr().unwrap_or(config.listen);
        tracing::info!(%address, plugin = %config.plugin, "proxy listening");
        if identity.is_none() {
            tracing::warn!(%address, "plaintext: every process on this host can use the plugin");
        }
        if let Some(identity) = &identity {
            tokio::spawn(identity.follow(watcher));
        }
        let metrics = ProxyMetrics::new(identity.is_some());
        let shared = Arc::new(Shared {
            started: SystemTime::now(),
            address,
            config: ConfigState::new(source.to_owned(), metrics.config_reloads.clone()),
            metrics,
            identity,
            clients: ArcSwap::from_pointee(clients),
            plugin: ArcSwap::from_pointee(Plugin::new(
                config.plugin.clone(),
                config.server_uids.clone(),
            )),
            status_flights: SingleFlight::default(),
            drain: ArcSwap::from_pointee(config.options.drain),
            strangers: Connections::limited("strangers", MAX_STRANGERS),
            rejections_logged: RateLimit::of_requests(),
        });
        let keeper = keep(shared.plugin.load_full());
        let (stopper, stop) = stopper();
        let server = tokio::spawn(server::serve(listener, shared.clone(), stop));
        Ok(Self { shared, config, stopper, server, keeper })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }
}

impl App for Proxy {
    type Config = ProxyConfig;

    fn source(&self) -> Arc<dyn Source> {
        self.shared.clone()
    }

    fn connections(&self) -> Connections {
        self.shared.connections().clone()
    }

    fn state(&self) -> &ConfigState {
        &self.shared.config
    }

    /// All is in place since it was started.
    async fn begin(&mut self, config: ProxyConfig) -> Result<Begun, Error> {
        Ok(Begun { options: config.options, refused: None })
    }

    /// Uses another configuration from now on. Everything that can fail comes first; if it does,
    /// nothing has changed. Open connections stay.
    async fn apply(&mut self, config: ProxyConfig) -> Result<(), Error> {
        let served = |config: &ProxyConfig| (config.plugin.clone(), config.server_uids.clone());
        let plugin = if served(&config) == served(&self.config) {
            None
        } else {
            let plugin = Plugin::new(config.plugin.clone(), config.server_uids.clone());
            plugin.try_out().await.map_err(|failure| {
                Error::new(Kind::Unavailable, failure.text())
                    .with_hint("the plugin in use stays until the new one can be reached")
            })?;
            Some(Arc::new(plugin))
        };
        if let (Some(identity), Access::Mutual { files, clients }) =
            (&self.shared.identity, &config.access)
        {
            identity.move_to(files.clone())?;
            self.shared.clients.store(Arc::new(clients.clone()));
        }
        if let Some(plugin) = plugin {
            self.keeper.abort();
            self.shared.plugin.store(plugin.clone());
            self.keeper = keep(plugin);
        }
        self.shared.drain.store(Arc::new(config.options.drain));
        self.config = config;
        Ok(())
    }

    /// Takes no new connections, lets open requests end, but no longer than `drain`.
    async fn end(mut self) {
        self.stopper.stop();
        let _ = (&mut self.server).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.keeper.abort();
        self.server.abort();
    }
}

fn keep(plugin: Arc<Plugin>) -> AbortHandle {
    tokio::spawn(async move { plugin.look_after().await }).abort_handle()
}
