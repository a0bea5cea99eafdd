//! Which numbers keys may have.

use std::collections::BTreeSet;

use super::writes::Writes;
use super::{Halt, Pass};
use crate::rotate::State;

impl Pass<'_> {
    /// A number stands for one KEK for ever, and what has written once never writes again.
    pub(super) fn check_numbers(&self) -> Result<(), Halt> {
        let Some(state) = &self.kept.state else { return Ok(()) };
        let past = state.history.iter().flat_map(|past| [&past.from, &past.to]);
        let published = state.read_revision.is_some() || state.stage.is_over();
        let current = [Some(&state.from), Some(&state.to).filter(|_| published)];
        let known: Vec<_> = current.into_iter().flatten().chain(past).collect();
        let next = known.iter().map(|turn| turn.id).max().unwrap_or_default() + 1;
        let retired: BTreeSet<&str> =
            self.report.now.retired.iter().map(|one| one.id.as_str()).collect();
        let mut wrong = Vec::new();
        for key in &self.wanted.spec.keys {
            let (id, fingerprint) = (key.id, key.fingerprint());
            if known.iter().any(|turn| turn.id == id.0 && turn.fingerprint != fingerprint) {
                wrong.push(format!("{id} is the number of another key: give it {next} or higher"));
            } else if retired.contains(id.to_string().as_str()) {
                wrong.push(format!("key {id} is retired: give its KEK {next} or higher"));
            }
        }
        let writer = Writes::wanted(&self.wanted).key();
        if let Some(id) = writer.filter(|id| wrote_before(state, id.0)) {
            wrong.push(format!(
                "key {id} has written before: a number that comes back could not be told from \
                 what it was; give its KEK {next} or higher"
            ));
        }
        if wrong.is_empty() { Ok(()) } else { Err(Halt::Refused("InvalidSpec", wrong.join("; "))) }
    }
}

/// Whether a key has written and was then left for another.
pub(super) fn wrote_before(state: &State, id: u64) -> bool {
    let left = |from: u64, promoted: bool| promoted && from == id;
    let now = left(state.from.id, state.stage.is_promoted());
    let past = state.history.iter().any(|past| left(past.from.id, past.state.is_promoted()));
    let writes = state.stage.is_promoted() && state.to.id == id;
    (now || past) && !writes
}
