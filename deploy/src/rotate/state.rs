//! How far a rotation has come: what is written down between two steps, so that any of them can
//! be interrupted and taken up again.

use serde::{Deserialize, Serialize};

use crate::Error;

/// Past rotations that are remembered.
pub(crate) const HISTORY: usize = 5;

/// Where a rotation stands, in HyperShift's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// The new key is being proven; nothing has been changed.
    Preflight,
    /// Every replica learns to read with the new key; none writes with it.
    ReadOnlyDeploy,
    /// It is decided: the new key writes. From here there is no way back but another rotation.
    WritePromote,
    /// What is stored is rewritten under the new key.
    Migrating,
    /// Everything is under the new key; the old one still reads.
    Completed,
    /// Given up before the new key ever wrote.
    Interrupted,
}

/// One of the two keys of a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Its number.
    pub id: u64,
    /// Its vendor.
    pub vendor: String,
    /// Of its KEK.
    pub fingerprint: String,
}

/// The rotation under way, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The key that wrote.
    pub from: Turn,
    /// The key that is to write.
    pub to: Turn,
    /// How far it is.
    pub stage: Stage,
    /// When it began.
    pub started_time: String,
    /// When the stage last changed.
    pub updated_time: String,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// What the new key must be able to read, made by its preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<serde_json::Value>,
    /// The new key was published before the rotation began: it may be needed, whatever becomes of
    /// the rotation. So it is where nobody wrote down that it was not.
    #[serde(default = "unknown")]
    pub published_before: bool,
    /// The revision with the new key as reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_revision: Option<u64>,
    /// The revision with the new key as writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_revision: Option<u64>,
    /// Earlier ones, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Past>,
}

/// A rotation that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Past {
    /// The key that wrote before.
    pub from: Turn,
    /// The key that was to write.
    pub to: Turn,
    /// How it ended.
    pub state: Stage,
    /// When it began.
    pub started_time: String,
    /// When it ended.
    pub completion_time: String,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Prove the new key.
    Preflight,
    /// Publish it as a reader.
    PublishRead,
    /// Wait until every shim reads with it.
    AwaitReaders,
    /// Publish it as the writer.
    PublishWrite,
    /// Wait until every shim writes with it and every kube-apiserver announces it.
    AwaitWriters,
    /// Rewrite what is stored.
    Migrate,
    /// Nothing.
    Nothing,
}

/// What nobody wrote down is taken for published.
fn unknown() -> bool {
    true
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [
        Self::Preflight,
        Self::ReadOnlyDeploy,
        Self::WritePromote,
        Self::Migrating,
        Self::Completed,
        Self::Interrupted,
    ];

    /// Whether the rotation is over.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Interrupted)
    }

    /// Whether the new key may have written: then it can only be left by another rotation.
    pub fn is_promoted(self) -> bool {
        matches!(self, Self::WritePromote | Self::Migrating | Self::Completed)
    }

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Self::Preflight => "Preflight",
            Self::ReadOnlyDeploy => "ReadOnlyDeploy",
            Self::WritePromote => "WritePromote",
            Self::Migrating => "Migrating",
            Self::Completed => "Completed",
            Self::Interrupted => "Interrupted",
        }
    }
}

impl State {
    /// A rotation that begins now; what was before it becomes history.
    pub fn begin(from: Turn, to: Turn, now: &str, before: Option<Self>) -> Self {
        let mut history = Vec::new();
        if let Some(mut before) = before {
            history.extend(before.past());
            history.append(&mut before.history);
            history.truncate(HISTORY);
        }
        Self {
            from,
            to,
            stage: Stage::Preflight,
            started_time: now.to_owned(),
            updated_time: now.to_owned(),
            completion_time: None,
            canary: None,
            published_before: false,
            read_revision: None,
            write_revision: None,
            history,
        }
    }

    /// What comes next.
    pub fn next(&self) -> Step {
        match self.stage {
            Stage::Preflight => Step::Preflight,
            Stage::ReadOnlyDeploy if self.read_revision.is_none() => Step::PublishRead,
            Stage::ReadOnlyDeploy => Step::AwaitReaders,
            Stage::WritePromote if self.write_revision.is_none() => Step::PublishWrite,
            Stage::WritePromote => Step::AwaitWriters,
            Stage::Migrating => Step::Migrate,
            Stage::Completed | Stage::Interrupted => Step::Nothing,
        }
    }

    /// The step is done: what is to be written down before anything else happens.
    #[must_use]
    pub fn after(&self, step: Step, now: &str) -> Self {
        let mut next = self.clone();
        next.stage = match step {
            Step::Preflight => Stage::ReadOnlyDeploy,
            Step::AwaitReaders => Stage::WritePromote,
            Step::AwaitWriters => Stage::Migrating,
            Step::Migrate => Stage::Completed,
            Step::PublishRead | Step::PublishWrite | Step::Nothing => self.stage,
        };
        next.updated_time = now.to_owned();
        if next.stage.is_over() && next.completion_time.is_none() {
            next.completion_time = Some(now.to_owned());
        }
        next
    }

    /// Gives it up, as long as the new key has never been promoted.
    pub fn abort(&self, now: &str) -> Result<Self, Error> {
        let (from, to) = (self.from.id, self.to.id);
        if self.stage.is_over() {
            let stage = self.stage.label();
            return Err(Error::refused(format!("the rotation to key {to} is over: {stage}")));
        }
        if self.stage.is_promoted() {
            return Err(Error::refused(format!(
                "key {to} was promoted: it may have written, so it cannot be taken out"
            ))
            .hint(format!(
                "let it finish (`sidekey rotate`), then rotate to a new number with key {from}'s KEK"
            )));
        }
        let mut next = self.clone();
        next.stage = Stage::Interrupted;
        next.updated_time = now.to_owned();
        next.completion_time = Some(now.to_owned());
        Ok(next)
    }

    /// What it will be remembered as, once it is over.
    pub fn past(&self) -> Option<Past> {
        Some(Past {
            from: self.from.clone(),
            to: self.to.clone(),
            state: self.stage,
            started_time: self.started_time.clone(),
            completion_time: self.completion_time.clone()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_is_killed_in_every_state_by_an_end_to_end_test() {
        let test = include_str!("../../../e2e/tests/node/managed/operator_states.rs");
        for stage in Stage::ALL {
            let met = format!("Stage::{}", stage.label());
            assert!(test.contains(&met), "operator_states.rs never brings it to {met}");
        }
    }

    fn turn(id: u64) -> Turn {
        Turn { id, vendor: "local".into(), fingerprint: format!("{id:08x}") }
    }

    /// Does each step in turn, with what the step itself learns.
    fn advance(state: &State) -> State {
        let mut state = state.clone();
        let step = state.next();
        match step {
            Step::PublishRead => state.read_revision = Some(8),
            Step::PublishWrite => state.write_revision = Some(9),
            _ => {}
        }
        state.after(step, "later")
    }

    #[test]
    fn a_rotation_passes_every_stage_in_order_and_ends() {
        let mut state = State::begin(turn(1), turn(2), "now", None);
        let mut stages = vec![state.stage];
        while state.next() != Step::Nothing {
            state = advance(&state);
            if stages.last() != Some(&state.stage) {
                stages.push(state.stage);
            }
        }
        assert_eq!(stages, Stage::ALL[..5]);
        assert_eq!(state.completion_time.as_deref(), Some("later"));
    }

    #[test]
    fn promotion_is_written_down_before_it_is_published() {
        let mut state = State::begin(turn(1), turn(2), "now", None);
        while state.next() != Step::PublishWrite {
            assert!(!state.stage.is_promoted(), "{state:?}");
            state = advance(&state);
        }
        assert!(state.stage.is_promoted());
        assert_eq!(state.write_revision, None);
    }

    #[test]
    fn it_can_be_given_up_until_promotion_and_not_after() {
        let mut state = State::begin(turn(1), turn(2), "now", None);
        while state.next() != Step::Nothing {
            let aborted = state.abort("then");
            assert_eq!(aborted.is_ok(), !state.stage.is_promoted(), "{:?}", state.stage);
            state = advance(&state);
        }
        assert!(state.abort("then").is_err());
    }

    #[test]
    fn every_state_survives_being_written_down() {
        let mut state = State::begin(turn(1), turn(2), "now", None);
        loop {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
            if state.next() == Step::Nothing {
                break;
            }
            state = advance(&state);
        }
    }

    #[test]
    fn history_keeps_the_newest_five() {
        let mut state = None;
        for id in 1..9 {
            let mut next = State::begin(turn(id), turn(id + 1), "now", state);
            while next.next() != Step::Nothing {
                next = advance(&next);
            }
            state = Some(next);
        }
        let history: Vec<u64> = state.unwrap().history.iter().map(|past| past.to.id).collect();
        assert_eq!(history, [8, 7, 6, 5, 4]);
    }
}
