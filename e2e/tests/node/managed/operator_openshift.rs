//! Promise: editing OpenShift's APIServer is all it takes too: what is in clear is encrypted by a KMS,
//! in two phases by kube-apiserver's own reload, with no failed request; a new image is one rolling
//! update; what is wrong is told on the APIServer, and so is what is so.
//!
//! kube-apiservers are pods of a Deployment in the namespace that OpenShift has for them; its own
//! operators, which would make static pods of them, are not here.

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::operator::{BETWEEN_STEPS, Managed, ROTATION, VaultKey, condition, run};
use sidekey_e2e::wait::{LONG_PATIENCE, eventually};
use sidekey_e2e::{Kind, Load, Stored};
use tokio::sync::{Mutex, MutexGuard};

const PATH: &str = "/apis/config.openshift.io/v1/apiservers/cluster";

/// There is one APIServer in a cluster.
static APISERVER: Mutex<()> = Mutex::const_new(());

/// Dropped, and so ended, in this order.
pub(crate) struct Scene {
    pub(crate) vault: VaultKey,
    pub(crate) managed: Managed,
    _alone: MutexGuard<'static, ()>,
}

#[test]
fn editing_the_api_server_is_all_that_encryption_takes() {
    run(scene()).unwrap();
}

async fn scene() {
    let scene = Scene::start().await.unwrap();
    let load = scene.managed.load_on_service().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.everything_is("").await.unwrap();
    scene.becomes_vault(&load).await.unwrap();
    scene.a_new_image_is_one_rolling_update(&load).await.unwrap();
    scene.a_missing_reference_is_named_on_the_api_server(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout one change and a new image, through the balancer: {report}");
}

impl Scene {
    pub(crate) async fn start() -> Result<Self> {
        let alone = APISERVER.lock().await;
        let managed = Managed::start_in("openshift-kube-apiserver", "cluster").await?;
        let vault = VaultKey::create(&managed).await?;
        let scene = Self { vault, managed, _alone: alone };
        scene.hand_over().await?;
        Ok(scene)
    }

    pub(crate) async fn becomes_vault(&self, load: &Load) -> Result<()> {
        let vault = self.vault.of_api_server(&self.managed).await?;
        let kms = json!({"type": "KMS", "kms": {"type": "Vault", "vault": vault}});
        self.becomes(&kms, "vault", "k8s:enc:kms:v2:", load).await
    }

    /// Where the pods differ from OpenShift's.
    fn settings() -> Value {
        json!({"controlPlane": {"selector": {"app": "kube-apiserver"}}})
    }

    /// An APIServer that encrypts nothing, and says where the pods differ from OpenShift's.
    async fn hand_over(&self) -> Result<()> {
        let settings = Self::settings();
        let server = json!({
            "apiVersion": "config.openshift.io/v1", "kind": "APIServer",
            "metadata": {"name": "cluster", "annotations": {
                "sidekey.dev/manage": "true", "sidekey.dev/settings": settings.to_string(),
            }},
            "spec": {"audit": {"profile": "Default"}, "encryption": {"type": "identity"}},
        });
        self.managed.hosted.cluster.client().apply(&server).await.map(drop)
    }

    /// The same image under another name: the pods are new, the data and the key are the same.
    async fn a_new_image_is_one_rolling_update(&self, load: &Load) -> Result<()> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let [_, shim] = hosted.images();
        let other = "localhost/sidekey-shim:another";
        hosted.cluster.ground().tag_image(shim, other).await?;
        let before = managed.rollouts().await?;
        let key = managed.encryption().await?["status"]["activeKey"]["id"].take();
        let key = key.as_u64().context("no key writes")?;
        let mut settings = Self::settings();
        settings["images"] = json!({"shim": other});
        let annotations = json!({"sidekey.dev/settings": settings.to_string()});
        let client = hosted.cluster.client();
        client.merge(PATH, &json!({"metadata": {"annotations": annotations}})).await?;
        eventually("every pod has the new image", LONG_PATIENCE, async || {
            let pods = client.wait_deployment(managed.namespace(), "kube-apiserver").await?;
            let old = pods.iter().find(|pod| !pod.object["spec"].to_string().contains(other));
            ensure!(old.is_none(), "{:?}", old.map(|pod| pod.summary()));
            Ok(())
        })
        .await?;
        managed.wait_written_with(key).await?;
        load.more(BETWEEN_STEPS).await?;
        let rolled = managed.rollouts().await? - before;
        ensure!(rolled == 1, "{rolled} rolling updates");
        let entry = hosted.stored(Kind::Secret, "default").await?;
        let entry = entry.first().context("nothing is stored")?;
        let key_id = Stored::parse(&entry.value)?.object.key_id;
        ensure!(key_id.starts_with(&format!("sidekey/{key}-")), "stored under {key_id}");
        Ok(())
    }

    /// Replaces `spec.encryption` and nothing else.
    async fn edit(&self, encryption: &Value) -> Result<()> {
        let client = self.managed.hosted.cluster.client();
        let mut server = client.get(PATH).await?;
        server["spec"]["encryption"] = encryption.clone();
        client.send(Method::PUT, PATH, Some(&server)).await.map(drop)
    }

    /// After that edit `vendor` writes, everything stored begins like this, and the APIServer says so.
    pub(crate) async fn becomes(
        &self,
        encryption: &Value,
        vendor: &str,
        prefix: &str,
        load: &Load,
    ) -> Result<()> {
        self.edit(encryption).await?;
        let what = format!("{vendor} has taken over");
        let wait = self.managed.wait_encryption(what, ROTATION, |encryption| {
            let (status, meta) = (&encryption["status"], &encryption["metadata"]);
            ensure!(status["observedGeneration"] == meta["generation"], "the edit is not seen yet");
            ensure!(status["activeKey"]["vendor"] == vendor, "{} writes", status["activeKey"]);
            ensure!(status["rotation"].is_null(), "{}", status["rotation"]);
            Ok(status["history"][0].clone())
        });
        let past = wait.await?;
        ensure!(past["state"] == "Completed", "{past}");
        println!("to {vendor}: {} to {}", past["startedTime"], past["completionTime"]);
        load.more(BETWEEN_STEPS).await?;
        self.everything_is(prefix).await?;
        self.says("SecretEncryptionConfigured", "True", "").await?;
        self.says("EtcdDataEncryptionUpToDate", "True", "").await
    }

    /// All that the load has stored begins like this; in clear where that is nothing.
    pub(crate) async fn everything_is(&self, prefix: &str) -> Result<()> {
        for kind in Kind::ALL {
            let stored = self.managed.hosted.stored(kind, "default").await?;
            ensure!(!stored.is_empty(), "there is no {kind:?}");
            for entry in stored {
                let clear = !entry.value.starts_with(b"k8s:enc:");
                let right = entry.value.starts_with(prefix.as_bytes());
                ensure!(right && clear == prefix.is_empty(), "{} is stored otherwise", entry.key);
            }
        }
        Ok(())
    }

    pub(crate) async fn a_missing_reference_is_named_on_the_api_server(
        &self,
        load: &Load,
    ) -> Result<()> {
        let before = self.managed.encryption().await?;
        let mut vault = self.vault.of_api_server(&self.managed).await?;
        vault["authentication"]["appRole"]["secret"]["name"] = "no-such-role".into();
        self.edit(&json!({"type": "KMS", "kms": {"type": "Vault", "vault": vault}})).await?;
        self.says("SecretEncryptionConfigured", "False", "no-such-role").await?;
        load.more(BETWEEN_STEPS).await?;
        let now = self.managed.encryption().await?;
        ensure!(now["spec"] == before["spec"], "it was changed all the same: {}", now["spec"]);
        Ok(())
    }

    /// Waits until a condition of the APIServer is so.
    async fn says(&self, kind: &str, status: &str, part: &str) -> Result<()> {
        let (managed, client) = (&self.managed, self.managed.hosted.cluster.client());
        let what = format!("the APIServer says {kind} {status}");
        let read = async || client.get(PATH).await;
        managed
            .wait_object(what, LONG_PATIENCE, read, |server| {
                let found = condition(server, kind).context("it is silent")?;
                ensure!(found["status"] == status, "{found}");
                ensure!(found["message"].as_str().unwrap_or_default().contains(part), "{found}");
                Ok(())
            })
            .await
    }
}
