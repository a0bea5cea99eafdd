//! The promises of `sidekey-pkcs11`: the real binary on a token of SoftHSM.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

#[path = "token/configuration.rs"]
mod configuration;
#[path = "token/dropin.rs"]
mod dropin;
#[path = "token/faults.rs"]
mod faults;
#[path = "token/keys.rs"]
mod keys;
#[path = "token/pins.rs"]
mod pins;

mod support;
