//! A small KMS v2 plugin, sound unless it is told to break one promise.

mod defect;
mod life;
mod server;
mod service;
mod store;

pub(crate) use defect::Defect;
pub(crate) use server::{TestPlugin, bind, serve};
pub(crate) use store::Store;
