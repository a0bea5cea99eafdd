//! Promise: the shim can be put in front of plugins that already have written,
//! under two names, and can be taken away again. Everything stays readable in
//! every state on the way, also where one replica has the shim and the other
//! does not yet, and no request to a replica that runs fails.

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::json;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, LocalPlugin, Shim, Stanza,
    Stored,
};

const ACTIVE: &str = "old-active";
const BACKUP: &str = "old-backup";
const SIDEKEY: &str = "sidekey";

/// Requests to the replica that runs, before and after the other one restarts.
const AROUND_A_RESTART: u64 = 40;

/// Dropped, and so ended, in this order.
struct Scene {
    servers: Vec<KubeApiserver>,
    shim: Shim,
    active: LocalPlugin,
    backup: LocalPlugin,
    plane: ControlPlane,
    /// All objects so far: their names and the names in their stored prefixes.
    objects: Vec<(String, &'static str)>,
    loads: usize,
}

#[tokio::test]
async fn the_shim_adopts_what_bare_plugins_wrote_and_can_be_taken_away_again() {
    let mut scene = Scene::start().await.unwrap();
    bare_plugins_write_under_two_names(&mut scene).await.unwrap();
    the_shim_is_put_behind_the_old_names(&mut scene).await.unwrap();
    new_writes_go_under_the_shims_own_name(&mut scene).await.unwrap();
    the_shim_is_taken_away_again(&mut scene).await.unwrap();
}

async fn bare_plugins_write_under_two_names(scene: &mut Scene) -> Result<()> {
    scene.write(0, "bare-active", ACTIVE).await?;
    scene.write(1, "bare-backup", BACKUP).await?;
    scene.write(1, "migrated", BACKUP).await?;
    for name in ["bare-active", "bare-backup", "migrated"] {
        let key_id = scene.key_id(name).await?;
        ensure!(!key_id.starts_with("sidekey/"), "{name} was written through a shim: {key_id}");
    }
    scene.everything_reads().await
}

/// Old names first: a replica that has not been updated does not know the new one.
async fn the_shim_is_put_behind_the_old_names(scene: &mut Scene) -> Result<()> {
    let (main, adopted) = (scene.shim.endpoint(), scene.shim.adopted(BACKUP));
    let providers = [(ACTIVE, &main), (BACKUP, &adopted), (SIDEKEY, &main)];
    scene.update(0, &providers).await?;
    // Through the shim here, and read by the bare plugin there.
    scene.write(0, "half-way", ACTIVE).await?;
    let key_id = scene.key_id("half-way").await?;
    ensure!(key_id.starts_with("sidekey/1-"), "half-way was not written by the shim: {key_id}");
    scene.everything_reads().await?;
    scene.update(1, &providers).await?;
    scene.everything_reads().await
}

async fn new_writes_go_under_the_shims_own_name(scene: &mut Scene) -> Result<()> {
    let (main, adopted) = (scene.shim.endpoint(), scene.shim.adopted(BACKUP));
    let providers = [(SIDEKEY, &main), (ACTIVE, &main), (BACKUP, &adopted)];
    for index in [0, 1] {
        scene.update(index, &providers).await?;
        scene.write(index, &format!("adopted-{index}"), SIDEKEY).await?;
        scene.everything_reads().await?;
    }
    // A rewrite is all that migration is: the old names empty object by object.
    for (name, provider) in &mut scene.objects {
        if name == "migrated" {
            for kind in Kind::ALL {
                let client = scene.servers[0].client();
                client.update(kind, "default", name, &[("word", name)]).await?;
            }
            *provider = SIDEKEY;
        }
    }
    scene.everything_reads().await
}

/// The name `sidekey` stays, with the bare plugin of the write key behind it.
async fn the_shim_is_taken_away_again(scene: &mut Scene) -> Result<()> {
    let (active, backup) = (scene.active.endpoint(), scene.backup.endpoint());
    let providers = [(SIDEKEY, &active), (ACTIVE, &active), (BACKUP, &backup)];
    scene.update(0, &providers).await?;
    // Without the shim here, and read through the shim's legacyKey there.
    scene.write(0, "leaving", SIDEKEY).await?;
    let key_id = scene.key_id("leaving").await?;
    ensure!(!key_id.starts_with("sidekey/"), "leaving was written through a shim: {key_id}");
    scene.everything_reads().await?;
    scene.update(1, &providers).await?;
    scene.shim.kill()?;
    scene.write(1, "left", SIDEKEY).await?;
    scene.everything_reads().await
}

impl Scene {
    /// Two replicas, of which one writes under each name; both read both.
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("shim-adoption").await?;
        let active = LocalPlugin::start(&plane.scratch, "active").await?;
        let backup = LocalPlugin::start(&plane.scratch, "backup").await?;
        let config = ShimConfig::new(1)
            .write(1, active.endpoint())
            .read(2, backup.endpoint())
            .legacy(1)
            .adopt(BACKUP, 2);
        let shim = Shim::start(&plane.scratch, "shim", &config).await?;
        let (one, two) = (active.endpoint(), backup.endpoint());
        let mut servers = Vec::new();
        for (name, providers) in
            [("a", [(ACTIVE, &one), (BACKUP, &two)]), ("b", [(BACKUP, &two), (ACTIVE, &one)])]
        {
            let options = Options::new(name).encryption(encryption(&providers));
            servers.push(KubeApiserver::start(&plane, options).await?);
        }
        Ok(Self { servers, shim, active, backup, plane, objects: Vec::new(), loads: 0 })
    }

    /// Restarts one replica with other providers, as a rolling update does; the
    /// other one serves meanwhile.
    async fn update(&mut self, index: usize, providers: &[(&str, &String)]) -> Result<()> {
        self.loads += 1;
        let namespace = format!("load-{}", self.loads);
        let other = self.servers[1 - index].client();
        let object = json!({"metadata": {"name": namespace}});
        other.send(Method::POST, "/api/v1/namespaces", Some(&object)).await?;
        let options = LoadOptions { writers: 2, readers: 1, namespace, ..LoadOptions::default() };
        let load = Load::start(vec![other], options)?;
        load.more(AROUND_A_RESTART).await?;
        let server = &mut self.servers[index];
        std::fs::write(server.encryption_file(), encryption(providers).to_string())?;
        server.restart().await?;
        load.more(AROUND_A_RESTART).await?;
        let report = load.stop().await?.without_failures()?;
        println!("while replica {index} was updated {report}");
        Ok(())
    }

    async fn write(&mut self, index: usize, name: &str, provider: &'static str) -> Result<()> {
        for kind in Kind::ALL {
            let client = self.servers[index].client();
            client.create(kind, "default", name, &[("word", name)]).await?;
        }
        self.objects.push((name.to_owned(), provider));
        Ok(())
    }

    /// Reads each object through each replica, and how it is stored.
    async fn everything_reads(&self) -> Result<()> {
        for (name, provider) in &self.objects {
            for kind in Kind::ALL {
                for server in &self.servers {
                    let data = server.client().read(kind, "default", name).await?;
                    ensure!(data["word"] == *name, "{BROKEN}{kind:?} {name} holds {data:?}");
                }
                let stored = self.plane.etcd.raw(&kind.etcd_key("default", name)).await?;
                let found = Stored::parse(&stored).with_context(|| name.clone())?.provider;
                ensure!(found == *provider, "{kind:?} {name} is stored under the name {found}");
            }
        }
        Ok(())
    }

    async fn key_id(&self, name: &str) -> Result<String> {
        let stored = self.plane.etcd.raw(&Kind::Secret.etcd_key("default", name)).await?;
        Ok(Stored::parse(&stored)?.object.key_id)
    }
}

fn encryption(providers: &[(&str, &String)]) -> EncryptionConfiguration {
    let stanza = Stanza::new(["secrets", "configmaps"]);
    let stanza =
        providers.iter().fold(stanza, |stanza, (name, endpoint)| stanza.kms(name, endpoint));
    EncryptionConfiguration::new().stanza(stanza.identity())
}
