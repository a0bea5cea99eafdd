//! Promises of the README that no fault is needed for: Status from memory, equal Decrypts, the cache,
//! and the names of metrics.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use support::plugin::Plugin;
use support::shim::{Shim, document, key};
use support::{World, eventually, metric, status};
use tokio::sync::Semaphore;
use tonic::Code;

/// A key of somebody else's plugin, which is probed as often as it is set.
fn foreign(directory: &Path, plugin: &Plugin, interval: &str) -> Value {
    let mut key = key(1, "write", &[plugin]);
    key["external"] = true.into();
    let mut document = document(directory, 1, &[key]);
    document["probe"]["interval"] = interval.into();
    document
}

#[tokio::test]
async fn status_comes_from_memory_however_many_ask_and_whether_the_plugin_answers_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let shim = Shim::start(directory, &foreign(directory, &plugin, "1h")).await;
    let key_id = shim.is_ready().await;
    let asked = plugin.manners.asked.load(Ordering::SeqCst);
    plugin.manners.hangs.store(true, Ordering::SeqCst);
    let mut client = shim.client().await;
    for _ in 0..500 {
        let answer = client.status(status()).await.unwrap().into_inner();
        assert_eq!((answer.version.as_str(), answer.healthz.as_str()), ("v2", "ok"));
        assert_eq!(answer.key_id, key_id);
    }
    assert_eq!(plugin.manners.asked.load(Ordering::SeqCst), asked);
}

#[tokio::test]
async fn equal_decrypts_at_the_same_time_are_sent_once_and_others_are_not() {
    const EQUAL: usize = 50;
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let keys = [key(1, "write", &[&plugin])];
    let shim = Arc::new(Shim::start(directory, &document(directory, 1, &keys)).await);
    shim.is_ready().await;
    let (one, other) = (shim.encrypt(b"one").await.unwrap(), shim.encrypt(b"other").await.unwrap());
    let gate = Arc::new(Semaphore::new(0));
    *plugin.manners.gate.lock().unwrap() = Some(gate.clone());
    let before = plugin.seen_of_callers();
    let calls: Vec<_> = std::iter::repeat_n((&one, b"one".as_slice()), EQUAL)
        .chain([(&other, b"other".as_slice())])
        .map(|(sealed, plaintext)| {
            let (shim, sealed, plaintext) = (shim.clone(), sealed.clone(), plaintext.to_owned());
            tokio::spawn(async move {
                assert_eq!(
                    shim.decrypt_within(support::PATIENCE, &sealed).await.unwrap(),
                    plaintext
                );
            })
        })
        .collect();
    let unfinished = format!("\nkms_shim_unfinished_requests {}\n", EQUAL + 1);
    eventually("all have come", async || {
        shim.get("/metrics").await?.contains(&unfinished).then_some(())
    })
    .await;
    eventually("both are sent", async || (plugin.seen_of_callers() == before + 2).then_some(()))
        .await;
    gate.add_permits(2);
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(plugin.seen_of_callers(), before + 2);
    let shared = format!("\nkms_shim_shared_decrypts_total {}\n", EQUAL - 1);
    let metrics = shim.get("/metrics").await.unwrap();
    assert!(metrics.contains(&shared), "{metrics}");
}

#[tokio::test]
async fn the_cache_is_off_unless_it_is_turned_on_and_a_reload_empties_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let mut document = document(directory, 1, &[key(1, "write", &[&plugin])]);
    let shim = Shim::start(directory, &document).await;
    shim.is_ready().await;
    let sealed = shim.encrypt(b"x").await.unwrap();
    let sent = async |times: usize| {
        let before = plugin.seen_of_callers();
        for _ in 0..times {
            assert_eq!(shim.decrypt(&sealed).await.unwrap(), b"x");
        }
        plugin.seen_of_callers() - before
    };
    assert_eq!(sent(3).await, 3, "it is off");
    document["cache"] = json!({"entries": 10, "ttl": "1h"});
    for revision in 2..4 {
        document["revision"] = revision.into();
        shim.load(&document).await;
        assert_eq!(sent(3).await, 1, "revision {revision}");
    }
    document["revision"] = 4.into();
    document["cache"] = Value::Null;
    shim.load(&document).await;
    assert_eq!(sent(3).await, 3, "it is off again");
}

/// The metrics that the README names, those of all processes among them.
fn documented(prefix: &str) -> BTreeSet<String> {
    let readme = include_str!("../README.md");
    let quoted = readme.split('`').skip(1).step_by(2).filter_map(|name| name.split('{').next());
    let whole = |name: &str| match name.strip_prefix('…') {
        Some(rest) => Some(format!("{prefix}_{rest}")),
        None => name.starts_with(prefix).then(|| name.to_owned()),
    };
    quoted.filter_map(whole).filter(|name| *name != format!("{prefix}_")).collect()
}

/// The metrics that are there, under the names of their samples.
fn served(metrics: &str) -> BTreeSet<String> {
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    families
        .map(
            |(name, kind)| {
                if kind == "counter" { format!("{name}_total") } else { name.to_owned() }
            },
        )
        .collect()
}

#[tokio::test]
async fn the_readme_names_every_metric_of_the_shim_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let shim = Shim::start(directory, &foreign(directory, &plugin, "200ms")).await;
    shim.is_ready().await;
    // Some are there only where a plugin fails.
    plugin.manners.fails_with(Some((Code::Unavailable, "away")));
    let names = eventually("it coasts", async || {
        let names = served(&shim.get("/metrics").await?);
        names.iter().any(|name| name.contains("coasting")).then_some(names)
    })
    .await;
    assert_eq!(names, documented("kms_shim"));
}

#[tokio::test]
async fn the_readme_names_every_metric_of_the_proxy_and_no_other() {
    let world = World::new();
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    assert_eq!(metric(&proxy, "socket_proxy_connections"), 0);
    let names = served(&support::metrics(&proxy));
    assert_eq!(names, documented("socket_proxy"));
}
