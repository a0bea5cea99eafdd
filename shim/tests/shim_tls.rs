//! Promises of a shim that reaches its key through a socket proxy.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sidekey_shim::tls::{Identity, TlsFiles};
use support::plugin::Plugin;
use support::shim::{Shim, document, key};
use support::{Authority, PATIENCE, SERVER, SHIM, Use, World, eventually, free_address, write};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A key behind the proxy at that address.
fn proxied(id: u64, role: &str, address: SocketAddr, files: &TlsFiles) -> Value {
    let tls = json!({"ca": files.ca, "cert": files.cert, "key": files.key, "serverName": SERVER});
    json!({"id": id, "role": role, "endpoints": [format!("https://{address}")], "tls": tls})
}

/// A certificate of the shim's for the proxies of that world.
fn certificate(world: &World, directory: &Path) -> TlsFiles {
    write(directory, &world.authority.pem, &world.authority.issue(Use::Client, &[SHIM]))
}

#[tokio::test]
async fn a_server_whose_ca_is_no_longer_trusted_gets_no_request_on_an_open_connection_either() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let (directory, other) = (tempfile::tempdir().unwrap(), Authority::new("another"));
    let directory = directory.path();
    let files = certificate(&world, &directory.join("tls"));
    let key = proxied(1, "write", proxy.address(), &files);
    let shim = Shim::start(directory, &document(directory, 1, &[key])).await;
    shim.is_ready().await;
    let sealed = shim.encrypt(b"x").await.unwrap();

    // A CA more is no reason to leave: the connection and the key stay as they are.
    std::fs::write(&files.ca, format!("{}{}", world.authority.pem, other.pem)).unwrap();
    for _ in 0..3 {
        assert_eq!(shim.decrypt(&sealed).await.unwrap(), b"x");
    }
    std::fs::write(&files.ca, &other.pem).unwrap();
    let refused = eventually("it is distrusted", async || shim.decrypt(&sealed).await.err()).await;
    assert!(refused.message().contains("certificate"), "{refused}");
    let seen = plugin.seen();
    shim.decrypt(&sealed).await.unwrap_err();
    assert_eq!(plugin.seen(), seen);

    std::fs::write(&files.ca, &world.authority.pem).unwrap();
    eventually("it is trusted again", async || shim.decrypt(&sealed).await.ok()).await;
}

#[tokio::test]
async fn at_a_start_certificates_that_cannot_be_used_keep_no_other_key_from_being_served() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let _behind = Plugin::start(&world.path("kms.sock")).await;
    let beside = Plugin::start(&directory.join("beside.sock")).await;
    let proxy = world.proxy().await;
    let files = certificate(&world, &directory.join("tls"));
    let with_reader = |revision, files| {
        let keys = [key(2, "write", &[&beside]), proxied(1, "read", proxy.address(), files)];
        document(directory, revision, &keys)
    };
    let first = document(directory, 1, &[proxied(1, "write", proxy.address(), &files)]);
    let mut shim = Shim::start(directory, &first).await;
    shim.is_ready().await;
    let sealed = shim.encrypt(b"old").await.unwrap();
    shim.load(&with_reader(2, &files)).await;

    // Its Secret is deleted; a CA bundle that went bad is the same.
    let good = std::fs::read(&files.cert).unwrap();
    std::fs::remove_file(&files.cert).unwrap();
    shim.restart(&with_reader(2, &files)).await;
    let key_id = shim.is_ready().await;
    assert_eq!(shim.encrypt(b"new").await.unwrap().key_id, key_id);
    let refused = shim.decrypt(&sealed).await.unwrap_err();
    assert!(refused.message().contains("tls.crt"), "{refused}");
    shim.key_is(1, "it says why", |key| {
        let error = key["last_error"]["error"].as_str().unwrap_or_default();
        key["healthy"] == false && error.contains("tls.crt")
    })
    .await;

    // What is in use is still not given up for certificates that cannot be used.
    let nowhere = directory.join("nowhere");
    let none = TlsFiles {
        ca: nowhere.join("ca.crt"),
        cert: nowhere.join("tls.crt"),
        key: nowhere.join("tls.key"),
    };
    shim.write(&with_reader(3, &none));
    assert!(shim.refuses().await.contains("nowhere"), "it must say which file");
    // Nor at a start, where the last good configuration is on disk.
    shim.restart(&with_reader(3, &none)).await;
    assert!(shim.refuses().await.contains("nowhere"), "it must say which file");
    assert_eq!(shim.is_ready().await, key_id);

    std::fs::write(&files.cert, good).unwrap();
    eventually("it is mended", async || {
        (shim.decrypt(&sealed).await.ok()? == b"old").then_some(())
    })
    .await;
}

#[tokio::test]
async fn at_a_start_certificates_that_cannot_be_used_close_admin_tls_and_nothing_else() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("beside.sock")).await;
    let address = free_address();
    let files = world.server_files();
    let good = std::fs::read(&files.ca).unwrap();
    std::fs::write(&files.ca, "no certificate").unwrap();
    let mut document = document(directory, 1, &[key(1, "write", &[&plugin])]);
    document["adminTls"] = json!({
        "listen": address.to_string(), "ca": files.ca, "cert": files.cert, "key": files.key,
        "allow": ["reader.example"],
    });
    let shim = Shim::start(directory, &document).await;
    shim.is_ready().await;
    let reader = world.client(&["reader.example"]);
    let open = async || {
        let tcp = TcpStream::connect(address).await.ok()?;
        timeout(PATIENCE, Identity::connect(&reader, tcp, SERVER)).await.ok()?.err()
    };
    let closed = eventually("it listens", open).await;
    let log = std::fs::read_to_string(directory.join("shim.log")).unwrap();
    assert!(log.contains("ca.crt"), "{closed}, and the log says nothing:\n{log}");

    std::fs::write(&files.ca, good).unwrap();
    // Its protocol is another, which is said by whoever has taken the certificate.
    eventually("it is mended", async || {
        open().await?.report().contains("NoApplicationProtocol").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_no_key_uses_any_more_is_forgotten() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let until = |hours: u64| SystemTime::now() + Duration::from_secs(hours * 3600);
    let files = |name: &str, hours| {
        let pair = world.authority.issue_until(Use::Client, &[SHIM], until(hours));
        write(&directory.join(name), &world.authority.pem, &pair)
    };
    let of = |revision, files| {
        document(directory, revision, &[proxied(1, "write", proxy.address(), files)])
    };
    let (old, new) = (files("old", 1), files("new", 9));
    let shim = Shim::start(directory, &of(1, &old)).await;
    shim.is_ready().await;
    let expires = async |hours| {
        let seconds = until(hours).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        eventually("the metric is of the certificate in use", async || {
            let metrics = shim.get("/metrics").await?;
            let name = "kms_shim_certificate_expiry_timestamp_seconds ";
            let value = metrics.lines().find_map(|line| line.strip_prefix(name))?;
            (value.parse::<u64>().ok()?.abs_diff(seconds) < 1800).then_some(())
        })
        .await;
    };
    expires(1).await;
    shim.load(&of(2, &new)).await;
    expires(9).await;
    // Neither does one stay that was refused.
    let mut refused = of(3, &old);
    refused["keys"][0]["endpoints"] = json!([directory.join("nowhere"), "https://127.0.0.1:9"]);
    shim.write(&refused);
    shim.refuses().await;
    expires(9).await;
}
