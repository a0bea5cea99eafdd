//! What a status that was lost said, read off what is published.

use super::outlook::loaded;
use super::report::Report;
use super::{Halt, Pass};
use crate::Error;
use crate::model::{Key, SecretEncryption, kept_tokens, told_tokens};
use crate::publish::Live;

/// A key that is kept logs in with a token that the document takes away.
const TOKEN_NEEDED: &str = "TokenNeeded";

/// Says again what is published, where the status does not: the webhook goes by it, whatever
/// becomes of this pass.
pub(super) fn recall(
    report: &mut Report,
    live: &Live,
    wanted: &SecretEncryption,
) -> Result<(), Error> {
    let Some(revision) = live.revision().filter(|_| report.now.revision.is_none()) else {
        return Ok(());
    };
    let keys = live.keys()?;
    report.now.revision = Some(revision);
    // Whether one had left the spec before is not known: then it keeps the files that it has.
    report.now.keys = keys.iter().map(|key| loaded(key, false)).collect();
    report.now.tokens = told_tokens(unnamed(&keys, wanted));
    Ok(())
}

/// The keys that a document does not name.
fn unnamed<'a>(keys: &'a [Key], wanted: &'a SecretEncryption) -> impl Iterator<Item = &'a Key> {
    keys.iter().filter(|key| wanted.key(key.id).is_none())
}

impl Pass<'_> {
    /// Adds the tokens that keys which are not wanted any more log in with.
    pub(super) fn keep_tokens(&self, document: &mut SecretEncryption) -> Result<(), Halt> {
        let mut known = self.report.now.tokens.clone();
        if known.is_empty() {
            // There is none, or the status that named them is lost.
            known = told_tokens(unnamed(&document.spec.keys, &self.wanted));
        }
        let loaded = document.spec.keys.iter().map(|key| (key.id.0, key.vendor.as_str()));
        let kept = kept_tokens(&self.wanted, loaded, &known);
        document.spec.tokens.extend(kept.map_err(|why| Halt::Refused(TOKEN_NEEDED, why))?);
        Ok(())
    }
}
