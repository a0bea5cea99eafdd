//! Equal concurrent Decrypts are sent once.
//!
//! A kube-apiserver that starts asks for the same wrapped keys from many goroutines at a time,
//! and several of them share one plugin's quota at the KMS.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::future::{FutureExt, Shared, WeakShared};

use crate::{Error, Sealed, Secret};

/// What several callers may hold.
type Outcome = Result<Arc<Secret>, Arc<Error>>;
type Flight = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The Decrypts under way.
#[derive(Default)]
pub(crate) struct Flights {
    table: Arc<Mutex<HashMap<u64, (Arc<Sealed>, WeakShared<Flight>)>>>,
    hasher: RandomState,
}

/// How a Decrypt was answered.
pub(crate) struct Landed {
    pub(crate) outcome: Outcome,
    /// Whether an equal one did the work.
    pub(crate) shared: bool,
}

impl Flights {
    /// Joins an equal Decrypt under way, or makes `start` the one that others may join.
    pub(crate) async fn join<F, S>(&self, sealed: &Arc<Sealed>, start: S) -> Landed
    where
        F: Future<Output = Outcome> + Send + 'static,
        S: FnOnce(Arc<Sealed>) -> F,
    {
        let hash = self.hash(sealed);
        if let Some(flight) = self.find(hash, sealed) {
            return Landed { outcome: flight.await, shared: true };
        }
        // An answer that is there at once needs no entry in the table.
        let mut flight = Box::pin(start(sealed.clone()));
        let first = std::future::poll_fn(|cx| Poll::Ready(flight.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = first {
            return Landed { outcome, shared: false };
        }
        let entry = Entry { hash, table: self.table.clone() };
        let flight: Flight = Box::pin(async move {
            let _entry = entry;
            flight.await
        });
        let flight = flight.shared();
        if let Some(weak) = flight.downgrade() {
            self.lock().insert(hash, (sealed.clone(), weak));
        }
        Landed { outcome: flight.await, shared: false }
    }

    fn hash(&self, sealed: &Sealed) -> u64 {
        self.hasher.hash_one((&*sealed.ciphertext, sealed.key_id.as_str(), &sealed.annotations))
    }

    fn find(&self, hash: u64, sealed: &Sealed) -> Option<Shared<Flight>> {
        let table = self.lock();
        let (other, flight) = table.get(&hash)?;
        (**other == *sealed).then(|| flight.upgrade())?
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Arc<Sealed>, WeakShared<Flight>)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a flight off the table when it lands or when nobody waits for it any more.
struct Entry {
    hash: u64,
    table: Arc<Mutex<HashMap<u64, (Arc<Sealed>, WeakShared<Flight>)>>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.hash);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::KeyId;

    fn sealed(text: &'static str) -> Arc<Sealed> {
        let key_id = KeyId::new("k").unwrap_or_else(|_| unreachable!());
        Arc::new(Sealed { key_id, ciphertext: text.into(), annotations: Default::default() })
    }

    struct Backend {
        calls: AtomicUsize,
        gate: Notify,
    }

    async fn decrypt(backend: Arc<Backend>) -> Outcome {
        backend.calls.fetch_add(1, Ordering::SeqCst);
        backend.gate.notified().await;
        Ok(Arc::new(Secret::new(vec![7])))
    }

    fn setup() -> (Arc<Flights>, Arc<Backend>) {
        let backend = Backend { calls: AtomicUsize::new(0), gate: Notify::new() };
        (Arc::default(), Arc::new(backend))
    }

    #[tokio::test]
    async fn equal_concurrent_decrypts_are_sent_once() {
        let (flights, backend) = setup();
        let one = |text: &'static str| {
            let (flights, backend) = (flights.clone(), backend.clone());
            tokio::spawn(async move {
                flights.join(&sealed(text), move |_| decrypt(backend)).await.outcome.is_ok()
            })
        };
        let tasks: Vec<_> = (0..50).map(|_| one("a")).chain([one("b")]).collect();
        tokio::task::yield_now().await;
        assert_eq!(backend.calls.load(Ordering::SeqCst), 2);
        backend.gate.notify_waiters();
        for task in tasks {
            assert!(task.await.is_ok_and(|ok| ok));
        }
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_take_the_others_along() {
        let (flights, backend) = setup();
        let start = |flights: Arc<Flights>, backend: Arc<Backend>| async move {
            flights.join(&sealed("a"), move |_| decrypt(backend)).await.outcome.is_ok()
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
        assert_eq!(flights.lock().len(), 1);
        task.abort();
        assert!(task.await.is_err());
        assert!(flights.lock().is_empty());
    }
}
