//! What is in use, found again by what it is made of.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Things that go when nobody uses them any more.
pub(crate) struct Shared<K, V>(Mutex<Vec<(K, Weak<V>)>>);

impl<K: PartialEq, V> Shared<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The one that is made of `key`, if it is in use.
    pub(crate) fn find(&self, key: &K) -> Option<Arc<V>> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.upgrade())
    }

    /// Remembers `value` for as long as it is used.
    pub(crate) fn keep(&self, key: K, value: &Arc<V>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|(known, value)| value.strong_count() > 0 && *known != key);
        table.push((key, Arc::downgrade(value)));
    }
}
