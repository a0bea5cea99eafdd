//! Certificates by their files: each set is loaded once, and followed while somebody uses it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use sidekey_core::{Error, Watcher};

use crate::tls::{Identity, TlsFiles};

/// Every identity of the shim.
pub(crate) struct Identities {
    watcher: Arc<Watcher>,
    known: BTreeMap<TlsFiles, Weak<Identity>>,
}

impl Identities {
    pub(crate) fn new(watcher: Arc<Watcher>) -> Self {
        Self { watcher, known: BTreeMap::new() }
    }

    /// The one with these files, which must be usable where it is not in use yet.
    pub(crate) fn get(&mut self, files: &TlsFiles) -> Result<Arc<Identity>, Error> {
        match self.known.get(files).and_then(Weak::upgrade) {
            Some(identity) => Ok(identity),
            None => Ok(self.follow(files, Identity::load(files.clone())?)),
        }
    }

    /// The one with these files; it serves nobody until they can be used.
    pub(crate) fn get_or_wait(&mut self, files: &TlsFiles) -> Arc<Identity> {
        self.get(files)
            .unwrap_or_else(|error| self.follow(files, Identity::waiting(files.clone(), &error)))
    }

    /// All of them, as long as they are in use.
    pub(crate) fn all(&mut self) -> Vec<Weak<Identity>> {
        self.known.retain(|_, identity| identity.strong_count() > 0);
        self.known.values().cloned().collect()
    }

    fn follow(&mut self, files: &TlsFiles, identity: Arc<Identity>) -> Arc<Identity> {
        tokio::spawn(identity.follow(&self.watcher));
        self.known.insert(files.clone(), Arc::downgrade(&identity));
        identity
    }
}
