//! The plugin to judge.

use std::fmt::Display;
use std::future::{Future, ready};

use sidekey_core::Endpoint;

use crate::Hook;
use crate::check::Need;

/// A plugin under judgement: where it listens, and what its owner can do to it.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Kills it with signal 9 and starts it again with the same state.
    pub restart: Option<Hook<()>>,
    /// Makes the KMS rotate its key, so that key_id must move.
    pub rotate: Option<Hook<()>>,
    /// How many calls it has made to its backend so far.
    pub backend_calls: Option<Hook<u64>>,
}

impl Plugin {
    /// A plugin of which nothing but its socket is known.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, restart: None, rotate: None, backend_calls: None }
    }

    /// Lets the suite kill and restart it.
    #[must_use]
    pub fn with_restart(mut self, hook: Hook<()>) -> Self {
        self.restart = Some(hook);
        self
    }

    /// Lets the suite rotate its key.
    #[must_use]
    pub fn with_rotate(mut self, hook: Hook<()>) -> Self {
        self.rotate = Some(hook);
        self
    }

    /// Lets the suite count backend calls.
    #[must_use]
    pub fn with_backend_calls<F, R, E>(mut self, count: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<u64, E>> + Send + 'static,
        E: Display,
    {
        self.backend_calls = Some(Hook::new(count));
        self
    }

    /// For a plugin that keeps its keys in its own process: there is nothing to call.
    #[must_use]
    pub fn without_backend(self) -> Self {
        self.with_backend_calls(|| ready(Ok::<_, String>(0)))
    }

    /// Whether its owner offers that hook.
    pub(crate) fn offers(&self, need: Need) -> bool {
        match need {
            Need::Restart => self.restart.is_some(),
            Need::Rotate => self.rotate.is_some(),
            Need::BackendCalls => self.backend_calls.is_some(),
        }
    }
}
