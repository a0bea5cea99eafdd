//! The same on PyKMIP, which says less of why it refuses.

use serde_json::json;
use sidekey_core::{Kind, Provider, Sealed};
use sidekey_e2e::Scratch;
use sidekey_e2e::kmip::PyKmip;

use crate::support::{PLAINTEXT, call, connect, fails};

#[tokio::test]
async fn keys_of_pykmip_wrap_are_followed_and_are_told_by_their_state() {
    let scratch = Scratch::new("pykmip").unwrap();
    let server = PyKmip::start(&scratch, "server").await.unwrap();
    let made = server.owner(&[json!(["create", "kms"]), json!(["activate", "1"])]).await.unwrap();
    assert_eq!(made[0], "1");
    let mut body = json!({"kek": {"name": "kms"}});
    server.identities().fill(&mut body, &[server.address()]);
    let client = connect(&body).await.unwrap();
    body["settings"]["mode"] = "CTR".into();
    let in_ctr = connect(&body).await.unwrap();
    let old = client.key_id().await.unwrap();
    let mut stored = Vec::new();
    for writer in [&client, &in_ctr] {
        let sealed = writer.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
        assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
        let mut altered = sealed.ciphertext.to_vec();
        *altered.last_mut().unwrap() ^= 1;
        let altered = Sealed { ciphertext: altered.into(), ..sealed.clone() };
        let error = client.decrypt(&altered, &call()).await.unwrap_err();
        // It says no more than that it failed.
        let kinds = [Kind::Corrupt, Kind::Unavailable];
        assert!(kinds.contains(&error.kind()), "{}", error.report());
        stored.push(sealed);
    }
    // Whom it does not know as the owner sees no key.
    let other = server.identities().authority().peer(scratch.path(), "other", &["other"]).unwrap();
    body["credentials"] = json!({"certFile": other.certificate, "keyFile": other.key});
    let stranger = connect(&body).await.unwrap();
    fails(stranger.key_id().await, Kind::Unavailable, &["0 active keys"]);
    fails(stranger.decrypt(&stored[0], &call()).await, Kind::Denied, &["PermissionDenied"]);
    // The name goes to a new key; PyKMIP lets a deactivated one do nothing any more.
    let moved = [
        json!(["revoke", "CESSATION_OF_OPERATION", "1"]),
        json!(["create", "kms"]),
        json!(["activate", "2"]),
    ];
    server.owner(&moved).await.unwrap();
    let probed = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    assert!(probed.key_id.as_str().ends_with("/2"), "{}", probed.key_id);
    fails(client.decrypt(&stored[0], &call()).await, Kind::KeyState, &["key 1 is deactivated"]);
    server.owner(&[json!(["destroy", "1"])]).await.unwrap();
    fails(client.decrypt(&stored[0], &call()).await, Kind::KeyState, &["ItemNotFound"]);
}
