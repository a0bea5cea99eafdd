//! What a running process costs, as the kernel counts it.

use std::fs::read_to_string;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident: what the process has in memory, its program text included.
    pub rss: u64,
    /// Of that, what it has written itself and nobody else can share.
    pub anonymous: u64,
    /// Resident, with what is shared divided among those who share it.
    pub pss: u64,
}

impl Memory {
    /// Of a running process.
    pub fn of(pid: u32) -> Result<Self> {
        let status = proc_file(pid, "status")?;
        let rollup = proc_file(pid, "smaps_rollup")?;
        Ok(Self {
            rss: kib(&status, "VmRSS:")?,
            anonymous: kib(&status, "RssAnon:")?,
            pss: kib(&rollup, "Pss:")?,
        })
    }
}

impl std::ops::Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rss: self.rss + other.rss,
            anonymous: self.anonymous + other.anonymous,
            pss: self.pss + other.pss,
        }
    }
}

/// The most memory of a process that was ever resident, in KiB.
pub(super) fn peak(pid: u32) -> Result<u64> {
    kib(&proc_file(pid, "status")?, "VmHWM:")
}

/// CPU time that a process has used so far, all threads together. To the nanosecond where the
/// kernel keeps such statistics, because ticks are coarser than a turn of a measurement.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    if let Some(precise) = scheduled(pid) {
        return Ok(precise);
    }
    let stat = proc_file(pid, "stat")?;
    let ticks =
        used_ticks(&stat).with_context(|| format!("unexpected /proc/{pid}/stat: {stat}"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// What the scheduler has counted for the threads that live.
fn scheduled(pid: u32) -> Option<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let stat = read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        nanos += stat.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

/// The name, in parentheses, may contain anything; utime and stime are the 12th and 13th
/// fields after it.
fn used_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn proc_file(pid: u32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

fn kib(text: &str, field: &str) -> Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let number = value.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse().ok());
    number.with_context(|| format!("the kernel reports no {field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_look_at_itself() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.rss >= memory.anonymous && memory.rss > 100, "{memory:?}");
        assert!(cpu_time(std::process::id()).unwrap() > Duration::ZERO);
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_confuse() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20";
        assert_eq!(used_ticks(stat), Some(42));
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(format!("{:#}", Memory::of(u32::MAX).unwrap_err()).contains("/proc/"));
    }
}
