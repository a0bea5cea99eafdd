//! The promises of `sidekey-azure`, proven on the real binary against a fake of Azure: no Key Vault
//! runs here. One program for all: it is linked once, and its tests run side by side.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "promises/calls.rs"]
mod calls;
#[path = "promises/credentials.rs"]
mod credentials;
#[path = "promises/dropin.rs"]
mod dropin;
#[path = "promises/faults.rs"]
mod faults;
#[path = "promises/keys.rs"]
mod keys;
#[path = "promises/recorded.rs"]
mod recorded;
mod support;
#[path = "promises/usage.rs"]
mod usage;
