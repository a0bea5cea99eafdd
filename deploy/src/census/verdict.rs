//! Whether a key may go.
//!
//! One count of zero is not enough. A kube-apiserver may write with an old key for three minutes
//! after it was told of a new one, so a second count must come later than that. And a watch of
//! deletions reads the values of before, as long as etcd keeps them, so etcd must have compacted
//! past the first count in between.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::envelope::{Kind, Under};
use super::{Census, Options, Row, Step, Wanted, count};
use crate::Error;
use crate::etcd::Etcd;

/// How far apart two counts must be: for so long kube-apiserver writes without its KMS.
pub const APART: Duration = Duration::from_secs(180);
/// Between two looks at whether etcd has compacted.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Objects that are named as examples.
const EXAMPLES: usize = 10;

/// What is to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    /// A key of ours, by its keyID.
    Key(u64),
    /// A provider, or a key of EncryptionConfiguration, by its name.
    Name(String),
}

/// May it go?
#[derive(Clone, Debug)]
pub struct Question {
    /// What is to go.
    pub subject: Subject,
    /// Providers whose data from before the shim is that key's.
    pub legacy: BTreeSet<String>,
    /// Providers whose data from before the shim is not that key's.
    pub others: BTreeSet<String>,
    /// How far apart two counts must be.
    pub apart: Duration,
    /// How old the first count may be: what came before it says nothing of a key's later use.
    pub max_age: Duration,
}

/// What a key is needed for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Objects that are under it.
    pub objects: u64,
    /// Older values of objects, where they were counted.
    pub history: u64,
    /// Objects of which it cannot be told.
    pub undecided: Vec<Row>,
}

/// A count of zero, for the next one to build on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sighting {
    /// The cluster of etcd.
    pub cluster: String,
    /// What there was none of.
    pub subject: Subject,
    /// At which revision.
    pub revision: i64,
    /// When the count was done.
    #[serde(with = "rfc3339")]
    pub at: SystemTime,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may go.
    Yes {
        /// The count before this one.
        first: Sighting,
    },
    /// Objects are under it.
    Needed {
        /// How many.
        objects: u64,
        /// Some of them.
        examples: Vec<String>,
    },
    /// Nothing is under it, but that is not yet enough.
    NotYet {
        /// The first count.
        first: Sighting,
        /// What must come before the second one.
        missing: Vec<Missing>,
    },
    /// It cannot be told.
    Unknown {
        /// What is in the way.
        undecided: Vec<Row>,
    },
    /// There was nothing to count: it cannot be told either.
    Blank {
        /// Where.
        prefixes: Vec<String>,
    },
}

/// What must come before the second count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// That moment must have passed.
    Time(SystemTime),
    /// etcd must have compacted past that revision.
    Compaction(i64),
}

impl Question {
    /// With the usual times, and without data from before the shim.
    pub fn new(subject: Subject) -> Self {
        Self {
            subject,
            legacy: BTreeSet::new(),
            others: BTreeSet::new(),
            apart: APART,
            max_age: Duration::from_secs(3600),
        }
    }

    /// How many objects need it, and of which it cannot be told.
    pub(super) fn count(&self, rows: &[Row]) -> (u64, Vec<Row>) {
        let (mut needed, mut undecided) = (0, Vec::new());
        for row in rows {
            match self.needs(&row.under) {
                Some(true) => needed += row.objects,
                Some(false) => {}
                None => undecided.push(row.clone()),
            }
        }
        (needed, undecided)
    }

    /// Whether what is stored so needs it; `None` if that cannot be told.
    pub(super) fn needs(&self, under: &Under) -> Option<bool> {
        let name = under.provider.as_deref().unwrap_or_default();
        match (&self.subject, under.kind) {
            (_, Kind::Unknown) => None,
            (Subject::Name(wanted), _) => Some(name == wanted),
            (Subject::Key(wanted), _) if under.key.is_some() => Some(under.key == Some(*wanted)),
            // From before the shim: only the administrator knows whose it is.
            (Subject::Key(_), kind) if kind.is_kms() => match () {
                () if self.legacy.contains(name) => Some(true),
                () if self.others.contains(name) => Some(false),
                () => None,
            },
            _ => Some(false),
        }
    }

    /// Judges a count; `first` is the one before it, and `compacted` says whether etcd had
    /// compacted past that one when this one began. Also gives what to keep for the next time.
    pub fn judge(
        &self,
        first: Option<Sighting>,
        compacted: bool,
        census: &Census,
    ) -> (Verdict, Option<Sighting>) {
        let needs = census.needs(self);
        if needs.objects > 0 {
            let examples = census.listed.clone();
            return (Verdict::Needed { objects: needs.objects, examples }, None);
        }
        if !needs.undecided.is_empty() {
            return (Verdict::Unknown { undecided: needs.undecided }, None);
        }
        if !census.blank.is_empty() {
            return (Verdict::Blank { prefixes: census.blank.clone() }, None);
        }
        let Some(first) = first.filter(|first| self.counts(first, census)) else {
            let first = self.sighting(census);
            let missing =
                vec![Missing::Time(first.at + self.apart), Missing::Compaction(first.revision)];
            return (Verdict::NotYet { first: first.clone(), missing }, Some(first));
        };
        let mut missing = Vec::new();
        if census.started <= first.at + self.apart {
            missing.push(Missing::Time(first.at + self.apart));
        }
        if !compacted {
            missing.push(Missing::Compaction(first.revision));
        }
        let keep = Some(first.clone());
        match missing.is_empty() {
            true => (Verdict::Yes { first }, keep),
            false => (Verdict::NotYet { first, missing }, keep),
        }
    }

    fn sighting(&self, census: &Census) -> Sighting {
        Sighting {
            cluster: cluster(census),
            subject: self.subject.clone(),
            revision: census.revision,
            at: census.finished,
        }
    }

    /// Whether a count of before says something about this cluster and this time.
    fn counts(&self, first: &Sighting, census: &Census) -> bool {
        let age = census.started.duration_since(first.at);
        first.cluster == cluster(census)
            && first.subject == self.subject
            && first.revision <= census.revision
            // A clock that went back, or what was long ago, proves nothing.
            && age.is_ok_and(|age| age <= self.max_age)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "key {key}"),
            Self::Name(name) => write!(f, "provider {name}"),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(at) => {
                // Seconds are shown, so the next full one is when it is over.
                let after = *at + Duration::from_millis(999);
                write!(f, "count again after {}", sidekey_core::time(after))
            }
            Self::Compaction(revision) => write!(
                f,
                "etcd has not compacted past revision {revision} yet: kube-apiserver does so every 5 minutes"
            ),
        }
    }
}

/// Counts, and answers by this count and the one before it. Gives what to keep for the next time.
pub async fn may_drop(
    etcd: &mut Etcd,
    question: &Question,
    prefixes: &[String],
    first: Option<Sighting>,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<(Verdict, Census, Option<Sighting>), Error> {
    let now = etcd.revision().await?;
    let first = first.filter(|first| first.revision <= now);
    // Before the count: only then is the compaction between the two.
    let compacted = match &first {
        Some(first) => etcd.has_compacted(first.revision).await?,
        None => false,
    };
    let options = Options {
        prefixes: prefixes.to_vec(),
        list: Some(Wanted::Needing(question.clone())),
        limit: EXAMPLES,
        ..Options::default()
    };
    let census = count(etcd, &options, watch).await?;
    let (verdict, keep) = question.judge(first, compacted, &census);
    Ok((verdict, census, keep))
}

/// Waits for what must come before the second count.
pub async fn await_missing(
    etcd: &mut Etcd,
    missing: &[Missing],
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<(), Error> {
    for missing in missing {
        watch(Step::Note(&format!("waiting: {missing}")));
        match missing {
            Missing::Time(at) => {
                while let Ok(left) = at.duration_since(SystemTime::now()) {
                    tokio::time::sleep(left + Duration::from_millis(1)).await;
                }
            }
            Missing::Compaction(revision) => {
                while !etcd.has_compacted(*revision).await? {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }
    Ok(())
}

fn cluster(census: &Census) -> String {
    census.cluster.map(|cluster| cluster.to_string()).unwrap_or_default()
}

/// Times in files, exact.
mod rfc3339 {
    use std::time::SystemTime;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_rfc3339_nanos(*at))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_rfc3339(&text).map_err(D::Error::custom)
    }
}
