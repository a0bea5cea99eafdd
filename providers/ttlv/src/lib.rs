//! KMIP for providers: its encoding (TTLV), and a client for what a KMS v2 provider asks.
//!
//! It speaks KMIP 1.2 to 1.4 over mutual TLS: DiscoverVersions, Locate, GetAttributes, Encrypt and
//! Decrypt. It refuses to know Get, so that no key ever leaves the KMS, and anything that makes or
//! changes an object there. It refuses to repeat anything but what met a kept connection that had
//! gone stale: a key in core retries.
//!
//! The one invariant: **nothing of an answer is used before all of it has been checked**, and what
//! is used is of the operation and the key that were asked for.
//!
//! # Libraries
//! None: kmip-protocol (of 2022) has neither Encrypt nor Decrypt and brings another TLS stack,
//! cosmian_kmip is BUSL. Connections, trust and the order of servers are `sidekey-rest`'s.

mod client;
mod codec;
mod connection;
mod protocol;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use client::{Cipher, Client, Mode, TAG_LEN, address};
