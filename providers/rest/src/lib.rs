//! What every provider of a KMS behind HTTPS needs, once.
//!
//! Building blocks, not a framework: [`Provider`](sidekey_core::Provider) stays the only trait that
//! a vendor implements for the runtime, and it takes what it needs from here.
//!
//! - [`Http`]: a pooled client, proxies, bounded answers, one deadline for each call;
//! - [`Servers`]: several servers of one cluster, asked as if they were one;
//! - [`stream`]: connections for what is no HTTP;
//! - [`Lease`]: tokens, sessions and credentials that are renewed in time; [`oauth`]: their forms;
//! - [`codes`]: what a vendor's codes mean; [`dropin`]: the flags of the plugin that is replaced;
//! - [`naming`]: key_ids; [`Trust`], [`Address`], [`Clock`], [`Learner`], [`files`], [`json`], [`Shared`],
//!   [`crc32c`].
//!
//! It refuses to retry: a key in core does that, with one budget for all. It refuses to verify less
//! than a whole certificate, to quote what a server sent, and to read more than it asked for.
//!
//! The one invariant: **nothing that was sent once must be sent twice unless that is harmless.** A
//! request is sent again only if it met a connection that had gone stale.
//!
//! # Libraries
//! | for | used | why |
//! |---|---|---|
//! | HTTP | hyper, hyper-util's client | the pool, happy eyeballs and proxies that we would write again; not reqwest, whose trust is one for the process, not one for each key |
//! | TLS | hyper-rustls, rustls on aws-lc-rs | one TLS stack in the workspace |
//! | limits | `tower`'s concurrency limit | its timeout is fixed and does not cover the wait for a turn, so the deadline is ours |
//! | unix sockets | hyperlocal | for agents on the node |
//! | Vault | not vaultrs | its `Client::http()` returns reqwest's own type, so that no other transport, second address or fail-over is possible, and it has no `batch_input` |
//! | AWS | aws-sdk-kms and aws-config, over [`Http`] as their transport (feature `aws`) | operations, signing, endpoint rules and credential chain are theirs; retries, timeouts, identity cache and HTTP client are not |
//! | Azure | azure_security_keyvault_keys over [`Http`]; not azure_identity | it drops a valid token when renewal fails, and needs openssl for certificates: [`oauth`] and [`Lease`] in its place |
//! | Google | none | three calls; google-cloud-kms takes no other HTTP client, and so trusts by the system's store alone |
//! | IBM, OVH | none | there are no crates for their KMSs |
//! | KMIP | none | kmip-protocol has neither Encrypt nor Decrypt, cosmian_kmip is BUSL |

pub mod address;
mod bearer;
mod body;
mod clock;
pub mod codes;
mod crc32c;
pub mod dropin;
pub mod files;
pub mod http;
pub mod lease;
pub mod naming;
pub mod oauth;
#[cfg(feature = "aws")]
mod sdk;
pub mod servers;
mod shared;
pub mod stream;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tls;

pub use address::Address;
pub use body::{form, json, read};
pub use clock::{Clock, Learner};
pub use crc32c::crc32c;
pub use http::{Answer, Http, Limits, Proxy, Request, secret_header};
pub use lease::Lease;
#[cfg(feature = "aws")]
pub use sdk::SdkTransport;
pub use servers::Servers;
pub use shared::{Shared, fingerprint};
pub use tls::Trust;
