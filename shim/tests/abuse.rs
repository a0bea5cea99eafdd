//! Promises of shim and proxy towards clients that mean no good: raw HTTP/2 against the real
//! binaries, with an honest client beside it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../providers/local/tests/support/h2.rs"]
mod h2;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use h2::{ABUSES, HASTE, MOST, Raw, peak};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConnection, StreamOwned};
use serde_json::{Value, json};
use sidekey_core::client::Connection;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use support::plugin::Plugin;
use support::shim::{Shim, document, key};
use support::{
    Authority, Pair, SERVER, SHIM, Use, World, decrypt, dial, encrypt, eventually, free_address,
    raw_handshake, status, write,
};
use tonic::Code;

/// Has `abuse` done, and meanwhile asks on an old connection and on ever new ones.
async fn beside(
    name: &str,
    abuse: fn(&dyn Fn() -> Raw) -> Vec<Raw>,
    open: impl Fn() -> Raw + Send + 'static,
    pid: u32,
    mut honest: impl AsyncFnMut() -> KeyManagementServiceClient<Connection>,
) {
    let mut old = honest().await;
    old.status(status()).await.unwrap();
    let abusing = tokio::task::spawn_blocking(move || abuse(&open));
    let mut rounds = 0;
    while rounds < 10 || !abusing.is_finished() {
        let answer = old.encrypt(encrypt(b"x")).await;
        answer.unwrap_or_else(|error| panic!("{name}, round {rounds}: {error}"));
        // A newcomer in a crowd may have to come again before it is heard, as gRPC does.
        eventually("a newcomer is served", async || {
            honest().await.encrypt(encrypt(b"x")).await.ok()
        })
        .await;
        rounds += 1;
    }
    let _crowd = abusing.await.unwrap();
    old.status(status()).await.unwrap_or_else(|error| panic!("{name}, at the end: {error}"));
    let most = peak(pid);
    println!("{name}: {most} KiB");
    assert!(most < MOST, "{name} takes it to {most} KiB");
}

#[tokio::test]
async fn no_abuse_takes_the_shim_more_than_its_share_or_disturbs_an_honest_client() {
    for (name, abuse) in ABUSES {
        let directory = tempfile::tempdir().unwrap();
        let plugin = Plugin::start(&directory.path().join("plugin.sock")).await;
        let keys = [key(1, "write", &[&plugin])];
        let shim = Shim::start(directory.path(), &document(directory.path(), 1, &keys)).await;
        shim.is_ready().await;
        let socket = directory.path().join("kms.sock");
        let open = move || Raw::hasty(&socket);
        beside(name, abuse, open, shim.pid(), async || shim.client().await).await;
        eventually("nothing is left of it", async || {
            let metrics = shim.get("/metrics").await?;
            metrics.contains("\nkms_shim_unfinished_requests 0\n").then_some(())
        })
        .await;
    }
}

/// A running proxy, killed with the test.
struct Proxy(Child, SocketAddr);

impl Proxy {
    fn start(world: &World) -> Self {
        let file = world.path("proxy.yaml");
        std::fs::write(&file, world.document().to_string()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_sidekey-proxy"))
            .args(["--log-format", "json", "--config"])
            .arg(file)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let line: Value = serde_json::from_str(&line).ok()?;
            (line["message"] == "proxy listening")
                .then(|| line["address"].as_str()?.parse().ok())?
        });
        // It must not wait for somebody who reads the rest.
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| eprintln!("{line}"))
        });
        Self(child, address.expect("the proxy does not listen"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens TLS connections, in which this protocol is spoken.
fn tls(
    address: SocketAddr,
    authority: &Authority,
    pair: &Pair,
    protocol: &str,
) -> impl Fn() -> StreamOwned<ClientConnection, TcpStream> + Send + 'static {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let config = Arc::new(config);
    move || {
        let tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        tcp.set_write_timeout(Some(HASTE)).unwrap();
        let name = ServerName::try_from(SERVER).unwrap();
        let session = ClientConnection::new(config.clone(), name).unwrap();
        StreamOwned::new(session, tcp)
    }
}

#[tokio::test]
async fn no_abuse_takes_the_proxy_more_than_its_share_or_disturbs_an_honest_client() {
    for (name, abuse) in ABUSES {
        let world = World::new();
        let _plugin = Plugin::start(&world.path("kms.sock")).await;
        let proxy = Proxy::start(&world);
        let pair = world.authority.issue(Use::Client, &[SHIM]);
        let tls = tls(proxy.1, &world.authority, &pair, "h2");
        let open = move || Raw::over(tls());
        let shim = world.client(&[SHIM]);
        beside(name, abuse, open, proxy.0.id(), async || dial(&shim, proxy.1).await.unwrap()).await;
    }
}

/// Calls that are given up all at once look like an attack to a plugin, which then hangs up on all
/// that share its connection.
#[tokio::test]
async fn calls_that_a_client_leaves_behind_are_finished_and_not_reset_at_the_plugin() {
    const CALLS: usize = 100;
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    *plugin.manners.gate.lock().unwrap() = Some(gate.clone());
    let proxy = world.proxy().await;
    let client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.decrypt(decrypt(b"x")).await })
        })
        .collect();
    eventually("all are under way", async || (plugin.seen() == CALLS as u64).then_some(())).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    drop(client);
    let connections = || support::metric(&proxy, "socket_proxy_connections");
    eventually("the client is gone", async || (connections() == 0).then_some(())).await;
    // It goes the way of those calls: the plugin has heard of their end before, if they ended.
    let mut honest = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    honest.encrypt(encrypt(b"x")).await.unwrap();
    gate.add_permits(CALLS);
    eventually("each has been finished", async || (gate.available_permits() == 0).then_some(()))
        .await;
}

/// In which of the proxy's windows we are: who asks for Status in the same one joins the others.
fn window() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_secs() / 2
}

#[tokio::test]
async fn however_many_ask_for_status_at_a_time_the_plugin_is_asked_once() {
    const CALLS: i64 = 50;
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    plugin.manners.hangs.store(true, Ordering::SeqCst);
    let proxy = world.proxy().await;
    let client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let first = window();
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.status(status()).await })
        })
        .collect();
    let waiting = || support::metric(&proxy, "socket_proxy_unfinished_requests");
    eventually("all have been asked", async || (waiting() == CALLS).then_some(())).await;
    // All have joined by now, each in the window in which it came: there may be more than one.
    let most = window() - first + 1;
    let asked = || plugin.manners.asked.load(Ordering::SeqCst);
    eventually("the plugin is asked", async || (asked() > 0).then_some(())).await;
    assert!(asked() <= most, "{} of {CALLS} calls, in {most} windows", asked());
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    drop(client);
    // Nobody else waits for that answer.
    plugin.manners.hangs.store(false, Ordering::SeqCst);
    let mut next = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    next.encrypt(encrypt(b"x")).await.unwrap();
    assert!(asked() <= most, "{} of {CALLS} calls, in {most} windows", asked());
}

#[tokio::test]
async fn strangers_at_the_proxy_take_no_place_and_nothing_of_theirs_is_read() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let mut listed = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    listed.status(status()).await.unwrap();
    let stranger = world.client(&["other.example"]);
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(dial(&stranger, proxy.address()).await.unwrap());
    }
    assert_eq!(support::metric(&proxy, "socket_proxy_connections"), 1, "only who is known counts");
    // A message that could not be decoded, or is too long: the refusal comes first.
    let last = crowd.last_mut().unwrap();
    let refused = last.encrypt(encrypt(&vec![0; 1 << 20])).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    listed.encrypt(encrypt(b"x")).await.unwrap();
    dial(&world.client(&[SHIM]), proxy.address()).await.unwrap().status(status()).await.unwrap();
    assert_eq!(plugin.seen(), 1);
}

#[tokio::test]
async fn silent_connections_to_admin_tls_do_not_keep_the_operator_out() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(&directory.path().join("plugin.sock")).await;
    let pair = world.authority.issue(Use::Server, &[SERVER, "127.0.0.1"]);
    let files = write(&directory.path().join("tls"), &world.authority.pem, &pair);
    let address = free_address();
    let mut document = document(directory.path(), 1, &[key(1, "write", &[&plugin])]);
    document["adminTls"] = json!({
        "listen": address.to_string(), "ca": files.ca, "cert": files.cert, "key": files.key,
        "allow": ["operator.example"],
    });
    let shim = Shim::start(directory.path(), &document).await;
    shim.is_ready().await;
    eventually("adminTls listens", async || TcpStream::connect(address).ok()).await;
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    raw_handshake(address, &world.authority.pem, &rustls::version::TLS13).await;
    let pair = world.authority.issue(Use::Client, &["operator.example"]);
    let open = tls(address, &world.authority, &pair, "http/1.1");
    let mut stream = open();
    let request = b"GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    // However it ends, what came before counts.
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(silent);
}
