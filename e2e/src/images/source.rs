//! What images are made from: the commit, and its time instead of the clock's.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::repository;

/// The variable by which a build is told its time (reproducible-builds.org).
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// A state of the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The commit; with `-dirty` where files differ from it. None outside of git.
    pub revision: Option<String>,
    /// The time that images bear, in seconds since 1970.
    pub epoch: u64,
}

impl Source {
    /// That of this repository: its commit, and the time of `$SOURCE_DATE_EPOCH` or of the
    /// commit.
    pub fn of_repository() -> Result<Self> {
        let commit = git(&["log", "-1", "--format=%H %ct"]);
        let (revision, time) = match commit.as_deref().and_then(|text| text.split_once(' ')) {
            Some((hash, time)) => {
                let changed = git(&["status", "--porcelain"]).is_none_or(|list| !list.is_empty());
                let mark = if changed { "-dirty" } else { "" };
                (Some(format!("{hash}{mark}")), Some(time.to_owned()))
            }
            None => (None, None),
        };
        let epoch = match std::env::var(EPOCH).ok().or(time) {
            None => 0,
            Some(text) => text
                .trim()
                .parse()
                .with_context(|| format!("{EPOCH} is {text:?}, not a number of seconds"))?,
        };
        Ok(Self { revision, epoch })
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(repository()).stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
