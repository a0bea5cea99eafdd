//! The socket proxy.
