//! OpenShift's static pod: plugins by the names and flags that its operators give them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::cluster::{Exposed, NODE};
use sidekey_e2e::openbao::Prepared;
use sidekey_e2e::wait::{BROKEN, LONG_PATIENCE};
use sidekey_e2e::{
    Cluster, EncryptionConfiguration, Ground, Kind, OpenBao, Stanza, Stored, eventually, images,
};

use super::Desk;

/// Where OpenShift's static pods see the files of their revision.
const RESOURCES: &str = "/etc/kubernetes/static-pod-resources";

#[tokio::test]
async fn a_static_pod_of_openshifts_shape_encrypts_with_an_injected_plugin() {
    let ground = Ground::prepare("inject-openshift").await.unwrap();
    let root = ground.plane().scratch.subdir("resources").unwrap();
    let image = images::ready(&["vault"], &root.join("images")).await.unwrap().pop().unwrap();
    ground.load_image(&image.archive).await.unwrap();
    let mut pod = ground.static_apiserver().await.unwrap();
    let volume = json!({"name": "resource-dir", "hostPath": {"path": root, "type": "Directory"}});
    pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    let container = &mut pod["spec"]["containers"][0];
    let mount = json!({"name": "resource-dir", "mountPath": RESOURCES});
    container["volumeMounts"].as_array_mut().unwrap().push(mount);
    container["startupProbe"]["failureThreshold"] = 240.into();
    ground.put_static_pod("kube-apiserver", &pod).unwrap();
    let cluster = ground.start_static().await.unwrap();
    let secrets = root.join("secrets/encryption-config");
    fs::create_dir_all(&secrets).unwrap();
    let vault = Vault::start(&cluster, &secrets).await.unwrap();

    // As OpenShift's operator sets it, by configuration.
    let flag = format!(
        "--encryption-provider-config={RESOURCES}/secrets/encryption-config/encryption-config"
    );
    pod["spec"]["containers"][0]["args"].as_array_mut().unwrap().push(flag.into());
    let desk = Desk::new().unwrap();
    let encryption = desk.put("encryption", &vault.description(&image.reference)).unwrap();
    let text = format!("# Of revision 7.\n{pod:#}\n");
    let encryption = encryption.display().to_string();
    let args = ["--profile", "openshift", "--encryption", encryption.as_str()];
    let injected = desk.inject(&text, &args).await.unwrap();
    cluster.ground().put_static_pod("kube-apiserver", &injected).unwrap();
    it_encrypts(&cluster).await.unwrap();
}

async fn it_encrypts(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    eventually("kube-apiserver runs beside its plugin", LONG_PATIENCE, async || {
        let pod = client.pod("kube-system", &format!("kube-apiserver-{NODE}")).await?;
        ensure!(pod.ready, "{}", pod.summary());
        pod.container("vault-kms-plugin-1")?;
        client.raw("/readyz").await?.ok()?;
        Ok(())
    })
    .await?;
    client.create(Kind::Secret, "default", "first", &[("word", "first")]).await?;
    let path = Kind::Secret.etcd_key("default", "first");
    let stored = Stored::parse(&cluster.ground().plane().etcd.raw(&path).await?)?;
    ensure!(stored.provider == "1_secrets", "stored by {}", stored.provider);
    let data = client.read(Kind::Secret, "default", "first").await?;
    ensure!(data["word"] == "first", "{BROKEN}{data:?}");
    let pod = client.pod("kube-system", &format!("kube-apiserver-{NODE}")).await?;
    ensure!(pod.container("vault-kms-plugin-1")?.restarts == 0, "{}", pod.summary());
    Ok(())
}

/// OpenBao with a key, and what the plugin needs of it.
struct Vault {
    role_id: String,
    key_path: String,
    exposed: Exposed,
    _bao: OpenBao,
}

impl Vault {
    /// Files go where OpenShift puts them, under the names that it gives them.
    async fn start(cluster: &Cluster, secrets: &Path) -> Result<Self> {
        let bao = OpenBao::start(&cluster.ground().plane().scratch, "bao").await?;
        let Prepared { key, role } = bao.prepare().await?;
        let exposed = cluster.expose(bao.socket_address()).await?;
        let stanza = Stanza::new(["secrets"]);
        let endpoint = "unix:///var/run/kmsplugin/kms-1.sock";
        let stanza = stanza.kms_within("1_secrets", endpoint, "10s").identity();
        let files = [
            ("encryption-config", EncryptionConfiguration::new().stanza(stanza).to_string()),
            ("kms-plugin-secret-vault-approle_secret-id-1", role.secret_id().await?),
            ("kms-plugin-configmap-vault-ca_ca-bundle.crt-1", bao.authority().pem()),
        ];
        for (name, text) in files {
            fs::write(secrets.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let (role_id, key_path) = (role.role_id.clone(), key.key_path());
        Ok(Self { role_id, key_path, exposed, _bao: bao })
    }

    fn description(&self, image: &str) -> String {
        let key: Value = json!({
            "id": 1, "type": "vault", "role": "write", "kek": {"keyPath": self.key_path},
            "settings": {
                "address": format!("https://{}", self.exposed.address()),
                "tls": {"caFile": "/etc/sidekey/ca", "serverName": "localhost"},
            },
            "credentials": {
                "appRole": {"roleId": self.role_id, "secretIdFile": "/etc/sidekey/secret-id"},
            },
            "files": [
                {"name": "secret-id", "secret": {"name": "vault-approle", "key": "secret-id"}},
                {"name": "ca", "configMap": {"name": "vault-ca", "key": "ca-bundle.crt"}},
            ],
        });
        json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "cluster"},
            "spec": {"images": {"vault": image}, "keys": [key]},
        })
        .to_string()
    }
}
