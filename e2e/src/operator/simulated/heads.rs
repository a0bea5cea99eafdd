//! The heads of all shims, as they are now: a request for each question would be counted with those
//! of the operator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::shims::Shim;
use crate::KubeClient;

/// Every head, and no other Secret.
const PATH: &str = "/api/v1/secrets?fieldSelector=metadata.name%3Dsidekey-shim";
/// Before it is begun anew.
const PAUSE: Duration = Duration::from_millis(500);

/// Shims by their namespaces.
#[derive(Default)]
pub(super) struct Heads {
    known: Mutex<HashMap<String, Arc<Shim>>>,
}

impl Heads {
    /// Follows them as long as anybody has use for it.
    pub(super) fn follow(client: KubeClient) -> Arc<Self> {
        let heads = Arc::new(Self::default());
        let weak = Arc::downgrade(&heads);
        tokio::spawn(async move {
            while let Some(heads) = weak.upgrade() {
                // An API server that forgets versions is asked for everything again.
                if let Err(error) = heads.watch(&client).await {
                    eprintln!("simulated shims: {error:#}");
                }
                drop(heads);
                tokio::time::sleep(PAUSE).await;
            }
        });
        heads
    }

    pub(super) fn shim(&self, namespace: &str) -> Option<Arc<Shim>> {
        self.known().get(namespace).cloned()
    }

    async fn watch(self: &Arc<Self>, client: &KubeClient) -> Result<()> {
        let list = client.get(PATH).await?;
        for secret in list["items"].as_array().context("a list without items")? {
            self.take(secret);
        }
        let mut version = text(&list).context("a list without version")?;
        while Arc::strong_count(self) > 1 {
            // Events come with the end of the answer, a second later.
            let path = format!("{PATH}&watch=true&timeoutSeconds=1&resourceVersion={version}");
            let answer = client.raw(&path).await?.ok()?;
            for line in answer.text().lines() {
                let event: Value = serde_json::from_str(line)?;
                ensure!(event["type"] != "ERROR", "{}", event["object"]);
                self.take(&event["object"]);
                version = text(&event["object"]).context("an object without version")?;
            }
        }
        Ok(())
    }

    /// One that does not load leaves what there was, as with a shim.
    fn take(&self, secret: &Value) {
        let namespace = secret["metadata"]["namespace"].as_str().unwrap_or_default();
        match Shim::load(secret) {
            Ok(shim) => drop(self.known().insert(namespace.to_owned(), Arc::new(shim))),
            Err(error) => eprintln!("simulated shim of {namespace}: {error:#}"),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<Shim>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text(object: &Value) -> Option<String> {
    Some(object["metadata"]["resourceVersion"].as_str()?.to_owned())
}
