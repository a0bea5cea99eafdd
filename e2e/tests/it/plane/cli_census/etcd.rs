//! Promise: etcd is read as etcdctl reads it, through TLS and by its users, and the counts are
//! exact however large objects are and however often etcd compacts meanwhile.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_e2e::golang;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::pki::{Authority, CertificateFiles};
use sidekey_e2e::ports::Port;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Etcd, Scratch};

use super::scene::run;

/// An etcd that talks to those alone who show a certificate. Ended first, then removed.
struct Secured {
    process: Process,
    http: HttpClient,
    url: String,
    ca: String,
    other_ca: String,
    files: CertificateFiles,
    _ports: [Port; 2],
    scratch: Scratch,
}

#[tokio::test]
async fn certificates_and_users_are_what_etcdctl_takes() {
    let mut etcd = Secured::start().await.unwrap();
    etcd.wait_healthy().await.unwrap();
    etcd.put("/registry/secrets/a/b", b"k8s:enc:aescbc:v1:k:x").await.unwrap();
    the_right_certificate_is_let_in_and_no_other(&etcd).await.unwrap();
    users_prove_themselves_by_password(&etcd).await.unwrap();
}

async fn the_right_certificate_is_let_in_and_no_other(etcd: &Secured) -> Result<()> {
    let text = etcd.census(&etcd.ca, &[]).await?.ok()?.stdout;
    ensure!(text.contains("1 objects") && text.contains("aescbc"), "{text}");
    let told = run(&["census", "--endpoints", &etcd.url, "--cacert", &etcd.ca]).await?;
    ensure!(told.code == Some(1) && told.stderr.contains("--cert"), "{told:?}");
    let told = etcd.census(&etcd.other_ca, &[]).await?;
    ensure!(told.code == Some(1) && told.stderr.contains("certificate"), "{told:?}");
    // Not the same as being spoken to without TLS.
    let plain = etcd.url.replace("https", "http");
    let told = run(&["census", "--endpoints", &plain]).await?;
    ensure!(told.code == Some(1), "{told:?}");
    let told = run(&["census", "--endpoints", &plain, "--cacert", &etcd.ca]).await?;
    ensure!(told.code == Some(64) && told.stderr.contains("https://"), "{told:?}");
    Ok(())
}

async fn users_prove_themselves_by_password(etcd: &Secured) -> Result<()> {
    etcd.call("auth/user/add", json!({"name": "root", "password": "correct horse"})).await?;
    etcd.call("auth/role/add", json!({"name": "root"})).await?;
    etcd.call("auth/user/grant", json!({"user": "root", "role": "root"})).await?;
    etcd.call("auth/enable", json!({})).await?;
    let file = etcd.scratch.path().join("password");
    let password = file.to_str().context("not UTF-8")?;
    std::fs::write(&file, "correct horse\n")?;
    let user = ["--user", "root", "--password-file", password];
    let text = etcd.census(&etcd.ca, &user).await?.ok()?.stdout;
    ensure!(text.contains("1 objects"), "{text}");
    let told = etcd.census(&etcd.ca, &[]).await?;
    ensure!(told.code == Some(1) && told.stderr.contains("--user"), "{told:?}");
    std::fs::write(&file, "wrong horse\n")?;
    let told = etcd.census(&etcd.ca, &user).await?;
    ensure!(told.code == Some(1) && !told.stderr.contains("wrong horse"), "{told:?}");
    let told = etcd.census(&etcd.ca, &["--user", "root:correct horse"]).await?;
    ensure!(told.code == Some(64) && !told.stderr.contains("correct horse"), "{told:?}");
    Ok(())
}

#[tokio::test]
async fn counts_are_exact_while_etcd_compacts_and_objects_are_large() {
    let scratch = Scratch::new("cli-census-pages").unwrap();
    let etcd = Etcd::start(scratch.path()).await.unwrap();
    let small = [b"k8s:enc:aescbc:v1:k:".as_slice(), &[b'x'; 900]].concat();
    let large = [b"k8s:enc:aesgcm:v1:k:".as_slice(), &[b'x'; 1_400_000]].concat();
    for batch in 0..30 {
        fill(&etcd, batch, &small).await.unwrap();
    }
    for number in 0..20 {
        etcd.put(&format!("/registry/configmaps/a/{number:03}"), &large).await.unwrap();
    }
    let url = etcd.url();
    let args = ["census", "-o", "json", "--endpoints", &url];
    let counting = run(&args);
    // Whatever is counted is compacted away before the next page is asked for.
    let compacting = async {
        loop {
            etcd.put("/other/x", b"y").await.unwrap();
            etcd.compact().await.unwrap();
        }
    };
    let told = tokio::select! {
        told = counting => told.unwrap(),
        () = compacting => unreachable!(),
    };
    let told = told.ok().unwrap();
    let counted: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(counted["objects"], 3020, "{counted:#}");
    let keys: Vec<_> = counted["keys"].as_array().unwrap().iter().collect();
    assert_eq!(
        (keys[0]["kind"].as_str(), keys[0]["objects"].as_u64()),
        (Some("aescbc"), Some(3000))
    );
    assert_eq!((keys[1]["kind"].as_str(), keys[1]["objects"].as_u64()), (Some("aesgcm"), Some(20)));
    let revision = |field: &str| counted[field].as_i64().unwrap();
    assert!(revision("firstRevision") < revision("revision"), "nothing was compacted: {counted:#}");
    assert!(told.stderr.contains("compacted revision"), "it is said: {}", told.stderr);
}

/// A hundred at once.
async fn fill(etcd: &Etcd, batch: u64, value: &[u8]) -> Result<()> {
    let put = |number: u64| {
        let key = STANDARD.encode(format!("/registry/secrets/a/{batch:03}-{number:03}"));
        json!({"request_put": {"key": key, "value": STANDARD.encode(value)}})
    };
    let puts: Vec<Value> = (0..100).map(put).collect();
    etcd.call("kv/txn", &json!({"success": puts})).await.map(drop)
}

impl Secured {
    async fn start() -> Result<Self> {
        let scratch = Scratch::new("cli-census-tls")?;
        let dir = scratch.path();
        let (authority, other) = (Authority::new("etcd's CA")?, Authority::new("another CA")?);
        // Its gateway is a client of itself.
        let serving = authority.peer(dir, "etcd", &["127.0.0.1", "localhost"])?;
        let files = authority.peer(dir, "client", &["client.example"])?;
        let ca = authority.file(dir)?;
        let other_ca = other.file(&scratch.subdir("other")?)?;
        let ports = [Port::free()?, Port::free()?];
        let url = format!("https://{}", ports[0].address());
        let peer = format!("http://{}", ports[1].address());
        let program = golang::ETCD.build_async().await?;
        let process = Spec::new("etcd", program, dir.join("etcd.log"))
            .arg("--data-dir")
            .arg(dir.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args([PathBuf::from("--cert-file"), serving.certificate.clone()])
            .args([PathBuf::from("--key-file"), serving.key.clone()])
            .args([PathBuf::from("--trusted-ca-file"), ca.clone()])
            .args(["--client-cert-auth", "--unsafe-no-fsync"])
            .start()?;
        let http = HttpClient::tls(ports[0].address(), authority.connector_with(&files)?, None);
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let (ca, other_ca) = (text(ca), text(other_ca));
        Ok(Self { process, http, url, ca, other_ca, files, _ports: ports, scratch })
    }

    async fn wait_healthy(&mut self) -> Result<()> {
        let http = self.http.clone();
        let healthy = async || http.get("/health").await?.ok().map(drop);
        self.process.wait_until("/health answers", PATIENCE, healthy).await
    }

    async fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
        self.call("kv/put", body).await
    }

    async fn call(&self, method: &str, body: Value) -> Result<()> {
        self.http.post(&format!("/v3/{method}"), &body).await?.ok().map(drop)
    }

    async fn census(&self, ca: &str, args: &[&str]) -> Result<sidekey_e2e::binaries::Outcome> {
        let (cert, key) =
            (self.files.certificate.to_string_lossy(), self.files.key.to_string_lossy());
        let head =
            ["census", "--endpoints", &self.url, "--cacert", ca, "--cert", &cert, "--key", &key];
        run(&[&head[..], args].concat()).await
    }
}
