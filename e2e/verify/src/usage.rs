//! CPU time of a process and of all it has waited for.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Clock ticks in a second: what the kernel shows to programs, on every machine.
const TICKS: f64 = 100.0;

/// Blocks until the process has ended, and tells its core-seconds while the kernel still
/// knows them; somebody else reaps it.
pub(crate) fn of_ended(pid: u32) -> f64 {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return 0.0 };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(id), options) {}
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(0.0, |stat| seconds(&stat))
}

/// User and system time, its own and that of its children (fields 14 to 17). The second field
/// is a name in parentheses, which may contain anything.
fn seconds(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_whitespace().skip(11).take(4);
    ticks.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_and_that_of_children_is_added_whatever_the_name() {
        let stat = "7 (a) b) Z 1 2 3 4 5 6 7 8 9 10 100 20 30 50 20 0 1 0";
        assert!((seconds(stat) - 2.0).abs() < 0.001);
        assert!(seconds("").abs() < 0.001);
    }

    #[test]
    fn a_process_that_worked_has_used_time() {
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        assert!(of_ended(child.id()) > 0.0);
        assert!(child.wait().unwrap().success());
    }
}
