//! API keys, trusted profiles, and the tokens that they give.

use std::time::Duration;

use serde_json::json;
use sidekey_core::{Kind, Provider};
use sidekey_e2e::fakes::ibm::READER;
use sidekey_e2e::wait::BROKEN;
use tokio::time::{advance, pause, resume};

use crate::support::{PLAINTEXT, Stage, call, connect};

/// Lets a token grow older than those that are not doubted, without waiting.
async fn a_minute_later() {
    pause();
    advance(Duration::from_secs(61)).await;
    resume();
}

#[tokio::test]
async fn keys_with_the_same_credentials_share_one_login() {
    let stage = Stage::new("shared").await;
    let other = stage.fake.service().create(&stage.instance);
    let (first, second) = (stage.connect().await, connect(&stage.body(&other)).await.unwrap());
    for client in [&first, &second] {
        client.encrypt(&client.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    }
    assert_eq!(stage.fake.calls("token"), 1);
    let new = stage.fake.service().api_key(&READER);
    stage.write("api-key", &new);
    stage.connect().await.key_id().await.unwrap();
    assert_eq!(stage.fake.calls("token"), 2, "another key is another login");
}

#[tokio::test]
async fn a_token_that_is_refused_is_replaced_for_the_next_attempt() {
    let stage = Stage::new("revoked").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    stage.fake.service().revoke_tokens();
    a_minute_later().await;
    assert!(client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err().is_mended());
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!((stage.fake.calls("token"), stage.fake.calls("wrap")), (2, 2));
}

#[tokio::test]
async fn a_missing_right_is_denied_and_makes_no_storm_of_logins() {
    let stage = Stage::new("rights").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    stage.fake.service().set_rights(&["metadata", "wrap"]);
    for _ in 0..3 {
        let error = client.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
        assert!(error.hint().unwrap().contains("Reader"), "{}", error.report());
    }
    assert_eq!(stage.fake.calls("token"), 1, "the token is fresh: another would be no better");
    a_minute_later().await;
    assert!(client.decrypt(&sealed, &call()).await.unwrap_err().is_mended());
    for _ in 0..3 {
        assert_eq!(client.decrypt(&sealed, &call()).await.unwrap_err().kind(), Kind::Denied);
    }
    assert_eq!(stage.fake.calls("token"), 2);
    stage.fake.service().set_rights(&READER);
    client.decrypt(&sealed, &call()).await.unwrap();
}

#[tokio::test]
async fn a_refused_api_key_is_asked_with_once() {
    let stage = Stage::new("refused").await;
    stage.fake.service().delete_api_key(&stage.api_key);
    for _ in 0..3 {
        // Also where everything else is made anew.
        let error = stage.connect().await.key_id().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
        assert!(error.to_string().contains("BXNIM0415E"), "{}", error.report());
        assert!(!error.report().contains(&stage.api_key), "{BROKEN}{}", error.report());
    }
    assert_eq!(stage.fake.calls("token"), 1);
    let new = stage.fake.service().api_key(&READER);
    stage.write("api-key", &new);
    stage.connect().await.key_id().await.unwrap();
}

#[tokio::test]
async fn the_last_token_serves_while_its_api_key_is_gone() {
    let stage = Stage::new("last").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    stage.fake.service().delete_api_key(&stage.api_key);
    // Past two thirds of its life, when it is to be renewed, and before its end.
    pause();
    advance(Duration::from_secs(3000)).await;
    resume();
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
}

#[tokio::test]
async fn a_pods_token_is_exchanged_for_one_of_its_trusted_profile() {
    let stage = Stage::new("profile").await;
    let (id, name) = ("Profile-5790481a-8fc5-4a4c-8bae-4802d1d5d5d0", "control planes");
    stage.fake.service().trust((id, name), "pod.token.one", &READER);
    stage.write("pod-token", "pod.token.one");
    let body = |credentials| {
        let mut body = stage.body(&stage.key);
        body["credentials"] = credentials;
        // The older form of the address.
        body["settings"]["tokenUrl"] = format!("{}/oidc/token", stage.fake.url()).into();
        body
    };
    let file = stage.path("pod-token");
    for credentials in [
        json!({"tokenFile": file, "profileId": id}),
        json!({"tokenFile": file, "profileName": name}),
    ] {
        connect(&body(credentials)).await.unwrap().key_id().await.unwrap();
    }
    let other = json!({"tokenFile": file, "profileName": "another"});
    let error = connect(&body(other)).await.unwrap().key_id().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
    assert!(!error.report().contains("pod.token.one"), "{BROKEN}{}", error.report());
    // kubelet writes a new one every few minutes.
    stage.fake.service().trust((id, name), "pod.token.two", &READER);
    stage.write("pod-token", "pod.token.two");
    let again = json!({"tokenFile": file, "profileId": id});
    connect(&body(again)).await.unwrap().key_id().await.unwrap();
    let sent: Vec<String> =
        stage.fake.exchanges().iter().map(|exchange| exchange.request.clone()).collect();
    assert!(sent.iter().any(|form| form.contains("cr_token=pod.token.two")), "{sent:?}");
}
