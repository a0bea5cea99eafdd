//! Logs: text or JSON on standard error, the level changeable at run time.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use crate::config::{LogFormat, LogOptions};

/// Changes the level of the running process.
#[derive(Clone, Debug)]
pub struct LevelHandle(reload::Handle<LevelFilter, Registry>);

/// Starts logging. A second call in one process (tests) leaves the first in place.
pub fn start(options: LogOptions) -> LevelHandle {
    let (level, handle) = reload::Layer::new(LevelFilter::from_level(options.level));
    let registry = tracing_subscriber::registry().with(level).with(filter_fn(shown));
    let started = match options.format {
        LogFormat::Text => registry
            .with(fmt::layer().with_ansi(false).with_target(false).with_writer(std::io::stderr))
            .try_init(),
        LogFormat::Json => registry
            .with(
                fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_target(false)
                    .with_writer(std::io::stderr),
            )
            .try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging has already been started");
    }
    LevelHandle(handle)
}

/// What other crates trace may hold whatever passes through them, requests and keys included:
/// only our own lines are shown at that level.
fn shown(metadata: &tracing::Metadata<'_>) -> bool {
    *metadata.level() < tracing::Level::TRACE || metadata.target().starts_with("sidekey")
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
