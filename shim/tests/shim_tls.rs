//! Promises of a shim that reaches its key through a socket proxy.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use serde_json::json;
use support::plugin::Plugin;
use support::shim::{Shim, document};
use support::{Authority, SERVER, SHIM, Use, World, eventually, write};

#[tokio::test]
async fn a_server_whose_ca_is_no_longer_trusted_gets_no_request_on_an_open_connection_either() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let (directory, other) = (tempfile::tempdir().unwrap(), Authority::new("another"));
    let directory = directory.path();
    let pair = world.authority.issue(Use::Client, &[SHIM]);
    let files = write(&directory.join("tls"), &world.authority.pem, &pair);
    let key = json!({
        "id": 1, "role": "write", "endpoints": [format!("https://{}", proxy.address())],
        "tls": {"ca": files.ca, "cert": files.cert, "key": files.key, "serverName": SERVER},
    });
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
