//! Processes that never rest: tests must hold beside them too.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Ends with this value.
#[derive(Debug)]
pub(crate) struct Crowd(Vec<Child>);

impl Crowd {
    /// Starts `count` of them. Each ends by itself if we go away: its standard input closes.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let mut crowd = Self(Vec::new());
        for _ in 0..count {
            let script = "(while :; do :; done) & read line; kill $!";
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped());
            crowd.0.push(command.spawn().context("cannot start sh")?);
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
            // It ends as soon as it sees that its input is closed.
            let _ = child.wait();
        }
    }
}
