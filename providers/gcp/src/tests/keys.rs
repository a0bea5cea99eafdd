//! Versions and their states.

use super::*;

async fn opens(client: &Gcp, sealed: &Sealed) {
    assert_eq!(client.decrypt(sealed, &call()).await.unwrap().expose(), PLAINTEXT);
}

#[tokio::test]
async fn a_rotation_is_told_and_old_data_stays_readable() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let old = client.key_id().await.unwrap();
    let sealed = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    stage.service().key(&stage.key).rotate();
    let current = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    assert_ne!(current.key_id, old);
    assert_eq!(client.key_id().await.unwrap(), current.key_id);
    let pinned = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(pinned.key_id, old, "it is pinned");
    assert_eq!(pinned.ciphertext[..4], [0, 0, 0, 1], "and so is the version that was really used");
    for sealed in [&sealed, &current, &pinned] {
        opens(&client, sealed).await;
    }
}

#[tokio::test]
async fn while_cloud_kms_still_encrypts_with_the_former_version_the_announced_one_is_used() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    stage.service().key(&stage.key).rotate();
    let second = client.key_id().await.unwrap();
    stage.service().lags = Some(1);
    let sealed = client.encrypt_current(&second, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(sealed.key_id, second, "a rotation that is under way moves nothing back");
    opens(&client, &sealed).await;
    // The primary version was set back, and encryption has not heard of it: the description counts.
    stage.service().lags = Some(2);
    stage.service().key(&stage.key).primary = 1;
    let first = client.key_id().await.unwrap();
    let sealed = client.encrypt_current(&first, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(sealed.key_id, first);
    opens(&client, &sealed).await;
}

#[tokio::test]
async fn a_version_that_cannot_be_used_says_so_and_how_to_bring_it_back() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    for (state, words, planned) in [
        ("DISABLED", "versions enable", false),
        ("DESTROY_SCHEDULED", "versions restore", true),
        ("DESTROYED", "is lost", false),
        ("PENDING_GENERATION", "wait", false),
    ] {
        stage.service().key(&stage.key).set_state(1, state);
        let described = client.key_id().await.unwrap_err();
        assert_eq!(described.kind(), Kind::KeyState);
        let text = described.report();
        assert!(text.contains(state) && text.contains(words), "{text}");
        assert_eq!(client.deletion().at.is_some(), planned, "{state}");
        let refused = [
            client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop),
            client.decrypt(&sealed, &call()).await.map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert_eq!(error.kind(), Kind::KeyState, "{}", error.report());
            assert!(error.report().contains(state), "{}", error.report());
        }
    }
    stage.service().key(&stage.key).set_state(1, "ENABLED");
    assert_eq!(client.key_id().await.unwrap(), key_id);
    assert_eq!(client.deletion().at, None);
    opens(&client, &sealed).await;
}

#[tokio::test]
async fn the_replaced_plugins_role_is_enough() {
    let stage = Stage::start().await;
    let sighted = stage.connect().await.key_id().await.unwrap();
    stage.service().allow(ACCOUNT, &[ENCRYPT, DECRYPT]);
    let client = stage.connect().await;
    assert_eq!(client.key_id().await.unwrap(), sighted);
    stage.service().key(&stage.key).rotate();
    let moved = client.encrypt_current(&sighted, PLAINTEXT, &call()).await.unwrap();
    assert_ne!(moved.key_id, sighted);
    opens(&client, &moved).await;
    stage.service().allow(ACCOUNT, &[DECRYPT, LOOK]);
    assert_eq!(client.key_id().await.unwrap(), moved.key_id);
    opens(&client, &moved).await;
    let refused = client.encrypt(&sighted, PLAINTEXT, &call()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Denied);
    assert!(refused.report().contains(ENCRYPT), "{}", refused.report());
}

#[tokio::test]
async fn a_request_costs_one_call() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    assert_eq!(stage.server.seen().len(), 0, "to connect costs none");
    let key_id = client.key_id().await.unwrap();
    assert_eq!((stage.asked("/token"), stage.asked("/kms")), (1, 1));
    let before = stage.server.seen().len();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    client.encrypt_current(&key_id, PLAINTEXT, &call()).await.unwrap();
    client.decrypt(&sealed, &call()).await.unwrap();
    assert_eq!(stage.server.seen().len(), before + 3);
}

#[tokio::test]
async fn a_key_that_hangs_takes_no_turn_from_another_of_the_same_account() {
    let stage = Stage::start().await;
    let mut document = stage.document();
    document["kek"]["key"] = stage.service().create_key("hangs").into();
    let (well, hung) = (stage.connect().await, Arc::new(connect(&document).await.unwrap()));
    let key_id = well.key_id().await.unwrap();
    let turns = sidekey_rest::Limits::default().calls;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..2 * turns {
        let hung = hung.clone();
        calls.spawn(async move {
            let deadline = Instant::now() + Duration::from_secs(3600);
            let key_id = hung.name(1).unwrap();
            let call = Call { uid: "hangs", deadline };
            hung.encrypt(&key_id, PLAINTEXT, &call).await.map(drop)
        });
    }
    let patience = sidekey_e2e::wait::PATIENCE;
    let all = sidekey_e2e::eventually("every turn is taken", patience, async || {
        let taken = stage.asked("/hangs/cryptoKeyVersions/1:encrypt");
        anyhow::ensure!(taken == turns, "{taken}");
        Ok(())
    });
    all.await.unwrap();
    let sealed = well.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    opens(&well, &sealed).await;
    assert_eq!(calls.try_join_next().map(|done| done.is_ok()), None, "they hang");
}
