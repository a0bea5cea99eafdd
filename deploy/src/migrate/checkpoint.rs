//! How far a run has come, in a file that outlives it.
//!
//! A run for one write key says nothing about another, nor about another cluster: a checkpoint of
//! either is no checkpoint. It holds names of objects and no content.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::outcome::{Counts, Failure, NAMED_FAILURES, State};
use crate::{Error, files};

/// Of the file's form.
const VERSION: u32 = 1;

/// Which run a checkpoint belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The cluster: the uid of its kube-system namespace.
    pub cluster: String,
    /// The write key that objects are brought under.
    pub target: String,
}

/// The file, held for as long as the run goes on.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    content: Content,
    _lock: File,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    #[serde(flatten)]
    run: Run,
    resources: BTreeMap<String, Mark>,
}

/// How far one resource is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Mark {
    pub(super) state: State,
    /// Everything up to here has been seen to.
    pub(super) position: Option<String>,
    pub(super) counts: Counts,
    /// What has to be tried again.
    pub(super) failures: Vec<Failure>,
}

impl Run {
    /// Where a checkpoint lies unless told otherwise: the user's directory for state.
    pub fn default_path(&self) -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let state = variable("XDG_STATE_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/state")))?;
        let digest = super::gate::sha256(&[&self.cluster, &self.target]);
        Some(state.join("sidekey").join(format!("migrate-{}.json", &digest[..16])))
    }
}

impl Mark {
    /// From where to go on. Without a position that is the beginning; more failures than there
    /// are names for are tried again with all.
    pub(super) fn resumed(self) -> Self {
        let unnamed = self.counts.failed > self.failures.len() as u64;
        let nowhere = self.state != State::Done && self.position.is_none();
        if unnamed || nowhere { Self::default() } else { self }
    }

    pub(super) fn fail(&mut self, object: String, reason: String) {
        if self.failures.len() < NAMED_FAILURES {
            self.failures.push(Failure { object, reason });
        }
    }
}

impl Checkpoint {
    /// Opens the file of this run; one of another run is begun anew. The second run on the same
    /// file at the same time is refused.
    pub(super) fn open(path: &Path, run: &Run) -> Result<Self, Error> {
        let lock = lock(path)?;
        let fresh = || Content { version: VERSION, run: run.clone(), resources: BTreeMap::new() };
        let content = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .ok()
                .filter(|content: &Content| content.version == VERSION && content.run == *run),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(unusable(path, error)),
        };
        let content = content.unwrap_or_else(fresh);
        let checkpoint = Self { path: path.to_owned(), content, _lock: lock };
        // That it can be written is known before there is anything to remember.
        checkpoint.save()?;
        Ok(checkpoint)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn mark(&self, resource: &str) -> Mark {
        self.content.resources.get(resource).cloned().unwrap_or_default()
    }

    pub(super) fn set(&mut self, resource: &str, mark: &Mark) -> Result<(), Error> {
        self.content.resources.insert(resource.to_owned(), mark.clone());
        self.save()
    }

    /// Forgets resources of which nothing is left to do, and the file with the last one.
    pub(super) fn forget(mut self, resources: impl Iterator<Item = String>) -> Result<(), Error> {
        for resource in resources {
            self.content.resources.remove(&resource);
        }
        if !self.content.resources.is_empty() {
            return self.save();
        }
        std::fs::remove_file(&self.path).map_err(|error| unusable(&self.path, error))?;
        let _ = std::fs::remove_file(lock_path(&self.path));
        Ok(())
    }

    fn save(&self) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(&self.content)
            .map_err(|error| unusable(&self.path, error))?;
        files::replace(&self.path, &text, 0o600)
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// The kernel gives the lock back when its holder ends, however it ends.
fn lock(path: &Path) -> Result<File, Error> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| unusable(path, error))?;
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(lock_path(path))
        .map_err(|error| unusable(path, error))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Error::failed(format!("{} is in use: this migration is running already", path.display()))
            .hint("wait for it, or end it: whoever comes next goes on where it was")
    })?;
    Ok(file)
}

fn unusable(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed(format!("cannot use the checkpoint {}", path.display()))
        .because(error)
        .hint("give another file with --checkpoint")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(target: &str) -> Run {
        Run { cluster: "c1".into(), target: target.into() }
    }

    fn mark(position: &str) -> Mark {
        Mark { state: State::Partial, position: Some(position.into()), ..Mark::default() }
    }

    #[test]
    fn a_checkpoint_is_taken_up_for_the_same_cluster_and_target_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/checkpoint.json");
        let mut first = Checkpoint::open(&path, &run("key-2")).unwrap();
        first.set("secrets", &mark("default/m")).unwrap();
        drop(first);
        let again = Checkpoint::open(&path, &run("key-2")).unwrap();
        assert_eq!(again.mark("secrets"), mark("default/m"));
        assert_eq!(again.mark("configmaps"), Mark::default());
        drop(again);
        let other = Checkpoint::open(&path, &run("key-3")).unwrap();
        assert_eq!(other.mark("secrets"), Mark::default());
    }

    #[test]
    fn a_torn_or_foreign_file_is_no_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        for text in ["", "{\"version\":1", "[]", "{\"version\":2,\"cluster\":\"c1\"}"] {
            std::fs::write(&path, text).unwrap();
            let checkpoint = Checkpoint::open(&path, &run("key-2")).unwrap();
            assert_eq!(checkpoint.mark("secrets"), Mark::default(), "{text}");
        }
    }

    #[test]
    fn two_runs_at_the_same_time_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        let first = Checkpoint::open(&path, &run("key-2")).unwrap();
        let error = Checkpoint::open(&path, &run("key-2")).unwrap_err();
        assert!(error.report().contains("is running already"), "{}", error.report());
        drop(first);
        Checkpoint::open(&path, &run("key-2")).unwrap();
    }

    #[test]
    fn what_is_forgotten_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        let mut checkpoint = Checkpoint::open(&path, &run("key-2")).unwrap();
        checkpoint.set("secrets", &mark("a")).unwrap();
        checkpoint.set("configmaps", &mark("b")).unwrap();
        checkpoint.forget(["secrets".to_owned()].into_iter()).unwrap();
        let checkpoint = Checkpoint::open(&path, &run("key-2")).unwrap();
        assert_eq!(checkpoint.mark("secrets"), Mark::default());
        assert_eq!(checkpoint.mark("configmaps"), mark("b"));
        checkpoint.forget(["configmaps".to_owned()].into_iter()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn more_failures_than_names_mean_a_new_beginning() {
        let mut mark = mark("default/m");
        for number in 0..=NAMED_FAILURES {
            mark.counts.failed += 1;
            mark.fail(format!("default/{number}"), "no".into());
        }
        assert_eq!(mark.failures.len(), NAMED_FAILURES);
        assert_eq!(mark.resumed(), Mark::default());
    }
}
