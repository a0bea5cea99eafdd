//! The shim and the socket proxy.

pub mod proxy;
pub mod tls;
