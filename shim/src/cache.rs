//! The cache of unwrapped keys: off unless an administrator turns it on, bounded, expiring, and
//! wiped when entries go.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use sidekey_core::config::KeyNumber;
use sidekey_core::{Sealed, Secret};
use tokio::time::Instant;

use crate::config::CacheOptions;

/// What was asked of which key: another key is never answered from this one's entries.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    pub(crate) key: KeyNumber,
    pub(crate) sealed: Sealed,
}

/// Unwrapped keys by what was unwrapped.
pub(crate) struct Cache {
    options: CacheOptions,
    state: Mutex<CacheEntries>,
}

#[derive(Default)]
struct CacheEntries {
    entries: HashMap<Arc<CacheKey>, (Secret, Instant)>,
    order: VecDeque<Arc<CacheKey>>,
}

impl Cache {
    pub(crate) fn new(options: CacheOptions) -> Self {
        Self { options, state: Mutex::default() }
    }

    pub(crate) fn find(&self, request: &CacheKey) -> Option<Secret> {
        let mut state = self.state.lock();
        state.drop_oldest(self.options);
        state.entries.get(request).map(|(secret, _)| secret.clone())
    }

    /// Wipes entries as they expire, for as long as it is polled.
    pub(crate) async fn expire(&self) {
        loop {
            let oldest = self.state.lock().drop_oldest(self.options);
            tokio::time::sleep_until(oldest.unwrap_or_else(Instant::now) + self.options.ttl).await;
        }
    }

    pub(crate) fn keep(&self, request: Arc<CacheKey>, secret: Secret) {
        let mut state = self.state.lock();
        if state.entries.insert(request.clone(), (secret, Instant::now())).is_some() {
            state.order.retain(|other| *other != request);
        }
        state.order.push_back(request);
        state.drop_oldest(self.options);
    }
}

impl CacheEntries {
    /// The oldest go first, by number and by age: dropping them wipes them. Tells since when there
    /// is the oldest of the rest.
    fn drop_oldest(&mut self, options: CacheOptions) -> Option<Instant> {
        loop {
            let oldest = self.order.front()?;
            let at = self.entries.get(oldest).map(|(_, at)| *at);
            let fresh = at.filter(|at| at.elapsed() < options.ttl);
            if fresh.is_some() && self.order.len() <= options.entries {
                return fresh;
            }
            self.entries.remove(oldest);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sidekey_core::KeyId;

    use super::*;

    fn asked(key: u64, text: &'static str) -> Arc<CacheKey> {
        let key_id = KeyId::new("k").unwrap_or_else(|_| unreachable!());
        let sealed = Sealed { key_id, ciphertext: text.into(), annotations: Default::default() };
        Arc::new(CacheKey { key: KeyNumber(key), sealed })
    }

    #[tokio::test(start_paused = true)]
    async fn entries_expire_and_the_oldest_make_room() {
        let cache = Cache::new(CacheOptions { entries: 2, ttl: Duration::from_secs(10) });
        for (text, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            cache.keep(asked(1, text), Secret::new(vec![byte]));
        }
        assert_eq!(cache.find(&asked(1, "a")), None);
        assert_eq!(cache.find(&asked(1, "c")), Some(Secret::new(vec![3])));
        assert_eq!(cache.find(&asked(2, "c")), None, "another key must be asked itself");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.find(&asked(1, "c")), None);
        assert_eq!(cache.state.lock().entries.len(), 0, "what expired is wiped");
    }

    #[tokio::test(start_paused = true)]
    async fn expired_entries_are_wiped_also_while_nobody_asks() {
        let second = Duration::from_secs(1);
        let cache = Cache::new(CacheOptions { entries: 9, ttl: 10 * second });
        let left = || cache.state.lock().entries.len();
        let expiring = async |time| tokio::time::timeout(time, cache.expire()).await.unwrap_err();
        cache.keep(asked(1, "a"), Secret::new(vec![1]));
        expiring(4 * second).await;
        cache.keep(asked(1, "b"), Secret::new(vec![2]));
        expiring(5 * second).await;
        assert_eq!(left(), 2);
        expiring(2 * second).await;
        assert_eq!(left(), 1);
        expiring(4 * second).await;
        assert_eq!(left(), 0);
        // One that comes while there is none expires in time as well.
        let later = async {
            tokio::time::sleep(3 * second).await;
            cache.keep(asked(1, "c"), Secret::new(vec![3]));
            tokio::time::sleep(11 * second).await;
            assert_eq!(left(), 0);
        };
        tokio::select! {
            () = cache.expire() => {}
            () = later => {}
        }
    }
}
