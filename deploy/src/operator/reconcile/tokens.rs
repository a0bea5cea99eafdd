//! What keys that are not wanted any more log in with.

use super::{Halt, Pass};
use crate::model::{SecretEncryption, kept_tokens, told_tokens};

/// A key that is kept logs in with a token that the document takes away.
const TOKEN_NEEDED: &str = "TokenNeeded";

impl Pass<'_> {
    /// Adds the tokens that keys which are not wanted any more log in with.
    pub(super) fn keep_tokens(&self, document: &mut SecretEncryption) -> Result<(), Halt> {
        let mut known = self.report.now.tokens.clone();
        if known.is_empty() {
            // There is none, or the status that named them is lost.
            known = told_tokens(&document.spec.keys);
        }
        let loaded = document.spec.keys.iter().map(|key| (key.id.0, key.vendor.as_str()));
        let kept = kept_tokens(&self.wanted, loaded, &known);
        document.spec.tokens.extend(kept.map_err(|why| Halt::Refused(TOKEN_NEEDED, why))?);
        Ok(())
    }
}
