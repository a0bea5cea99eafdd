//! The promises of `sidekey-aws`, proven on the real binary against moto, in front of which a
//! gateway counts calls and simulates the network's faults. What moto lacks is simulated on top of
//! it, as `sidekey_e2e::aws` tells. One program for all: it is linked once, and its tests run side
//! by side.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "promises/calls.rs"]
mod calls;
#[path = "promises/credentials.rs"]
mod credentials;
#[path = "promises/drop_in.rs"]
mod drop_in;
#[path = "promises/errors.rs"]
mod errors;
#[path = "promises/faults.rs"]
mod faults;
#[path = "promises/hostile.rs"]
mod hostile;
#[path = "promises/keys.rs"]
mod keys;
#[path = "promises/logs.rs"]
mod logs;
#[path = "promises/rotate.rs"]
mod rotate;
#[path = "promises/sources.rs"]
mod sources;
mod support;
#[path = "promises/tls.rs"]
mod tls;
#[path = "promises/usage.rs"]
mod usage;
