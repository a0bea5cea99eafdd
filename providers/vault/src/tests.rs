//! What the parts promise together, against a simulated Vault.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod adopted;
mod answers;
mod refusals;
mod servers;
mod sessions;
mod states;

use std::path::PathBuf;

use crate::testing::config;
use crate::{Config, Vault};

/// A file with a secret-id of its own.
struct Secret {
    dir: tempfile::TempDir,
}

impl Secret {
    fn new() -> Self {
        let secret = Self { dir: tempfile::tempdir().unwrap() };
        secret.write("s.secret-id\n");
        secret
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("secret-id")
    }

    fn config(&self, urls: &[String]) -> Config {
        config(&crate::testing::document(urls, &self.path()))
    }
}

/// The error of something that must fail.
fn refusal(result: Result<Vault, sidekey_core::Error>) -> sidekey_core::Error {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(error) => error,
    }
}
