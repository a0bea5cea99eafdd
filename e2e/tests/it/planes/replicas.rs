//! Promise: two kube-apiservers on one etcd, each with its own plugin process
//! on a shared key file, read each other's writes throughout a rotation, and
//! not one request fails.

use std::collections::BTreeMap;

use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, LocalPlugin, Stored,
};

/// Requests between two steps of the rotation, so that each state sees load.
const BETWEEN_STEPS: u64 = 300;

#[tokio::test]
async fn replicas_read_each_others_writes_throughout_a_rotation() {
    let plane = ControlPlane::start("replicas").await.unwrap();
    let mut plugins = Vec::new();
    let key_file = plane.scratch.subdir("key").unwrap().join("key");
    for name in ["plugin-a", "plugin-b"] {
        let plugin = LocalPlugin::with_key_file(&plane.scratch, name, &key_file).await;
        plugins.push(plugin.unwrap());
    }
    let mut servers = Vec::new();
    for (name, plugin) in ["a", "b"].into_iter().zip(&plugins) {
        let encryption = EncryptionConfiguration::kms("sidekey", plugin.endpoint());
        let options = Options::new(name).encryption(encryption);
        servers.push(KubeApiserver::start(&plane, options).await.unwrap());
    }
    let pids: Vec<_> = servers.iter_mut().map(|server| server.process().pid()).collect();
    let old = plugins[0].key_id_hash().await.unwrap();
    assert_eq!(plugins[1].key_id_hash().await.unwrap(), old, "both use one key");

    let clients = servers.iter().map(KubeApiserver::client).collect();
    let load = Load::start(clients, LoadOptions::default()).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    // First every plugin can read the new version, then one of them writes it.
    let version = plugins[0].rotate().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    plugins[0].activate(version).await.unwrap();
    let new = plugins[0].wait_key_id_moves(&old).await.unwrap();
    assert_eq!(plugins[1].wait_key_id_moves(&old).await.unwrap(), new);

    // One replica writes under the new key while the other still may not.
    servers[0].wait_key_id("sidekey", &new).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    servers[1].wait_key_id("sidekey", &new).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    for server in &servers {
        assert_eq!(server.written_key_id("sidekey").await.unwrap(), new);
    }

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout the rotation {report}");
    let after: Vec<_> = servers.iter_mut().map(|server| server.process().pid()).collect();
    assert_eq!(after, pids, "no kube-apiserver was restarted");
    everything_reads_through_both_whichever_key_it_has(&plane, &servers, [&old, &new]).await;
}

async fn everything_reads_through_both_whichever_key_it_has(
    plane: &ControlPlane,
    servers: &[KubeApiserver],
    keys: [&String; 2],
) {
    let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
    for kind in Kind::ALL {
        let prefix = format!("/registry/{}/default/load-", kind.plural());
        for entry in plane.etcd.list(&prefix).await.unwrap() {
            let stored = Stored::parse(&entry.value).unwrap();
            *by_key.entry(stored.key_id_hash()).or_default() += 1;
            let name = entry.key.rsplit('/').next().unwrap();
            for server in servers {
                let data = server.client().read(kind, "default", name).await.unwrap();
                assert_eq!(data["value"], format!("{name} second"));
            }
        }
    }
    for key in keys {
        assert!(by_key.get(key).is_some_and(|count| *count > 0), "none under {key}: {by_key:?}");
    }
    assert_eq!(by_key.len(), 2, "{by_key:?}");
}
