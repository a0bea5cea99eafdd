//! The harness's own promise: this OpenBao is a real one. It seals, restarts
//! without losing data, changes its certificate, fails over, gives out tokens
//! in every way that we log in by, and tells by its audit log what it was asked.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::openbao::jwt::Issuer;
use sidekey_e2e::openbao::{Bao, Cluster};
use sidekey_e2e::pki::Authority;
use sidekey_e2e::{OpenBao, Scratch};

#[tokio::test]
async fn a_server_keeps_its_data_through_seal_restart_and_a_new_certificate() {
    let scratch = Scratch::new("bao").unwrap();
    let mut server = OpenBao::start(&scratch, "bao").await.unwrap();
    let root = server.root();
    root.enable("transit", "transit").await.unwrap();
    let key = root.make_key("transit", "kms").await.unwrap();
    let sealed = key.encrypt(b"word").await.unwrap();
    assert!(sealed.starts_with("vault:v1:"), "{sealed}");

    server.seal().await.unwrap();
    let refused = key.encrypt(b"word").await.unwrap_err();
    assert!(format!("{refused:#}").contains("sealed"), "{refused:#}");
    server.unseal().await.unwrap();
    assert_eq!(key.rotate().await.unwrap(), 2);

    server.restart().await.unwrap();
    let key = server.root().key("transit", "kms");
    assert!(key.encrypt(b"word").await.unwrap().starts_with("vault:v2:"));

    let other = Arc::new(Authority::new("other CA").unwrap());
    let before = server.root();
    server.change_authority(other).await.unwrap();
    assert!(before.read("sys/seal-status").await.is_ok(), "open connections stay");
    assert!(server.root().key("transit", "kms").exists().await.unwrap());
    assert!(!server.root().key("transit", "other").exists().await.unwrap());

    let asked = server.audit().count("transit/encrypt/kms").unwrap();
    assert_eq!(asked, 2, "the audit log counts what was answered, a sealed server answers nothing");
}

#[tokio::test]
async fn every_way_to_log_in_gives_a_token_and_a_limit_is_felt() {
    let scratch = Scratch::new("login").unwrap();
    let server = OpenBao::start(&scratch, "bao").await.unwrap();
    let team = server.root().make_namespace("team").await.unwrap();
    for bao in [server.root(), team] {
        app_roles_log_in(&server, &bao).await.unwrap();
        jwts_log_in(&bao).await.unwrap();
    }
    a_limit_is_felt(&server.root()).await.unwrap();
}

async fn app_roles_log_in(server: &OpenBao, bao: &Bao) -> Result<()> {
    bao.enable_auth("approle", "approle").await?;
    let role = AppRole::create(bao, "approle", "kms", &[], &json!({"token_ttl": "60s"})).await?;
    let wrapping = role.wrapped_secret_id("60s").await?;
    let unwrapped = server.client(&wrapping).write("sys/wrapping/unwrap", &json!({})).await?;
    let secret_id = unwrapped["data"]["secret_id"].clone();
    let order = json!({"role_id": role.role_id, "secret_id": secret_id});
    let token = bao.write(&role.login_path(), &order).await?["auth"]["client_token"].take();
    ensure!(token.is_string(), "{token}");
    role.revoke(secret_id.as_str().unwrap_or_default()).await?;
    ensure!(bao.write(&role.login_path(), &order).await.is_err(), "a revoked one logs in");
    ensure!(bao.revoke_logins("approle").await? == 1);
    Ok(())
}

async fn jwts_log_in(bao: &Bao) -> Result<()> {
    let issuer = Issuer::new()?;
    bao.enable_auth("jwt", "jwt").await?;
    bao.jwt_role("jwt", "kms", issuer.public_key(), "vault", "kms", &[]).await?;
    let life = Duration::from_secs(60);
    for (issuer, good) in [(&issuer, true), (&Issuer::new()?, false)] {
        let order = json!({"role": "kms", "jwt": issuer.token("vault", "kms", life)?});
        let answer: Result<Value> = bao.write("auth/jwt/login", &order).await;
        ensure!(answer.is_ok() == good, "{answer:?}");
    }
    Ok(())
}

async fn a_limit_is_felt(bao: &Bao) -> Result<()> {
    bao.enable("transit", "limited").await?;
    let key = bao.make_key("limited", "kms").await?;
    bao.limit("few", "limited", 0.1).await?;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(key.encrypt(b"word").await.err().map(|error| format!("{error:#}")));
    }
    let refused = answers.iter().flatten().filter(|error| error.contains("429")).count();
    ensure!(refused > 0, "{answers:?}");
    bao.unlimit("few").await?;
    key.encrypt(b"word").await.map(drop)
}

#[tokio::test]
async fn a_cluster_fails_over_and_a_standby_takes_requests() {
    let scratch = Scratch::new("raft").unwrap();
    let mut cluster = Cluster::start(&scratch, "bao", 3).await.unwrap();
    let active = cluster.active().await.unwrap();
    let root = cluster.nodes()[active].root();
    root.enable("transit", "transit").await.unwrap();
    root.make_key("transit", "kms").await.unwrap();
    let new = cluster.step_down().await.unwrap();
    assert_ne!(new, active);
    cluster.nodes()[new].root().key("transit", "kms").encrypt(b"word").await.unwrap();
    cluster.nodes()[new].process().kill().unwrap();
    let last = cluster.active().await.unwrap();
    assert_ne!(last, new);
    cluster.nodes()[last].root().key("transit", "kms").encrypt(b"word").await.unwrap();
}
