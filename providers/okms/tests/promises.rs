//! The promises of `sidekey-okms`: its client in this process, and the real binary, on a fake OKMS
//! over mutual TLS, and on a KMIP server.
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
#[path = "promises/kmip.rs"]
mod kmip;
#[path = "promises/labels.rs"]
mod labels;
#[path = "promises/recorded.rs"]
mod recorded;
#[path = "promises/served.rs"]
mod served;

mod support;
