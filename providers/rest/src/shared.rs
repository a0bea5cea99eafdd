//! What is in use, found again by what it is made of: keys with equal settings and credentials
//! share one client, with its connections and its session.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sidekey_core::{Files, sha256};

/// Things that go when nobody uses them any more.
pub struct Shared<K, V>(Mutex<Vec<(K, Weak<V>)>>);

impl<K: PartialEq, V> Shared<K, V> {
    /// None yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The one that is made of `key`, if it is in use.
    pub fn find(&self, key: &K) -> Option<Arc<V>> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.upgrade())
    }

    /// The one that is made of `key`; it is made if none is in use, once for all who ask at a time.
    pub fn get<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|(_, value)| value.strong_count() > 0);
        let known = table.iter().find(|(known, _)| *known == key);
        if let Some(value) = known.and_then(|(_, value)| value.upgrade()) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        table.push((key, Arc::downgrade(&value)));
        Ok(value)
    }

    /// Remembers `value` for as long as it is used.
    pub fn keep(&self, key: K, value: &Arc<V>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|(known, value)| value.strong_count() > 0 && *known != key);
        table.push((key, Arc::downgrade(value)));
    }
}

/// What a client, or a login, is made of: settings, and the very contents of files.
pub fn fingerprint(settings: &str, paths: &[PathBuf], files: &Files) -> [u8; 32] {
    let mut text = settings.to_owned();
    for path in paths {
        let content = files.secret(path).map(|content| sha256(content.expose()));
        text.push_str(&format!("\n{path:?} {:?}", content.ok()));
    }
    sha256(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_found_and_what_is_not_is_gone() {
        let (shared, value) = (Shared::new(), Arc::new(7));
        shared.keep("a", &value);
        assert!(shared.find(&"a").is_some_and(|found| Arc::ptr_eq(&found, &value)));
        assert!(shared.find(&"b").is_none());
        let again = shared.get("a", || Err("it is there")).unwrap();
        assert!(Arc::ptr_eq(&again, &value));
        drop((value, again));
        assert!(shared.find(&"a").is_none());
        assert_eq!(shared.get("a", || Err("no")), Err("no"));
        assert_eq!(shared.get("a", || Ok::<_, ()>(8)).as_deref(), Ok(&8));
    }

    #[test]
    fn other_settings_and_other_contents_make_another_fingerprint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let of = |settings: &str, text: &str| {
            std::fs::write(&path, text).unwrap();
            let files = Files::read([path.as_path()]).unwrap();
            fingerprint(settings, std::slice::from_ref(&path), &files)
        };
        assert_eq!(of("a", "1"), of("a", "1"));
        assert_ne!(of("a", "1"), of("a", "2"));
        assert_ne!(of("a", "1"), of("b", "1"));
    }
}
