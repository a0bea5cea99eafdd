//! The KMS v2 conformance suite: judges any plugin through its socket.
//!
//! It is for two callers. The tests of every provider start their real binary with
//! [`Launched`] and hand it to [`assert_conforms`]; the runner `sidekey-conformance`
//! judges whatever listens on a socket, in any language, and prints a [`Report`].
//! The plugin is driven as kube-apiserver drives it (authority `localhost`, one
//! HTTP/2 connection, a deadline and a fresh uid on each call, 32-byte plaintexts,
//! key_id and annotations given back byte by byte) and then as an attacker would.
//!
//! It refuses to guess: a check that could not be carried out is reported as not run,
//! with the reason, and never as passed. It asks for nothing that kube-apiserver does
//! not need or that would not hurt it: error codes, for one, are left to the plugin.
//!
//! Beside the suite it keeps the corpus: data that was stored once, in every form that a provider
//! reads, with the keys that open it. A provider that stops reading some of it fails
//! [`assert_reads_corpus`].
//!
//! The one invariant: each check judges one promise. A plugin that breaks just one
//! promise fails just one check, and the tests of this crate prove that for each of
//! them with a deliberately broken plugin.

mod check;
mod checks;
mod corpus;
mod hook;
mod launch;
mod options;
mod plugin;
mod random;
mod raw;
mod report;
mod run;
mod session;
mod trial;

pub use check::{Check, Need, checks};
pub use corpus::{CorpusKey, assert_reads_corpus};
pub use hook::Hook;
pub use launch::{LaunchError, Launched, program, wait_until_healthy};
pub use options::{Options, Selection, UnknownCheck};
pub use plugin::Plugin;
pub use report::{Finding, Report, Verdict};
pub use run::{assert_conforms, run};
