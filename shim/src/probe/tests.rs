#![allow(clippy::unwrap_used)]

use std::sync::atomic::Ordering;

use sidekey_core::{Endpoint, Secret};

use super::*;
use crate::config::Address;

#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/support/plugin.rs"]
mod plugin;

const PATIENCE: Duration = Duration::from_secs(60);

async fn found(link: &Arc<Link>, plan: &Plan) -> Found {
    let mut told = link.probe(plan);
    told.wait_for(Option::is_some).await.unwrap().clone().unwrap()
}

#[tokio::test]
async fn a_foreign_plugin_reads_its_canary_every_hour_though_its_status_stays_ok() {
    let directory = tempfile::tempdir().unwrap();
    let manners = plugin::Manners::of_kek(1);
    let plugin = plugin::Plugin::with(&directory.path().join("kms.sock"), manners.clone()).await;
    let address = Address::Unix(Endpoint::Path(plugin.path.clone()));
    let link = Link::new(address, Vec::new(), None, Arc::default());
    let mut client = link.client(Instant::now() + PATIENCE).await.unwrap();
    let plaintext = Secret::new(vec![7; 32]);
    let written = client.encrypt(&plaintext, "test", Instant::now() + PATIENCE);
    let memory = Some(Memory::read(written.await.unwrap()));
    let (key, role, timeout) = (KeyNumber(1), KeyRole::Write, PATIENCE);
    let plan = Plan { key, role, external: true, memory, timeout };

    assert!(matches!(found(&link, &plan).await, Found::Good(_)));
    let seen = manners.seen.load(Ordering::SeqCst);
    // Its KEK is exchanged, and its Status says nothing of it.
    manners.kek.store(2, Ordering::SeqCst);
    tokio::time::pause();
    tokio::time::advance(EXTERNAL_CHECK - PATIENCE).await;
    tokio::time::resume();
    assert!(matches!(found(&link, &plan).await, Found::Good(_)), "it is not asked so often");
    assert_eq!(manners.seen.load(Ordering::SeqCst), seen);
    tokio::time::pause();
    tokio::time::advance(PATIENCE).await;
    tokio::time::resume();
    assert!(matches!(found(&link, &plan).await, Found::Failed(_)));
    assert_eq!(manners.seen.load(Ordering::SeqCst), seen + 1);
}
