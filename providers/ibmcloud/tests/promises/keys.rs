//! Versions and states of keys, and whose a ciphertext is.

use sidekey_core::{Error, Kind, Provider, Sealed};
use sidekey_e2e::fakes::ibm::State;

use crate::support::{PLAINTEXT, Stage, call, connect};

fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

#[tokio::test]
async fn a_rotation_is_told_and_old_data_stays_readable() {
    let stage = Stage::new("rotation").await;
    let client = stage.connect().await;
    let old = client.key_id().await.unwrap();
    let before = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    assert_eq!((before.key_id == old, stage.fake.calls("wrap")), (true, 1));
    let version = stage.fake.service().rotate(&stage.key);
    // Nobody can pin a version: what is wrapped says so, and is bound to what it says.
    let after = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    assert!(after.key_id.as_str().ends_with(&version), "{}", after.key_id);
    assert_eq!(client.key_id().await.unwrap(), after.key_id);
    assert_eq!(stage.fake.calls("wrap"), 3, "once more, and only then");
    for sealed in [&before, &after] {
        assert_eq!(client.decrypt(sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    }
}

#[tokio::test]
async fn versions_that_change_at_each_call_are_never_mixed_up() {
    let stage = Stage::new("lag").await;
    let client = stage.connect().await;
    let old = client.key_id().await.unwrap();
    stage.fake.service().rotate(&stage.key);
    let new = client.key_id().await.unwrap();
    stage.fake.service().lag(&stage.key, 1);
    let error = client.encrypt(&new, PLAINTEXT, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
    stage.fake.service().lag(&stage.key, 2);
    let sealed = client.encrypt(&new, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(sealed.key_id, old, "it is told, and the runtime does not go back");
    assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
}

#[tokio::test]
async fn what_was_wrapped_opens_under_its_own_key_id_alone() {
    let stage = Stage::new("bound").await;
    let client = stage.connect().await;
    let old = client.key_id().await.unwrap();
    let sealed = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    stage.fake.service().rotate(&stage.key);
    let new = client.key_id().await.unwrap();
    let moved = Sealed { key_id: new, ..sealed.clone() };
    assert_eq!(kind(client.decrypt(&moved, &call()).await), Some(Kind::Corrupt));
    let mut bytes = sealed.ciphertext.to_vec();
    bytes[40] ^= 1;
    let altered = Sealed { ciphertext: bytes.into(), ..sealed };
    assert_eq!(kind(client.decrypt(&altered, &call()).await), Some(Kind::Corrupt));
}

#[tokio::test]
async fn a_key_made_anew_is_another_one() {
    let stage = Stage::new("anew").await;
    let client = stage.connect().await;
    let sealed = client.encrypt(&client.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    stage.fake.service().set_state(&stage.key, State::Destroyed);
    let anew = stage.fake.service().create(&stage.instance);
    let other = connect(&stage.body(&anew)).await.unwrap();
    assert_ne!(other.key_id().await.unwrap(), sealed.key_id);
    let asked = stage.fake.calls("unwrap");
    assert_eq!(kind(other.decrypt(&sealed, &call()).await), Some(Kind::KeyState));
    assert_eq!(stage.fake.calls("unwrap"), asked, "nothing is tried");
}

#[tokio::test]
async fn the_same_key_id_in_another_instance_is_another_key() {
    let stage = Stage::new("instance").await;
    let client = stage.connect().await;
    let mut body = stage.body(&stage.key);
    body["kek"]["instance"] = stage.fake.service().instance().into();
    let other = connect(&body).await.unwrap();
    let sealed = client.encrypt(&client.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    assert_eq!(kind(other.decrypt(&sealed, &call()).await), Some(Kind::KeyState));
    assert_eq!(kind(other.key_id().await), Some(Kind::KeyState), "and it is not there");
}

#[tokio::test]
async fn the_state_of_a_key_decides_what_it_may_do() {
    let stage = Stage::new("states").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let gone = Some(Kind::KeyState);
    for (state, looked, wrapped, unwrapped) in [
        (State::Suspended, gone, gone, gone),
        (State::Deactivated, None, gone, None),
        (State::Destroyed, gone, gone, gone),
        (State::Active, None, None, None),
    ] {
        stage.fake.service().set_state(&stage.key, state);
        let seen = (
            kind(client.key_id().await),
            kind(client.encrypt(&key_id, PLAINTEXT, &call()).await),
            kind(client.decrypt(&sealed, &call()).await),
        );
        assert_eq!(seen, (looked, wrapped, unwrapped), "{state:?}");
    }
    let standard = stage.fake.service().create_standard(&stage.instance);
    let client = connect(&stage.body(&standard)).await.unwrap();
    assert_eq!(kind(client.key_id().await), Some(Kind::Config));
}

#[tokio::test]
async fn older_keys_are_read_on_the_same_socket_and_never_written_with() {
    let stage = Stage::new("older").await;
    let elsewhere = stage.fake.service().instance();
    let older = stage.fake.service().create(&elsewhere);
    let mut body = stage.body(&older);
    body["kek"]["instance"] = elsewhere.as_str().into();
    let writer = connect(&body).await.unwrap();
    let sealed = writer.encrypt(&writer.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    let mut body = stage.body(&stage.key);
    let listed = serde_json::json!([{"instance": elsewhere, "key": older}]);
    body["settings"]["olderKeks"] = listed;
    let both = connect(&body).await.unwrap();
    assert_eq!(both.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    let key_id = both.key_id().await.unwrap();
    let fresh = both.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(fresh.key_id, key_id);
    assert_ne!(key_id, sealed.key_id);
    // One that is gone hurts its own data alone.
    stage.fake.service().set_state(&older, State::Destroyed);
    assert_eq!(kind(both.decrypt(&sealed, &call()).await), Some(Kind::KeyState));
    assert_eq!(both.decrypt(&fresh, &call()).await.unwrap().expose(), PLAINTEXT);
}
