//! Keys by their ids: states, types, and whose a ciphertext is.

use sidekey_core::{Error, KeyId, Kind, Provider, Sealed};
use sidekey_e2e::fakes::okms::State;
use sidekey_e2e::okms::CLIENT;

use crate::support::{PLAINTEXT, Stage, call, connect};

fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

#[tokio::test]
async fn what_was_encrypted_opens_with_its_key_and_in_its_scope_alone() {
    let stage = Stage::new("bound").await;
    let other = stage.fake().service().create("other");
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    assert!(key_id.as_str().ends_with(&stage.backend.key), "{key_id}");
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    let mut bytes = sealed.ciphertext.to_vec();
    let last = bytes.len() - 2;
    bytes[last] = if bytes[last] == b'A' { b'B' } else { b'A' };
    let altered = Sealed { ciphertext: bytes.into(), ..sealed.clone() };
    assert_eq!(kind(client.decrypt(&altered, &call()).await), Some(Kind::Corrupt));
    // In the form of the replaced plugin the same key is meant, without what the data is bound to.
    let plain = Sealed { key_id: KeyId::new(&stage.backend.key).unwrap(), ..sealed.clone() };
    assert_eq!(kind(client.decrypt(&plain, &call()).await), Some(Kind::Corrupt));
    let asked = stage.fake().calls("decrypt");
    let forged = key_id.as_str().replace(&stage.backend.key, &other);
    for key_id in [forged.as_str(), &other, "okms/x/1", "1", &key_id.as_str().to_uppercase()] {
        let moved = Sealed { key_id: KeyId::new(key_id).unwrap(), ..sealed.clone() };
        assert_eq!(kind(client.decrypt(&moved, &call()).await), Some(Kind::KeyState), "{key_id}");
    }
    assert_eq!(stage.fake().calls("decrypt"), asked, "no key is tried that is not configured");
}

#[tokio::test]
async fn another_key_and_the_same_id_in_another_domain_are_other_keks() {
    let stage = Stage::new("others").await;
    let other = stage.fake().service().create("other");
    let client = stage.connect().await;
    let sealed = client.encrypt(&client.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    let second = connect(&stage.key(2, &other)).await.unwrap();
    assert_ne!(second.key_id().await.unwrap(), sealed.key_id);
    let mut elsewhere = stage.key(3, &stage.backend.key);
    elsewhere["kek"]["okmsId"] = "113d1c44-2b1d-239c-a929-c11bd1847057".into();
    let elsewhere = connect(&elsewhere).await.unwrap();
    for client in [&second, &elsewhere] {
        assert_eq!(kind(client.decrypt(&sealed, &call()).await), Some(Kind::KeyState));
    }
    assert_eq!(kind(elsewhere.key_id().await), Some(Kind::KeyState), "and it is not there");
}

#[tokio::test]
async fn the_state_of_a_key_decides_what_it_may_do_and_is_told() {
    let stage = Stage::new("states").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    for state in [State::Deactivated, State::Compromised] {
        stage.fake().service().set_state(&stage.backend.key, state);
        let errors = [
            client.key_id().await.map(drop).unwrap_err(),
            client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop).unwrap_err(),
            client.decrypt(&sealed, &call()).await.map(drop).unwrap_err(),
        ];
        let word = format!("{state:?}").to_lowercase();
        for error in errors {
            let text = error.report();
            assert_eq!(error.kind(), Kind::KeyState, "{text}");
            assert!(text.contains(&word) && text.contains(&stage.backend.key), "{text}");
            assert!(text.contains("activate"), "{text}");
        }
        stage.fake().service().set_state(&stage.backend.key, State::Active);
        client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
        client.decrypt(&sealed, &call()).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_is_not_there_or_of_the_wrong_kind_is_refused_and_none_is_made() {
    let stage = Stage::new("kinds").await;
    let ghost = "70001308-5674-43fe-93dd-6270ecac0710";
    let client = connect(&stage.key(1, ghost)).await.unwrap();
    let error = client.key_id().await.unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState, "{}", error.report());
    assert!(error.report().contains("never made"), "{}", error.report());
    let wrong = [("RSA", &["sign", "verify"]), ("oct", &["wrapKey", "unwrapKey"])];
    for (of, operations) in wrong {
        let other = stage.fake().service().create_other("other", of, operations);
        let client = connect(&stage.key(1, &other)).await.unwrap();
        assert_eq!(kind(client.key_id().await), Some(Kind::Config), "{of}");
        let key_id = stage.connect().await.key_id().await.unwrap();
        let key_id = KeyId::new(&key_id.as_str().replace(&stage.backend.key, &other)).unwrap();
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Config, "{}", error.report());
        assert!(error.report().contains("type oct"), "{}", error.report());
    }
    assert_eq!(stage.fake().calls("create"), 0);
}

#[tokio::test]
async fn a_right_that_is_missing_is_told() {
    let stage = Stage::new("rights").await;
    let (client, labelled) = (stage.connect().await, connect(&stage.labelled(1)).await.unwrap());
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    stage.fake().service().allow(CLIENT, &["get"]);
    let mut errors = vec![
        client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop).unwrap_err(),
        client.decrypt(&sealed, &call()).await.map(drop).unwrap_err(),
    ];
    stage.fake().service().allow(CLIENT, &["encrypt", "decrypt"]);
    errors.push(client.key_id().await.unwrap_err());
    errors.push(labelled.key_id().await.unwrap_err());
    for error in errors {
        assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
        assert!(error.hint().unwrap().contains("okms:apikms:serviceKey"), "{}", error.report());
    }
    assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
}

#[tokio::test]
async fn nothing_is_made_of_an_empty_plaintext() {
    let stage = Stage::new("empty").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let error = client.encrypt(&key_id, b"", &call()).await.unwrap_err();
    assert_eq!((error.kind(), stage.fake().calls("encrypt")), (Kind::Invalid, 0));
}
