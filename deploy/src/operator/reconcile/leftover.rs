//! What a rotation that was given up, or the last key, has left behind.
//!
//! A revision is written before the heads are turned to it. Whoever is stopped in between leaves one
//! that nobody reads, and whatever it holds counts as published: nothing may be published without
//! it. What was to be rotated in, came into no head and was never promoted has encrypted nothing,
//! so it may go with it.

use std::collections::BTreeSet;

use super::writes::Writes;
use super::{Halt, Pass};
use crate::Error;
use crate::model::{KeyNumber, SecretEncryption};
use crate::operator::status::Status;
use crate::publish::{self, Live, Options, View};
use crate::render::Rendered;
use crate::render::encryption::Provider;
use crate::rotate::{Stage, State, Turn};

impl Pass<'_> {
    /// What publishing may do: let go what is named, and what was left behind.
    pub(super) fn allowed(
        &self,
        document: &SecretEncryption,
        rendered: &Rendered,
        drop: BTreeSet<String>,
    ) -> Result<Options, Halt> {
        let left = self.left_behind(document)?;
        let mut options = Options { drop, anew: !left.is_empty(), ..Options::default() };
        options.drop.extend(left);
        if options.anew {
            // What stands in the way of a new revision besides is told when one is needed.
            options.anew = publish::verify(&self.live, rendered, &options).is_ok();
        }
        Ok(options)
    }

    /// What a rotation that was given up has left in the newest revision alone.
    pub(super) fn left_behind(
        &self,
        document: &SecretEncryption,
    ) -> Result<BTreeSet<String>, Halt> {
        let state = self.kept.state.as_ref();
        Ok(left_behind(&self.live, state, &self.report.now, document)?)
    }
}

/// What only the newest revision has, of rotations that never came to promotion: as whoever allows
/// it to go calls it.
pub(super) fn left_behind(
    live: &Live,
    state: Option<&State>,
    status: &Status,
    document: &SecretEncryption,
) -> Result<BTreeSet<String>, Error> {
    let Some(state) = state else { return Ok(BTreeSet::new()) };
    let given_up = state.history.iter().filter(|past| past.state == Stage::Interrupted);
    let turns = [&state.to].into_iter().chain(given_up.map(|past| &past.to));
    let turns = turns.filter(|turn| !may_have_written(turn, state, status));
    let views = live.views()?;
    let Some((heads, newest)) = views.split_first() else { return Ok(BTreeSet::new()) };
    let mut left = BTreeSet::new();
    for turn in turns {
        let name = match Writes::of_turn(turn) {
            Writes::Key(id) if document.key(id).is_none() => id.to_string(),
            Writes::Name(name) if document.spec.ciphers.iter().all(|one| one.name != name) => name,
            _ => continue,
        };
        let only = |view: &View| has(view, turn, &name) && !has(heads, turn, &name);
        if newest.iter().any(|view| only(view) && !view.reads_legacy(KeyNumber(turn.id))) {
            left.insert(name);
        }
    }
    Ok(left)
}

/// Retired keys that heads have still, because pods mount them: kube-apiserver's file names no
/// plugin any more, so nobody asks for them.
pub(super) fn idle(
    live: &Live,
    status: &Status,
    wanted: &SecretEncryption,
) -> Result<BTreeSet<String>, Error> {
    let view = live.view()?;
    let providers = view.stanzas.iter().flatten().flat_map(|stanza| &stanza.providers);
    let asks = |provider: &Provider| matches!(provider, Provider::Kms { .. });
    if view.stanzas.is_none() || providers.clone().any(asks) {
        return Ok(BTreeSet::new());
    }
    let retired = |id: KeyNumber, fingerprint: &str| {
        let mut all = status.retired.iter();
        all.any(|one| one.id == id.to_string() && one.fingerprint == fingerprint)
    };
    let idle = view.keys.iter().filter(|(id, key)| retired(**id, &key.fingerprint));
    let idle = idle.filter(|(id, _)| wanted.key(**id).is_none());
    Ok(idle.map(|(id, _)| id.to_string()).collect())
}

/// Whether what was to write may have been used before, as far as anything was written down.
fn may_have_written(to: &Turn, state: &State, status: &Status) -> bool {
    let same = |turn: &Turn| match to.id {
        0 => turn.id == 0 && turn.fingerprint == to.fingerprint,
        id => turn.id == id,
    };
    let mut past = state.history.iter().chain(&status.history);
    let name = if to.id == 0 { to.fingerprint.clone() } else { to.id.to_string() };
    (same(&state.to) && (state.stage.is_promoted() || state.published_before))
        || same(&state.from)
        || past.any(|past| same(&past.from) || (past.state.is_promoted() && same(&past.to)))
        || status.active_key.as_ref().is_some_and(same)
        || status.retired.iter().any(|one| one.id == name)
}

/// Whether a view has it, to read with or to write with.
fn has(view: &View, turn: &Turn, name: &str) -> bool {
    match Writes::of_turn(turn) {
        Writes::Key(id) => view.keys.contains_key(&id),
        _ => {
            let stanzas = view.stanzas.iter().flatten();
            let mut labels = stanzas.flat_map(|one| &one.providers).flat_map(|one| one.labels());
            labels.any(|label| label.rsplit('/').next() == Some(name))
        }
    }
}
