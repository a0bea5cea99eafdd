//! The suite on trial: a sound plugin must pass it, and each broken one must fail just its check.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken;
mod clock;
mod corpus;
mod launched;
mod plugin;
mod readme;
mod runner;
