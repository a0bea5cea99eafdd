//! The API key in the environment, as the replaced plugin takes it.
//!
//! It is kept apart from the configuration, which is logged and compared: there is nothing of it in
//! there but the word that it was given.

use std::sync::OnceLock;

use sidekey_core::Secret;

/// A process has one environment.
static GIVEN: OnceLock<Secret> = OnceLock::new();

/// Keeps what was given, once.
pub(crate) fn keep(secret: Secret) {
    // Asked twice, the environment has not changed.
    let _ = GIVEN.set(secret);
}

/// What was given, if anything was.
pub(crate) fn given() -> Option<&'static Secret> {
    GIVEN.get()
}
