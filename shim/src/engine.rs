//! Takes configurations over: make before break, all or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sidekey_core::config::{KeyNumber, KeyRole};
use sidekey_core::kms::KmsService;
use sidekey_core::server::{Stopper, bind, serve_kms, stopper};
use sidekey_core::{Call, Endpoint, Error, Kind, Listener, Watcher};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::cache::Cache;
use crate::config::{self, Address, Mode, RoutedKeySpec, ShimConfig, UpstreamSpec};
use crate::identities::Identities;
use crate::key::{Inherited, LOAD_PATIENCE, RoutedKey};
use crate::lastgood::LastGood;
use crate::link::{Link, Tls};
use crate::memory::Memory;
use crate::metrics::ShimMetrics;
use crate::router::Router;
use crate::state::ShimState;
use crate::store::{Contents, Store};
use crate::table::RoutingTable;
use crate::upstream::Upstream;

/// Whether keys must prove themselves before they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Yes: something that works is in use.
    Required,
    /// Yes, and within this time: something that works may be loaded in its place.
    Within(Duration),
    /// No: nothing is in use yet, so what is reachable is better than nothing.
    Cold,
}

/// The running shim.
pub(crate) struct Engine {
    pub(crate) shared: Arc<ShimState>,
    /// Whether a configuration is in use.
    started: bool,
    past_writers: BTreeSet<u64>,
    /// What keys had written or read before this process.
    memory: BTreeMap<KeyNumber, Memory>,
    store: Arc<Store>,
    /// What was in use before this process: its keys bind the first configuration as well.
    before: Option<ShimConfig>,
    /// Where a copy of the last good configuration goes, if it can be written there.
    beside: Option<PathBuf>,
    config: ShimConfig,
    listeners: BTreeMap<Endpoint, RunningListener>,
    pub(crate) identities: Identities,
}

struct RunningListener {
    legacy: Arc<AtomicU64>,
    stopper: Stopper,
    server: JoinHandle<()>,
}

/// What a start knows of the runs before it.
pub(crate) struct Kept {
    /// The last good configuration on disk.
    pub(crate) stored: Option<LastGood>,
    /// Where a copy of it goes, if it can be written there.
    pub(crate) beside: Option<PathBuf>,
}

/// What is in use while a configuration is loaded, or was in use before this process.
struct Previous<'a> {
    keys: &'a BTreeMap<KeyNumber, (KeyRole, Arc<RoutedKey>)>,
    /// Whether keys that have not changed may be taken over.
    unchanged: bool,
    memory: &'a BTreeMap<KeyNumber, Memory>,
}

/// Keys of a configuration, and which of them are new.
struct Built {
    keys: BTreeMap<KeyNumber, (KeyRole, Arc<RoutedKey>)>,
    writer: Arc<RoutedKey>,
    fresh: Vec<(KeyRole, Arc<RoutedKey>)>,
}

impl Engine {
    /// An engine that serves nothing yet. Fails only on what no waiting mends.
    pub(crate) fn new(
        config: ShimConfig,
        source: String,
        watcher: Arc<Watcher>,
        Kept { stored, beside }: Kept,
    ) -> Result<Self, Error> {
        let metrics: Arc<ShimMetrics> = Arc::default();
        let before = stored.as_ref().and_then(|stored| config::parse(&stored.document, &[]).ok());
        let stored = stored.unwrap_or_default();
        // With one endpoint behind one socket the number of the key means nothing.
        let routes = config.mode == Mode::Route;
        let memory = if routes { stored.memory() } else { BTreeMap::new() };
        let store = Arc::default();
        let mut identities = Identities::new(watcher);
        let nothing = Previous { keys: &BTreeMap::new(), unchanged: false, memory: &memory };
        let built = build(&config, &nothing, Proof::Cold, &mut identities, &metrics, &store)?;
        let table = RoutingTable { mode: config.mode, writer: built.writer, keys: built.keys };
        Ok(Self {
            shared: Arc::new(ShimState::new(table, metrics, source)),
            started: false,
            past_writers: stored.past_writers,
            memory,
            store,
            before,
            beside,
            config,
            listeners: BTreeMap::new(),
            identities,
        })
    }

    /// Makes `config` the one in use. Everything that can fail comes first; if it does, nothing
    /// has changed.
    pub(crate) async fn apply(&mut self, config: ShimConfig, proof: Proof) -> Result<(), Error> {
        self.check_writer(&config)?;
        let table = self.shared.table();
        let none = BTreeMap::new();
        // Before the first configuration nothing is in use, and every key is new; so it is in
        // another mode, where its key_ids are others.
        let previous = Previous {
            keys: if self.started { &table.keys } else { &none },
            unchanged: self.started && config.mode == self.config.mode,
            memory: &self.memory,
        };
        let (identities, metrics) = (&mut self.identities, &self.shared.metrics);
        let built = build(&config, &previous, proof, identities, metrics, &self.store)?;
        prove(&built, config.probe.timeout, proof).await?;
        let bound = self.bind(&config).await?;
        // From here on nothing fails.
        let Built { keys, writer, .. } = built;
        let before = if self.started { Some(&self.config) } else { self.before.as_ref() };
        // Only where the shim routes is the number part of key_ids: another mode replaces them too.
        let before = before.filter(|config| config.mode == Mode::Route);
        if let Some(before) = before.and_then(ShimConfig::writer).map(|key| key.id)
            && (before != writer.id || config.mode != Mode::Route)
        {
            self.past_writers.insert(before.0);
            tracing::info!(from = %before, to = %writer.id, "writes go to another key now");
        }
        // What is announced from now on must be known after a restart.
        self.keep(&config, &keys).await;
        self.shared.switch(RoutingTable { mode: config.mode, writer, keys });
        self.shared.set_cache(config.cache.map(Cache::new));
        self.start_probers(&config);
        self.listen(&config, bound);
        self.config = config;
        self.started = true;
        // From now on the keys themselves know.
        self.memory.clear();
        self.tell();
        Ok(())
    }

    /// Waits until a key has written or read something that is to be kept on disk.
    pub(crate) async fn remembered(&self) {
        self.store.remembered.notified().await;
    }

    /// The configuration in use.
    pub(crate) fn config(&self) -> &ShimConfig {
        &self.config
    }

    /// Stops listening, and lets open requests finish.
    pub(crate) async fn end(self) {
        for running in self.listeners.into_values() {
            running.stopper.stop();
            // An aborted or panicked server has nothing left to drain.
            let _ = running.server.await;
        }
    }

    /// A key_id must never come back: a key that has written and was replaced gets a new number.
    fn check_writer(&self, config: &ShimConfig) -> Result<(), Error> {
        let Some(writer) = config.writer() else {
            return Err(Error::new(Kind::Config, "no key has the role write"));
        };
        if config.mode == Mode::Route && self.past_writers.contains(&writer.id.0) {
            let text = format!("key {} has been the write key before and was replaced", writer.id);
            return Err(Error::new(Kind::Config, text).with_hint(
                "a key_id must never come back: give it a new id for writing and keep the old id as read",
            ));
        }
        let in_use = if self.started { Some(&self.config) } else { self.before.as_ref() };
        let in_use = in_use.map(ShimConfig::by_id).unwrap_or_default();
        for spec in &config.keys {
            if let Some(key) = in_use.get(&spec.id)
                && !key.upstream.matches(&spec.upstream.fingerprint)
            {
                let text = format!("the fingerprint of key {} has changed", spec.id);
                return Err(Error::new(Kind::Config, text).with_hint("give another KEK a new id"));
            }
        }
        Ok(())
    }

    /// Opens the sockets that are not open yet.
    async fn bind(&self, config: &ShimConfig) -> Result<Vec<(Endpoint, Listener)>, Error> {
        let mut bound = Vec::new();
        for spec in &config.listeners {
            if !self.listeners.contains_key(&spec.endpoint) {
                let listener = bind(&spec.endpoint, &config.options.socket).await?;
                bound.push((spec.endpoint.clone(), listener));
            }
        }
        Ok(bound)
    }

    fn start_probers(&self, config: &ShimConfig) {
        let table = self.shared.table();
        for spec in &config.keys {
            if let Some((role, key)) = table.keys.get(&spec.id) {
                key.watch(*role, config.probing(spec));
            }
        }
    }

    fn listen(&mut self, config: &ShimConfig, bound: Vec<(Endpoint, Listener)>) {
        for (endpoint, listener) in bound {
            let legacy = Arc::new(AtomicU64::new(0));
            let (stopper, stop) = stopper();
            let router = Router { shared: self.shared.clone(), legacy: legacy.clone() };
            let metrics = self.shared.metrics.clone();
            let service = KmsService::new(router, metrics.requests.clone());
            tracing::info!(socket = %endpoint, "kms listening");
            let listener = listener.counting(metrics.refused.clone());
            let (drain, connections) = (config.options.drain, metrics.connections.clone());
            let serving = serve_kms(listener, service, stop, drain, connections);
            let server = tokio::spawn(serving);
            self.listeners.insert(endpoint, RunningListener { legacy, stopper, server });
        }
        for spec in &config.listeners {
            if let Some(running) = self.listeners.get(&spec.endpoint) {
                let legacy = spec.legacy.map_or(0, |id| id.0);
                running.legacy.store(legacy, Ordering::SeqCst);
            }
        }
        let wanted: BTreeSet<&Endpoint> =
            config.listeners.iter().map(|spec| &spec.endpoint).collect();
        self.listeners.retain(|endpoint, running| {
            let keep = wanted.contains(endpoint);
            if !keep {
                tracing::info!(socket = %endpoint, "no longer listening");
                running.stopper.stop();
            }
            keep
        });
    }

    /// What the admin endpoints show beside the configuration.
    fn tell(&mut self) {
        let listeners = self.config.listeners.iter().map(|spec| spec.endpoint.to_string());
        *self.shared.listeners.lock() = listeners.collect();
        *self.shared.identities.lock() = self.identities.all();
    }

    /// Keeps the configuration in use on disk, with what its keys remember.
    pub(crate) async fn store(&self) {
        self.keep(&self.config, &self.shared.table().keys).await;
    }

    async fn keep(
        &self,
        config: &ShimConfig,
        keys: &BTreeMap<KeyNumber, (KeyRole, Arc<RoutedKey>)>,
    ) {
        let routed = keys.iter().filter(|_| config.mode == Mode::Route);
        let memory = routed.filter_map(|(id, (_, key))| Some((*id, key.memory()?)));
        let listener = config.listeners.first();
        let contents = Contents {
            document: config.document.clone(),
            past_writers: self.past_writers.clone(),
            memory: memory.collect(),
            path: listener.and_then(|spec| LastGood::path(&spec.endpoint)),
            beside: self.beside.clone(),
        };
        self.store.replace(contents).await;
    }
}

/// Makes the keys of a configuration; those that have not changed are taken over with their
/// connections and health, and the others inherit what their number has written or read.
fn build(
    config: &ShimConfig,
    previous: &Previous<'_>,
    proof: Proof,
    identities: &mut Identities,
    metrics: &Arc<ShimMetrics>,
    store: &Arc<Store>,
) -> Result<Built, Error> {
    let mut keys = BTreeMap::new();
    let mut fresh = Vec::new();
    for spec in &config.keys {
        let RoutedKeySpec { id, role, upstream } = spec;
        let key = match previous.keys.get(id) {
            Some((old_role, key)) if previous.unchanged && key.spec == *upstream => {
                // A promoted key must prove that it can write.
                if *role == KeyRole::Write && *old_role == KeyRole::Read {
                    fresh.push((*role, key.clone()));
                }
                key.clone()
            }
            old => {
                let memory = previous.memory.get(id).cloned();
                let inherited = match old {
                    Some((_, key)) => key.inheritance(),
                    // What the shim wrote last was announced last.
                    None => Inherited {
                        announced: memory.as_ref().and_then(Memory::written_under).cloned(),
                        memory,
                        ..Inherited::default()
                    },
                };
                let endpoints = Upstream::new(links(upstream, proof, identities, metrics)?);
                let (spec, duty) = (upstream.clone(), (*role, config.probing(spec)));
                let store = store.clone();
                let key = RoutedKey::new(*id, spec, endpoints, config.mode, duty, inherited, store);
                fresh.push((*role, key.clone()));
                key
            }
        };
        keys.insert(*id, (*role, key));
    }
    let writer =
        keys.values().find(|(role, _)| *role == KeyRole::Write).map(|(_, key)| key.clone());
    let writer = writer.ok_or_else(|| Error::new(Kind::Config, "no key has the role write"))?;
    Ok(Built { keys, writer, fresh })
}

fn links(
    spec: &UpstreamSpec,
    proof: Proof,
    identities: &mut Identities,
    metrics: &Arc<ShimMetrics>,
) -> Result<Vec<Arc<Link>>, Error> {
    // At a cold start what can be reached is served, and the rest once its files can be used.
    let tls = match &spec.tls {
        Some(tls) => Some(Tls {
            identity: match proof {
                Proof::Cold => identities.get_or_wait(&tls.files),
                Proof::Required | Proof::Within(_) => identities.get(&tls.files)?,
            },
            server_name: tls.server_name.clone(),
        }),
        None => None,
    };
    let link = |address: &Address| {
        Link::new(address.clone(), spec.server_uids.clone(), tls.clone(), metrics.clone())
    };
    Ok(spec.endpoints.iter().map(link).collect())
}

/// New keys prove themselves, all at the same time, so that hung ones do not add up.
async fn prove(built: &Built, limit: Duration, proof: Proof) -> Result<(), Error> {
    let limit = match proof {
        Proof::Cold => return Ok(()),
        Proof::Within(time) => limit.min(time),
        Proof::Required => limit,
    };
    let mut proofs = JoinSet::new();
    for (role, key) in built.fresh.iter().cloned() {
        proofs.spawn(prove_key(role, key, limit));
    }
    while let Some(proof) = proofs.join_next().await {
        proof.unwrap_or_else(|error| {
            Err(Error::new(Kind::Bug, "the proof of a key broke off").with_source(error))
        })?;
    }
    Ok(())
}

/// A writer proves itself by Status, its canary or what it wrote before, and a round trip; a
/// reader by its canary or what it read before, and without either by answering.
async fn prove_key(role: KeyRole, key: Arc<RoutedKey>, limit: Duration) -> Result<(), Error> {
    let call = Call { uid: "shim-load", deadline: Instant::now() + limit };
    let proven = key.prove(role, &call, LOAD_PATIENCE);
    let result = tokio::time::timeout_at(call.deadline, proven).await;
    let age = match result {
        Ok(Ok(age)) => age,
        other => {
            let error = match other {
                Ok(Err(failure)) => failure.into(),
                _ => Error::new(Kind::Timeout, format!("it did not answer in {limit:?}")),
            };
            let (id, role, why) = (key.id, role.label(), error.report());
            let text = format!("key {id} ({role}) cannot be taken in: {why}");
            return Err(Error::new(error.kind(), text));
        }
    };
    if let Some(age) = age {
        key.note_proof(age);
    }
    Ok(())
}
