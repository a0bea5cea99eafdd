//! What becomes of the key of a rotation that is given up: one rule, for the CLI and the operator.
//!
//! The rotation itself has never let it write. But a key may have been there before, or somebody
//! may have published it beside the rotation, and then nobody but a census knows what is stored
//! under it. Only a key of which it is certain that nothing is goes with its rotation.

use super::State;
use crate::Error;
use crate::model::KeyNumber;
use crate::publish::Live;

impl State {
    /// Writes down, before anything of the rotation is published, whether its key is there already.
    pub(crate) fn note_published(&mut self, live: &Live) -> Result<(), Error> {
        self.published_before = live.view()?.keys.contains_key(&KeyNumber(self.to.id));
        Ok(())
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
        // It may have been published as the writer in between.
        let (now, ours) = (live.revision(), self.read_revision);
        if view.keys.contains_key(&id) && now != ours {
            let shown = |revision: Option<u64>| {
                revision.map_or_else(|| "none".to_owned(), |revision| revision.to_string())
            };
            let (now, ours) = (shown(now), shown(ours));
            let text = format!("revision {now} is published, and the rotation's own is {ours}");
            return Ok(Some(text));
        }
        Ok(None)
    }
}
