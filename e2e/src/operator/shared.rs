//! What all tests of one process share: the management cluster, and the runtime that it lives on.
//!
//! A cluster and its clients hang on the runtime on which they were started, and every
//! `#[tokio::test]` ends its own. So tests run here, side by side. Nothing is ended: the cluster goes
//! with the process.

use std::sync::{Arc, LazyLock};

use anyhow::{Result, anyhow};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;

use super::Management;

static RUNTIME: LazyLock<std::io::Result<Runtime>> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build());

static MANAGEMENT: OnceCell<Result<Arc<Management>, String>> = OnceCell::const_new();

/// Runs a test on the runtime that all share.
pub fn run<T>(test: impl Future<Output = T>) -> Result<T> {
    Ok(runtime()?.block_on(test))
}

pub(super) fn runtime() -> Result<&'static Runtime> {
    RUNTIME.as_ref().map_err(|error| anyhow!("no runtime: {error}"))
}

impl Management {
    /// The one of this process, started by whoever comes first. What has failed once is not tried
    /// again: every test would fail as late as the first.
    pub(super) async fn shared() -> Result<Arc<Self>> {
        let start = async || Self::start("operator").await.map(Arc::new);
        let started = MANAGEMENT.get_or_init(async || start().await.map_err(|e| format!("{e:#}")));
        started.await.clone().map_err(|error| anyhow!("there is no management cluster: {error}"))
    }
}
