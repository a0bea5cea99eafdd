//! The runtime that makes a KMS v2 provider a few hundred lines.

mod endpoint;

pub mod client;

pub use endpoint::{Endpoint, EndpointError};
pub use sidekey_proto as proto;
