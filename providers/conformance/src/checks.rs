//! The checks, one module for each group.

pub(crate) mod abuse;
pub(crate) mod decrypt;
pub(crate) mod encrypt;
pub(crate) mod hostile;
pub(crate) mod mutate;
pub(crate) mod restart;
pub(crate) mod rotation;
pub(crate) mod socket;
pub(crate) mod status;
pub(crate) mod wire;
