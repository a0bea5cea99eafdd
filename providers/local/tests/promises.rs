//! The promises of `sidekey-local`, proven on the real binary. One program for all of them: it is
//! linked once, and its tests run side by side.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "promises/admin.rs"]
mod admin;
#[path = "promises/hostile.rs"]
mod hostile;
#[path = "promises/keyfile.rs"]
mod keyfile;
#[path = "promises/linger.rs"]
mod linger;
#[path = "promises/logs.rs"]
mod logs;
#[path = "promises/reload.rs"]
mod reload;
#[path = "promises/rotation.rs"]
mod rotation;
#[path = "promises/serve.rs"]
mod serve;
mod support;
#[path = "promises/usage.rs"]
mod usage;
