//! The pods of providers with a KMS elsewhere: their keys write, and their
//! credentials are replaced.

use anyhow::{Result, ensure};
use serde_json::json;
use sidekey_e2e::aws::{Moto, REGION};
use sidekey_e2e::cluster::Exposed;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::Prepared;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{OpenBao, eventually};

use super::scene::{Scene, assert_same};

const PODS: [&str; 2] = ["kube-apiserver", "sidekey-shim"];

/// Key 3, in Vault's transit engine.
pub(crate) struct Vault {
    bao: OpenBao,
    role: AppRole,
    secret_id: String,
    config: String,
    _exposed: Exposed,
}

impl Vault {
    pub(crate) async fn writes_with_a_secret_id(scene: &Scene) -> Result<Self> {
        let bao = OpenBao::start(&scene.cluster.ground().plane().scratch, "bao").await?;
        let Prepared { key, role } = bao.prepare().await?;
        let exposed = scene.cluster.expose(bao.socket_address()).await?;
        let tls = json!({"caFile": "/etc/sidekey/ca.crt", "serverName": "localhost"});
        let config = json!({"keys": [{
            "id": 3, "kek": {"keyPath": key.key_path()},
            "settings": {"address": format!("https://{}", exposed.address()), "tls": tls},
            "credentials": {
                "appRole": {"roleId": role.role_id, "secretIdFile": "/etc/sidekey/secret-id"},
            },
        }]})
        .to_string();
        let secret_id = role.secret_id().await?;
        let vault = Self { bao, role, secret_id, config, _exposed: exposed };
        vault.publish(scene, &vault.secret_id)?;
        serve(scene, "vault", 3).await?;
        scene.promote(3, "vault").await?;
        Ok(vault)
    }

    pub(crate) async fn takes_a_new_secret_id_from_a_swapped_directory(
        &self,
        scene: &Scene,
    ) -> Result<()> {
        let before = scene.pods(&[PODS[0], PODS[1], "sidekey-vault"]).await?;
        self.publish(scene, &self.role.secret_id().await?)?;
        eventually("the new secret-id is in use", PATIENCE, async || {
            let log = scene.cluster.logs(&before[2], "vault")?;
            ensure!(log.contains("new files or settings are in use"), "{log}");
            Ok(())
        })
        .await?;
        self.role.revoke(&self.secret_id).await?;
        let revoked = self.bao.root().revoke_logins("approle").await?;
        ensure!(revoked > 0, "there was no login to revoke");
        scene.unwraps("vault").await?;
        scene.plugin_serves().await?;
        scene.write_under("vault-after", "sidekey/3-").await?;
        assert_same(&before, &scene.pods(&[PODS[0], PODS[1], "sidekey-vault"]).await?);
        Ok(())
    }

    fn publish(&self, scene: &Scene, secret_id: &str) -> Result<()> {
        let ca = self.bao.authority().pem();
        let files = [
            ("config.yaml", self.config.as_str()),
            ("ca.crt", ca.as_str()),
            ("secret-id", secret_id),
        ];
        scene.node.publish("vault", &files)
    }
}

/// Key 4, at the AWS of the tests.
pub(crate) struct Aws {
    moto: Moto,
    config: String,
    _exposed: Exposed,
}

impl Aws {
    pub(crate) async fn writes_with_a_credentials_file(scene: &Scene) -> Result<Self> {
        let moto = Moto::start(scene.cluster.ground().plane().scratch.path()).await?;
        let arn = moto.owner().create_key().await?;
        let exposed = scene.cluster.expose(moto.address()).await?;
        let config = json!({"keys": [{
            "id": 4, "kek": {"key": arn, "region": REGION},
            "settings": {
                "endpoint": format!("http://{}", exposed.address()), "allowPlaintext": true,
            },
            "credentials": {"sharedCredentialsFile": "/etc/sidekey/credentials"},
        }]})
        .to_string();
        let aws = Self { moto, config, _exposed: exposed };
        aws.moto.accept_access_keys(&["old"]).await?;
        aws.publish(scene, "old").await?;
        serve(scene, "aws", 4).await?;
        scene.promote(4, "aws").await?;
        Ok(aws)
    }

    pub(crate) async fn takes_new_credentials_from_a_swapped_directory(
        &self,
        scene: &Scene,
    ) -> Result<()> {
        let moto = &self.moto;
        let before = scene.pods(&[PODS[0], PODS[1], "sidekey-aws"]).await?;
        moto.accept_access_keys(&["old", "new"]).await?;
        self.publish(scene, "new").await?;
        eventually("it calls with the new access key", PATIENCE, async || {
            scene.unwraps("aws").await?;
            let last = moto.last().await?;
            ensure!(last["access_key"] == "new", "{last}");
            Ok(())
        })
        .await?;
        moto.accept_access_keys(&["new"]).await?;
        scene.unwraps("aws").await?;
        scene.plugin_serves().await?;
        scene.write_under("aws-after", "sidekey/4-").await?;
        assert_same(&before, &scene.pods(&[PODS[0], PODS[1], "sidekey-aws"]).await?);
        Ok(())
    }

    /// A credentials file, whose signatures are checked.
    async fn publish(&self, scene: &Scene, id: &str) -> Result<()> {
        let secret = format!("secret of {id}");
        self.moto.check_signatures(id, &secret).await?;
        let credentials =
            format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
        let files = [("config.yaml", self.config.as_str()), ("credentials", &credentials)];
        scene.node.publish("aws", &files)
    }
}

/// Runs the provider's pod until its key works.
async fn serve(scene: &Scene, name: &str, key: u32) -> Result<()> {
    scene.add(name).await?;
    let client = KmsClient::connect(&scene.node.kms(key)).await?;
    eventually(format!("{name} wraps and unwraps"), PATIENCE, async || {
        client.round_trip(b"first").await
    })
    .await?;
    Ok(())
}
