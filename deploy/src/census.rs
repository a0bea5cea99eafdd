//! What is stored under which key, counted in etcd itself.
//!
//! For: knowing, not believing, that a key is no longer needed. kube-apiserver can only say what
//! it writes with; what is stored from before is in etcd alone. Refuses: to decrypt anything, to
//! guess at an envelope it does not know, and to let a key go while anything could need it.
//!
//! The one invariant: **yes means that every object was looked at**. What is unknown, unreadable
//! or too much to tell apart turns the answer into "unknown"; so does a place with nothing in it,
//! which is another etcd, or another prefix, than kube-apiserver's.
//!
//! etcd is read page by page at one revision, in memory that does not grow with the number of
//! objects.

mod envelope;
mod pages;
mod record;
mod resource;
mod stanzas;
mod tally;
mod verdict;

use std::time::SystemTime;

use serde::Serialize;

pub use envelope::{DekSource, Kind, Under};
pub use pages::count;
pub use record::Record;
pub use resource::{Resource, Selector};
pub use stanzas::Stanzas;
pub(crate) use tally::Tally;
pub use verdict::{
    APART, Missing, Needs, Question, Sighting, Subject, Verdict, await_missing, may_drop,
};

use crate::etcd::ClusterId;

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--etcd-prefix` of the API servers, without a slash at the end; none is everything in etcd.
    pub prefixes: Vec<String>,
    /// Just these resources; none is all.
    pub resources: Vec<Selector>,
    /// Name the objects that are like this.
    pub list: Option<Wanted>,
    /// At most so many of them.
    pub limit: usize,
}

/// Objects to name.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Under that keyID of ours.
    Key(u64),
    /// Under that provider, or that key of EncryptionConfiguration.
    Name(String),
    /// Under that key_id, by its hash.
    Hash(String),
    /// Not encrypted.
    Clear,
    /// Of which it cannot be told.
    Unknown,
    /// Not under what EncryptionConfiguration writes with.
    Stale(Stanzas),
    /// What the subject of a question is needed for.
    Needing(Question),
}

/// So many objects of a resource that are under the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// As EncryptionConfiguration names it.
    pub resource: String,
    /// What they are under.
    #[serde(flatten)]
    pub under: Under,
    /// How many.
    pub objects: u64,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Census {
    /// The cluster of etcd; snapshots do not say.
    pub cluster: Option<ClusterId>,
    /// The revision that was counted: the last one, if there were several.
    pub revision: i64,
    /// The first one, if etcd compacted it away before all was counted.
    pub first_revision: i64,
    /// When counting began.
    pub started: SystemTime,
    /// When it was done.
    pub finished: SystemTime,
    /// The counts, by resource and key.
    pub rows: Vec<Row>,
    /// The same of older values that a snapshot still holds.
    pub history: Vec<Row>,
    /// Keys that are not Kubernetes'.
    pub other: u64,
    /// Prefixes under which there is nothing at all: no kube-apiserver stores anything there. Of
    /// those that are looked at by default one is enough.
    pub blank: Vec<String>,
    /// The objects that were to be named.
    pub listed: Vec<String>,
    /// How many more of them there are.
    pub unlisted: u64,
}

/// How far counting is.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// There are so many.
    Total(u64),
    /// So many are done.
    Done(u64),
    /// Something that a person should know.
    Note(&'a str),
}

impl Census {
    /// How many objects were counted.
    pub fn objects(&self) -> u64 {
        total(&self.rows)
    }

    /// The counts of all resources together.
    pub fn keys(&self) -> Vec<(Under, u64)> {
        by_key(&self.rows)
    }

    /// Why this count says nothing of what kube-apiserver has stored, if it does not.
    pub fn doubt(&self) -> Option<String> {
        (!self.blank.is_empty()).then(|| blank(&self.blank))
    }

    /// What the subject of a question is still needed for.
    pub fn needs(&self, question: &Question) -> Needs {
        let mut needs = Needs { history: question.count(&self.history).0, ..Needs::default() };
        (needs.objects, needs.undecided) = question.count(&self.rows);
        needs
    }
}

/// That nothing is there, and what to look at.
pub(crate) fn blank(prefixes: &[String]) -> String {
    format!(
        "nothing at all is stored under {}, so nothing can be told: is this the etcd of \
         kube-apiserver (its --etcd-servers), and are its objects there (its --etcd-prefix, which \
         is --prefix here)?",
        prefixes.join(" and ")
    )
}

/// How many objects there are in all.
pub(crate) fn total(rows: &[Row]) -> u64 {
    rows.iter().map(|row| row.objects).sum()
}

/// Rows of all resources together.
pub(crate) fn by_key(rows: &[Row]) -> Vec<(Under, u64)> {
    let mut keys = std::collections::BTreeMap::new();
    for row in rows {
        *keys.entry(row.under.clone()).or_insert(0) += row.objects;
    }
    keys.into_iter().collect()
}
