//! HyperShift's Deployment: from clear to HyperShift's sidecars, to our own, and back.

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::aws::REGION;
use sidekey_e2e::cluster::{POD_IMAGE, Pod};
use sidekey_e2e::hosted::{Hosted, NAMESPACE, provider_name};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::wait::{BROKEN, LONG_PATIENCE, eventually};
use sidekey_e2e::{EncryptionConfiguration, Kind, KubeClient, Stanza, Stored, binaries};

use super::Desk;

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/clusters-demo/deployments/kube-apiserver";
const CREDENTIALS: &str = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n";

#[tokio::test]
async fn a_hosted_control_plane_is_encrypted_by_injected_sidecars_and_lives_on_without_them() {
    let hosted = Hosted::start("inject-hosted", "no-token").await.unwrap();
    hosted.moto.accept_access_keys(&["key"]).await.unwrap();
    hosted.put_secret("kms-creds", &[("credentials", CREDENTIALS.to_owned())]).await.unwrap();
    let arn = hosted.moto.owner().create_key().await.unwrap();
    let desk = Desk::new().unwrap();
    let plain = hosted.bare_alone();
    hosted.roll_out_as(&plain).await.unwrap();
    hosted.wait_usable().await.unwrap();
    let scene = Scene { hosted, desk, arn };
    scene.write("load-clear").await.unwrap();
    assert!(!scene.stored("load-clear").await.unwrap().starts_with(b"k8s:enc:"));

    hypershifts_sidecars_encrypt(&scene, &plain).await.unwrap();
    ours_take_their_place(&scene).await.unwrap();
    a_provider_that_was_taken_over_gets_nothing_of_the_others(&scene).await.unwrap();
    without_sidecars_everything_is_in_clear_and_read(&scene, &plain).await.unwrap();
}

async fn hypershifts_sidecars_encrypt(scene: &Scene, plain: &Value) -> Result<()> {
    let name = provider_name(&scene.arn);
    let stanza = Stanza::new(["secrets", "configmaps"]);
    let stanza = stanza.kms_within(&name, "unix:///var/run/awskmsactive.sock", "35s").identity();
    let config = EncryptionConfiguration::new().stanza(stanza).to_string();
    scene.hosted.put_secret("kas-secret-encryption-config", &[("config.yaml", config)]).await?;
    let auth = json!({"awsKms": "arn:aws:iam::123456789012:role/kms-provider"});
    let aws = json!({"region": REGION, "activeKey": {"arn": scene.arn}, "auth": auth});
    let kms = json!({"type": "kms", "kms": {"provider": "AWS", "aws": aws}});
    let (metadata, spec) = (json!({"name": "demo"}), json!({"secretEncryption": kms}));
    let cluster = json!({"kind": "HostedCluster", "metadata": metadata, "spec": spec}).to_string();
    let cluster = scene.desk.put("hostedcluster", &cluster)?.display().to_string();
    let image = format!("aws={}", scene.hosted.images()[0]);
    let text = format!("{plain:#}\n");
    let args = ["--profile", "hypershift", "--encryption", &cluster, "--image", &image];
    let mut injected = scene.desk.inject(&text, &args).await?;
    // The simulated AWS is elsewhere than the real one, and speaks plain HTTP.
    let mut push = |list: &str, value: Value| {
        let list = format!("/spec/template/spec/containers/1/{list}");
        let list = injected.pointer_mut(&list).and_then(Value::as_array_mut);
        list.map(|list| list.push(value)).context("no such list")
    };
    push("env", json!({"name": "AWS_ENDPOINT_URL", "value": scene.hosted.aws_url()}))?;
    push("args", json!("--allow-plaintext"))?;
    scene.roll_out(injected, &["kube-apiserver", "aws-kms-active"]).await?;

    scene.write("load-native").await?;
    let stored = Stored::parse(&scene.stored("load-native").await?)?;
    ensure!(stored.provider == name, "stored by {}", stored.provider);
    scene.reads(&["load-clear", "load-native"]).await
}

/// The manifest now comes from the cluster, with all that it adds.
async fn ours_take_their_place(scene: &Scene) -> Result<()> {
    let (hosted, name) = (&scene.hosted, provider_name(&scene.arn));
    let files = [("access-key-id", "key".to_owned()), ("secret-access-key", "secret".to_owned())];
    hosted.put_secret("aws-keys", &files).await?;
    let file = |name: &str| json!({"name": name, "secret": {"name": "aws-keys", "key": name}});
    let [aws, shim] = hosted.images();
    let encryption = json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {"name": "demo", "namespace": NAMESPACE},
        "spec": {
            "images": {"aws": aws, "shim": shim},
            "legacyKey": 1,
            "adopt": [{"name": name, "key": 1}],
            "keys": [{
                "id": 1, "type": "aws", "role": "write", "kek": {"key": scene.arn},
                "settings": {"endpoint": hosted.aws_url(), "allowPlaintext": true},
                "credentials": {
                    "accessKeyIdFile": "/etc/sidekey/access-key-id",
                    "secretAccessKeyFile": "/etc/sidekey/secret-access-key",
                },
                "files": [file("access-key-id"), file("secret-access-key")],
            }],
        },
    });
    let encryption = scene.desk.put("encryption.yaml", &encryption.to_string())?;
    scene.publish(&[]).await?;
    let live = scene.live().await?;
    let out = scene.desk.path("ours");
    let from = scene.desk.put("live", &format!("{live:#}\n"))?;
    super::inject(&from, &out, &["--encryption", &encryption.display().to_string()]).await?;
    let injected: Value = serde_json::from_str(&std::fs::read_to_string(&out)?)?;
    ensure!(injected["metadata"] == live["metadata"], "metadata: {}", injected["metadata"]);
    ensure!(injected["status"] == live["status"], "status: {}", injected["status"]);
    scene.roll_out(injected, &["kube-apiserver", "sidekey-aws", "sidekey-shim"]).await?;

    scene.write("load-shim").await?;
    let stored = Stored::parse(&scene.stored("load-shim").await?)?;
    let id = &stored.object.key_id;
    ensure!(stored.provider == "sidekey" && id.starts_with("sidekey/1-"), "under {id}");
    scene.reads(&["load-clear", "load-native", "load-shim"]).await
}

/// It has the user and the mounts of any provider, and is there before the shim: it puts sockets of its
/// own wherever those of the others would be, and then the others must find each other anew.
async fn a_provider_that_was_taken_over_gets_nothing_of_the_others(scene: &Scene) -> Result<()> {
    let (hosted, cluster) = (&scene.hosted, &scene.hosted.cluster);
    hosted.put_secret("sidekey-provider-local", &[("config.yaml", String::new())]).await?;
    let [aws, shim] = hosted.images();
    let images = [("aws", aws), ("shim", shim), ("local", POD_IMAGE)];
    let images = images.map(|(name, image)| format!("{name}={image}"));
    let mut args = vec!["--provider", "aws", "--provider", "local"];
    args.extend(images.iter().flat_map(|image| ["--image", image.as_str()]));
    let from = scene.desk.put("live", &format!("{:#}\n", scene.live().await?))?;
    let out = scene.desk.path("hostile");
    super::inject(&from, &out, &args).await?;
    let mut injected: Value = serde_json::from_str(&std::fs::read_to_string(&out)?)?;
    let sidecars = injected.pointer_mut("/spec/template/spec/initContainers");
    let mut sidecars = sidecars.and_then(Value::as_array_mut).context("no sidecars")?.iter_mut();
    let hostile = sidecars.find(|sidecar| sidecar["name"] == "sidekey-local").context("not it")?;
    hostile["args"] = json!([
        "usurp",
        "/var/run/sidekey/local",
        "/var/run/kmsplugin/kms.sock",
        "/var/run/kmsplugin/kms-1.sock",
        "/var/run/sidekey/aws/kms-1.sock",
    ]);
    for probe in ["startupProbe", "livenessProbe"] {
        hostile.as_object_mut().context("no container")?.remove(probe);
    }
    let containers = ["kube-apiserver", "sidekey-aws", "sidekey-local", "sidekey-shim"];
    let pod = scene.roll_out(injected, &containers).await?;
    let said = || cluster.logs(&pod, "sidekey-local");
    eventually("it has tried everything", LONG_PATIENCE, async || {
        ensure!(said()?.contains("all were tried"), "{}", said()?);
        Ok(())
    })
    .await?;
    let log = said()?;
    // Under the shim's name it has a directory of its own, into which nobody looks; another vendor's
    // is not there at all.
    ensure!(log.contains("put in the place of /var/run/kmsplugin/kms.sock"), "{log}");
    ensure!(!log.contains("in the place of /var/run/sidekey/aws"), "{log}");

    for name in ["sidekey-aws", "sidekey-shim"] {
        cluster.kill_container(&pod.container(name)?.id).await?;
    }
    eventually("both were started again", LONG_PATIENCE, async || {
        let now = cluster.client().pod(NAMESPACE, &pod.name).await?;
        for name in ["sidekey-aws", "sidekey-shim"] {
            let container = now.container(name)?;
            ensure!(container.restarts > 0 && container.ready, "{}", now.summary());
        }
        Ok(())
    })
    .await?;
    // By a short way: the path of a volume is longer than that of a socket may be.
    let sockets = scene.desk.path("sockets");
    std::os::unix::fs::symlink(cluster.volume(&pod, "empty-dir", "kms-sockets"), &sockets)?;
    let socket = format!("unix://{}", sockets.join("kms.sock").display());
    eventually("the shim reaches its key", LONG_PATIENCE, async || {
        KmsClient::connect(&socket).await?.round_trip(b"ours").await
    })
    .await?;
    hosted.wait_usable().await?;
    scene.write("load-hostile").await?;
    scene.reads(&["load-clear", "load-native", "load-shim", "load-hostile"]).await?;
    let log = said()?;
    ensure!(!log.contains("taken in"), "{log}");
    Ok(())
}

async fn without_sidecars_everything_is_in_clear_and_read(
    scene: &Scene,
    plain: &Value,
) -> Result<()> {
    scene.publish(&["--identity-first"]).await?;
    let mut number = 0;
    eventually("new Secrets are stored in clear", LONG_PATIENCE, async || {
        number += 1;
        let name = format!("load-late-{number}");
        scene.write(&name).await?;
        let stored = scene.stored(&name).await?;
        ensure!(!stored.starts_with(b"k8s:enc:"), "{name} is encrypted");
        Ok(())
    })
    .await?;
    for kind in ["Secret", "ConfigMap"] {
        scene.rewrite_all(kind).await?;
    }
    let live = scene.live().await?;
    let out = scene.desk.take_out(&format!("{live:#}\n")).await?;
    let out: Value = serde_json::from_str(&out)?;
    let spec = |deployment: &Value, path: &str| {
        deployment.pointer(&format!("/spec/template/spec{path}")).cloned()
    };
    for path in ["/containers/0/args", "/containers/0/volumeMounts"] {
        ensure!(spec(&out, path) == spec(plain, path), "{path}: {:?}", spec(&out, path));
    }
    scene.roll_out(out, &["kube-apiserver"]).await?;
    scene.reads(&["load-clear", "load-native", "load-shim", "load-hostile"]).await
}

struct Scene {
    hosted: Hosted,
    desk: Desk,
    arn: String,
}

impl Scene {
    /// The Deployment as the cluster has it.
    async fn live(&self) -> Result<Value> {
        self.hosted.cluster.client().get(DEPLOYMENT).await
    }

    /// Replaces the Deployment, as `kubectl replace` does, and looks at what runs then.
    async fn roll_out(&self, mut deployment: Value, containers: &[&str]) -> Result<Pod> {
        let client = self.hosted.cluster.client();
        let metadata = deployment["metadata"].as_object_mut().context("no metadata")?;
        for field in ["resourceVersion", "managedFields", "uid", "generation"] {
            metadata.remove(field);
        }
        client.send(Method::PUT, DEPLOYMENT, Some(&deployment)).await?;
        let mut pods = client.wait_deployment(NAMESPACE, "kube-apiserver").await?;
        self.hosted.wait_usable().await?;
        let mut names: Vec<_> =
            pods[0].containers.iter().map(|container| container.name.clone()).collect();
        names.sort();
        let mut expected = containers.to_vec();
        expected.sort_unstable();
        ensure!(names == expected, "{}", pods[0].summary());
        ensure!(pods[0].restarts() == 0, "{}", pods[0].summary());
        Ok(pods.swap_remove(0))
    }

    async fn publish(&self, more: &[&str]) -> Result<()> {
        let file = self.desk.path("encryption.yaml").display().to_string();
        let kubeconfig = self.hosted.cluster.kubeconfig().display().to_string();
        let mut args = vec!["publish", "-f", &file, "--kubeconfig", &kubeconfig];
        args.extend(more);
        binaries::run("sidekey", &args).await?.ok()?;
        Ok(())
    }

    fn client(&self) -> Result<KubeClient> {
        self.hosted.service()
    }

    async fn write(&self, name: &str) -> Result<()> {
        self.client()?.create(Kind::Secret, "default", name, &[("word", name)]).await
    }

    async fn reads(&self, names: &[&str]) -> Result<()> {
        for name in names {
            let data = self.client()?.read(Kind::Secret, "default", name).await?;
            ensure!(data["word"] == *name, "{BROKEN}{name} holds {data:?}");
        }
        Ok(())
    }

    /// What etcd holds of a Secret.
    async fn stored(&self, name: &str) -> Result<Vec<u8>> {
        let entries = self.hosted.stored(Kind::Secret, "default").await?;
        let found = entries.into_iter().find(|entry| entry.key.ends_with(&format!("/{name}")));
        Ok(found.with_context(|| format!("etcd has no {name}"))?.value)
    }

    async fn rewrite_all(&self, kind: &str) -> Result<()> {
        let plural = format!("{}s", kind.to_lowercase());
        let client = self.client()?;
        let list = client.get(&format!("/api/v1/{plural}")).await?;
        for item in list["items"].as_array().context("no items")? {
            let mut object = item.clone();
            object["apiVersion"] = "v1".into();
            object["kind"] = kind.into();
            let (namespace, name) = (&item["metadata"]["namespace"], &item["metadata"]["name"]);
            let (namespace, name) = (namespace.as_str(), name.as_str());
            let path = namespace.zip(name).context("an object without name")?;
            let path = format!("/api/v1/namespaces/{}/{plural}/{}", path.0, path.1);
            client.send(Method::PUT, &path, Some(&object)).await?;
        }
        Ok(())
    }
}
