//! What has been done, what has not, and why.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::resources::Skipped;
use super::rewrite::Fate;

/// How many objects that could not be rewritten are named, for each resource.
pub const NAMED_FAILURES: usize = 1000;

/// The whole run.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The write key that it was for, if that is known.
    pub target: Option<String>,
    /// Each resource.
    pub resources: Vec<ResourceOutcome>,
    /// What was named but has not been rewritten at all.
    pub skipped: Vec<Skipped>,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Where it can be taken up again.
    pub checkpoint: Option<PathBuf>,
    /// How long this run took.
    pub seconds: f64,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOutcome {
    /// As EncryptionConfiguration names it.
    pub resource: String,
    /// How far it is.
    pub state: State,
    /// What became of its objects, in this run and in those that it goes on from.
    #[serde(flatten)]
    pub counts: Counts,
    /// Objects that could not be rewritten, at most [`NAMED_FAILURES`].
    pub failures: Vec<Failure>,
    /// Why the resource as a whole could not be finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a resource is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Not begun.
    #[default]
    Pending,
    /// Begun.
    Partial,
    /// Every object has been seen to; some may have failed.
    Done,
    /// It was only counted.
    Counted,
}

/// What became of the objects of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// All that were seen to.
    pub objects: u64,
    /// Written again.
    pub rewritten: u64,
    /// Under the write key already.
    pub unchanged: u64,
    /// Gone by the time.
    pub deleted: u64,
    /// Not written.
    pub failed: u64,
}

/// An object that could not be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// `namespace/name`, or the name alone.
    pub object: String,
    /// Why.
    pub reason: String,
}

impl Counts {
    pub(super) fn add(&mut self, fate: &Fate) {
        self.objects += 1;
        let one = match fate {
            Fate::Rewritten => &mut self.rewritten,
            Fate::Unchanged => &mut self.unchanged,
            Fate::Deleted => &mut self.deleted,
            Fate::Failed(_) => &mut self.failed,
        };
        *one += 1;
    }
}

impl ResourceOutcome {
    /// Whether nothing is left that had to be rewritten.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done && self.counts.failed == 0 && self.reason.is_none()
    }
}

impl Outcome {
    /// Whether nothing is left that had to be rewritten.
    pub fn is_complete(&self) -> bool {
        !self.interrupted
            && self.resources.iter().all(ResourceOutcome::is_complete)
            && !self.skipped.iter().any(|skipped| skipped.matters)
    }

    /// Whether, as far as it was only counted, nothing speaks against it.
    pub fn could_begin(&self) -> bool {
        self.resources.iter().all(|resource| resource.reason.is_none())
            && !self.skipped.iter().any(|skipped| skipped.matters)
    }
}
