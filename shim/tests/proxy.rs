//! Promises of the socket proxy: real TLS on loopback, a real unix socket behind it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use rustls::version::{TLS12, TLS13};
use serde_json::json;
use sidekey_core::app::App;
use sidekey_shim::proxy::{Proxy, ProxyConfig};
use support::plugin::{KEY_ID, Plugin};
use support::{
    Authority, SERVER, SHIM, Use, World, decrypt, dial, encrypt, eventually, metric, raw_handshake,
    status, write,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tonic::{Code, Request};

/// A proxy with a plugin behind it.
async fn pair() -> (World, Plugin, Proxy) {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    (world, plugin, proxy)
}

async fn connected(proxy: &Proxy, wanted: i64) {
    eventually("the plugin's connection", async || {
        (metric(proxy, "socket_proxy_plugin_connected") == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn all_three_operations_are_forwarded() {
    let (world, _plugin, proxy) = pair().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let answer = client.status(status()).await.unwrap().into_inner();
    assert_eq!((answer.version.as_str(), answer.key_id.as_str()), ("v2", KEY_ID));
    let sealed = client.encrypt(encrypt(b"secret")).await.unwrap().into_inner();
    assert_eq!(sealed.key_id, KEY_ID);
    assert_eq!(sealed.annotations["a.example"], vec![7]);
    let mut request = decrypt(&sealed.ciphertext);
    request.annotations = sealed.annotations;
    assert_eq!(client.decrypt(request).await.unwrap().into_inner().plaintext, &b"secret"[..]);
    for operation in ["status", "encrypt", "decrypt"] {
        let name = format!("socket_proxy_requests_total{{operation=\"{operation}\",code=\"OK\"}}");
        assert_eq!(metric(&proxy, &name), 1);
        let name =
            format!("socket_proxy_request_duration_seconds_count{{operation=\"{operation}\"}}");
        assert_eq!(metric(&proxy, &name), 1);
    }
    assert_eq!(metric(&proxy, "socket_proxy_connections"), 1);
}

#[tokio::test]
async fn the_plugins_codes_and_texts_are_passed_through() {
    let (world, plugin, proxy) = pair().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    for code in [
        Code::Unknown,
        Code::InvalidArgument,
        Code::NotFound,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ] {
        *plugin.manners.fault.lock().unwrap() = Some((code, format!("the plugin says {code:?}")));
        for answer in [
            client.status(status()).await.map(|_| ()),
            client.encrypt(encrypt(b"x")).await.map(|_| ()),
            client.decrypt(decrypt(b"x")).await.map(|_| ()),
        ] {
            let failure = answer.unwrap_err();
            assert_eq!(failure.code(), code);
            assert_eq!(failure.message(), format!("the plugin says {code:?}"));
        }
        let name =
            format!("socket_proxy_requests_total{{operation=\"decrypt\",code=\"{code:?}\"}}");
        assert_eq!(metric(&proxy, &name), 1);
    }
    assert_eq!(plugin.seen(), 20, "an answer is never asked for twice");
    *plugin.manners.fault.lock().unwrap() = Some((Code::Aborted, "ä".repeat(2000)));
    let failure = client.status(status()).await.unwrap_err();
    assert_eq!(failure.code(), Code::Aborted);
    assert_eq!(failure.message(), "ä".repeat(500), "a long text is cut");
}

#[tokio::test]
async fn clients_without_a_good_certificate_reach_nothing() {
    let (world, plugin, proxy) = pair().await;
    let hour = Duration::from_secs(3600);
    let stranger = Authority::new("stranger").issue(Use::Client, &[SHIM]);
    let expired = world.authority.issue_until(Use::Client, &[SHIM], SystemTime::now() - hour);
    for (pair, reason) in [(stranger, "untrusted"), (expired, "expired")] {
        let mut client = dial(&world.client_with(&pair), proxy.address()).await.unwrap();
        client.decrypt(decrypt(b"x")).await.unwrap_err();
        rejected(&proxy, reason).await;
    }
    raw_handshake(proxy.address(), &world.authority.pem, &TLS13).await;
    rejected(&proxy, "no_certificate").await;
    raw_handshake(proxy.address(), &world.authority.pem, &TLS12).await;
    rejected(&proxy, "protocol").await;
    assert_eq!(plugin.seen(), 0);
}

/// Waits until one connection was rejected for `reason`.
async fn rejected(proxy: &Proxy, reason: &str) {
    let name = format!("socket_proxy_rejected_connections_total{{reason=\"{reason}\"}}");
    eventually(&name, async || (metric(proxy, &name) == 1).then_some(())).await;
}

#[tokio::test]
async fn a_name_that_is_not_on_the_list_may_do_nothing_and_is_told_so() {
    let (world, plugin, proxy) = pair().await;
    let mut client = dial(&world.client(&["other.example"]), proxy.address()).await.unwrap();
    for answer in [
        client.status(status()).await.map(|_| ()),
        client.encrypt(encrypt(b"x")).await.map(|_| ()),
        client.decrypt(decrypt(b"x")).await.map(|_| ()),
    ] {
        let failure = answer.unwrap_err();
        assert_eq!(failure.code(), Code::PermissionDenied);
        assert!(failure.message().contains("other.example"), "{failure}");
    }
    assert_eq!(plugin.seen(), 0);
}

#[tokio::test]
async fn a_stranger_is_shown_the_door_and_a_listed_client_is_not() {
    let (world, _plugin, proxy) = pair().await;
    let mut listed = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    listed.status(status()).await.unwrap();
    let mut stranger = dial(&world.client(&["other.example"]), proxy.address()).await.unwrap();
    assert_eq!(stranger.status(status()).await.unwrap_err().code(), Code::PermissionDenied);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    rejected(&proxy, "not_listed").await;
    let gone = stranger.status(status()).await.unwrap_err();
    assert_ne!(gone.code(), Code::PermissionDenied, "the connection is closed");
    listed.status(status()).await.unwrap();
}

#[tokio::test]
async fn a_decrypt_only_client_cannot_encrypt() {
    let (world, plugin, proxy) = pair().await;
    let mut client =
        dial(&world.client(&["spiffe://example/reader"]), proxy.address()).await.unwrap();
    client.decrypt(decrypt(b"x")).await.unwrap();
    client.status(status()).await.unwrap();
    let failure = client.encrypt(encrypt(b"x")).await.unwrap_err();
    assert_eq!(failure.code(), Code::PermissionDenied);
    assert!(failure.message().contains("may encrypt"), "{failure}");
    assert_eq!(plugin.seen(), 1, "the plugin saw the Decrypt alone");
    let name = "socket_proxy_requests_total{operation=\"encrypt\",code=\"PermissionDenied\"}";
    assert_eq!(metric(&proxy, name), 1);
}

#[tokio::test]
async fn a_withdrawn_permission_is_gone_with_the_next_request_on_an_open_connection() {
    let (world, plugin, _) = pair().await;
    let mut document = world.document();
    let mut proxy = world.proxy_of(&document).await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    client.encrypt(encrypt(b"x")).await.unwrap();
    document["clients"] = json!([{"san": SHIM, "allow": ["status", "decrypt"]}]);
    proxy.apply(ProxyConfig::parse(&document).unwrap()).await.unwrap();
    let seen = plugin.seen();
    assert_eq!(client.encrypt(encrypt(b"x")).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(plugin.seen(), seen);
    client.decrypt(decrypt(b"x")).await.unwrap();
    document["clients"] = json!([{"san": "another.example", "allow": ["status"]}]);
    proxy.apply(ProxyConfig::parse(&document).unwrap()).await.unwrap();
    assert_eq!(client.status(status()).await.unwrap_err().code(), Code::PermissionDenied);
    document["clients"] = json!([{"san": SHIM, "allow": ["status"]}]);
    proxy.apply(ProxyConfig::parse(&document).unwrap()).await.unwrap();
    client.status(status()).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_dies_and_comes_back_does_not_cost_the_client_its_connection() {
    let (world, plugin, proxy) = pair().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let mut plugin = Some(plugin);
    for round in 1..=3 {
        client.decrypt(decrypt(b"x")).await.expect("the first request after its return is served");
        connected(&proxy, 1).await;
        plugin.take().unwrap().kill().await;
        let failure = client.decrypt(decrypt(b"x")).await.unwrap_err();
        assert_eq!(failure.code(), Code::Unavailable);
        assert!(failure.message().contains("kms.sock"), "{failure}");
        assert_eq!(metric(&proxy, "socket_proxy_plugin_connected"), 0);
        let name = "socket_proxy_socket_errors_total{reason=\"connect\"}";
        assert_eq!(metric(&proxy, name), round);
        assert!(proxy.source().sick()[0].contains("kms.sock"));
        assert!(proxy.source().pending().is_empty(), "it listens, and that is all that is asked");
        plugin = Some(Plugin::start(&world.path("kms.sock")).await);
    }
    client.decrypt(decrypt(b"x")).await.unwrap();
    assert!(proxy.source().sick().is_empty());
    assert_eq!(metric(&proxy, "socket_proxy_connections"), 1, "the client never reconnected");
}

#[tokio::test]
async fn a_lost_connection_is_found_again_while_nobody_asks() {
    let (world, plugin, proxy) = pair().await;
    connected(&proxy, 1).await;
    plugin.kill().await;
    connected(&proxy, 0).await;
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    connected(&proxy, 1).await;
}

#[tokio::test]
async fn requests_under_way_when_the_plugin_dies_are_made_once_more() {
    let (world, plugin, proxy) = pair().await;
    let client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    *plugin.manners.gate.lock().unwrap() = Some(gate.clone());
    let mut asking = client.clone();
    let waiting = tokio::spawn(async move { asking.decrypt(decrypt(b"x")).await });
    eventually("the request is with the plugin", async || (plugin.seen() == 1).then_some(())).await;
    let path = plugin.path.clone();
    // The successor listens before the other hangs up, as in a rolling update.
    std::fs::remove_file(&path).unwrap();
    let successor = Plugin::start(&path).await;
    plugin.kill().await;
    waiting.await.unwrap().expect("served by the successor");
    assert_eq!(successor.seen(), 1);
}

#[tokio::test]
async fn the_callers_deadline_is_passed_on_and_kept() {
    let (world, plugin, proxy) = pair().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let timed = |limit| {
        let mut request = Request::new(decrypt(b"x"));
        request.set_timeout(limit);
        request
    };
    client.decrypt(timed(Duration::from_secs(7))).await.unwrap();
    let text = plugin.manners.timeout.lock().unwrap().clone().expect("the plugin saw a deadline");
    let (number, unit) = text.split_at(text.len() - 1);
    let scale = match unit {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        _ => 1.0,
    };
    let seconds = number.parse::<f64>().unwrap() * scale;
    assert!((1.0..7.0).contains(&seconds), "{text} is less than what the caller gave");

    *plugin.manners.gate.lock().unwrap() = Some(Arc::new(Semaphore::new(0)));
    let failure = client.decrypt(timed(Duration::from_secs(3))).await.unwrap_err();
    assert_eq!(failure.code(), Code::DeadlineExceeded);
    assert!(failure.message().contains("did not answer in time"), "{failure}");
    assert_eq!(metric(&proxy, "socket_proxy_socket_errors_total{reason=\"timeout\"}"), 1);
    *plugin.manners.gate.lock().unwrap() = None;
    client.decrypt(decrypt(b"x")).await.expect("the next one is not held up");
}

#[tokio::test]
async fn sixty_four_at_once_get_their_own_answers() {
    let (world, plugin, proxy) = pair().await;
    let client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    *plugin.manners.gate.lock().unwrap() = Some(gate.clone());
    let asking: Vec<_> = (0..64_u8)
        .map(|number| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let answer = client.decrypt(decrypt(&[number, number])).await.unwrap().into_inner();
                assert_eq!(answer.plaintext, vec![number ^ 0x5a; 2]);
            })
        })
        .collect();
    eventually("all are with the plugin at once", async || (plugin.seen() == 64).then_some(()))
        .await;
    gate.add_permits(64);
    for one in asking {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn messages_beyond_the_limits_go_neither_way() {
    let (world, plugin, proxy) = pair().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let mut request = decrypt(b"x");
    request.annotations.insert("unqualified".into(), vec![1].into());
    for failure in [
        client.decrypt(decrypt(&[0; 1025])).await.unwrap_err(),
        client.decrypt(decrypt(b"")).await.unwrap_err(),
        client.decrypt(request).await.unwrap_err(),
        client.encrypt(encrypt(&[0; 1025])).await.unwrap_err(),
    ] {
        assert_eq!(failure.code(), Code::InvalidArgument, "{failure}");
    }
    let failure = client.encrypt(encrypt(&vec![0; 1024 * 1024])).await.unwrap_err();
    assert_eq!(failure.code(), Code::InvalidArgument, "not even read: {failure}");
    assert_eq!(plugin.seen(), 0);
    plugin.manners.bloat.store(1025, Ordering::SeqCst);
    let failure = client.encrypt(encrypt(b"x")).await.unwrap_err();
    assert_eq!(failure.code(), Code::Internal);
    assert!(failure.message().contains("the plugin breaks the protocol"), "{failure}");
}

#[tokio::test]
async fn garbage_and_idlers_on_the_port_disturb_nobody() {
    let (world, _plugin, proxy) = pair().await;
    let mut before = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    before.status(status()).await.unwrap();
    let mut idlers = Vec::new();
    for number in 0..200_u8 {
        let mut tcp = TcpStream::connect(proxy.address()).await.unwrap();
        match number % 4 {
            0 => {}
            1 => tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap(),
            2 => tcp.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await.unwrap(),
            _ => tcp.write_all(&[number; 300]).await.unwrap(),
        }
        idlers.push(tcp);
    }
    // More idlers than handshakes that are waited for, none of them past its time.
    let mut after = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    after.status(status()).await.unwrap();
    before.status(status()).await.unwrap();
    // The oldest idler was let go for the newer ones.
    let mut byte = [0];
    assert!(matches!(idlers[0].read(&mut byte).await, Ok(0) | Err(_)));
    assert_eq!(metric(&proxy, "socket_proxy_connections"), 2);
}

#[tokio::test]
async fn certificates_are_replaced_at_run_time_on_both_sides() {
    let (world, _plugin, proxy) = pair().await;
    let pair = world.authority.issue(Use::Client, &["not.listed.example"]);
    let directory = world.path("client");
    let shim = sidekey_shim::tls::Identity::load(write(&directory, &world.authority.pem, &pair));
    let shim = shim.unwrap();
    let following = tokio::spawn(shim.follow(&world.watcher));
    let mut old = dial(&shim, proxy.address()).await.unwrap();
    assert_eq!(old.status(status()).await.unwrap_err().code(), Code::PermissionDenied);

    // The client gets another name.
    write(&directory, &world.authority.pem, &world.authority.issue(Use::Client, &[SHIM]));
    eventually("the client's new certificate", async || (shim.reloads().0 == 1).then_some(()))
        .await;
    let mut new = dial(&shim, proxy.address()).await.unwrap();
    new.status(status()).await.unwrap();

    // The proxy gets another certificate, as its metrics tell; open connections live on.
    let expires = SystemTime::now() + Duration::from_secs(100_000);
    let seconds = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let seconds = i64::try_from(seconds).unwrap();
    let expiry = "socket_proxy_certificate_expiry_timestamp_seconds";
    assert!(metric(&proxy, expiry) < seconds);
    let fresh = world.authority.issue_until(Use::Server, &[SERVER], expires);
    write(&world.path("server"), &world.authority.pem, &fresh);
    let reloads = "socket_proxy_certificate_reloads_total{result=\"success\"}";
    eventually("the proxy's new certificate", async || {
        (metric(&proxy, reloads) == 1).then_some(())
    })
    .await;
    assert_eq!(metric(&proxy, expiry), seconds);
    new.status(status()).await.unwrap();
    dial(&shim, proxy.address()).await.unwrap().status(status()).await.unwrap();

    // A half-written one changes nothing.
    let failed = "socket_proxy_certificate_reloads_total{result=\"failure\"}";
    // It may have been looked at between the two files of the new one.
    let before = metric(&proxy, failed);
    std::fs::write(world.path("server").join("tls.key"), "half").unwrap();
    eventually("refused", async || {
        let is_told = proxy.source().status()["certificate"]["refused"].is_string();
        (metric(&proxy, failed) > before && is_told).then_some(())
    })
    .await;
    new.status(status()).await.unwrap();
    assert_eq!(metric(&proxy, expiry), seconds);
    following.abort();
}

#[tokio::test]
async fn a_client_whose_ca_was_removed_makes_no_new_connection_and_loses_the_old_one() {
    let (world, plugin, proxy) = pair().await;
    let shim = world.client(&[SHIM]);
    let mut client = dial(&shim, proxy.address()).await.unwrap();
    client.status(status()).await.unwrap();
    let successor = Authority::new("successor");
    let both = format!("{}{}", world.authority.pem, successor.pem);
    std::fs::write(world.path("server").join("ca.crt"), both).unwrap();
    let reloads = "socket_proxy_certificate_reloads_total{result=\"success\"}";
    eventually("two CAs", async || (metric(&proxy, reloads) == 1).then_some(())).await;
    client.status(status()).await.expect("a CA that is added takes nothing away");
    let pair = successor.issue(Use::Client, &[SHIM]);
    let mut next = dial(&world.client_with(&pair), proxy.address()).await.unwrap();
    next.status(status()).await.unwrap();

    std::fs::write(world.path("server").join("ca.crt"), &successor.pem).unwrap();
    eventually("one CA", async || (metric(&proxy, reloads) == 2).then_some(())).await;
    eventually("the old connection is closed", async || client.status(status()).await.err()).await;
    let mut again = dial(&shim, proxy.address()).await.unwrap();
    let seen = plugin.seen();
    again.decrypt(decrypt(b"x")).await.unwrap_err();
    assert_eq!(plugin.seen(), seen);
    next.status(status()).await.unwrap();
}

#[tokio::test]
async fn the_plugin_can_be_moved_to_one_that_takes_a_connection_and_to_no_other() {
    let (world, _plugin, _) = pair().await;
    let mut document = world.document();
    let mut proxy = world.proxy_of(&document).await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    client.status(status()).await.unwrap();

    document["plugin"] = json!(world.path("second.sock"));
    let config = || ProxyConfig::parse(&document).unwrap();
    let refused = proxy.apply(config()).await.unwrap_err().report();
    assert!(refused.contains("second.sock"), "{refused}");
    client.status(status()).await.expect("the one in use stays");
    let second = Plugin::start(&world.path("second.sock")).await;
    proxy.apply(config()).await.unwrap();
    client.decrypt(decrypt(b"x")).await.unwrap();
    assert_eq!(second.seen(), 1);
}

#[tokio::test]
async fn stopping_lets_open_requests_end_and_takes_no_new_ones() {
    let (world, plugin, proxy) = pair().await;
    let client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    *plugin.manners.gate.lock().unwrap() = Some(gate.clone());
    let mut asking = client.clone();
    let open = tokio::spawn(async move { asking.decrypt(decrypt(b"x")).await });
    eventually("the request is with the plugin", async || (plugin.seen() == 1).then_some(())).await;
    let address = proxy.address();
    let stopping = tokio::spawn(proxy.end());
    eventually("nobody listens", async || TcpStream::connect(address).await.err()).await;
    assert!(!stopping.is_finished(), "it waits for the open request");
    gate.add_permits(1);
    open.await.unwrap().unwrap();
    tokio::time::timeout(support::PATIENCE, stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn plaintext_on_loopback_serves_whoever_is_there() {
    let world = World::new();
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    let document =
        json!({"listen": "127.0.0.1:0", "plugin": world.path("kms.sock"), "plaintext": true});
    let proxy = world.proxy_of(&document).await;
    let tcp = TcpStream::connect(proxy.address()).await.unwrap();
    let origin = "http://localhost".parse().unwrap();
    let (mut client, _) = sidekey_core::client::open(tcp, origin).await.unwrap();
    client.encrypt(encrypt(b"x")).await.unwrap();
    assert!(
        !proxy.source().metrics().contains("socket_proxy_certificate"),
        "there is none to tell of"
    );
    assert_eq!(proxy.source().status()["plaintext"], true);
}
