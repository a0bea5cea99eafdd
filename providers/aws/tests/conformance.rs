//! The real binary against the whole conformance suite, on two implementations of AWS KMS, and
//! against the corpus.
//! What moto lacks (rotation among it) is simulated on top of it; see `sidekey_e2e::aws`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};
use sidekey_core::Endpoint;
use sidekey_e2e::Scratch;
use sidekey_e2e::aws::{LocalKms, Moto, REGION};
use sidekey_e2e::gateway::Gateway;

const ALIAS: &str = "alias/etcd";
const SOCKET: &str = "kms.sock";

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_aws_conforms_to_kms_v2_on_moto() {
    let scratch = Scratch::new("moto").unwrap();
    let moto = Moto::start(scratch.path()).await.unwrap();
    let owner = moto.owner();
    let key = owner.create_key().await.unwrap();
    let gateway = Arc::new(Gateway::start(moto.address()).await.unwrap());
    let launched = serve(scratch.path(), &key, gateway.address(), &[]).await;
    let rotate = Hook::new(move || {
        let (owner, key) = (owner.clone(), key.clone());
        async move { owner.rotate(&key).await.map(drop) }
    });
    let plugin = launched.plugin().with_rotate(rotate).with_backend_calls(count(&gateway));
    assert_conforms(&plugin).await;
}

/// It has no rotation of its own and no ids of key material: the key is rotated by hand, as AWS
/// describes it, by pointing the alias at a new key.
#[tokio::test(flavor = "multi_thread")]
async fn sidekey_aws_conforms_to_kms_v2_on_local_kms() {
    let scratch = Scratch::new("local-kms").unwrap();
    let kms = LocalKms::start(scratch.path()).await.unwrap();
    let owner = kms.owner();
    owner.alias(ALIAS, &owner.create_key().await.unwrap()).await.unwrap();
    let gateway = Arc::new(Gateway::start(kms.address()).await.unwrap());
    let launched = serve(scratch.path(), ALIAS, gateway.address(), &[]).await;
    let rotate = Hook::new(move || {
        let owner = owner.clone();
        async move { owner.alias(ALIAS, &owner.create_key().await?).await }
    });
    let plugin = launched.plugin().with_rotate(rotate).with_backend_calls(count(&gateway));
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    id: String,
    /// In hex, oldest first.
    materials: Vec<String>,
    /// What the plugin is told besides.
    flags: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_aws_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let State { id, materials, flags } = key.state();
        let scratch = Scratch::new("corpus").unwrap();
        let moto = Moto::start(scratch.path()).await.unwrap();
        let arn = moto.restore_key(&id, &materials).await.unwrap();
        let launched = serve(scratch.path(), &arn, moto.address(), &flags).await;
        (vec![("sidekey", endpoint(scratch.path()))], (launched, moto, scratch))
    };
    assert_reads_corpus("aws", start).await;
}

fn endpoint(dir: &Path) -> Endpoint {
    Endpoint::Path(dir.join(SOCKET))
}

async fn serve(dir: &Path, key: &str, backend: SocketAddr, more: &[String]) -> Launched {
    let mut serve = Command::new(program(env!("CARGO_BIN_EXE_sidekey-aws")));
    serve
        .arg(format!("--key={key}"))
        .arg(format!("--region={REGION}"))
        .arg(format!("--listen={}", dir.join(SOCKET).display()))
        .args(more)
        .args(["--admin", "127.0.0.1:0", "--health-port=127.0.0.1:0", "--probe-interval", "200ms"])
        .env_clear()
        .env("AWS_ENDPOINT_URL", format!("http://{backend}"))
        .env("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    Launched::start(serve, endpoint(dir)).await.unwrap()
}

/// The calls that really reach the backend.
fn count(gateway: &Arc<Gateway>) -> impl Fn() -> std::future::Ready<Result<u64, String>> + use<> {
    let gateway = Arc::clone(gateway);
    move || std::future::ready(Ok(gateway.requests()))
}
