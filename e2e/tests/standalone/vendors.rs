//! The pods of providers with a KMS elsewhere, and their credentials.

use anyhow::{Result, ensure};
use serde_json::json;
use sidekey_e2e::aws::{Moto, REGION};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{OpenBao, eventually};

use super::{Scene, assert_same};

pub(crate) async fn vault_takes_a_new_secret_id_from_a_swapped_directory(
    scene: &Scene,
) -> Result<()> {
    let ground = scene.cluster.ground();
    let bao = OpenBao::start(&ground.plane().scratch, "bao").await?;
    let root = bao.root();
    root.enable("transit", "transit").await?;
    root.enable_auth("approle", "approle").await?;
    let key = root.make_key("transit", "kms").await?;
    let rules: [(&str, &[&str]); 3] = [
        ("transit/keys/kms", &["read"]),
        ("transit/encrypt/kms", &["update"]),
        ("transit/decrypt/kms", &["update"]),
    ];
    root.policy("kms", &rules).await?;
    let role = AppRole::create(&root, "approle", "kms", &["kms"], &json!({})).await?;
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
    let ca = bao.authority().pem();
    let publish = |secret_id: &str| {
        let files = [("config.yaml", config.as_str()), ("ca.crt", &ca), ("secret-id", secret_id)];
        scene.node.publish("vault", &files)
    };

    let (old, new) = (role.secret_id().await?, role.secret_id().await?);
    publish(&old)?;
    let client = serve(scene, "vault", 3).await?;
    let before = scene.pods(&["sidekey-vault"]).await?;
    let sealed = client.round_trip(b"before").await?;
    publish(&new)?;
    eventually("the new secret-id is in use", PATIENCE, async || {
        let log = scene.cluster.logs(&before[0], "vault")?;
        ensure!(log.contains("new files or settings are in use"), "{log}");
        Ok(())
    })
    .await?;
    role.revoke(&old).await?;
    root.revoke_logins("approle").await?;
    ensure!(client.decrypt(&sealed).await? == "before", "another plaintext");
    client.round_trip(b"after").await?;
    assert_same(&before, &scene.pods(&["sidekey-vault"]).await?);
    scene.remove("vault").await
}

pub(crate) async fn aws_takes_new_access_keys_from_a_swapped_directory(
    scene: &Scene,
) -> Result<()> {
    let moto = Moto::start(scene.cluster.ground().plane().scratch.path()).await?;
    let arn = moto.owner().create_key().await?;
    let exposed = scene.cluster.expose(moto.address()).await?;
    let config = json!({"keys": [{
        "id": 4, "kek": {"key": arn, "region": REGION},
        "settings": {"endpoint": format!("http://{}", exposed.address())},
        "credentials": {
            "accessKeyIdFile": "/etc/sidekey/access-key-id",
            "secretAccessKeyFile": "/etc/sidekey/secret-access-key",
        },
    }]})
    .to_string();
    let publish = |id: &str| {
        let files = [
            ("config.yaml", config.as_str()),
            ("access-key-id", id),
            ("secret-access-key", "no matter which"),
        ];
        scene.node.publish("aws", &files)
    };

    moto.accept_access_keys(&["old"]).await?;
    publish("old")?;
    let client = serve(scene, "aws", 4).await?;
    let before = scene.pods(&["sidekey-aws"]).await?;
    let sealed = client.round_trip(b"before").await?;
    moto.accept_access_keys(&["old", "new"]).await?;
    publish("new")?;
    eventually("it calls with the new access key", PATIENCE, async || {
        client.decrypt(&sealed).await?;
        let last = moto.last().await?;
        ensure!(last["access_key"] == "new", "{last}");
        Ok(())
    })
    .await?;
    moto.accept_access_keys(&["new"]).await?;
    ensure!(client.decrypt(&sealed).await? == "before", "another plaintext");
    client.round_trip(b"after").await?;
    assert_same(&before, &scene.pods(&["sidekey-aws"]).await?);
    scene.remove("aws").await
}

/// Runs the provider's pod until its key works.
async fn serve(scene: &Scene, name: &str, key: u32) -> Result<KmsClient> {
    scene.cluster.ground().put_static_pod(name, &scene.node.pod(name)?)?;
    scene.ready(&format!("sidekey-{name}")).await?;
    let client = KmsClient::connect(&scene.node.kms(&format!("kms-{key}.sock"))).await?;
    eventually(format!("{name} wraps and unwraps"), PATIENCE, async || {
        client.round_trip(b"first").await
    })
    .await?;
    Ok(client)
}
