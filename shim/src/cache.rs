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
        let state = self.state.lock();
        let (secret, at) = state.entries.get(request)?;
        (at.elapsed() < self.options.ttl).then(|| secret.clone())
    }

    pub(crate) fn keep(&self, request: Arc<CacheKey>, secret: Secret) {
        let mut state = self.state.lock();
        if state.entries.insert(request.clone(), (secret, Instant::now())).is_some() {
            state.order.retain(|other| *other != request);
        }
        state.order.push_back(request);
        // The oldest go first, by number and by age: dropping them wipes them.
        while let Some(oldest) = state.order.front().cloned() {
            let stale =
                state.entries.get(&oldest).is_none_or(|(_, at)| at.elapsed() >= self.options.ttl);
            if !stale && state.order.len() <= self.options.entries {
                break;
            }
            state.order.pop_front();
            state.entries.remove(&oldest);
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
    }
}
