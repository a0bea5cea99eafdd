//! Promise: a key behind the socket proxy, on another host, is a key like any
//! other: kube-apiserver reads and writes with it, a cut network is the loss of
//! a key and heals by itself, certificates are replaced while all runs, and who
//! may only decrypt cannot encrypt.
//!
//! The other host is a network namespace, which takes root to make.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::binaries;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::netns::Host;
use sidekey_e2e::pki::{Authority, CertificateFiles};
use sidekey_e2e::ports::Port;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::shim::{ShimConfig, ShimKey, canary};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, LocalPlugin, Scratch, Shim, Stored, eventually,
};
use tonic::Code;

const PROGRAM: &str = "sidekey-proxy";
const SHIM: &str = "shim.sidekey.test";
const READER: &str = "reader.sidekey.test";
const EVERYTHING: [&str; 3] = ["status", "encrypt", "decrypt"];

/// A proxy in front of a real plugin.
struct Proxy {
    process: Process,
    address: SocketAddr,
    dir: PathBuf,
    authority: Arc<Authority>,
    _port: Option<Port>,
}

impl Proxy {
    /// On this host, or on another one.
    async fn start(scratch: &Scratch, plugin: &LocalPlugin, host: Option<&Host>) -> Result<Self> {
        let authority = Arc::new(Authority::new("proxy test CA")?);
        Self::start_under(authority, scratch.subdir("proxy")?, plugin, host).await
    }

    /// With a CA that another one may have, too.
    async fn start_under(
        authority: Arc<Authority>,
        dir: PathBuf,
        plugin: &LocalPlugin,
        host: Option<&Host>,
    ) -> Result<Self> {
        let port = host.is_none().then(Port::free).transpose()?;
        let address = match (host, &port) {
            (Some(host), _) => SocketAddr::from((host.address(), 8443)),
            (None, Some(port)) => port.address(),
            (None, None) => bail!("no port"),
        };
        let serving = authority.peer(&dir, "proxy", &[&address.ip().to_string()])?;
        std::fs::write(dir.join("clients-ca.crt"), authority.pem())?;
        authority.file(&dir)?;
        let document = json!({
            "listen": address.to_string(), "plugin": plugin.endpoint(), "filePoll": "500ms",
            "tls": {"ca": dir.join("clients-ca.crt"), "cert": serving.certificate, "key": serving.key},
            "clients": [
                {"san": SHIM, "allow": EVERYTHING},
                {"san": READER, "allow": ["status", "decrypt"]},
            ],
        });
        std::fs::write(dir.join("proxy.yaml"), document.to_string())?;
        let program = binaries::path_async(PROGRAM).await?;
        let (program, first) = match host {
            Some(host) => host.running(&program).await?,
            None => (program, Vec::new()),
        };
        let spec = Spec::new(PROGRAM, program, dir.join("proxy.log")).args(first);
        let mut process = spec.arg("--config").arg(dir.join("proxy.yaml")).start()?;
        let listens = |line: &str| line.contains("proxy listening").then_some(());
        process.wait_for_log("it listens", PATIENCE, listens).await?;
        Ok(Self { process, address, dir, authority, _port: port })
    }

    fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Certificates of a client with that name, in a directory of its own.
    fn client(&self, name: &str) -> Result<CertificateFiles> {
        self.authority.peer(&self.dir, name, &[name])
    }

    fn tls(&self, files: &CertificateFiles) -> Value {
        json!({"ca": self.dir.join("ca.crt"), "cert": files.certificate, "key": files.key})
    }
}

fn quick(revision: u64) -> ShimConfig {
    ShimConfig::new(revision).probe("500ms", "1s").coast("7s").with("filePoll", "500ms")
}

#[tokio::test]
async fn kube_apiserver_reads_and_writes_through_a_proxy_on_another_host() {
    let plane = ControlPlane::start("proxy").await.unwrap();
    let plugin = LocalPlugin::start(&plane.scratch, "plugin").await.unwrap();
    let host = Host::create(plane.scratch.path()).await.unwrap();
    let proxy = Proxy::start(&plane.scratch, &plugin, Some(&host)).await.unwrap();
    let tls = proxy.tls(&proxy.client(SHIM).unwrap());
    let config = quick(1).write(1, proxy.endpoint()).with("tls", tls);
    let shim = Shim::start(&plane.scratch, "shim", &config).await.unwrap();
    let encryption = EncryptionConfiguration::kms("sidekey", shim.endpoint());
    let options = Options::new("a").encryption(encryption);
    let mut server = KubeApiserver::start(&plane, options).await.unwrap();

    server.client().create(Kind::Secret, "default", "far", &[("word", "secret")]).await.unwrap();
    let raw = plane.etcd.raw(&Kind::Secret.etcd_key("default", "far")).await.unwrap();
    let stored = Stored::parse(&raw).unwrap();
    assert_eq!(stored.key_id_hash(), shim.key_id_hash().await.unwrap());
    // A fresh kube-apiserver has unwrapped nothing yet.
    server.restart().await.unwrap();
    reads(&server).await.unwrap();

    host.cut().unwrap();
    server.wait_kms_providers(false).await.unwrap();
    // What has been unwrapped stays readable.
    reads(&server).await.unwrap();
    host.heal().unwrap();
    let healed = Instant::now();
    server.wait_kms_providers(true).await.unwrap();
    println!("kms-providers is good {:?} after the network's return", healed.elapsed());
    server.client().create(Kind::Secret, "default", "after", &[("word", "secret")]).await.unwrap();
    server.restart().await.unwrap();
    reads(&server).await.unwrap();
}

async fn reads(server: &KubeApiserver) -> Result<()> {
    let found = server.client().read(Kind::Secret, "default", "far").await?;
    ensure!(found["word"] == "secret", "{found:?}");
    Ok(())
}

#[tokio::test]
async fn a_cut_network_is_the_loss_of_a_key_and_heals_by_itself() {
    let scratch = Scratch::new("cut").unwrap();
    let [far, near] = [
        LocalPlugin::start(&scratch, "far").await.unwrap(),
        LocalPlugin::start(&scratch, "near").await.unwrap(),
    ];
    let host = Host::create(scratch.path()).await.unwrap();
    let proxy = Proxy::start(&scratch, &far, Some(&host)).await.unwrap();
    let tls = proxy.tls(&proxy.client(SHIM).unwrap());
    let first = quick(1).write(1, proxy.endpoint()).with("tls", tls.clone());
    let mut shim = Shim::start(&scratch, "shim", &first).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    let key_id = client.status().await.unwrap().key_id;
    let old = client.round_trip(b"far away").await.unwrap();

    // As the write key: Status coasts and then fails, and heals.
    let began = Instant::now();
    host.cut().unwrap();
    let lost = eventually("Status becomes an error", PATIENCE, async || {
        client.status().await.err().context("it is ok")
    });
    let error = lost.await.unwrap();
    assert!(began.elapsed().as_secs() >= 3, "it failed within the coast: {error}");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(client.as_kube_apiserver().decrypt(&old).await.is_err(), "nobody can have answered");
    host.heal().unwrap();
    let back = Instant::now();
    eventually("Status heals", PATIENCE, async || {
        ensure!(client.status().await?.key_id == key_id);
        Ok(())
    })
    .await
    .unwrap();
    println!("Status is good {:?} after the network's return", back.elapsed());
    assert_eq!(client.decrypt(&old).await.unwrap(), "far away");

    // As a read key: only what it wrote is lost.
    let read = ShimKey::read(1, proxy.endpoint()).canary(canary(&far).await.unwrap());
    let second = quick(2).write(2, near.endpoint()).key(read).with("tls", tls);
    shim.load(&second).await.unwrap();
    let new = client.round_trip(b"near").await.unwrap();
    host.cut().unwrap();
    wait_key(&mut shim, 0, false).await.unwrap();
    assert_eq!(client.status().await.unwrap().key_id, new.key_id);
    assert_eq!(client.decrypt(&new).await.unwrap(), "near");
    assert!(client.as_kube_apiserver().decrypt(&old).await.is_err(), "nobody can have answered");
    host.heal().unwrap();
    wait_key(&mut shim, 0, true).await.unwrap();
    assert_eq!(client.decrypt(&old).await.unwrap(), "far away");
}

#[tokio::test]
async fn a_host_that_vanishes_is_given_up_within_the_time_of_a_request() {
    let scratch = Scratch::new("vanish").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let host = Host::create(scratch.path()).await.unwrap();
    let far = Proxy::start(&scratch, &plugin, Some(&host)).await.unwrap();
    let dir = scratch.subdir("near").unwrap();
    let near = Proxy::start_under(far.authority.clone(), dir, &plugin, None).await.unwrap();
    let tls = far.tls(&far.client(SHIM).unwrap());
    // Probes come too seldom to notice it, as they may for foreign plugins.
    let config = ShimConfig::new(1).probe("1h", "10s");
    let key = ShimKey::write(1, far.endpoint()).endpoint(near.endpoint()).with("external", true);
    let config = config.key(key).with("tls", tls);
    let shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    let sealed = client.round_trip(b"far away").await.unwrap();

    host.cut().unwrap();
    // More than kube-apiserver's 3 s, for slow machines; the kernel itself needs minutes.
    let patient = client.within(Duration::from_secs(10));
    assert_eq!(patient.decrypt(&sealed).await.unwrap(), "far away");
}

async fn wait_key(shim: &mut Shim, index: usize, healthy: bool) -> Result<()> {
    let what = format!("key {} is {}", index + 1, if healthy { "up" } else { "down" });
    shim.wait_status(&what, |status| {
        ensure!(status["keys"][index]["healthy"] == healthy, "{status}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_certificate_is_replaced_while_requests_are_served() {
    let scratch = Scratch::new("replaced").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let proxy = Proxy::start(&scratch, &plugin, None).await.unwrap();
    let files = proxy.client(SHIM).unwrap();
    let config = quick(1).write(1, proxy.endpoint()).with("tls", proxy.tls(&files));
    let mut shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    let sealed = client.round_trip(b"before").await.unwrap();

    // A new authority for clients: first both are trusted, then the new one alone.
    let new = Authority::new("the next CA").unwrap();
    let trusted = proxy.dir.join("clients-ca.crt");
    swap(&trusted, &format!("{}{}", proxy.authority.pem(), new.pem())).unwrap();
    taken_over(&proxy.process, 1).await.unwrap();
    let fresh = new.peer(&scratch.subdir("fresh").unwrap(), SHIM, &[SHIM]).unwrap();
    // One after the other: in between they do not fit, and the old ones stay in use.
    for (from, to) in [(&fresh.certificate, &files.certificate), (&fresh.key, &files.key)] {
        swap(to, &std::fs::read_to_string(from).unwrap()).unwrap();
        assert_eq!(client.decrypt(&sealed).await.unwrap(), "before");
    }
    taken_over(shim.process(), 1).await.unwrap();
    swap(&trusted, &new.pem()).unwrap();
    taken_over(&proxy.process, 2).await.unwrap();
    // The old connection is closed by the proxy; with the old certificate none would be made.
    for _ in 0..20 {
        assert_eq!(client.decrypt(&sealed).await.unwrap(), "before");
    }
    client.round_trip(b"after").await.unwrap();

    // The other way round: whom the proxy no longer trusts is lost, until it does.
    swap(&trusted, &Authority::new("a stranger").unwrap().pem()).unwrap();
    wait_key(&mut shim, 0, false).await.unwrap();
    assert!(client.as_kube_apiserver().decrypt(&sealed).await.is_err(), "it is not trusted");
    swap(&trusted, &new.pem()).unwrap();
    wait_key(&mut shim, 0, true).await.unwrap();
    assert_eq!(client.decrypt(&sealed).await.unwrap(), "before");
}

/// Replaces a file by rename, as certificate managers do.
fn swap(file: &Path, text: &str) -> Result<()> {
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, file)?;
    Ok(())
}

/// Its log says so often that changed certificates are in use.
async fn taken_over(process: &Process, times: usize) -> Result<()> {
    let what = format!("{} takes certificates over", process.name());
    let seen = eventually(what, PATIENCE, async || {
        let count = process.log()?.matches("new certificates are in use").count();
        ensure!(count >= times, "{count} times of {times}");
        Ok(())
    });
    seen.await.with_context(|| process.log_tail())
}

#[tokio::test]
async fn who_may_only_decrypt_cannot_become_the_write_key_and_can_read() {
    let scratch = Scratch::new("reader").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let next = LocalPlugin::start(&scratch, "next").await.unwrap();
    let proxy = Proxy::start(&scratch, &plugin, None).await.unwrap();
    let full = proxy.tls(&proxy.client(SHIM).unwrap());
    let limited = proxy.tls(&proxy.client(READER).unwrap());

    // A shim that may do everything has written.
    let config = quick(1).write(1, proxy.endpoint()).with("tls", full);
    let writer = Shim::start(&scratch, "writer", &config).await.unwrap();
    let sealed = KmsClient::connect(&writer.endpoint()).await.unwrap();
    let sealed = sealed.round_trip(b"written elsewhere").await.unwrap();

    let base = quick(1).write(2, next.endpoint());
    let mut shim = Shim::start(&scratch, "shim", &base).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    let key_id = client.status().await.unwrap().key_id;

    // As the write key it is refused at the load.
    let promoted = quick(2)
        .key(ShimKey::write(1, proxy.endpoint()).with("tls", limited.clone()))
        .read(2, next.endpoint());
    shim.swap(&promoted).unwrap();
    // On a busy machine a proof may first end for want of time.
    let told = shim.wait_status("it is refused for the right reason", |status| {
        let why = status["config"]["refused"]["error"].as_str().context("nothing is refused")?;
        ensure!(why.contains("key 1 (write)") && why.contains("encrypt"), "{why}");
        Ok(())
    });
    told.await.unwrap();
    assert_eq!(client.round_trip(b"still").await.unwrap().key_id, key_id);

    // As a read key it works, with and without canary.
    for (revision, canary) in [(3, None), (4, Some(canary(&plugin).await.unwrap()))] {
        let mut key = ShimKey::read(1, proxy.endpoint()).with("tls", limited.clone());
        if let Some(canary) = canary {
            key = key.canary(canary);
        }
        shim.load(&quick(revision).write(2, next.endpoint()).key(key)).await.unwrap();
        assert_eq!(client.decrypt(&sealed).await.unwrap(), "written elsewhere");
    }
    assert_eq!(client.status().await.unwrap().key_id, key_id);
}
