//! What manages the encryption of a control plane: puts sidecars into its pods, writes the
//! configuration they mount, proves new keys before they are used, rewrites stored objects and
//! counts in etcd itself what is under which key.
//!
//! One library with two faces: the `sidekey` command, for people, and the operator. What the one
//! can do by hand the other does by itself, with the same code.
//!
//! It refuses to know any vendor: the `kek`, `settings` and `credentials` of a key are passed on
//! to the provider as they are written, and the provider's own binary judges them. It speaks to
//! the rest of Sidekey through YAML files, sockets and binaries.
//!
//! The one invariant: **no key goes while something may need it**. Keys are added before they
//! write, on every replica; they leave after etcd itself has been counted twice. Where that
//! cannot be shown, the answer is no.

mod error;
mod progress;
mod report;

pub mod census;
pub mod cli;
pub mod cluster;
pub mod diff;
pub mod doctor;
pub mod etcd;
pub mod files;
pub mod fleet;
pub mod inject;
pub mod migrate;
pub mod model;
pub mod operator;
pub mod preflight;
pub mod publish;
pub mod render;
pub mod rotate;
pub mod snapshot;
pub mod token;

pub use error::{Error, Exit};
pub use progress::Progress;
pub use report::{Console, Output, Report, Table};
pub use sidekey_core::VERSION;
