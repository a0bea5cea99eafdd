//! The runtime that makes a KMS v2 provider a few hundred lines.
//!
//! A provider implements [`Provider`] (connect, key_id, encrypt, decrypt) and [`CommandLine`], and
//! its `main` is `sidekey_core::run::<P>()`. What only some KMSs can do is a trait of its own:
//! [`Rotate`]. Everything else is here, once: sockets, limits of the
//! protocol, health, retries, deadlines, coalescing, canaries, hot reload of configuration and
//! credentials, admin endpoints, metrics, logs and shutdown.
//!
//! It refuses to hold any cloud SDK, to make a choice by a message text, to announce a key_id that
//! has not been proven by wrapping and unwrapping, and to let a change that cannot be proven
//! replace something that works.
//!
//! The one invariant: **what has been encrypted can be decrypted**. A new client, file or
//! configuration takes the place of the old one only after it has unwrapped what the old one
//! wrapped (a sample in memory, and the canary where there is one).
//!
//! # How it hangs together
//! ```text
//! app ── supervisor ──┬── key 1: server (socket) ── kms::service ── key ──▶ backend ──▶ KMS
//!                     │          task: connect, canary, probe, files, settings
//!                     └── key 2: …
//!        admin (/livez /readyz /healthz /metrics /status)
//! ```
//! Each key has its own socket, task, client and health; keys share nothing but the thread. The
//! process runs on one thread, because a sidecar that is multiplied by thousands must be small:
//! providers must not block it. A second one waits for changes of files and does nothing else.
//!
//! # Plaintexts in memory
//! A [`Secret`] is one buffer from the moment it is received or decrypted until it is answered;
//! who needs it shares it, and it is wiped with its last holder. That includes the buffer that
//! tonic read an Encrypt's plaintext, or a plugin's answer to a Decrypt, into. What is not ours
//! cannot be wiped by us, and stays in freed or reused memory until something else is written
//! there:
//! - tonic and prost: the buffer that an answer or a request is encoded into;
//! - h2: what was read from a connection before it is cut into frames, and its write buffer, into
//!   which messages below 256 bytes are copied; both live and are reused as long as the connection;
//! - rustls: the plaintext of records that were read or are to be written, on the proxy's leg and
//!   towards a KMS; its own keys it wipes itself;
//! - the kernel: the buffers of sockets;
//! - what a provider's SDK or HTTP client copies, which the provider's own documentation says.
//!
//! What reads a process from outside finds less: it leaves no core dump, and where it runs as a uid
//! of its own only root reads its memory.
//!
//! # FIPS 140-3
//! The feature `fips`, which every program has, builds the cryptography of AWS-LC's FIPS module
//! (`aws-lc-fips-sys`) in the place of AWS-LC's own. Such a build says so in its version
//! (`0.1.0-fips`, the tag of its image too) and in the gauge `…_fips_mode`, which asks the module
//! itself and is 0 in any other build. The module ends the process if its self-tests fail. TLS speaks
//! approved versions, suites and groups alone, in TLS 1.2 only with the extended master secret: tests
//! of that build demand that each configuration of rustls calls itself `fips()`. AES-GCM's nonce comes
//! from the module, in all builds, so that data written by either build is read by the other. There
//! is no switch at run time.
//!
//! What it is not: a validation. The module has a certificate on platforms that it names; a static
//! binary on another one is "vendor affirmed" at best. Outside of the module are, in all builds:
//! - AWS's request signatures: HMAC-SHA-256 of the SDK's `aws-sigv4`, on RustCrypto's `hmac` and
//!   `sha2`, which cannot be exchanged. They authenticate us to AWS; keys and data are AWS's and TLS's;
//! - the hash maps' and HTTP/2's own randomness, which keeps nothing secret.
//!
//! To build it takes CMake, Go and a C compiler beside Rust. `.cargo/config.toml`'s switches are for
//! AWS-LC's own build and do not count here: the module has its own source of entropy, and costs a
//! process its self-tests at the start.
//!
//! # The end
//! A process that is told to end closes its sockets and lets open requests finish. Where its
//! clients are told at the same moment and serve on (HyperShift's kube-apiserver, with the plugins
//! as ordinary containers of its pod) that is too early: they still need their keys. There a
//! process may *linger*, serving in full while anybody is connected ([`Ending`]). It must be told
//! to, by `linger` or by flags that only HyperShift gives: a plugin in a pod of its own has
//! clients that stay, and would put off its successor.

mod error;
mod files;
mod key;
mod provider;
mod secret;
mod socket;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub mod config;
pub mod kms;
pub mod metrics;
pub mod process;
pub mod tls;

pub use config::{mistakes, read_file};
pub use error::{Error, Kind, code_name};
pub use files::{Digest, Files, Subscription, Watcher};
pub use key::backoff::{Backoff, jitter};
pub use key::canary::Canary;
pub use key::health::{Health, Snapshot, Trouble};
pub use kms::key_id::{
    KeyId, MAX_KEY_ID, NO_FINGERPRINT, ShimPrefix, fingerprint, hex, is_fingerprint, sha256,
    split_shim_prefix,
};
pub use kms::limits::{MAX_ANNOTATIONS, MAX_CIPHERTEXT, check_sealed};
pub use kms::single_flight::{Joined, SingleFlight};
pub(crate) use kms::stream::QuietStream;
pub use kms::{client, server};
pub use process::admin::Source;
pub use process::command::{
    Answer, CommandLine, EXIT_USAGE, NoCommand, Output, ProbeArgs, ProcessFlags, Rotate,
    RotateArgs, RotateCommand, answer, ask, complain, print, report, rotate, say, usage,
};
pub use process::shutdown::Ending;
pub use process::status::{ErrorStatus, time};
pub use process::{app, telemetry};
pub use provider::run::run;
pub use provider::{Call, Deletion, Provider, Sealed};
pub use secret::Secret;
pub use sidekey_proto as proto;
pub use socket::connections::{Connections, Slot};
pub use socket::endpoint::{Endpoint, EndpointError};
pub use socket::{Listener, Peer, SocketOptions};
pub use tls::certificate;

const VERSIONS: [&str; 2] =
    [env!("CARGO_PKG_VERSION"), concat!(env!("CARGO_PKG_VERSION"), "-fips")];

/// The version of every Sidekey binary, which is also the tag of its image.
pub const VERSION: &str = VERSIONS[cfg!(feature = "fips") as usize];
