//! Several servers, their certificates, and who is active among them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::openbao::{Cluster, NAMED};
use sidekey_e2e::pki::Authority;
use sidekey_e2e::ports::Port;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{OpenBao, Scratch};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tonic::Code;

use crate::support::{PLAINTEXT, Pulse, Stage, quick, shared};

#[tokio::test]
async fn the_name_of_a_certificate_may_differ_from_the_address() {
    let stage = Stage::new("named").await;
    let mut key = stage.app_role_key(1, &stage.key);
    key["settings"]["address"] = shared().await.named_address().into();
    let mut served = stage.spawn(&quick(&[key.clone()])).await;
    served.logs("probe of the key failed").await;
    served.wait_bad_for_all(Code::Unavailable, &["certificate", "caFile"]).await;
    key["settings"]["tls"]["serverName"] = NAMED.into();
    served.plugin.reconfigure(&quick(&[key.clone()])).unwrap();
    served.wait_ok().await;
    let sealed = served.round_trip().await;
    // A wrong name is refused, and the good connection stays.
    key["settings"]["tls"]["serverName"] = "other.sidekey.test".into();
    served.plugin.reconfigure(&quick(&[key])).unwrap();
    served.logs("the last good ones stay in use").await;
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_ca_bundle_is_replaced_while_running() {
    let scratch = Scratch::new("bundle").unwrap();
    let mut server = OpenBao::start(&scratch, "bao").await.unwrap();
    let stage = Stage::on_own(&server, "bundle").await;
    let (old, new) = (server.authority().pem(), Arc::new(Authority::new("new CA").unwrap()));
    stage.write("ca.crt", &old);
    let mut key = stage.app_role_key(1, &stage.key);
    key["settings"]["tls"]["caFile"] = json!(stage.path("ca.crt"));
    let mut served = stage.serve_document(&quick(&[key])).await;
    let sealed = served.round_trip().await;

    let pulse = Pulse::start(&served.kms, &sealed);
    stage.write("ca.crt", &format!("{old}{}", new.pem()));
    served.logs_times("new files or settings are in use", 1).await;
    server.change_authority(new.clone()).await.unwrap();
    // A broken bundle changes nothing.
    stage.write("ca.crt", "-----BEGIN CERTIFICATE-----\nbroken\n");
    served.logs("the last good ones stay in use").await;
    stage.write("ca.crt", &new.pem());
    served.logs_times("new files or settings are in use", 2).await;
    pulse.stop().await;
    assert_eq!(served.round_trip().await.key_id, sealed.key_id);

    // Whom the bundle does not name is not trusted.
    server.change_authority(Arc::new(Authority::new("stranger").unwrap())).await.unwrap();
    server.restart().await.unwrap();
    served.wait_bad_for_all(Code::Unavailable, &["certificate", "caFile"]).await;
    assert!(served.kms.decrypt(&sealed).await.is_err());
}

#[tokio::test]
async fn one_of_several_addresses_may_be_down_or_hang() {
    let stage = Stage::new("several").await;
    let server = shared().await;
    let first = Gateway::start(server.socket_address()).await.unwrap();
    let second = Gateway::start(server.socket_address()).await.unwrap();
    let nobody = Port::free().unwrap();
    let mut key = stage.app_role_key(1, &stage.key);
    key["settings"] = json!({
        "addresses": [
            format!("https://{}", nobody.address()),
            format!("https://{}", first.address()),
            format!("https://{}", second.address()),
        ],
        "tls": {"caFile": server.ca()}, "connectTimeout": "700ms", "requestTimeout": "5s",
    });
    // A probe that meets the one that hangs has time left for another.
    let mut document = quick(&[key]);
    document["probe"] = json!({"interval": "500ms", "timeout": "15s", "coast": "25s"});
    let served = stage.serve_document(&document).await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    for (away, other) in [(&first, &second), (&second, &first)] {
        for fault in [Fault::Cut, Fault::Hang] {
            away.inject(fault);
            let seen = other.requests();
            sidekey_e2e::eventually("the other one is used", PATIENCE, async || {
                anyhow::ensure!(other.requests() > seen + 5, "not yet");
                Ok(())
            })
            .await
            .unwrap();
            away.heal();
        }
    }
    pulse.stop().await;
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_passed_over() {
    let stage = Stage::new("stranger").await;
    let server = shared().await;
    let stranger = Authority::new("stranger").unwrap();
    let files = stranger.server(stage.scratch().path(), "stranger").unwrap();
    let nobody = Port::free().unwrap();
    let untrusted = Gateway::tls(nobody.address(), &files).await.unwrap();
    let mut key = stage.app_role_key(1, &stage.key);
    let addresses = [format!("https://{}", untrusted.address()), server.address()];
    key["settings"] = json!({"addresses": addresses, "tls": {"caFile": server.ca()}});
    let served = stage.serve_document(&quick(&[key])).await;
    served.round_trip().await;
    assert!(untrusted.connections() > 0, "it was never tried");
    assert_eq!(untrusted.requests(), 0, "something was sent to it");
}

#[tokio::test]
async fn a_cluster_fails_over_and_a_standby_redirects() {
    let scratch = Scratch::new("ha").unwrap();
    let mut cluster = Cluster::start(&scratch, "bao", 3).await.unwrap();
    let active = cluster.active().await.unwrap();
    let stage = Stage::on_own(&cluster.nodes()[active], "ha").await;
    let mut all = stage.app_role_key(1, &stage.key);
    all["settings"] =
        json!({"addresses": cluster.addresses(), "tls": {"caFile": cluster.nodes()[0].ca()}});

    // Behind this address is a standby that does not forward: it answers with a redirect.
    let standby = &cluster.nodes()[(active + 1) % 3];
    let front = standby.authority().server(stage.scratch().path(), "front").unwrap();
    let (plain, redirects) = not_forwarding(standby.socket()).await;
    let redirecting = Gateway::tls(plain, &front).await.unwrap();
    let mut redirected = stage.app_role_key(2, &stage.key);
    redirected["settings"]["address"] = format!("https://{}", redirecting.address()).into();
    let mut served = stage.serve_document(&quick(&[all, redirected])).await;
    let sealed = served.round_trip().await;
    let by_redirect = stage.kms(2).await;
    assert_eq!(&by_redirect.decrypt(&sealed).await.unwrap()[..], PLAINTEXT);
    by_redirect.round_trip(PLAINTEXT).await.unwrap();
    assert!(redirects.load(Ordering::Relaxed) > 0, "the standby has not redirected");

    let new = cluster.step_down().await.unwrap();
    assert_ne!(new, active);
    served.wait_ok().await;
    served.reads(&sealed).await;
    cluster.nodes()[new].process().kill().unwrap();
    cluster.active().await.unwrap();
    let again = sidekey_e2e::eventually("it serves again", PATIENCE, async || {
        served.kms.round_trip(PLAINTEXT).await
    });
    assert_eq!(again.await.unwrap().key_id, sealed.key_id);
    served.wait_ok().await;
    served.reads(&sealed).await;
}

/// A forwarder that tells a server on a unix socket not to forward requests to the active node,
/// as some clients do: then a standby redirects. Tells its address and counts the redirects.
async fn not_forwarding(server: PathBuf) -> (SocketAddr, Arc<AtomicU64>) {
    let redirects = Arc::new(AtomicU64::new(0));
    let counted = redirects.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(&server).await.unwrap();
            tokio::spawn(pass(client, server, counted.clone()));
        }
    });
    (address, redirects)
}

/// Adds the header to each request; each begins with its request line.
async fn pass(client: TcpStream, server: UnixStream, redirects: Arc<AtomicU64>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            redirects.fetch_add(u64::from(buffer.starts_with(b"HTTP/1.1 307")), Ordering::Relaxed);
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(read) = from_client.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&buffer[..read]);
        let text = match text.split_once(" HTTP/1.1\r\n") {
            Some((line, rest)) => {
                format!("{line} HTTP/1.1\r\nx-vault-no-request-forwarding: true\r\n{rest}")
            }
            None => text.into_owned(),
        };
        if to_server.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}
