//! The promises of `sidekey-vault`, on the real binary and a real OpenBao over TLS. Slow and
//! broken networks are simulated by a forwarder; everything else is what it seems to be.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "promises/calls.rs"]
mod calls;
#[path = "promises/credentials.rs"]
mod credentials;
#[path = "promises/dropin.rs"]
mod dropin;
#[path = "promises/keys.rs"]
mod keys;
#[path = "promises/login.rs"]
mod login;
#[path = "promises/outage.rs"]
mod outage;
#[path = "promises/proxy.rs"]
mod proxy;
#[path = "promises/rotate.rs"]
mod rotate;
#[path = "promises/servers.rs"]
mod servers;
#[path = "promises/usage.rs"]
mod usage;

mod support;
