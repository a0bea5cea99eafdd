//! The promises of `sidekey-kmip`: its client in this process, and the real binary, on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

#[path = "promises/configuration.rs"]
mod configuration;
#[path = "promises/keys.rs"]
mod keys;
#[path = "promises/pykmip.rs"]
mod pykmip;
#[path = "promises/served.rs"]
mod served;
#[path = "promises/stored.rs"]
mod stored;

mod support;
