//! Keeps the deadlines of requests from interrupting the runtime.
//!
//! Tokio breaks off its own wait, by a system call and a turn of its loop, for every timer that is
//! due before all others, and the deadline of a lone request is such a timer. While requests come,
//! one timer that is due sooner stands before theirs. Without requests there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Shorter than any deadline that is worth the trouble, long enough to cost nothing.
const INTERVAL: Duration = Duration::from_millis(250);

/// Beats while somebody asks for it.
#[derive(Debug, Default)]
pub struct Pulse(Arc<State>);

#[derive(Debug, Default)]
struct State {
    runs: AtomicBool,
    asked: AtomicBool,
}

impl Pulse {
    /// Says that a request has come.
    pub fn keep(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        if self.0.runs.swap(true, Ordering::SeqCst) {
            return;
        }
        let state = self.0.clone();
        tokio::spawn(async move {
            while state.asked.swap(false, Ordering::SeqCst) {
                tokio::time::sleep(INTERVAL).await;
            }
            state.runs.store(false, Ordering::SeqCst);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_beats_while_requests_come_and_ends_without_them() {
        let pulse = Pulse::default();
        let runs = || pulse.0.runs.load(Ordering::SeqCst);
        assert!(!runs());
        for _ in 0..10 {
            pulse.keep();
            assert!(runs());
            tokio::time::sleep(INTERVAL / 2).await;
        }
        tokio::time::sleep(INTERVAL * 3).await;
        assert!(!runs(), "nobody asks any more");
        pulse.keep();
        assert!(runs());
    }
}
