//! The cache of unwrapped keys: off unless an administrator turns it on, bounded, expiring, and
//! wiped when entries go.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sidekey_core::{Sealed, Secret};
use tokio::time::Instant;

use crate::config::CacheOptions;

/// Unwrapped keys by what was unwrapped.
pub(crate) struct Cache {
    options: CacheOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<Sealed>, (Secret, Instant)>,
    order: VecDeque<Arc<Sealed>>,
}

impl Cache {
    pub(crate) fn new(options: CacheOptions) -> Self {
        Self { options, state: Mutex::default() }
    }

    pub(crate) fn find(&self, sealed: &Sealed) -> Option<Secret> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (secret, at) = state.entries.get(sealed)?;
        (at.elapsed() < self.options.ttl).then(|| secret.clone())
    }

    pub(crate) fn keep(&self, sealed: Arc<Sealed>, secret: Secret) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.entries.insert(sealed.clone(), (secret, Instant::now())).is_some() {
            state.order.retain(|other| *other != sealed);
        }
        state.order.push_back(sealed);
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

    fn sealed(text: &'static str) -> Arc<Sealed> {
        let key_id = KeyId::new("k").unwrap_or_else(|_| unreachable!());
        Arc::new(Sealed { key_id, ciphertext: text.into(), annotations: Default::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn entries_expire_and_the_oldest_make_room() {
        let cache = Cache::new(CacheOptions { entries: 2, ttl: Duration::from_secs(10) });
        for (text, byte) in [("a", 1), ("b", 2), ("c", 3)] {
            cache.keep(sealed(text), Secret::new(vec![byte]));
        }
        assert_eq!(cache.find(&sealed("a")), None);
        assert_eq!(cache.find(&sealed("c")), Some(Secret::new(vec![3])));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.find(&sealed("c")), None);
    }
}
