//! What listeners, admin endpoints and reloads share.

use std::sync::{Arc, Weak};
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use serde::Serialize;
use sidekey_core::app::{ConfigState, ConfigStatus};
use sidekey_core::config::KeyRole;
use sidekey_core::{Error, ErrorStatus, KeyId, Kind, Secret, SingleFlight, Source, time};

use crate::cache::{Cache, CacheKey};
use crate::key::RoutedKey;
use crate::metrics::ShimMetrics;
use crate::table::RoutingTable;
use crate::tls::Identity;

/// The loaded configuration and everything about it.
pub(crate) struct ShimState {
    table: ArcSwap<RoutingTable>,
    cache: ArcSwapOption<Cache>,
    pub(crate) config: ConfigState,
    pub(crate) listeners: Mutex<Vec<String>>,
    pub(crate) identities: Mutex<Vec<Weak<Identity>>>,
    pub(crate) flights: SingleFlight<CacheKey, (Result<Secret, Arc<Error>>, bool)>,
    pub(crate) metrics: Arc<ShimMetrics>,
    started: SystemTime,
}

/// What is loaded, from where, and what was refused.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoadedStatus {
    #[serde(flatten)]
    pub(crate) config: ConfigStatus,
    pub(crate) listeners: Vec<String>,
}

/// The whole shim, for `/status` and for the page.
#[derive(Debug, Serialize)]
pub(crate) struct ShimStatus {
    pub(crate) component: &'static str,
    pub(crate) version: &'static str,
    pub(crate) started: String,
    pub(crate) mode: &'static str,
    pub(crate) revision: Option<String>,
    pub(crate) config: LoadedStatus,
    pub(crate) connections: serde_json::Value,
    pub(crate) healthy: bool,
    pub(crate) reason: Option<String>,
    pub(crate) write_key: String,
    pub(crate) key_id: Option<String>,
    pub(crate) key_id_hash: Option<String>,
    pub(crate) keys: Vec<RoutedKeyStatus>,
}

/// One key.
#[derive(Debug, Serialize)]
pub(crate) struct RoutedKeyStatus {
    pub(crate) id: String,
    pub(crate) role: &'static str,
    pub(crate) fingerprint: String,
    pub(crate) endpoints: Vec<String>,
    pub(crate) canary: bool,
    /// Taken on trust: it has not yet read anything that was written before.
    pub(crate) canary_unread: bool,
    pub(crate) external: bool,
    pub(crate) healthy: bool,
    pub(crate) reason: Option<String>,
    pub(crate) since: String,
    /// Since when it fails while Status is still ok.
    pub(crate) coasting_since: Option<String>,
    #[serde(skip)]
    pub(crate) coasting: Option<SystemTime>,
    pub(crate) key_id_hash: Option<String>,
    pub(crate) last_success: Option<String>,
    pub(crate) last_error: Option<ErrorStatus>,
}

impl ShimState {
    pub(crate) fn new(table: RoutingTable, metrics: Arc<ShimMetrics>, source: String) -> Self {
        Self {
            table: ArcSwap::from_pointee(table),
            cache: ArcSwapOption::empty(),
            config: ConfigState::new(source, metrics.reloads.clone()),
            listeners: Mutex::default(),
            identities: Mutex::default(),
            flights: SingleFlight::default(),
            metrics,
            started: SystemTime::now(),
        }
    }

    /// The table of this instant.
    pub(crate) fn table(&self) -> Arc<RoutingTable> {
        self.table.load_full()
    }

    /// From here on everybody sees the new table.
    pub(crate) fn switch(&self, table: RoutingTable) {
        self.table.store(Arc::new(table));
    }

    pub(crate) fn set_cache(&self, cache: Option<Cache>) {
        self.cache.store(cache.map(Arc::new));
    }

    /// Wipes what expires in the cache of this instant, for as long as it is polled.
    pub(crate) async fn expire(&self) {
        match self.cache.load_full() {
            Some(cache) => cache.expire().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn cached(&self, request: &CacheKey) -> Option<Secret> {
        self.cache.load().as_ref()?.find(request)
    }

    pub(crate) fn keep(&self, request: &Arc<CacheKey>, secret: &Secret) {
        if let Some(cache) = &*self.cache.load() {
            cache.keep(request.clone(), secret.clone());
        }
    }

    /// What Status answers: the write key's proven key_id, while its health allows.
    pub(crate) fn announced(&self) -> Result<KeyId, Error> {
        let table = self.table.load();
        let writer = &table.writer;
        let refused = |kind, text| Error::new(kind, format!("write key {}: {text}", writer.id));
        writer.health.verdict().map_err(|trouble| refused(trouble.kind, trouble.text))?;
        let unproven = || refused(Kind::Unavailable, "not proven yet".into());
        let announced = writer.announced().ok_or_else(unproven)?;
        Ok(announced.outer.clone())
    }

    /// Everything there is to know.
    pub(crate) fn overview(&self) -> ShimStatus {
        let table = self.table();
        let announced = self.announced();
        let config = self.config.status();
        let listeners = self.listeners.lock().clone();
        let key_id = announced.as_ref().ok();
        ShimStatus {
            component: "shim",
            version: sidekey_core::VERSION,
            started: time(self.started),
            mode: table.mode.label(),
            revision: config.revision.clone(),
            config: LoadedStatus { config, listeners },
            connections: self.metrics.connections.status(),
            healthy: announced.is_ok(),
            reason: announced.as_ref().err().map(Error::report),
            write_key: table.writer.id.to_string(),
            key_id: key_id.map(ToString::to_string),
            key_id_hash: key_id.map(KeyId::hash),
            keys: table.keys.values().map(|(role, key)| RoutedKeyStatus::of(*role, key)).collect(),
        }
    }
}

impl RoutedKeyStatus {
    fn of(role: KeyRole, key: &RoutedKey) -> Self {
        let snapshot = key.health.snapshot();
        let healthy = key.is_up();
        Self {
            id: key.id.to_string(),
            role: role.label(),
            fingerprint: key.spec.fingerprint.clone(),
            endpoints: key.spec.endpoints.iter().map(ToString::to_string).collect(),
            canary: key.spec.canary.is_some(),
            canary_unread: key.is_unread(),
            external: key.spec.external,
            healthy,
            reason: snapshot.last_error.as_ref().filter(|_| !healthy).map(|t| t.text.clone()),
            since: time(snapshot.since),
            coasting_since: snapshot.coasting.map(time),
            coasting: snapshot.coasting,
            key_id_hash: key.shown().as_ref().map(KeyId::hash),
            last_success: snapshot.last_success.map(time),
            last_error: snapshot.last_error.map(ErrorStatus::from),
        }
    }
}

impl Source for ShimState {
    /// A dead read key never makes the shim unready; a write key that was never proven does.
    fn pending(&self) -> Vec<String> {
        let unproven = self.table().writer.announced().is_none();
        let unproven = unproven.then(|| self.announced().err()).flatten();
        let unproven = unproven.map(|error| error.report());
        unproven.into_iter().chain(self.metrics.connections.awaited()).collect()
    }

    fn sick(&self) -> Vec<String> {
        self.announced().err().map(|error| error.report()).into_iter().collect()
    }

    fn status(&self) -> serde_json::Value {
        serde_json::to_value(self.overview()).unwrap_or_default()
    }

    fn metrics(&self) -> String {
        self.metrics.refresh(&self.overview());
        let identities = self.identities.lock();
        // One that no key uses any more warns nobody.
        let expiries = identities.iter().filter_map(|identity| identity.upgrade()?.expiry());
        self.metrics.expiry(expiries.min());
        self.metrics.registry.text()
    }

    fn page(&self) -> Option<String> {
        Some(crate::page::render(&self.overview()))
    }
}
