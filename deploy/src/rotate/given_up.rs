//! What becomes of the key of a rotation that is given up: one rule, for the CLI and the operator.
//!
//! The rotation itself has never let it write. But a key may have been there before, or somebody
//! may have published it beside the rotation, and then nobody but a census knows what is stored
//! under it. Only a key of which it is certain that nothing is goes with its rotation.

use super::State;
use crate::Error;
use crate::model::{KeyNumber, names};
use crate::publish::Live;

impl State {
    /// Writes down, before anything of the rotation is published, whether its key is there already.
    pub(crate) fn note_published(&mut self, live: &Live) -> Result<(), Error> {
        self.published_before = live.view()?.keys.contains_key(&KeyNumber(self.to.id));
        Ok(())
    }

    /// Refuses where the key that was to write does so already: somebody has published it so, beside
    /// the rotation. Behind the shim some key always has that role, also while kube-apiserver writes
    /// in clear, with a cipher of its own, or under a name that is adopted.
    pub(crate) fn refuse_if_it_writes(&self, live: &Live) -> Result<(), Error> {
        let (view, key) = (live.view()?, KeyNumber(self.to.id));
        let ours = view.writing_plugins().is_none_or(|mut plugins| plugins.any(names::is_ours));
        if view.writer() != Some(key) || !ours {
            return Ok(());
        }
        let text = format!("key {key} writes, though the rotation has not come to that yet");
        Err(Error::refused(text).hint(format!(
            "somebody published it so: data is under it. Go on with the rotation (the same command \
             without --abort, or a SecretEncryption in which key {key} writes), then rotate to a new \
             number to leave key {key} again"
        )))
    }

    /// Why something may be stored under the key that was to write; none: it is certain that
    /// nothing is.
    pub(crate) fn may_hold_data(&self, live: &Live) -> Result<Option<String>, Error> {
        let (view, id) = (live.view()?, KeyNumber(self.to.id));
        if self.published_before {
            return Ok(Some("it was published before the rotation began".to_owned()));
        }
        if view.reads_legacy(id) {
            return Ok(Some("data from before the shim is read with it".to_owned()));
        }
        let written = view.writing_plugins().is_none_or(|mut plugins| plugins.next().is_some());
        if written && view.writer() == Some(id) {
            return Ok(Some(
                "kube-apiserver writes with it, under a name that is adopted".to_owned(),
            ));
        }
        // It may have been published as the writer in between, also where the heads of now were
        // brought back from a backup.
        let (now, ours) = (live.highest(), self.read_revision.unwrap_or_default());
        if view.keys.contains_key(&id) && now != ours {
            let ours = match ours {
                0 => "none".to_owned(),
                ours => ours.to_string(),
            };
            let text = format!("revision {now} was published, and the rotation's own is {ours}");
            return Ok(Some(text));
        }
        Ok(None)
    }
}
