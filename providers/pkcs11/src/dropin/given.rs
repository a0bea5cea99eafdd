//! PINs on the command line and in the environment, as the replaced plugin takes them.
//!
//! They are kept apart from the configuration, which is logged and compared: there is nothing of
//! them in there but their number.

use parking_lot::Mutex;
use sidekey_core::Secret;

static GIVEN: Mutex<Vec<Secret>> = Mutex::new(Vec::new());

/// Keeps what was given, and gives its number.
pub(crate) fn keep(secret: Secret) -> usize {
    let mut given = GIVEN.lock();
    given.iter().position(|known| *known == secret).unwrap_or_else(|| {
        given.push(secret);
        given.len() - 1
    })
}

/// What was given.
pub(crate) fn given(number: usize) -> Option<Secret> {
    GIVEN.lock().get(number).cloned()
}
