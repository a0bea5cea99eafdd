//! Keys by their label, which is followed.

use sidekey_core::{KeyId, Kind, Provider, Sealed};
use sidekey_e2e::fakes::okms::State;

use crate::support::{LABEL, PLAINTEXT, Stage, call, connect};

#[tokio::test]
async fn a_label_is_followed_and_what_it_led_to_before_is_read() {
    let stage = Stage::new("followed").await;
    let client = connect(&stage.labelled(1)).await.unwrap();
    let old = client.key_id().await.unwrap();
    let before = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(before.key_id, old);
    let new = stage.repoint();
    // What was announced is used until another key is announced.
    let still = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(still.key_id, old);
    let after = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    assert!(after.key_id.as_str().ends_with(&new), "{}", after.key_id);
    assert_eq!(client.key_id().await.unwrap(), after.key_id);
    for sealed in [&before, &still, &after] {
        assert_eq!(client.decrypt(sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    }
}

#[tokio::test]
async fn a_label_of_no_key_or_of_several_is_no_key_and_nothing_is_encrypted() {
    let stage = Stage::new("unknown").await;
    let client = connect(&stage.labelled(1)).await.unwrap();
    let known = client.key_id().await.unwrap();
    let told = async |count: &str| {
        let errors = [
            client.key_id().await.map(drop).unwrap_err(),
            client.encrypt_current(&known, PLAINTEXT, &call()).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            let text = error.report();
            // It may pass: a label is taken from one key before another gets it.
            assert_eq!(error.kind(), Kind::Unavailable, "{text}");
            assert!(text.contains(LABEL) && text.contains(count), "{text}");
            assert!(error.hint().is_some(), "{text}");
        }
    };
    let second = stage.fake().service().create(LABEL);
    told("2 active keys").await;
    stage.fake().service().rename(&stage.backend.key, "former");
    assert!(client.key_id().await.unwrap().as_str().ends_with(&second));
    stage.fake().service().set_state(&second, State::Deactivated);
    told("0 active keys").await;
    assert_eq!(stage.fake().calls("encrypt"), 0);
}

#[tokio::test]
async fn a_label_is_looked_for_on_every_page() {
    let stage = Stage::new("pages").await;
    for number in 0..7 {
        stage.fake().service().create(&format!("other-{number}"));
    }
    stage.fake().service().page = 3;
    let last = stage.fake().service().create("last");
    let mut document = stage.labelled(1);
    document["kek"]["label"] = "last".into();
    let client = connect(&document).await.unwrap();
    assert!(client.key_id().await.unwrap().as_str().ends_with(&last));
    assert_eq!(stage.fake().calls("list"), 3);
    stage.fake().service().rename(&stage.backend.key, "last");
    let error = client.key_id().await.unwrap_err();
    assert!(error.report().contains("2 active keys"), "{}", error.report());
}

#[tokio::test]
async fn data_of_another_label_is_not_read_and_no_key_is_tried() {
    let stage = Stage::new("other-label").await;
    let other = stage.fake().service().create("other");
    let client = connect(&stage.labelled(1)).await.unwrap();
    let mut document = stage.labelled(2);
    document["kek"]["label"] = "other".into();
    let second = connect(&document).await.unwrap();
    let sealed = second.encrypt(&second.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    let error = client.decrypt(&sealed, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState, "{}", error.report());
    assert_eq!(stage.fake().calls("decrypt"), 0);
    // Who forges our scope into the key_id has that key asked, and gets nothing: the data is bound.
    let own = client.key_id().await.unwrap();
    let forged = KeyId::new(&own.as_str().replace(&stage.backend.key, &other)).unwrap();
    let error = client.decrypt(&Sealed { key_id: forged, ..sealed }, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{}", error.report());
}
