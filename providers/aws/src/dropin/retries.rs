//! The budget of retries: a KMS that fails for everybody must not be asked three times as often
//! as one that works.

use std::sync::Mutex;
use std::sync::PoisonError;

use sidekey_core::{Error, Kind};

/// What a retry costs, as in the SDKs.
const FAILURE: u32 = 5;
/// A timeout has cost the KMS more.
const TIMEOUT: u32 = 10;

/// Tokens that failures take and successes bring back.
#[derive(Debug)]
pub(crate) struct Budget {
    full: u32,
    left: Mutex<u32>,
}

impl Budget {
    /// A full one. None at all means no retries.
    pub(crate) fn new(full: u32) -> Self {
        Self { full, left: Mutex::new(full) }
    }

    /// Something worked.
    pub(crate) fn succeeded(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = (*left + 1).min(self.full);
    }

    /// Something failed: whether it may be tried again depends on what is left.
    pub(crate) fn failed(&self, error: Error) -> Error {
        if !error.kind().is_transient() {
            return error;
        }
        let cost = if error.kind() == Kind::Timeout { TIMEOUT } else { FAILURE };
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match left.checked_sub(cost) {
            Some(rest) => {
                *left = rest;
                error
            }
            None => error.without_retry(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: Kind) -> Error {
        Error::new(kind, "no")
    }

    #[test]
    fn a_spent_budget_ends_the_retries_until_something_works() {
        let budget = Budget::new(10);
        assert!(!budget.failed(error(Kind::Throttled)).is_final());
        assert!(!budget.failed(error(Kind::Unavailable)).is_final());
        assert!(budget.failed(error(Kind::Unavailable)).is_final());
        for _ in 0..5 {
            budget.succeeded();
        }
        assert!(!budget.failed(error(Kind::Unavailable)).is_final());
    }

    #[test]
    fn lasting_failures_cost_nothing() {
        let budget = Budget::new(5);
        assert!(!budget.failed(error(Kind::Denied)).is_final());
        assert!(!budget.failed(error(Kind::Throttled)).is_final());
    }
}
