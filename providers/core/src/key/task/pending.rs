//! Changed files and settings, until they are tried on a standby client.

use std::sync::Arc;

use tokio::time::Instant;

use super::{KeyTask, Pending, Reconfigure};
use crate::Error;
use crate::config::{KeySpec, LAST_BACKOFF};
use crate::files::Files;
use crate::provider::backend::Connector;

impl KeyTask {
    /// Reads the files again for a caller who needs what may be in them. What has been refused is
    /// not tried once more for that: callers choose how often they come.
    pub(super) async fn reread(&mut self) -> Result<(), ()> {
        let Ok(files) = self.read() else { return Ok(()) };
        let pending = self.pending.as_ref().and_then(|pending| pending.files.as_ref());
        if self.loaded.iter().chain(pending).any(|known| known.digest() == files.digest()) {
            return Ok(());
        }
        self.pend_files(files);
        self.take_over().await
    }

    pub(super) fn order(&mut self, order: Reconfigure) {
        self.options = order.options;
        self.backoff.limit(self.options.interval.min(LAST_BACKOFF));
        self.standby.1.limit(self.options.interval);
        self.subscription.replace(order.spec.connector.files().clone());
        if !self.key.has_worked() {
            // Nothing depends on what is there: the new settings need not be compared with it.
            self.key.deactivate();
            (self.spec, self.pending) = (order.spec, None);
            (self.encrypted, self.described) = (None, None);
            *self.key.sample.lock() = None;
            self.key.set_decrypt_proves(false);
            self.asked_to_encrypt = false;
            self.key.health.configure(self.times());
            return;
        }
        self.key.health.configure(self.times());
        // Files that are not there yet are tried again with the settings: kubelet brings them at
        // different moments.
        let read = self.subscription.read();
        let files = self.complete_for(&order.spec.connector.clone(), read).ok();
        self.pend(Some(order.spec), files);
    }

    /// Reads the files, and those that they name.
    pub(super) fn read(&mut self) -> Result<Files, Error> {
        let read = self.subscription.read();
        self.complete(read)
    }

    /// Adds the files that the content of others names, in the configuration to come if there is
    /// one.
    pub(super) fn complete(&mut self, read: Result<Files, Error>) -> Result<Files, Error> {
        let spec = self.pending.as_ref().and_then(|pending| pending.spec.as_ref());
        let connector = spec.unwrap_or(&self.spec).connector.clone();
        self.complete_for(&connector, read)
    }

    fn complete_for(
        &mut self,
        connector: &Arc<dyn Connector>,
        mut read: Result<Files, Error>,
    ) -> Result<Files, Error> {
        // A file that names another one, which names a third, is more than anybody has.
        for _ in 0..2 {
            let wanted = match &read {
                Ok(files) => connector.all_files(files),
                // A file that is named no more must not keep the others from being read.
                Err(_) => match Files::read(connector.files().iter().map(|path| path.as_path())) {
                    Ok(files) => connector.all_files(&files),
                    Err(_) => break,
                },
            };
            if wanted == *self.subscription.paths() {
                break;
            }
            self.subscription.replace(wanted);
            read = self.subscription.read();
        }
        read
    }

    /// Has changed files tried at once, with settings that are waiting already.
    pub(super) fn pend_files(&mut self, files: Files) {
        let spec = self.pending.take().and_then(|pending| pending.spec);
        self.pend(spec, Some(files));
    }

    fn pend(&mut self, spec: Option<KeySpec>, files: Option<Files>) {
        self.pending = Some(Pending { spec, files });
        self.standby.0 = Instant::now();
        self.standby.1.reset();
    }
}
