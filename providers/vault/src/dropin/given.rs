//! Secrets on the command line or in the environment, as the replaced plugin takes them.
//!
//! They are kept apart from the configuration, which is logged and compared: there is nothing of
//! them in it but the word that they were given.

use std::sync::OnceLock;

use sidekey_core::Secret;

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// The AppRole secret-id.
    pub(crate) secret_id: Option<Secret>,
    /// The token.
    pub(crate) token: Option<Secret>,
    /// The password.
    pub(crate) password: Option<Secret>,
}

impl Given {
    /// Whether nothing was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.secret_id.is_none() && self.token.is_none() && self.password.is_none()
    }
}

/// A process has one command line.
static GIVEN: OnceLock<Given> = OnceLock::new();

/// Keeps what was given, once.
pub(crate) fn keep(given: Given) {
    // Asked twice, the command line has not changed.
    let _ = GIVEN.set(given);
}

/// What was given, if the configuration says that something was.
pub(crate) fn given(said: Option<bool>) -> Option<&'static Given> {
    GIVEN.get().filter(|_| said == Some(true))
}
