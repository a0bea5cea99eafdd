//! The promises of `sidekey-ibmcloud`: its client in this process, and the real binary, on a fake
//! Key Protect over TLS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "promises/answers.rs"]
mod answers;
#[path = "promises/configuration.rs"]
mod configuration;
#[path = "promises/credentials.rs"]
mod credentials;
#[path = "promises/dropin.rs"]
mod dropin;
#[path = "promises/keys.rs"]
mod keys;
#[path = "promises/recorded.rs"]
mod recorded;
#[path = "promises/served.rs"]
mod served;

mod support;
