//! The operator: does by itself what the `sidekey` command does by hand, for every control plane
//! that has a [`SecretEncryption`](crate::model::SecretEncryption).
//!
//! ```text
//! HostedCluster ─┐                                     ┌─▶ revisions and heads (Secrets)
//!                ├─▶ SecretEncryption ─▶ reconcile ────┼─▶ sidecars (pod template, or webhook)
//! APIServer ─────┘         ▲    status, conditions ◀───┼─▶ Jobs: preflight, migrate, census
//!                          └───────────────────────────┴─▶ shims, asked over mutual TLS
//! ```
//! One reconcile core; the front ends only translate. A pass looks at everything, takes at most
//! one step, writes down where it is before the step counts, and says when it wants to look again.
//! Whoever kills it anywhere finds the next pass going on. Between passes that find nothing to do
//! are cheap looks, which only ask whether anything has changed: see [`quiet`].
//!
//! It holds no etcd certificate and no kubeconfig of a hosted cluster: what needs those runs as a
//! Job in the control plane's namespace. It writes only objects that it owns, and in steady state
//! nothing at all but its lease.

pub mod api;
pub mod context;
pub mod fronts;
pub mod jobs;
pub mod lease;
pub mod metrics;
pub mod page;
pub mod pki;
mod policy;
pub mod proxy;
pub mod quiet;
mod reason;
pub mod reconcile;
pub mod roll;
pub mod run;
pub mod schedule;
pub mod status;
pub mod webhook;
