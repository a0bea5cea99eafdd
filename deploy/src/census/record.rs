//! The first of two counts, kept in a file for the second.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sidekey_core::{hex, sha256};

use super::verdict::{Sighting, Subject};
use crate::Error;
use crate::etcd::ClusterId;

/// Longest file that is read.
const MAX_FILE: u64 = 64 * 1024;

/// Where a count of zero is kept.
#[derive(Clone, Debug)]
pub struct Record {
    path: PathBuf,
}

impl Record {
    /// In that file.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// In the user's state directory, by cluster and key.
    pub fn of(cluster: ClusterId, subject: &Subject) -> Result<Self, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let state = variable("XDG_STATE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        let state = state.or_else(home).ok_or_else(|| {
            Error::usage("there is no home directory to keep the first count in")
                .hint("say where with --state FILE")
        })?;
        let subject = match subject {
            Subject::Key(key) => format!("key-{key}"),
            // Names may hold what file names may not.
            Subject::Name(name) => format!("name-{}", &hex(&sha256(name.as_bytes()))[..16]),
        };
        Ok(Self::at(state.join("sidekey").join(format!("census-{cluster}-{subject}.json"))))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is kept there; what cannot be read is an error, not a beginning.
    pub fn load(&self) -> Result<Option<Sighting>, Error> {
        let what = || format!("cannot use the first count in {}", self.path.display());
        let advice = "remove the file to start counting anew";
        let text = match std::fs::metadata(&self.path) {
            Ok(found) if found.len() > MAX_FILE => {
                return Err(Error::failed(what()).because("it is too large").hint(advice));
            }
            Ok(_) => std::fs::read_to_string(&self.path),
            Err(error) => Err(error),
        };
        match text {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| Error::failed(what()).because(error).hint(advice)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::failed(what()).because(error)),
        }
    }

    /// Keeps a count, or forgets what was kept. All or nothing, even if the power fails.
    pub fn keep(&self, sighting: Option<&Sighting>) -> Result<(), Error> {
        let done = match sighting {
            Some(sighting) => self.write(sighting),
            None => match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let what = format!("cannot remove {}", self.path.display());
                    Err(Error::failed(what).because(error))
                }
                _ => Ok(()),
            },
        };
        done.map_err(|error| error.hint("say where the count can be kept with --state FILE"))
    }

    fn write(&self, sighting: &Sighting) -> Result<(), Error> {
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir).map_err(|error| {
                Error::failed(format!("cannot make {}", dir.display())).because(error)
            })?;
        }
        let text = serde_json::to_vec_pretty(sighting)
            .map_err(|error| Error::failed("cannot write JSON").because(error))?;
        crate::files::replace(&self.path, &text, 0o600)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, SystemTime};

    use super::*;

    fn sighting() -> Sighting {
        Sighting {
            cluster: "7".into(),
            subject: Subject::Key(1),
            revision: 12,
            at: SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 123_456_789),
        }
    }

    #[test]
    fn a_count_reads_back_exactly_and_can_be_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::at(dir.path().join("new/state.json"));
        assert_eq!(record.load().unwrap(), None);
        record.keep(Some(&sighting())).unwrap();
        assert_eq!(record.load().unwrap(), Some(sighting()));
        record.keep(None).unwrap();
        record.keep(None).unwrap();
        assert_eq!(record.load().unwrap(), None);
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        for text in ["", "{}", "{\"cluster\": 7}", "nonsense"] {
            std::fs::write(&path, text).unwrap();
            let error = Record::at(path.clone()).load().unwrap_err();
            assert!(error.advice().unwrap().contains("remove the file"), "{text:?}");
        }
        Record::at(dir.path().to_owned()).keep(Some(&sighting())).unwrap_err();
    }
}
