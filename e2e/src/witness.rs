//! How starved this process was: a thread that wants to wake at a steady pace and writes down
//! its worst lateness, for `cargo verify`, which may not blame a test for a busy machine and may
//! not blame the machine for a test.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sidekey_verify::WITNESS;

/// How often it wakes.
const TICK: Duration = Duration::from_millis(50);

/// Lateness below this says nothing.
const NOTICED: Duration = Duration::from_millis(100);

/// Starts it, where somebody wants to know.
pub(crate) fn start() {
    if let Some(path) = std::env::var_os(WITNESS).map(PathBuf::from) {
        // Without it nothing is forgiven, which is the safe way to be wrong.
        let _ = std::thread::Builder::new().name("witness".to_owned()).spawn(move || watch(&path));
    }
}

fn watch(path: &std::path::Path) {
    // Nobody sends: receiving is a sleep that the kernel ends in time, or does not.
    let (_sender, receiver) = channel::<()>();
    let mut worst = NOTICED;
    loop {
        let began = Instant::now();
        if receiver.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let late = began.elapsed().saturating_sub(TICK);
        if late > worst {
            worst = late;
            // A full disk must not end a test.
            let _ = std::fs::write(path, late.as_millis().to_string());
        }
    }
}
