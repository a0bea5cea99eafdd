//! Certificates by their files: each set is loaded once, and followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidekey_core::{Error, Watcher};
use tokio::task::JoinHandle;

use crate::tls::{Identity, TlsFiles};

/// Every identity of the shim.
pub(crate) struct Identities {
    watcher: Arc<Watcher>,
    known: BTreeMap<TlsFiles, (Arc<Identity>, JoinHandle<()>)>,
}

impl Identities {
    pub(crate) fn new(watcher: Arc<Watcher>) -> Self {
        Self { watcher, known: BTreeMap::new() }
    }

    /// The one with these files, which must be usable where it is not known yet.
    pub(crate) fn get(&mut self, files: &TlsFiles) -> Result<Arc<Identity>, Error> {
        match self.known.get(files) {
            Some((identity, _)) => Ok(identity.clone()),
            None => Ok(self.follow(files, Identity::load(files.clone())?)),
        }
    }

    /// The one with these files; it serves nobody until they can be used.
    pub(crate) fn get_or_wait(&mut self, files: &TlsFiles) -> Arc<Identity> {
        self.get(files)
            .unwrap_or_else(|error| self.follow(files, Identity::waiting(files.clone(), &error)))
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Identity>> {
        self.known.values().map(|(identity, _)| identity.clone()).collect()
    }

    fn follow(&mut self, files: &TlsFiles, identity: Arc<Identity>) -> Arc<Identity> {
        let task = tokio::spawn(identity.follow(&self.watcher));
        self.known.insert(files.clone(), (identity.clone(), task));
        identity
    }
}
