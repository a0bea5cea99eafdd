//! Starts, changes and ends keys as the configuration says, while the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::{KeyNumber, KeySpec, ProbeOptions, ProcessConfig};
use crate::files::Watcher;
use crate::key::Key;
use crate::key::task::{KeyTask, Reconfigure};
use crate::kms::server::{Stopper, bind, serve_kms, stopper};
use crate::kms::{KmsService, Requests};
use crate::metrics::{KeyMetrics, ProviderMetrics};
use crate::process::admin::Source;
use crate::process::app::{App, ConfigState};
use crate::process::status::{KeyStatus, ProcessStatus, time};
use crate::socket::{Listener, SocketOptions};
use crate::{Connections, Error, Kind};

/// The moment that clients have to give back what they hold.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// What the admin endpoints see.
pub(crate) struct ProviderState {
    provider: &'static str,
    started: SystemTime,
    keys: RwLock<BTreeMap<KeyNumber, Arc<Key>>>,
    config: ConfigState,
    metrics: Arc<ProviderMetrics>,
}

/// Owns the running keys.
pub(crate) struct Supervisor {
    pub(crate) shared: Arc<ProviderState>,
    watcher: Arc<Watcher>,
    running: BTreeMap<KeyNumber, RunningKey>,
    /// What all sockets have in common, as it was at the start.
    socket: Option<SocketOptions>,
    /// The paths of replaced plugins are served as long as this is kept.
    pub(crate) health: Option<Stopper>,
}

/// One key with its socket and its task; dropping it ends both.
struct RunningKey {
    key: Arc<Key>,
    kek: serde_json::Value,
    whole: serde_json::Value,
    probe: ProbeOptions,
    orders: mpsc::UnboundedSender<Reconfigure>,
    stopper: Stopper,
    server: JoinHandle<()>,
}

impl Supervisor {
    pub(crate) fn new(provider: &'static str, source: String, watcher: Arc<Watcher>) -> Self {
        let metrics = ProviderMetrics::new(provider);
        let shared = ProviderState {
            provider,
            started: SystemTime::now(),
            keys: RwLock::default(),
            config: ConfigState::new(source, metrics.config_reloads.clone()),
            metrics: Arc::new(metrics),
        };
        let (running, socket, health) = Default::default();
        Self { shared: Arc::new(shared), watcher, running, socket, health }
    }

    /// Another KEK under a number that has already written data would make that data unreadable.
    fn check_keks(&self, config: &ProcessConfig) -> Result<(), Error> {
        for spec in &config.keys {
            let Some(running) = self.running.get(&spec.id) else { continue };
            if running.kek != spec.kek && running.key.has_worked() {
                let text = format!("the kek of key {} has changed", spec.id);
                return Err(Error::new(Kind::Config, text)
                    .with_hint("give the new KEK a new id and keep the old key beside it"));
            }
        }
        Ok(())
    }

    /// Opens the sockets of keys that are new or that have moved.
    async fn bind(&self, config: &ProcessConfig) -> Result<BTreeMap<KeyNumber, Listener>, Error> {
        let mut sockets = BTreeMap::new();
        for spec in &config.keys {
            let running = self.running.get(&spec.id);
            if running.is_none_or(|running| running.key.endpoint != spec.endpoint) {
                self.check_free(spec)?;
                let options = self.socket.as_ref().unwrap_or(&config.options.socket);
                sockets.insert(spec.id, bind(&spec.endpoint, options).await?);
            }
        }
        Ok(sockets)
    }

    /// Callers of a socket must not meet another key on it from one call to the next.
    fn check_free(&self, spec: &KeySpec) -> Result<(), Error> {
        let taken = |running: &&RunningKey| {
            running.key.id != spec.id && running.key.endpoint == spec.endpoint
        };
        let Some(other) = self.running.values().find(taken) else { return Ok(()) };
        let text =
            format!("{} of key {} is served for key {}", spec.endpoint, spec.id, other.key.id);
        Err(Error::new(Kind::Config, text).with_hint("give the new key a socket of its own"))
    }

    fn start(&mut self, spec: KeySpec, listener: Listener, probe: ProbeOptions, drain: Duration) {
        if let Some(old) = self.running.remove(&spec.id) {
            old.end();
        }
        let metrics = KeyMetrics::new(self.shared.metrics.clone(), spec.id, &spec.endpoint);
        let (ask, requests) = mpsc::channel(16);
        let (orders, inbox) = mpsc::unbounded_channel();
        let key = Arc::new(Key::new(spec.id, spec.endpoint.clone(), probe, metrics, ask));
        let (stopper, stop) = stopper();
        let (id, kek, whole) = (spec.id, spec.kek.clone(), spec.whole.clone());
        tracing::info!(key = %id, socket = %spec.endpoint, "kms listening");
        let observed = Requests::new(Some(id.0), self.shared.metrics.requests(id));
        let service = KmsService::new(key.clone(), observed);
        let listener = listener.counting(key.metrics.refused.clone());
        let connections = self.shared.metrics.connections.clone();
        let server = tokio::spawn(serve_kms(listener, service, stop, drain, connections));
        let task = KeyTask::new(key.clone(), spec, probe, &self.watcher, requests, inbox);
        tokio::spawn(task.run());
        let running = RunningKey { key, kek, whole, probe, orders, stopper, server };
        self.running.insert(id, running);
    }

    fn change(&mut self, spec: KeySpec, options: ProbeOptions) {
        let Some(running) = self.running.get_mut(&spec.id) else { return };
        if running.whole == spec.whole && running.probe == options {
            return;
        }
        tracing::info!(key = %spec.id, "settings of the key have changed");
        running.kek = spec.kek.clone();
        running.whole = spec.whole.clone();
        running.probe = options;
        // The task runs as long as we hold the other end.
        let _ = running.orders.send(Reconfigure { spec, options });
    }
}

impl App for Supervisor {
    type Config = ProcessConfig;

    fn source(&self) -> Arc<dyn Source> {
        self.shared.clone()
    }

    fn connections(&self) -> Connections {
        self.shared.metrics.connections.clone()
    }

    fn state(&self) -> &ConfigState {
        &self.shared.config
    }

    /// Makes the running keys those of `config`. Everything that can fail comes first; if it
    /// does, nothing has changed.
    async fn apply(&mut self, config: ProcessConfig) -> Result<(), Error> {
        self.check_keks(&config)?;
        let mut sockets = self.bind(&config).await?;
        let wanted: BTreeSet<KeyNumber> = config.keys.iter().map(|spec| spec.id).collect();
        let gone: Vec<_> = self.running.keys().filter(|id| !wanted.contains(id)).copied().collect();
        for id in gone {
            if let Some(running) = self.running.remove(&id) {
                tracing::info!(key = %id, "key removed");
                running.end();
            }
        }
        let ProcessConfig { options, probe, keys, .. } = config;
        for spec in keys {
            match sockets.remove(&spec.id) {
                Some(listener) => self.start(spec, listener, probe, options.drain),
                None => self.change(spec, probe),
            }
        }
        self.socket.get_or_insert(options.socket);
        self.shared.publish(&self.running);
        Ok(())
    }

    /// Ends every key, letting open requests finish, and then its client.
    async fn end(self) {
        let keys: Vec<_> = self.running.values().map(|running| running.key.clone()).collect();
        let servers: Vec<_> = self.running.into_values().map(RunningKey::end).collect();
        for server in servers {
            // An aborted or panicked server has nothing left to drain.
            let _ = server.await;
        }
        let clients: Vec<_> = keys.iter().filter_map(|key| key.active()).collect();
        let closing = clients.iter().map(|active| active.backend.close());
        // What cannot be given back in time expires by itself.
        let _ = tokio::time::timeout(CLOSE_TIME, futures_util::future::join_all(closing)).await;
    }
}

impl ProviderState {
    fn each(&self, f: impl Fn(&Key) -> Option<String>) -> Vec<String> {
        let keys = self.keys.read();
        keys.values().filter_map(|key| f(key)).collect()
    }

    fn publish(&self, running: &BTreeMap<KeyNumber, RunningKey>) {
        let keys = running.iter().map(|(id, running)| (*id, running.key.clone())).collect();
        *self.keys.write() = keys;
    }
}

impl Source for ProviderState {
    fn pending(&self) -> Vec<String> {
        let mut pending = self.each(|key| {
            let waiting = !key.health.was_proven();
            waiting.then(|| match key.health.verdict() {
                Err(trouble) => format!("key {}: {}", key.id, trouble.text),
                Ok(()) => format!("key {}: waiting", key.id),
            })
        });
        pending.extend(self.metrics.connections.awaited());
        pending
    }

    fn sick(&self) -> Vec<String> {
        self.each(|key| key.status().err().map(|error| error.report()))
    }

    fn status(&self) -> serde_json::Value {
        let keys = self.keys.read();
        let status = ProcessStatus {
            provider: self.provider,
            version: crate::VERSION,
            started: time(self.started),
            config: self.config.status(),
            connections: self.metrics.connections.status(),
            keys: keys.values().map(|key| KeyStatus::of(key)).collect(),
        };
        serde_json::to_value(status).unwrap_or_default()
    }

    fn metrics(&self) -> String {
        // Health depends on the clock: gauges are brought up to date when they are read.
        self.each(|key| {
            key.metrics.healthy(key.status().is_ok());
            key.metrics.coasting(key.health.snapshot().coasting);
            None
        });
        self.metrics.registry.text()
    }
}

impl RunningKey {
    /// Stops the socket and the task; the handle ends when open requests have.
    fn end(self) -> JoinHandle<()> {
        self.key.metrics.retire();
        self.stopper.stop();
        self.server
    }
}
