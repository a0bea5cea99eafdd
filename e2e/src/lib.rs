//! Real clusters for Sidekey's tests.
//!
//! For: proving promises on the servers that users run. kube-apiserver and
//! etcd are built from Go modules and kept in a cache, started on free loopback
//! ports, read down to the bytes in etcd, hurt in every way that happens in
//! production, and put under load that counts every failed request.
//!
//! Refuses: to skip. What is missing is installed or built; where that fails
//! the error says what was tried and how to fix it. It imitates no server and
//! retries no request.
//!
//! The one invariant: nothing outlives the process that started it. Children
//! end and scratch directories go, by pid and path, on drop and also when that
//! process panics, is interrupted or is killed.

pub mod apiserver;
pub mod aws;
pub mod bench;
pub mod binaries;
pub mod browser;
pub mod cache;
pub mod cluster;
pub mod coast;
pub use sidekey_verify::command;
pub mod encryption;
pub mod etcd;
pub mod fakes;
pub mod faulty;
pub mod gateway;
pub mod gcp;
pub mod golang;
pub mod hosted;
pub mod http;
pub mod images;
pub mod kmip;
pub mod kms;
pub mod kube;
pub mod load;
pub mod local;
pub mod metrics;
pub mod netns;
pub mod okms;
pub mod openbao;
pub mod operator;
pub mod packages;
pub mod pki;
pub mod plane;
pub mod ports;
pub mod process;
mod python;
pub mod scratch;
pub mod shim;
pub mod sidecar;
pub mod softhsm;
pub mod stored;
pub mod vault;
pub mod vendor;
pub mod wait;
mod watchdog;
mod witness;

pub use apiserver::KubeApiserver;
pub use cluster::{Cluster, Ground};
pub use encryption::{EncryptionConfiguration, Stanza};
pub use etcd::Etcd;
pub use kube::{Kind, KubeClient};
pub use load::{Load, LoadOptions};
pub use local::LocalPlugin;
pub use openbao::OpenBao;
pub use plane::ControlPlane;
pub use scratch::Scratch;
pub use shim::Shim;
pub use sidecar::Sidecar;
pub use stored::Stored;
pub use vault::VaultPlugin;
pub use wait::eventually;
pub use watchdog::KEEP;
