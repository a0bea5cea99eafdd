//! Logs: text or JSON on standard error, the level changeable at run time.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use crate::config::{LogFormat, LogOptions};

/// Changes the level of the running process.
#[derive(Clone, Debug)]
pub struct LevelHandle(reload::Handle<LevelFilter, Registry>);

/// Lets a few lines through at once and then one in a while, and counts the others: whoever can
/// make us fail must not be able to fill the log.
#[derive(Debug)]
pub struct RateLimit {
    burst: u32,
    every: Duration,
    state: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    left: u32,
    refilled: Instant,
    suppressed: u64,
}

/// Starts logging. A second call in one process (tests) leaves the first in place.
pub fn start(options: LogOptions) -> LevelHandle {
    let (level, handle) = reload::Layer::new(LevelFilter::from_level(options.level));
    let registry = tracing_subscriber::registry().with(level).with(filter_fn(shown));
    let lines = fmt::layer().with_ansi(false).with_target(false).with_writer(std::io::stderr);
    let started = match options.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging has already been started");
    }
    LevelHandle(handle)
}

/// What other crates trace may hold whatever passes through them, requests and keys included:
/// only our own lines are shown at that level. AWS's SDK quotes refusals as they came, with parts of
/// session tokens, at any level, and Azure's tells of each failure once more: we tell of them
/// ourselves, redacted.
fn shown(metadata: &tracing::Metadata<'_>) -> bool {
    let (target, level) = (metadata.target(), *metadata.level());
    let is_told = ["aws_", "azure_", "typespec"].iter().any(|sdk| target.starts_with(sdk));
    target.starts_with("sidekey") || (level < tracing::Level::TRACE && !is_told)
}

impl LevelHandle {
    /// The level in use.
    pub fn level(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Another level from now on; false if the text names none.
    pub fn change(&self, text: &str) -> bool {
        let Ok(level) = text.trim().parse::<LevelFilter>() else { return false };
        self.0.modify(|current| *current = level).is_ok()
    }
}

impl RateLimit {
    /// For what tells the same each time: one line in ten seconds.
    pub fn rare() -> Self {
        Self::new(1, Duration::from_secs(10))
    }

    /// For requests that fail: enough to see which, and then one in a second.
    pub fn of_requests() -> Self {
        Self::new(50, Duration::from_secs(1))
    }

    fn new(burst: u32, every: Duration) -> Self {
        let state = Lines { left: burst, refilled: Instant::now(), suppressed: 0 };
        Self { burst, every, state: Mutex::new(state) }
    }

    /// Whether nothing has been let through yet, or long ago.
    #[cfg(test)]
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().left == self.burst
    }

    /// How many were held back since the last one, if this one may pass.
    pub fn pass(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let due = state.refilled.elapsed().as_secs_f64() / self.every.as_secs_f64();
        if due >= 1.0 {
            // More than a burst is never of use, and so the cast cuts nothing off.
            let due = due.min(f64::from(self.burst)) as u32;
            state.left = (state.left + due).min(self.burst);
            state.refilled = Instant::now();
        }
        if state.left == 0 {
            state.suppressed += 1;
            return None;
        }
        state.left -= 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_becomes_a_burst_and_then_one_line_a_second_that_counts_the_others() {
        let limit = RateLimit::of_requests();
        let passed = (0..1000).filter(|_| limit.pass().is_some()).count();
        assert_eq!(passed, 50);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(limit.pass(), Some(950));
        assert_eq!(limit.pass(), None);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((0..1000).filter(|_| limit.pass().is_some()).count(), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_always_the_same_is_told_every_ten_seconds() {
        let limit = RateLimit::rare();
        assert_eq!((limit.pass(), limit.pass(), limit.pass()), (Some(0), None, None));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((limit.pass(), limit.pass()), (Some(2), None));
    }
}
