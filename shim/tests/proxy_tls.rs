//! Promises of the TLS between shim and proxy, on real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::NamedGroup;
use rustls::version::{TLS12, TLS13};
use sidekey_core::Kind;
use sidekey_shim::tls::{Identity, Protocol, Reason, Refusal, TlsPeer};
use support::{Authority, SERVER, SHIM, Use, World, eventually, raw_handshake, write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::server::TlsStream;

/// Accepts one connection.
async fn accept(
    identity: &Arc<Identity>,
) -> (std::net::SocketAddr, JoinHandle<Result<(TlsStream<TcpStream>, TlsPeer), Refusal>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, identity) = (listener.local_addr().unwrap(), identity.clone());
    let accepting =
        async move { identity.accept(listener.accept().await.unwrap().0, Protocol::Http2).await };
    (address, tokio::spawn(accepting))
}

/// What the client made of the server, and the server of the client.
async fn meet(
    server: &Arc<Identity>,
    client: &Identity,
    name: &str,
) -> (Result<(), Kind>, Result<TlsPeer, Refusal>) {
    let (address, accepting) = accept(server).await;
    let tcp = TcpStream::connect(address).await.unwrap();
    let connected = client.connect(tcp, name).await;
    let outcome = connected.as_ref().map(|_| ()).map_err(|error| error.kind());
    // A connection that was given up is closed, so that the server does not wait for it.
    let connected = connected.ok();
    let accepted = accepting.await.unwrap();
    drop(connected);
    (outcome, accepted.map(|(_, peer)| peer))
}

#[tokio::test]
async fn the_key_exchange_is_post_quantum_and_the_protocol_is_tls_1_3() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let client = world.client(&[SHIM]);
    let (address, accepting) = accept(&server).await;
    let tcp = TcpStream::connect(address).await.unwrap();
    let stream = client.connect(tcp, SERVER).await.unwrap();
    let (served, peer) = accepting.await.unwrap().unwrap();
    let ends = [
        (stream.get_ref().1.negotiated_key_exchange_group(), stream.get_ref().1.protocol_version()),
        (served.get_ref().1.negotiated_key_exchange_group(), served.get_ref().1.protocol_version()),
    ];
    for (group, version) in ends {
        assert_eq!(group.unwrap().name(), NamedGroup::X25519MLKEM768);
        assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3));
    }
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(peer.sans, [SHIM]);
}

#[tokio::test]
async fn every_kind_of_name_is_read_and_unlike_ones_are_kept_apart() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let names = ["Shim.Example", "spiffe://example/ns/a", "10.0.0.1", "fd00::1"];
    let (outcome, accepted) = meet(&server, &world.client(&names), SERVER).await;
    assert!(outcome.is_ok());
    assert_eq!(
        accepted.unwrap().sans,
        ["shim.example", "spiffe://example/ns/a", "10.0.0.1", "fd00::1"]
    );
}

#[tokio::test]
async fn a_server_with_another_name_or_another_ca_is_not_talked_to() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let client = world.client(&[SHIM]);
    assert!(meet(&server, &client, SERVER).await.0.is_ok());
    assert!(meet(&server, &client, "127.0.0.1").await.0.is_ok(), "IP addresses are names too");
    assert_eq!(meet(&server, &client, "other.example").await.0, Err(Kind::Denied));
    assert_eq!(meet(&server, &client, "127.0.0.2").await.0, Err(Kind::Denied));
    let stranger = Authority::new("stranger");
    let pair = stranger.issue(Use::Server, &[SERVER]);
    let files = write(&world.path("strange"), &world.authority.pem, &pair);
    let strange = Identity::load(files).unwrap();
    let (outcome, accepted) = meet(&strange, &client, SERVER).await;
    assert_eq!(outcome, Err(Kind::Denied));
    assert_eq!(accepted.unwrap_err().reason, Reason::Closed, "told by the client's alert");
    assert_eq!(meet(&server, &client, "not a name").await.0, Err(Kind::Config));
}

#[tokio::test]
async fn a_client_certificate_must_be_there_trusted_valid_and_made_for_clients() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let hour = Duration::from_secs(3600);
    let stranger = Authority::new("stranger").issue(Use::Client, &[SHIM]);
    let expired = world.authority.issue_until(Use::Client, &[SHIM], SystemTime::now() - hour);
    let wrong_use = world.authority.issue(Use::Server, &[SHIM]);
    for (pair, reason) in
        [(stranger, Reason::Untrusted), (expired, Reason::Expired), (wrong_use, Reason::Untrusted)]
    {
        let (_, accepted) = meet(&server, &world.client_with(&pair), SERVER).await;
        assert_eq!(accepted.unwrap_err().reason, reason);
    }
    let (address, accepting) = accept(&server).await;
    let error = raw_handshake(address, &world.authority.pem, &TLS13).await;
    assert_eq!(accepting.await.unwrap().unwrap_err().reason, Reason::NoCertificate);
    assert!(error.to_string().contains("CertificateRequired"), "the client is told why: {error}");
}

#[tokio::test]
async fn tls_1_2_is_refused_and_the_client_is_told_so() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let (address, accepting) = accept(&server).await;
    let error = raw_handshake(address, &world.authority.pem, &TLS12).await;
    assert_eq!(accepting.await.unwrap().unwrap_err().reason, Reason::Protocol);
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
}

#[tokio::test]
async fn the_admin_protocol_is_not_taken_for_the_other() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let client = world.client(&[SHIM]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        server.accept(listener.accept().await.unwrap().0, Protocol::Http1).await
    });
    let tcp = TcpStream::connect(address).await.unwrap();
    // Ours offers HTTP/2 alone.
    assert!(client.connect(tcp, SERVER).await.is_err());
    assert_eq!(accepting.await.unwrap().unwrap_err().reason, Reason::Protocol);
}

#[tokio::test]
async fn changed_files_are_taken_over_and_bad_ones_are_not() {
    let world = World::new();
    let files = world.server_files();
    let server = Identity::load(files.clone()).unwrap();
    let following = tokio::spawn(server.follow(&world.watcher));
    let client = world.client(&[SHIM]);
    let before = server.expiry();

    std::fs::write(&files.cert, "no certificate").unwrap();
    eventually("a bad file is refused", async || (server.reloads().1 >= 1).then_some(())).await;
    assert!(server.last_error().unwrap().contains("tls.crt"), "{:?}", server.last_error());
    assert!(meet(&server, &client, SERVER).await.0.is_ok(), "the last good one serves");

    let other = world.authority.issue(Use::Server, &[SERVER]);
    let refused = server.reloads().1;
    std::fs::write(&files.cert, &other.cert).unwrap();
    eventually("a certificate without its key is refused", async || {
        (server.reloads().1 > refused).then_some(())
    })
    .await;
    assert_eq!(server.expiry(), before);

    let hour = Duration::from_secs(3600);
    let old = world.authority.issue_until(Use::Server, &[SERVER], SystemTime::now() - hour);
    write(files.ca.parent().unwrap(), &world.authority.pem, &old);
    eventually("an expired one does not replace a good one", async || {
        server.last_error()?.contains("has expired").then_some(())
    })
    .await;

    let expires = SystemTime::now() + 5 * hour;
    let new = world.authority.issue_until(Use::Server, &[SERVER, "new.example"], expires);
    write(files.ca.parent().unwrap(), &world.authority.pem, &new);
    eventually("a good one is taken over", async || (server.reloads().0 == 1).then_some(())).await;
    assert_eq!(server.last_error(), None);
    assert_eq!(server.names(), [SERVER, "new.example"]);
    assert!(server.expiry() > before);
    assert!(meet(&server, &client, "new.example").await.0.is_ok());
    following.abort();
}

#[tokio::test]
async fn what_changed_between_loading_and_following_is_noticed() {
    let world = World::new();
    let files = world.server_files();
    let server = Identity::load(files).unwrap();
    world.server_files();
    let following = tokio::spawn(server.follow(&world.watcher));
    eventually("it is taken over", async || (server.reloads().0 == 1).then_some(())).await;
    following.abort();
}

#[tokio::test]
async fn other_files_are_moved_to_and_followed() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let following = tokio::spawn(server.follow(&world.watcher));
    let pair = world.authority.issue(Use::Server, &["second.example"]);
    let directory = world.path("second");
    let files = write(&directory, &world.authority.pem, &pair);
    server.move_to(files.clone()).unwrap();
    assert_eq!(server.names(), ["second.example"]);
    let pair = world.authority.issue(Use::Server, &["third.example"]);
    write(&directory, &world.authority.pem, &pair);
    eventually("the new place is watched", async || {
        (server.names() == ["third.example"]).then_some(())
    })
    .await;
    let missing = sidekey_shim::tls::TlsFiles { key: world.path("missing"), ..files };
    assert!(server.move_to(missing).unwrap_err().report().contains("does not exist"));
    assert_eq!(server.names(), ["third.example"], "what cannot be used changes nothing");
    following.abort();
}

#[tokio::test]
async fn trust_ends_when_the_ca_is_removed_or_the_certificate_expires() {
    let world = World::new();
    let files = world.server_files();
    let server = Identity::load(files.clone()).unwrap();
    let following = tokio::spawn(server.follow(&world.watcher));
    let (_, accepted) = meet(&server, &world.client(&[SHIM]), SERVER).await;
    let peer = accepted.unwrap();
    assert!(server.trusts(&peer));

    let soon = SystemTime::now() + Duration::from_secs(15);
    let brief = world.authority.issue_until(Use::Client, &[SHIM], soon);
    let (_, accepted) = meet(&server, &world.client_with(&brief), SERVER).await;
    let brief = accepted.unwrap();
    tokio::time::timeout(support::PATIENCE, server.distrusted(&brief)).await.unwrap();
    assert!(SystemTime::now() >= brief.expires);
    assert!(server.trusts(&peer), "only the one that expired");

    std::fs::write(&files.ca, Authority::new("successor").pem).unwrap();
    tokio::time::timeout(support::PATIENCE, server.distrusted(&peer)).await.unwrap();
    let (_, accepted) = meet(&server, &world.client(&[SHIM]), SERVER).await;
    assert_eq!(accepted.unwrap_err().reason, Reason::Untrusted);
    following.abort();
}

#[tokio::test]
async fn a_refused_client_can_read_why() {
    let world = World::new();
    let server = Identity::load(world.server_files()).unwrap();
    let stranger = Authority::new("stranger").issue(Use::Client, &[SHIM]);
    let client = world.client_with(&stranger);
    let (address, accepting) = accept(&server).await;
    let tcp = TcpStream::connect(address).await.unwrap();
    let mut stream = client.connect(tcp, SERVER).await.unwrap();
    // Unread bytes on the server's side must not turn the alert into a reset.
    stream.write_all(&[0; 20_000]).await.unwrap();
    let error = stream.read_u8().await.unwrap_err();
    assert!(error.to_string().contains("UnknownCA"), "{error}");
    assert_eq!(accepting.await.unwrap().unwrap_err().reason, Reason::Untrusted);
}
