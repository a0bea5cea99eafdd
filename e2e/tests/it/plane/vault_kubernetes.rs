//! Promise: a provider in a cluster logs in to Vault with nothing but its
//! service account's token. Vault asks that cluster's kube-apiserver whose token
//! it is; a rotated token is followed, and an account that is deleted opens
//! nothing any more.
//!
//! Vault is a real OpenBao, and the TokenReview a real kube-apiserver's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{ControlPlane, KubeClient, OpenBao, VaultPlugin, eventually};
use tonic::Code;

const ACCOUNT: &str = "kms-plugin";

#[tokio::test]
async fn a_service_account_token_logs_in_and_is_followed() {
    let plane = ControlPlane::start("vault-kubernetes").await.unwrap();
    let server = KubeApiserver::start(&plane, Options::new("a")).await.unwrap();
    let bao = OpenBao::start(&plane.scratch, "bao").await.unwrap();
    make_account(&server.client()).await.unwrap();
    prepare_vault(&bao, &server).await.unwrap();
    let dir = plane.scratch.subdir("plugin").unwrap();
    let token = dir.join("token");
    std::fs::write(&token, account_token(&server.client()).await.unwrap()).unwrap();
    let (mut plugin, kms) = start_plugin(&dir, &bao, &token).await.unwrap();
    let sealed = kms.round_trip(b"in a cluster").await.unwrap();

    a_rotated_token_is_followed(&bao, &server, &mut plugin, &token).await.unwrap();
    assert_eq!(kms.decrypt(&sealed).await.unwrap(), "in a cluster");

    a_deleted_account_opens_nothing(&bao, &server, &kms).await.unwrap();
    // The account comes back, and with it a new token.
    make_account(&server.client()).await.unwrap();
    std::fs::write(&token, account_token(&server.client()).await.unwrap()).unwrap();
    let healed = plugin.process().wait_until("it heals by itself", PATIENCE, async || {
        ensure!(kms.status().await?.key_id == sealed.key_id);
        Ok(())
    });
    healed.await.unwrap();
    assert_eq!(kms.decrypt(&sealed).await.unwrap(), "in a cluster");
}

async fn a_rotated_token_is_followed(
    bao: &OpenBao,
    server: &KubeApiserver,
    plugin: &mut VaultPlugin,
    token: &Path,
) -> Result<()> {
    std::fs::write(token, account_token(&server.client()).await?)?;
    eventually("the new token is in use", PATIENCE, async || {
        let metrics = plugin.metrics().await?;
        let reloads = metrics.sum("kms_reloads_total", &[("result", "success")]);
        ensure!(reloads >= 2.0, "{reloads} reloads");
        Ok(())
    })
    .await?;
    let revoked = bao.root().revoke_logins("kubernetes").await?;
    ensure!(revoked > 0, "nobody has logged in by kubernetes");
    Ok(())
}

async fn a_deleted_account_opens_nothing(
    bao: &OpenBao,
    server: &KubeApiserver,
    kms: &KmsClient,
) -> Result<()> {
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{ACCOUNT}");
    server.client().send(Method::DELETE, &path, None).await?;
    // kube-apiserver remembers for some seconds whose token it was: until then a login succeeds.
    eventually("Status is an error that tells why", PATIENCE, async || {
        bao.root().revoke_logins("kubernetes").await?;
        let error = kms.status().await.err().context("it is ok")?;
        ensure!(error.code() == Code::PermissionDenied, "{error}");
        ensure!(error.message().contains("kubernetes"), "{error}");
        Ok(())
    })
    .await
}

/// An account that may have tokens reviewed: Vault asks with the very token that it is shown.
async fn make_account(client: &KubeClient) -> Result<()> {
    let account = json!({"metadata": {"name": ACCOUNT}});
    let path = "/api/v1/namespaces/default/serviceaccounts";
    client.send(Method::POST, path, Some(&account)).await?;
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    if client.get(&format!("{bindings}/{ACCOUNT}")).await.is_ok() {
        return Ok(());
    }
    let binding = json!({
        "metadata": {"name": ACCOUNT},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "system:auth-delegator",
        },
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}],
    });
    client.send(Method::POST, bindings, Some(&binding)).await.map(drop)
}

async fn account_token(client: &KubeClient) -> Result<String> {
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{ACCOUNT}/token");
    let order = json!({"spec": {"expirationSeconds": 600}});
    let answer: Value = client.send(Method::POST, &path, Some(&order)).await?;
    let token = answer["status"]["token"].as_str().context("no token")?;
    Ok(token.to_owned())
}

async fn prepare_vault(bao: &OpenBao, server: &KubeApiserver) -> Result<()> {
    let root = bao.root();
    root.enable("transit", "transit").await?;
    root.make_key("transit", "kms").await?;
    root.policy("kms", &[("transit/*", &["read", "update"])]).await?;
    root.enable_auth("kubernetes", "kubernetes").await?;
    // What an administrator reads from the kubeconfig.
    let text = server.kubeconfig();
    let after = |mark: &str| {
        let (_, rest) = text.split_once(mark).with_context(|| format!("no {mark}"))?;
        let end = rest.find(['"', '}', '\n']).unwrap_or(rest.len());
        anyhow::Ok(rest[..end].to_owned())
    };
    let ca = String::from_utf8(STANDARD.decode(after("certificate-authority-data: ")?)?)?;
    let config = json!({
        "kubernetes_host": after("server: \"")?, "kubernetes_ca_cert": ca,
        "disable_local_ca_jwt": true,
    });
    root.write("auth/kubernetes/config", &config).await?;
    let role = json!({
        "bound_service_account_names": [ACCOUNT],
        "bound_service_account_namespaces": ["default"],
        "token_policies": ["kms"],
    });
    root.write("auth/kubernetes/role/kms", &role).await.map(drop)
}

async fn start_plugin(
    dir: &Path,
    bao: &OpenBao,
    token: &PathBuf,
) -> Result<(VaultPlugin, KmsClient)> {
    let listen = format!("unix://{}", dir.join("kms.sock").display());
    let config = json!({
        "probe": {"interval": "500ms", "timeout": "5s", "coast": "11s"},
        "keys": [{
            "id": 1, "listen": listen, "kek": {"key": "kms"},
            "settings": {"address": bao.address(), "tls": {"caFile": bao.ca()}},
            "credentials": {"kubernetes": {"role": "kms", "tokenFile": token}},
        }],
    });
    let plugin = VaultPlugin::start(dir, "plugin", &config).await?;
    let kms = KmsClient::connect(&listen).await?;
    Ok((plugin, kms))
}
