//! What images are made from: the commit, and its time instead of the clock's.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

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
        let source = Self { revision, epoch };
        ensure!(!source.time().is_empty(), "{EPOCH} is past the year 9999");
        Ok(source)
    }

    /// Its time as RFC 3339 writes it.
    pub(super) fn time(&self) -> String {
        let (days, second) = (self.epoch / 86400, self.epoch % 86400);
        let Some((year, month, day)) = date(days) else { return String::new() };
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// The date so many days after 1970 began, up to the year 9999.
fn date(mut days: u64) -> Option<(u64, u64, u64)> {
    let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    for year in 1970..10000 {
        let february = if leap(year) { 29 } else { 28 };
        for (index, length) in
            [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate()
        {
            if days < length {
                return Some((year, index as u64 + 1, days + 1));
            }
            days -= length;
        }
    }
    None
}

fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(repository()).stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        let time = |epoch| Source { revision: None, epoch }.time();
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(time(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_794_808_093), "2026-11-16T05:48:13Z");
        assert_eq!(time(253_402_300_799), "9999-12-31T23:59:59Z");
        assert_eq!(time(253_402_300_800), "");
    }
}
