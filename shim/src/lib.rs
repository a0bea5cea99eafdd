//! The shim that kube-apiserver talks to, and the socket proxy.
//!
//! The shim is one KMS v2 plugin towards kube-apiserver, for ever, while keys and vendors behind it
//! come and go. Encrypt and Status follow the write key; Decrypt goes to the key that wrote, by
//! the key_id `sidekey/<keyID>-<fingerprint>/<the provider's key_id>`.
//!
//! It refuses to guess: no trial decryption, no fail-over of writes to another key, no key that
//! has not proven itself in the place of one that works, no key_id that comes back.
//!
//! The one invariant: Status, Encrypt and Decrypt read one pointer, the table. It moves in one
//! instant, after the new keys have proven themselves, and so every answer belongs to one
//! configuration.
//!
//! # Rules worth knowing
//! - **Endpoints.** Each endpoint of a key gets its share of the caller's time. What it answers goes
//!   back, an error too, because providers have retried already; what it leaves unanswered is asked
//!   of the next. Encrypt goes only to endpoints that report the announced key_id.
//! - **Probe interval.** Providers answer Status from memory, so asking every four seconds costs the
//!   KMS nothing; a changed key_id is proven by a round trip before it is announced.
//! - **Loss of the write key.** Our providers coast by themselves, and what they answer is passed on
//!   at once. The shim coasts while it cannot reach them, and over the failures of foreign plugins;
//!   always from the last proof, so that the two do not add up. A transient error of a process that
//!   has not been well on this connection counts as not reached: it may have just been started.
//!   Then Status is a gRPC error, so that kube-apiserver's write window closes.
//!   A read key that is gone never changes Status.
//! - **The KEK that wrote.** A key reads its canary, or what it wrote or read before, when its
//!   endpoint, settings, key_id or connection are new; before that it is not written with. What it
//!   writes under a new key_id is on disk before that key_id is announced.
//! - **A host that is gone without a word** is found out by its kernel's silence, after a second:
//!   the request goes on by another connection or endpoint, and a slow plugin is left in peace.
//! - **A key that has been the write key and was replaced** may read for ever, but to write again it
//!   needs a new number: key_ids must never come back. The numbers are kept on disk with the last
//!   good configuration.
//! - **Fingerprints.** `fingerprint`, or the hash of `kek`, goes into every key_id. Without either it
//!   is `00000000`, which matches everything, so that naming one later leaves old data readable.

mod admin_tls;
mod cache;
mod call;
mod engine;
mod identities;
mod key;
mod lastgood;
mod link;
mod memory;
mod metrics;
mod page;
mod probe;
mod router;
mod run;
mod state;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod upstream;

pub mod config;
pub mod proxy;
pub mod tls;

pub use run::run;
