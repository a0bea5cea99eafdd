//! Which numbers keys may have.

use std::collections::BTreeSet;

use sidekey_core::NO_FINGERPRINT;

use super::writes::Writes;
use super::{Halt, Pass};
use crate::model::{KeyNumber, SecretEncryption};
use crate::operator::status::{Retired, Status};
use crate::rotate::{HISTORY, Past, State};

impl Pass<'_> {
    /// A number stands for one KEK for ever, and what has written once never writes again.
    pub(super) fn check_numbers(&self) -> Result<(), Halt> {
        let wrong = wrong(&self.wanted, self.kept.state.as_ref(), &self.report.now);
        if wrong.is_empty() { Ok(()) } else { Err(Halt::Refused("InvalidSpec", wrong.join("; "))) }
    }
}

/// Everything that is wrong with the numbers of a document.
pub(super) fn wrong(
    wanted: &SecretEncryption,
    state: Option<&State>,
    status: &Status,
) -> Vec<String> {
    let known = known(state, status);
    let next = known.iter().map(|(id, _)| *id).max().unwrap_or_default() + 1;
    let writer = Writes::wanted(wanted).key();
    let mut wrong = Vec::new();
    for key in &wanted.spec.keys {
        let (id, fingerprint) = (key.id, key.fingerprint());
        let retired = status.retired.iter().any(|one| number(one) == Some(id.0));
        let other = |other: &str| !other.is_empty() && other != fingerprint;
        if known.iter().any(|(known, of)| *known == id.0 && other(of)) {
            wrong.push(format!("{id} is the number of another key: give it {next} or higher"));
        } else if retired && writer == Some(id) {
            wrong.push(format!(
                "key {id} is retired: it may come back with role read, for what a backup brought \
                 back; to write, give its KEK {next} or higher"
            ));
        }
    }
    if let Some(id) = writer.filter(|id| wrote_before(state, &status.history, id.0)) {
        wrong.push(format!(
            "key {id} has written before: a number that comes back could not be told from what it \
             was; give its KEK {next} or higher"
        ));
    }
    wrong
}

/// Keys that were retired and are wanted again: what a backup has brought back may need them.
pub(super) fn returning(wanted: &SecretEncryption, status: &Status) -> BTreeSet<KeyNumber> {
    let numbers = status.retired.iter().filter_map(number).map(KeyNumber);
    numbers.filter(|id| wanted.key(*id).is_some()).collect()
}

/// Every number that stands for a KEK, with its fingerprint; empty if that is not known. The record
/// of rotations may be lost, and the status says most of it too.
fn known<'a>(state: Option<&'a State>, status: &'a Status) -> Vec<(u64, &'a str)> {
    let mut known = Vec::new();
    if let Some(state) = state {
        let past = state.history.iter().flat_map(|past| [&past.from, &past.to]);
        let published = state.read_revision.is_some() || state.stage.is_over();
        let current = [Some(&state.from), Some(&state.to).filter(|_| published)];
        let turns = current.into_iter().flatten().chain(past);
        known.extend(turns.map(|turn| (turn.id, turn.fingerprint.as_str())));
    }
    let past = status.history.iter().flat_map(|past| [&past.from, &past.to]);
    let turns = past.chain(&status.active_key);
    let turns = turns.map(|turn| (turn.id, turn.fingerprint.as_str()));
    let keys = status.keys.iter().map(|key| (key.id, key.fingerprint.as_str()));
    let retired = status.retired.iter();
    let retired = retired.filter_map(|one| Some((number(one)?, one.fingerprint.as_str())));
    // A plugin of others may get its fingerprint later.
    let said = |fingerprint| if fingerprint == NO_FINGERPRINT { "" } else { fingerprint };
    known.extend(turns.chain(keys).chain(retired).map(|(id, text)| (id, said(text))));
    // 0 stands for what has no number.
    known.retain(|(id, _)| *id != 0);
    known
}

/// The number of a key that was retired; none for a name, which may look like one.
pub(super) fn number(retired: &Retired) -> Option<u64> {
    retired.id.parse().ok().filter(|_| !retired.fingerprint.is_empty())
}

/// Whether a key has written and was then left for another, as far as the record of rotations or
/// the history of the status says.
pub(super) fn wrote_before(state: Option<&State>, history: &[Past], id: u64) -> bool {
    let left = |from: u64, promoted: bool| promoted && from == id;
    let now = state.is_some_and(|state| left(state.from.id, state.stage.is_promoted()));
    let recorded = state.into_iter().flat_map(|state| &state.history);
    let mut past = recorded.chain(history);
    let past = past.any(|past| left(past.from.id, past.state.is_promoted()));
    let writes = state.is_some_and(|state| state.stage.is_promoted() && state.to.id == id);
    (now || past) && !writes
}

/// Rotations that are over, the newest first; also those that only the status knows of.
pub(super) fn history(state: Option<&State>, status: &[Past]) -> Vec<Past> {
    let mut all: Vec<Past> = Vec::new();
    if let Some(state) = state {
        all.extend(state.past().into_iter().chain(state.history.clone()));
    }
    let same =
        |one: &Past, other: &Past| one.started_time == other.started_time && one.to == other.to;
    let lost: Vec<Past> =
        status.iter().filter(|past| !all.iter().any(|one| same(one, past))).cloned().collect();
    all.extend(lost);
    all.truncate(HISTORY);
    all
}
