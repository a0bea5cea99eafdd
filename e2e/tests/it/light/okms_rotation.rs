//! Promise: the two rotations that OVHcloud's plugin tells of in its README are done through the shim
//! without a failed request: a label that is turned to another key, and two keys by their ids. What
//! the plugin itself has written is read throughout.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::okms::State;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::okms::{self, OkmsBackend, PROGRAM};
use sidekey_e2e::shim::{ShimConfig, ShimKey};
use sidekey_e2e::sidecar::Sidecar;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, Shim, binaries, eventually};

const PLAINTEXT: &[u8] = b"a key of thirty-two bytes, nearly";
const LABEL: &str = "etcd";

/// A domain of OKMS, and one provider process that serves some of its keys.
struct Scene {
    backend: OkmsBackend,
    program: PathBuf,
    scratch: Scratch,
}

impl Scene {
    async fn start(name: &str) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let backend = OkmsBackend::start(&scratch, LABEL).await?;
        Ok(Self { backend, program: binaries::path_async(PROGRAM).await?, scratch })
    }

    fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.scratch.path().join(format!("kms-{id}.sock")).display())
    }

    fn key(&self, id: u64, kek: &Value) -> Value {
        self.backend.document(id, kek, &self.endpoint(id))
    }

    /// The provider, once all keys are proven.
    async fn serve(&self, dir: &Path, keys: &[Value]) -> Result<Sidecar> {
        let probe = json!({"interval": "300ms", "timeout": "2s"});
        let document = json!({"keys": keys, "probe": probe});
        let mut provider = okms::spawn(&self.program, dir, &document).await?;
        provider.wait_ready().await?;
        Ok(provider)
    }

    async fn shim(&self, config: &ShimConfig) -> Result<(Shim, KmsClient)> {
        let shim = Shim::start(&self.scratch, "shim", config).await?;
        let client = KmsClient::connect(&shim.endpoint()).await?;
        Ok((shim, client))
    }
}

/// What is written from now on is under another key_id; until then not one request fails.
async fn moved(client: &KmsClient, old: &EncryptResponse) -> Result<EncryptResponse> {
    let moved = eventually("writes move", PATIENCE, async || {
        client.reads(old, PLAINTEXT).await?;
        let status = client.status().await?;
        let written = client.round_trip(PLAINTEXT).await?;
        ensure!(status.key_id != old.key_id, "Status still names {}", old.key_id);
        ensure!(written.key_id == status.key_id, "{} is written", written.key_id);
        Ok(written)
    });
    moved.await
}

#[tokio::test]
async fn a_label_that_is_turned_to_another_key_moves_the_writes_and_nothing_else() {
    let scene = Scene::start("okms-label").await.unwrap();
    let kek = scene.backend.labelled(LABEL);
    let key = scene.key(1, &kek);
    let _provider = scene.serve(scene.scratch.path(), &[key]).await.unwrap();
    let config = ShimConfig::new(1).probe("500ms", "2s").write(1, scene.endpoint(1));
    let (shim, client) = scene.shim(&config).await.unwrap();
    let old = client.round_trip(PLAINTEXT).await.unwrap();
    let new = {
        let mut service = scene.backend.fake.service();
        let new = service.create("next");
        service.repoint(LABEL, &scene.backend.key, &new);
        new
    };
    let fresh = moved(&client, &old).await.unwrap();
    assert!(fresh.key_id.ends_with(&new), "{}", fresh.key_id);
    // The shim has the key that it had: it is the label's, whichever key that is.
    let number = |sealed: &EncryptResponse| sealed.key_id.split('-').next().unwrap().to_owned();
    assert_eq!(number(&fresh), number(&old));
    client.reads(&old, PLAINTEXT).await.unwrap();
    assert_eq!(shim.status().await.unwrap()["write_key"], "1");
    // Once all is written anew the old key is not needed.
    scene.backend.fake.service().set_state(&scene.backend.key, State::Deactivated);
    client.reads(&fresh, PLAINTEXT).await.unwrap();
    client.reads(&old, PLAINTEXT).await.unwrap_err();
    client.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn two_keys_by_their_ids_take_turns_and_what_the_plugin_wrote_is_adopted() {
    let scene = Scene::start("okms-ids").await.unwrap();
    let second = scene.backend.fake.service().create("second");
    let (one, two) = (scene.backend.kek(&scene.backend.key), scene.backend.kek(&second));
    // In the place of the plugin, as its flags have it: bare, without the shim.
    let mut plugin = scene.key(1, &one);
    plugin["settings"]["pluginFormat"] = true.into();
    let dir = scene.scratch.subdir("plugin").unwrap();
    let provider = scene.serve(&dir, &[plugin.clone()]).await.unwrap();
    let bare = KmsClient::connect(&scene.endpoint(1)).await.unwrap();
    let stored = bare.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(stored.key_id, scene.backend.key);
    drop((bare, provider));

    // The new key listens, and is read before anything is written with it.
    let keys = [plugin, scene.key(2, &two)];
    let _provider = scene.serve(scene.scratch.path(), &keys).await.unwrap();
    let (first, next) = (scene.endpoint(1), scene.endpoint(2));
    let config = |revision| ShimConfig::new(revision).probe("500ms", "2s").legacy(1);
    let (mut shim, client) = scene.shim(&config(1).write(1, &first)).await.unwrap();
    client.reads(&stored, PLAINTEXT).await.unwrap();
    let old = client.round_trip(PLAINTEXT).await.unwrap();
    shim.load(&config(2).write(1, &first).read(2, &next)).await.unwrap();
    assert_eq!(client.round_trip(PLAINTEXT).await.unwrap().key_id, old.key_id);
    let promoted = config(3).key(ShimKey::write(2, &next)).read(1, &first);
    shim.load(&promoted).await.unwrap();
    let fresh = moved(&client, &old).await.unwrap();
    assert!(fresh.key_id.ends_with(&second), "{}", fresh.key_id);
    for sealed in [&stored, &old, &fresh] {
        client.reads(sealed, PLAINTEXT).await.unwrap();
    }
    // The old key goes, and with it what only it can read.
    shim.load(&ShimConfig::new(4).probe("500ms", "2s").write(2, &next)).await.unwrap();
    client.reads(&fresh, PLAINTEXT).await.unwrap();
    for sealed in [&stored, &old] {
        client.reads(sealed, PLAINTEXT).await.unwrap_err();
    }
}
