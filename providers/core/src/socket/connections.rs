//! Who is connected, and what all of them together may cost. Every listener uses it.
//!
//! **A full table takes newcomers in.** Whoever is connected and never asked anything goes first,
//! then whoever has been idle longest, then whoever has kept us waiting longest; so neither silent
//! nor forgotten connections keep kube-apiserver out. Nobody goes whose requests are all being
//! worked on.
//!
//! **What clients keep us waiting for is bounded for the process**, however many they are: requests
//! that do not arrive and answers that nobody reads. Beyond [`MAX_UNFINISHED`] of them, or
//! [`MAX_HELD`] bytes, a connection is closed: of those with more than an equal share the one that
//! has kept us waiting longest. Whoever has less than its share is never closed for others. Nobody
//! is read until whoever was closed is gone: otherwise, before it is its turn to go, all others could begin
//! as much again.
//!
//! **What is worked on is bounded too**, by tower's limit of concurrency; what comes beyond it waits
//! its turn, and counts as unfinished. It is finished and counts also for those who left. Status has a limit of its own: it must not suffer for what
//! others ask.
//!
//! A request that arrives whole pays for this with seven additions to counters that no other
//! thread touches. The table itself is locked when connections come and go, and to choose who goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::metrics::{Counter, Gauge, MetricRegistry};
use crate::process::telemetry::RateLimit;
use crate::{Endpoint, Error, Kind};

#[cfg(test)]
mod tests;
mod watched;

pub(crate) use watched::WatchedStream;

/// A kube-apiserver has one connection per resources stanza, a shim one for each endpoint.
const MAX_CLIENTS: usize = 256;
/// Connections that were asked to leave and have not left yet.
const MAX_LEAVING: usize = 32;
/// Requests that have not arrived or whose answers were not read: each costs about 4 KiB.
const MAX_UNFINISHED: usize = 2048;
/// Bytes of requests that came in more than one piece.
const MAX_HELD: usize = 12 << 20;
/// Requests that are worked on, and as many for Status: four connections' worth.
pub(crate) const MAX_WORK: usize = 512;

/// The connections of a process, or of one way into it.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Table>);

#[derive(Debug)]
struct Table {
    /// What they are, in words.
    what: &'static str,
    limit: usize,
    slots: Mutex<Vec<Arc<SlotState>>>,
    count: watch::Sender<usize>,
    /// Whether the process is ending and waits for them.
    awaited: AtomicBool,
    /// Requests so far: the clock by which the longest is found.
    begun: AtomicU64,
    held: AtomicUsize,
    /// Connections that were told to end and have not yet.
    going: AtomicUsize,
    work: GlobalConcurrencyLimitLayer,
    status: GlobalConcurrencyLimitLayer,
    metrics: ConnectionMetrics,
    /// Sockets that are gone and cannot be made anew, and why.
    lost: Mutex<BTreeMap<Endpoint, String>>,
    crowded: RateLimit,
}

#[derive(Debug, Default)]
struct ConnectionMetrics {
    open: Gauge,
    unfinished: Gauge,
    closed: Counter,
    remade: Counter,
}

/// A place in the table, given back when dropped.
#[derive(Debug)]
pub struct Slot(Arc<SlotState>);

#[derive(Debug)]
struct SlotState {
    table: Arc<Table>,
    /// Requests that have begun, up to the last byte of their answers.
    open: AtomicUsize,
    /// Those of them that are worked on; with the others it is the client's turn.
    working: AtomicUsize,
    /// Since when there is none, or since when it is the client's turn.
    since: AtomicU64,
    held: AtomicUsize,
    asked: AtomicBool,
    order: watch::Sender<Option<CloseOrder>>,
    /// Whether the client does not read.
    blocked: AtomicBool,
    unblocked: Notify,
}

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOrder {
    /// End in good order.
    Leave,
    /// End.
    Gone,
}

/// A request, from its first byte to the last of its answer.
pub(crate) struct OpenRequest {
    place: Arc<SlotState>,
    working: bool,
    held: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self::with("clients", MAX_CLIENTS, ConnectionMetrics::default())
    }
}

impl Connections {
    /// So many at a time, of whom metrics tell nothing.
    pub fn limited(what: &'static str, limit: usize) -> Self {
        Self::with(what, limit, ConnectionMetrics::default())
    }

    /// The clients of a process, in metrics that begin with `prefix`.
    pub fn of_clients(registry: &mut MetricRegistry, prefix: &str) -> Self {
        let name = |rest| format!("{prefix}_{rest}");
        let metrics = ConnectionMetrics {
            open: registry.single(&name("connections"), "Open connections of clients"),
            unfinished: registry.single(
                &name("unfinished_requests"),
                "Requests that have begun and are not answered to the last byte",
            ),
            closed: registry.single(
                &name("closed_connections"),
                "Connections closed to make room, or because their requests or answers wait",
            ),
            remade: registry.single(
                &name("sockets_remade"),
                "Sockets that somebody else removed and that were made anew",
            ),
        };
        Self::with("clients", MAX_CLIENTS, metrics)
    }

    fn with(what: &'static str, limit: usize, metrics: ConnectionMetrics) -> Self {
        Self(Arc::new(Table {
            what,
            limit,
            slots: Mutex::default(),
            count: watch::Sender::new(0),
            awaited: AtomicBool::default(),
            begun: AtomicU64::default(),
            held: AtomicUsize::default(),
            going: AtomicUsize::default(),
            work: GlobalConcurrencyLimitLayer::new(MAX_WORK),
            status: GlobalConcurrencyLimitLayer::new(MAX_WORK),
            metrics,
            lost: Mutex::default(),
            crowded: RateLimit::rare(),
        }))
    }

    /// Takes a connection in; another one goes if there is no room. `None` if all are at work.
    pub fn enter(&self) -> Option<Slot> {
        let table = &self.0;
        let mut slots = table.slots.lock();
        let live = || slots.iter().filter(|place| place.order().is_none());
        if live().count() >= table.limit {
            table.tell("too many connections: one is closed to make room");
            let victim =
                live().filter_map(|place| Some((place.rank()?, place))).min_by_key(|v| v.0);
            let (_, victim) = victim?;
            // One that has asked may be about to ask again, and must not lose a request.
            let polite = victim.asked.load(Relaxed) && slots.len() < table.limit + MAX_LEAVING;
            victim.tell(if polite { CloseOrder::Leave } else { CloseOrder::Gone });
        }
        let place = Arc::new(SlotState {
            table: table.clone(),
            open: AtomicUsize::default(),
            working: AtomicUsize::default(),
            since: AtomicU64::new(table.begun.fetch_add(1, Relaxed)),
            held: AtomicUsize::default(),
            asked: AtomicBool::default(),
            order: watch::Sender::default(),
            blocked: AtomicBool::default(),
            unblocked: Notify::new(),
        });
        slots.push(place.clone());
        table.changed(&slots);
        Some(Slot(place))
    }

    /// How many connections are open.
    pub fn count(&self) -> usize {
        *self.0.count.borrow()
    }

    /// Tells of their number.
    pub(crate) fn counted(&self) -> watch::Receiver<usize> {
        self.0.count.subscribe()
    }

    /// The process is ending, and serves on for them.
    pub(crate) fn wait_for(&self) {
        self.0.awaited.store(true, Relaxed);
    }

    /// For `/readyz`: that the process is ending, and for whom it waits.
    pub fn awaited(&self) -> Option<String> {
        let ending = self.0.awaited.load(Relaxed);
        ending.then(|| format!("ending: serving on for {} open connections", self.count()))
    }

    /// For `/status`.
    pub fn status(&self) -> Value {
        let Table { metrics, lost, .. } = &*self.0;
        let lost = lost.lock();
        json!({
            "open": self.count(),
            "unfinished_requests": metrics.unfinished.get(),
            "sockets_remade": metrics.remade.get(),
            "sockets_lost": lost.iter().map(|(at, why)| format!("{at}: {why}")).collect::<Value>(),
        })
    }

    /// The limits of what is worked on: for Status, and for all else.
    pub(crate) fn limits(&self) -> (&GlobalConcurrencyLimitLayer, &GlobalConcurrencyLimitLayer) {
        (&self.0.status, &self.0.work)
    }

    /// A socket that was gone is back, or could not be made anew.
    pub(crate) fn socket(&self, endpoint: &Endpoint, remade: &Result<(), Error>) {
        let Err(error) = remade else {
            self.0.metrics.remade.inc();
            return self.forget(endpoint);
        };
        self.0.lost.lock().insert(endpoint.clone(), error.report());
    }

    /// Nobody wants that socket any more, or it is there.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        self.0.lost.lock().remove(endpoint);
    }
}

impl Table {
    fn changed(&self, slots: &[Arc<SlotState>]) {
        self.count.send_replace(slots.len());
        self.metrics.open.set(i64::try_from(slots.len()).unwrap_or(i64::MAX));
    }

    fn tell(&self, why: &str) {
        if let Some(suppressed) = self.crowded.pass() {
            tracing::warn!(of = self.what, suppressed, "{why}");
        }
    }

    /// If all of them keep us waiting for too much: closes the connection that has done so longest, of
    /// those that have more than their share. Says whether that is enough.
    #[cold]
    fn relieve(&self) -> bool {
        let slots = self.slots.lock();
        // Whoever was told to go may still be there, and counts no more.
        let is_gone = |place: &&Arc<SlotState>| place.order() == Some(CloseOrder::Gone);
        let live = || slots.iter().filter(|place| !is_gone(place));
        let waiting: usize = live().map(|place| place.waiting()).sum();
        // What is worked on for those who have left is still there.
        let going: usize = slots.iter().filter(is_gone).map(|place| place.held.load(Relaxed)).sum();
        let bytes = self.held.load(Relaxed).saturating_sub(going);
        if waiting <= MAX_UNFINISHED && bytes <= MAX_HELD {
            return true;
        }
        let count = live().count();
        let slow = live().filter(|place| {
            let bytes = place.held.load(Relaxed).saturating_mul(count);
            place.waiting() > 0 && (place.waiting() * count > MAX_UNFINISHED || bytes > MAX_HELD)
        });
        let Some(victim) = slow.min_by_key(|place| place.since.load(Relaxed)) else { return false };
        victim.tell(CloseOrder::Gone);
        self.tell("too many requests wait for their clients: the slowest is closed");
        true
    }
}

impl SlotState {
    fn order(&self) -> Option<CloseOrder> {
        *self.order.borrow()
    }

    /// Called with the table locked, at most once for each order.
    fn tell(&self, order: CloseOrder) {
        self.table.metrics.closed.inc();
        if order == CloseOrder::Gone {
            self.table.going.fetch_add(1, Relaxed);
        }
        self.order.send_replace(Some(order));
    }

    /// The lowest goes first; who has none stays.
    fn rank(&self) -> Option<(u8, u64)> {
        let class = match (self.open.load(Relaxed), self.asked.load(Relaxed)) {
            (0, false) => 0,
            (0, true) => 1,
            _ if self.waiting() > 0 => 2,
            _ => return None,
        };
        Some((class, self.since.load(Relaxed)))
    }

    /// Requests with which it is the client's turn.
    fn waiting(&self) -> usize {
        self.open.load(Relaxed).saturating_sub(self.working.load(Relaxed))
    }

    fn touch(&self) {
        self.since.store(self.table.begun.load(Relaxed), Relaxed);
    }
}

impl Slot {
    /// Waits until this connection must end.
    pub async fn ordered(&self) -> CloseOrder {
        self.told(|_| true).await
    }

    /// Waits until this connection must end at once, whatever it was told before.
    pub(crate) async fn gone(&self) {
        self.told(|order| order == CloseOrder::Gone).await;
    }

    async fn told(&self, wanted: impl Fn(CloseOrder) -> bool) -> CloseOrder {
        let mut order = self.0.order.subscribe();
        // The sender is here.
        let order = order.wait_for(|order| order.is_some_and(&wanted)).await;
        order.ok().and_then(|order| *order).unwrap_or(CloseOrder::Gone)
    }

    /// The table that it is in.
    pub(crate) fn connections(&self) -> Connections {
        Connections(self.0.table.clone())
    }

    /// The connection, watched for whether its client reads.
    pub(crate) fn watch<T>(&self, io: T) -> WatchedStream<T> {
        WatchedStream::new(io, self.0.clone())
    }

    /// What counts the requests of this connection.
    pub(crate) fn counter(&self) -> impl Fn() -> OpenRequest + Send + 'static {
        let place = self.0.clone();
        move || OpenRequest::begin(&place)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let table = &self.0.table;
        let mut slots = table.slots.lock();
        slots.retain(|place| !Arc::ptr_eq(place, &self.0));
        if self.0.order() == Some(CloseOrder::Gone) {
            table.going.fetch_sub(1, Relaxed);
        }
        table.changed(&slots);
    }
}

impl OpenRequest {
    fn begin(place: &Arc<SlotState>) -> Self {
        let table = &place.table;
        let number = table.begun.fetch_add(1, Relaxed);
        if place.open.fetch_add(1, Relaxed) == place.working.load(Relaxed) {
            place.since.store(number, Relaxed);
        }
        place.asked.store(true, Relaxed);
        let request = Self { place: place.clone(), working: false, held: 0 };
        if usize::try_from(table.metrics.unfinished.inc()).is_ok_and(|n| n > MAX_UNFINISHED) {
            table.relieve();
        }
        request
    }

    /// Keeps so many bytes of a message that is not whole.
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<(), Error> {
        self.held += bytes;
        self.place.held.fetch_add(bytes, Relaxed);
        let table = &self.place.table;
        let fits = table.held.fetch_add(bytes, Relaxed) + bytes <= MAX_HELD || table.relieve();
        if fits {
            Ok(())
        } else {
            Err(Error::new(Kind::Throttled, "too many long requests at once"))
        }
    }

    /// Waits while answers wait that the client does not read.
    pub(crate) async fn unblocked(&self) {
        let place = &self.place;
        loop {
            let unblocked = place.unblocked.notified();
            if !place.blocked.load(Relaxed) {
                break;
            }
            unblocked.await;
        }
    }

    /// The message is whole, and it is its turn: work on it begins.
    pub(crate) fn work(&mut self) {
        self.place.working.fetch_add(1, Relaxed);
        self.working = true;
    }

    /// It is answered: the rest is the client's.
    pub(crate) fn answered(&mut self) {
        if std::mem::take(&mut self.working)
            && self.place.working.fetch_sub(1, Relaxed) == self.place.open.load(Relaxed)
        {
            self.place.touch();
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.answered();
        let (place, table) = (&self.place, &self.place.table);
        if self.held > 0 {
            place.held.fetch_sub(self.held, Relaxed);
            table.held.fetch_sub(self.held, Relaxed);
        }
        if place.open.fetch_sub(1, Relaxed) == 1 {
            place.touch();
        }
        table.metrics.unfinished.dec();
    }
}
