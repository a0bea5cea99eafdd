//! Equal concurrent Decrypts are sent once.
//!
//! A kube-apiserver that starts asks for the same wrapped keys from many goroutines at a time,
//! and several of them share one plugin's quota at the KMS.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{BoxFuture, FutureExt, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::key::retry::LEAST;

/// The requests under way; equal ones share one answer.
pub struct SingleFlight<K, T> {
    table: Arc<FlightTable<K, T>>,
    hasher: RandomState,
}

/// How a request was answered.
#[derive(Debug)]
pub struct Joined<T> {
    /// The answer.
    pub answer: T,
    /// Whether an equal request did the work.
    pub shared: bool,
}

struct FlightTable<K, T>(Mutex<HashMap<u64, Entry<K, T>>>);

struct Entry<K, T> {
    request: Arc<K>,
    flight: WeakShared<BoxFuture<'static, T>>,
}

/// Takes a flight off the table when it lands or when nobody waits for it any more.
struct Leave<K, T> {
    hash: u64,
    table: Arc<FlightTable<K, T>>,
}

impl<K: Hash + Eq + Send + Sync + 'static, T: Clone + Send + Sync + 'static> SingleFlight<K, T> {
    /// Joins an equal request under way, or makes `start` the one that others may join.
    async fn join<F, S>(&self, request: &Arc<K>, start: S) -> Joined<T>
    where
        F: Future<Output = T> + Send + 'static,
        S: FnOnce(Arc<K>) -> F,
    {
        let hash = self.hasher.hash_one(&**request);
        if let Some(flight) = self.find(hash, request) {
            return Joined { answer: flight.await, shared: true };
        }
        // An answer that is there at once needs no entry in the table.
        let mut flight = Box::pin(start(request.clone()));
        let first = std::future::poll_fn(|cx| Poll::Ready(flight.as_mut().poll(cx))).await;
        if let Poll::Ready(answer) = first {
            return Joined { answer, shared: false };
        }
        let leave = Leave { hash, table: self.table.clone() };
        let leaving = async move {
            let _leave = leave;
            flight.await
        };
        let flight = leaving.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            let entry = Entry { request: request.clone(), flight: weak };
            self.table.0.lock().insert(hash, entry);
        }
        Joined { answer: flight.await, shared: false }
    }

    /// The same, but no longer than until `deadline`. Whoever joined a request that came to its end
    /// `for_want_of_time`, and has more time itself, makes one of its own.
    pub async fn join_until<F, S>(
        &self,
        deadline: Instant,
        request: &Arc<K>,
        start: S,
        for_want_of_time: impl Fn(&T) -> bool,
    ) -> Option<Joined<T>>
    where
        F: Future<Output = T> + Send + 'static,
        S: Fn(Arc<K>) -> F,
    {
        loop {
            let landed = timeout_at(deadline, self.join(request, &start)).await.ok()?;
            let short = landed.shared && for_want_of_time(&landed.answer);
            if !short || Instant::now() + LEAST >= deadline {
                return Some(landed);
            }
        }
    }

    fn find(&self, hash: u64, request: &K) -> Option<Shared<BoxFuture<'static, T>>> {
        let table = self.table.0.lock();
        let entry = table.get(&hash)?;
        (*entry.request == *request).then(|| entry.flight.upgrade())?
    }
}

impl<K, T> Default for SingleFlight<K, T> {
    fn default() -> Self {
        Self { table: Arc::new(FlightTable(Mutex::default())), hasher: RandomState::new() }
    }
}

impl<K, T> Drop for Leave<K, T> {
    fn drop(&mut self) {
        self.table.0.lock().remove(&self.hash);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    fn sealed(text: &str) -> Arc<String> {
        Arc::new(text.to_owned())
    }

    struct CountingBackend {
        calls: AtomicUsize,
        gate: Notify,
    }

    async fn decrypt(backend: Arc<CountingBackend>) -> bool {
        backend.calls.fetch_add(1, Ordering::SeqCst);
        backend.gate.notified().await;
        true
    }

    fn setup() -> (Arc<SingleFlight<String, bool>>, Arc<CountingBackend>) {
        let backend = CountingBackend { calls: AtomicUsize::new(0), gate: Notify::new() };
        (Arc::default(), Arc::new(backend))
    }

    #[tokio::test]
    async fn equal_concurrent_decrypts_are_sent_once() {
        let (flights, backend) = setup();
        let one = |text: &'static str| {
            let (flights, backend) = (flights.clone(), backend.clone());
            tokio::spawn(async move {
                flights.join(&sealed(text), move |_| decrypt(backend)).await.answer
            })
        };
        let tasks: Vec<_> = (0..50).map(|_| one("a")).chain([one("b")]).collect();
        tokio::task::yield_now().await;
        assert_eq!(backend.calls.load(Ordering::SeqCst), 2);
        backend.gate.notify_waiters();
        for task in tasks {
            assert!(task.await.is_ok_and(|ok| ok));
        }
        assert!(flights.table.0.lock().is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_take_the_others_along() {
        let (flights, backend) = setup();
        let start = |flights: Arc<SingleFlight<String, bool>>, backend: Arc<CountingBackend>| async move {
            flights.join(&sealed("a"), move |_| decrypt(backend)).await.answer
        };
        let leader = tokio::spawn(start(flights.clone(), backend.clone()));
        tokio::task::yield_now().await;
        let follower = tokio::spawn(start(flights.clone(), backend.clone()));
        tokio::task::yield_now().await;
        leader.abort();
        assert!(leader.await.is_err());
        backend.gate.notify_waiters();
        assert!(follower.await.is_ok_and(|ok| ok));
        assert_eq!(backend.calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_flight_that_nobody_waits_for_is_forgotten() {
        let (flights, backend) = setup();
        let task = tokio::spawn({
            let (flights, backend) = (flights.clone(), backend.clone());
            async move { flights.join(&sealed("a"), move |_| decrypt(backend)).await.shared }
        });
        tokio::task::yield_now().await;
        assert_eq!(flights.table.0.lock().len(), 1);
        task.abort();
        assert!(task.await.is_err());
        assert!(flights.table.0.lock().is_empty());
    }
}
