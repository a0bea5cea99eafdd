mod credentials;

use bytes::Bytes;
use serde_json::{Value, json};
use sidekey_rest::testing::{Reply, takes_no_bad_answer, takes_no_wrong_key, takes_none_of};

use super::*;
use crate::testing::{A, B, DELETION, Fake, call, material};

fn key_id(text: &str) -> KeyId {
    KeyId::new(text).unwrap()
}

fn version(arn: &str, n: u8) -> KeyId {
    key_id(&format!("{arn}/{}", material(n)))
}

/// What Encrypt and its verification give, as the runtime makes them.
async fn wrap(key: &Aws, text: &[u8]) -> Sealed {
    let named = key.key_id().await.unwrap();
    let mut sealed = key.encrypt(&named, text, &call()).await.unwrap();
    let (plaintext, key_id) = key.verify(&sealed, &call()).await.unwrap();
    assert_eq!(plaintext.expose(), text);
    sealed.key_id = key_id;
    sealed
}

/// In attempts, as core makes them where something was mended.
async fn unwrap(key: &Aws, sealed: &Sealed) -> Result<Vec<u8>, Kind> {
    let mut plaintext = key.decrypt(sealed, &call()).await;
    for _ in 1..3 {
        if plaintext.as_ref().is_err_and(Error::is_mended) {
            plaintext = key.decrypt(sealed, &call()).await;
        }
    }
    plaintext.map(|plaintext| plaintext.expose().to_vec()).map_err(|error| error.kind())
}

#[tokio::test]
async fn key_id_names_the_key_and_its_material() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let sealed = wrap(&key, b"seed").await;
    assert_eq!(sealed.key_id, version(A, 1));
    assert_eq!(sealed.ciphertext[0], b'1', "as the replaced plugin reads it");
    assert_eq!(unwrap(&key, &sealed).await.as_deref(), Ok(&b"seed"[..]));
    assert_eq!(key.note(), None);
}

#[tokio::test]
async fn an_encrypt_is_two_calls_and_every_call_names_the_key() {
    let fake = Fake::start().await;
    let key = fake.key("alias/etcd").await;
    let named = key.key_id().await.unwrap();
    fake.state().calls.clear();
    let sealed = key.encrypt(&named, b"seed", &call()).await.unwrap();
    key.verify(&sealed, &call()).await.unwrap();
    let state = fake.state();
    let calls: Vec<_> =
        state.calls.iter().map(|(op, key, _)| (op.as_str(), key.as_str())).collect();
    assert_eq!(calls, [("Encrypt", A), ("Decrypt", A)]);
}

#[tokio::test]
async fn a_rotation_moves_key_id_by_itself_and_old_data_stays_readable() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let old = wrap(&key, b"old").await;
    fake.state().keys.get_mut(A).unwrap().push(material(9));
    assert_eq!(key.key_id().await.unwrap(), version(A, 9));
    assert_eq!(wrap(&key, b"new").await.key_id, version(A, 9));
    assert_eq!(unwrap(&key, &old).await.as_deref(), Ok(&b"old"[..]));
}

#[tokio::test]
async fn a_rotation_between_two_probes_is_told_by_the_verification() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let announced = key.key_id().await.unwrap();
    fake.state().keys.get_mut(A).unwrap().push(material(9));
    let sealed = key.encrypt(&announced, b"seed", &call()).await.unwrap();
    let (_, truth) = key.verify(&sealed, &call()).await.unwrap();
    assert_eq!((announced, truth), (version(A, 1), version(A, 9)));
    fake.state().refuse.insert("DescribeKey".into(), "ThrottlingException");
    assert_eq!(key.key_id().await.unwrap(), version(A, 9), "what Decrypt told is not forgotten");
}

#[tokio::test]
async fn a_look_that_began_before_a_verification_takes_back_nothing_of_what_that_told() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let known = key.kek().clone();
    let late = known.refreshed(&key.client).await.unwrap();
    fake.state().keys.get_mut(A).unwrap().push(material(9));
    let sealed = key.encrypt(&version(A, 1), b"seed", &call()).await.unwrap();
    key.verify(&sealed, &call()).await.unwrap();
    assert_eq!(key.keep(&known, late).key_id().unwrap(), version(A, 9));
    assert_eq!(key.kek().version().key_id().unwrap(), version(A, 9));
}

#[tokio::test]
async fn without_the_permission_key_id_is_the_arn_alone_and_stays_so() {
    let fake = Fake::start().await;
    fake.state().refuse.insert("DescribeKey".into(), "AccessDeniedException");
    let config = fake.config(A);
    let key = fake.connect(&config, None).await.unwrap();
    assert_eq!(wrap(&key, b"seed").await.key_id, key_id(A));
    fake.state().refuse.clear();
    assert_eq!(wrap(&key, b"seed").await.key_id, key_id(A));
    // New files, same configuration.
    let again = fake.connect(&config, Some(&key)).await.unwrap();
    assert_eq!(wrap(&again, b"seed").await.key_id, key_id(A));
    assert!(again.note().unwrap().contains("kms:DescribeKey is not allowed"));
    // Another configuration decides anew.
    let mut other = fake.document(A);
    other["settings"]["retryTokens"] = 100.into();
    let other = serde_json::from_value(other).unwrap();
    let fresh = fake.connect(&other, Some(&again)).await.unwrap();
    assert_eq!(wrap(&fresh, b"seed").await.key_id, version(A, 1));
}

#[tokio::test]
async fn a_kms_that_never_tells_the_material_is_used_by_its_arn() {
    let fake = Fake::start().await;
    fake.state().tells = false;
    let key = fake.key(A).await;
    assert_eq!(wrap(&key, b"seed").await.key_id, key_id(A));
    assert!(key.note().unwrap().contains("does not tell"));
    let asked = fake.count("DescribeKey");
    key.key_id().await.unwrap();
    assert_eq!(fake.count("DescribeKey"), asked, "nobody asks what is not told");
}

#[tokio::test]
async fn a_permission_that_is_lost_later_moves_nothing() {
    let fake = Fake::start().await;
    let config = fake.config(A);
    let key = fake.connect(&config, None).await.unwrap();
    fake.state().refuse.insert("DescribeKey".into(), "AccessDeniedException");
    assert_eq!(key.key_id().await.unwrap(), version(A, 1));
    assert!(key.note().unwrap().contains("not fresh"));
    let again = fake.connect(&config, Some(&key)).await.unwrap();
    assert_eq!(wrap(&again, b"seed").await.key_id, version(A, 1));
}

#[tokio::test]
async fn an_alias_that_is_moved_is_another_key_and_old_data_stays_readable() {
    let fake = Fake::start().await;
    let key = fake.key("alias/etcd").await;
    let old = wrap(&key, b"old").await;
    assert_eq!(old.key_id, version(A, 1));
    fake.state().aliases.insert("alias/etcd".into(), B.into());
    let new = wrap(&key, b"new").await;
    assert_eq!(new.key_id, version(B, 2));
    let restarted = fake.key("alias/etcd").await;
    let mut by_old_plugin = old.clone();
    by_old_plugin.key_id = key_id("alias/etcd");
    for key in [&key, &restarted] {
        assert_eq!(unwrap(key, &old).await.as_deref(), Ok(&b"old"[..]));
        assert_eq!(unwrap(key, &new).await.as_deref(), Ok(&b"new"[..]));
        assert_eq!(unwrap(key, &by_old_plugin).await.as_deref(), Ok(&b"old"[..]));
    }
}

#[tokio::test]
async fn what_a_key_of_another_account_wrapped_is_not_given_out_under_the_alias_alone() {
    const FOREIGN: &str = "arn:aws:kms:us-east-1:999922223333:key/cccccccc";
    let fake = Fake::start().await;
    fake.state().keys.insert(FOREIGN.into(), vec![material(3)]);
    let mut sealed = wrap(&fake.key(FOREIGN).await, b"seed").await;
    let key = fake.key("alias/etcd").await;
    sealed.key_id = key_id("alias/etcd");
    let asked = fake.count("Decrypt");
    assert_eq!(unwrap(&key, &sealed).await, Err(Kind::KeyState));
    assert_eq!(fake.count("Decrypt"), asked + 2, "by the present key, then by none");
    // Where an ARN is configured nothing is asked without a name.
    assert_eq!(unwrap(&fake.key(A).await, &sealed).await, Err(Kind::KeyState));
    let state = fake.state();
    let unnamed = state.calls.iter().filter(|(op, key, _)| op == "Decrypt" && key.is_empty());
    assert_eq!(unnamed.count(), 1);
}

#[tokio::test]
async fn an_alias_that_is_moved_to_a_key_we_may_not_use_changes_nothing() {
    let fake = Fake::start().await;
    let key = fake.key("alias/etcd").await;
    fake.state().refuse.insert(format!("Encrypt {B}"), "AccessDeniedException");
    fake.state().aliases.insert("alias/etcd".into(), B.into());
    assert_eq!(wrap(&key, b"seed").await.key_id, version(A, 1));
    let note = key.note().unwrap();
    assert!(note.contains(B) && note.contains("cannot be used"), "{note}");
}

#[tokio::test]
async fn an_alias_that_is_moved_to_a_disabled_key_changes_nothing_and_files_are_taken_over() {
    let fake = Fake::start().await;
    let config = fake.config("alias/etcd");
    let key = fake.connect(&config, None).await.unwrap();
    fake.state().states.insert(B.into(), "Disabled");
    fake.state().aliases.insert("alias/etcd".into(), B.into());
    assert_eq!(wrap(&key, b"seed").await.key_id, version(A, 1));
    let renewed = fake.connect(&config, Some(&key)).await.unwrap();
    for key in [&key, &renewed] {
        assert_eq!(wrap(key, b"seed").await.key_id, version(A, 1));
        let note = key.note().unwrap();
        assert!(note.contains(B) && note.contains("disabled"), "{note}");
    }
    fake.state().states.clear();
    assert_eq!(wrap(&renewed, b"seed").await.key_id, version(B, 2), "as soon as it works");
}

#[tokio::test]
async fn an_alias_that_is_deleted_does_not_cost_the_key_that_works() {
    let fake = Fake::start().await;
    let config = fake.config("alias/etcd");
    let key = fake.connect(&config, None).await.unwrap();
    fake.state().aliases.clear();
    let renewed = fake.connect(&config, Some(&key)).await.unwrap();
    for key in [&key, &renewed] {
        assert_eq!(wrap(key, b"seed").await.key_id, version(A, 1));
        let note = key.note().unwrap();
        assert!(note.contains("NotFoundException"), "{note}");
    }
    let error = fake.connect(&config, None).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState, "nobody knows what it stood for");
}

#[tokio::test]
async fn a_disabled_or_dying_key_says_so() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    for (state, text) in [("Disabled", "enable-key"), ("PendingDeletion", "cancel-key-deletion")] {
        fake.state().states.insert(A.into(), state);
        let error = key.key_id().await.unwrap_err();
        assert_eq!(error.kind(), Kind::KeyState);
        assert!(error.report().contains(text), "{}", error.report());
    }
    fake.state().states.clear();
    assert!(key.key_id().await.is_ok());
}

#[tokio::test]
async fn the_day_of_deletion_is_known_as_soon_as_a_call_is_refused_for_it_and_forgotten_after() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let sealed = wrap(&key, b"seed").await;
    assert_eq!(key.deletion().at, None);
    fake.state().states.insert(A.into(), "PendingDeletion");
    fake.state().refuse.insert("Decrypt".into(), "KMSInvalidStateException");
    assert_eq!(unwrap(&key, &sealed).await, Err(Kind::KeyState));
    assert_eq!(key.deletion().at, Some(SystemTime::UNIX_EPOCH + DELETION));
    let asked = fake.count("DescribeKey");
    assert_eq!(unwrap(&key, &sealed).await, Err(Kind::KeyState));
    assert_eq!(fake.count("DescribeKey"), asked, "it is not looked at for every call");
    fake.state().states.clear();
    fake.state().refuse.clear();
    assert!(unwrap(&key, &sealed).await.is_ok());
    assert_eq!(key.deletion().at, None);
}

#[tokio::test]
async fn the_day_of_deletion_is_known_of_a_key_that_was_never_seen_to_work() {
    let fake = Fake::start().await;
    fake.state().states.insert(A.into(), "PendingDeletion");
    let config = fake.config(A);
    let files = Aws::files(&config);
    let files = Files::read(files.iter().map(PathBuf::as_path)).unwrap();
    let key = Aws::connect(&config, &files, None).await.unwrap();
    assert_eq!(key.deletion().at, Some(SystemTime::UNIX_EPOCH + DELETION));
    assert_eq!(key.key_id().await.unwrap_err().kind(), Kind::KeyState);
    fake.state().states.clear();
    assert_eq!(key.key_id().await.unwrap(), version(A, 1));
    assert_eq!(key.deletion().at, None, "the deletion was cancelled");
}

#[tokio::test]
async fn a_key_without_material_is_not_taken_for_one_whose_material_is_never_told() {
    let fake = Fake::start().await;
    fake.state().states.insert(A.into(), "PendingImport");
    fake.state().tells = false;
    let error = fake.connect(&fake.config(A), None).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState);
    fake.state().states.clear();
    fake.state().tells = true;
    assert_eq!(fake.key(A).await.key_id().await.unwrap(), version(A, 1));
}

#[tokio::test]
async fn forged_or_foreign_data_is_refused_by_kind() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let sealed = wrap(&key, b"seed").await;
    let with = |change: &dyn Fn(&mut Sealed)| {
        let mut sealed = sealed.clone();
        change(&mut sealed);
        sealed
    };
    let altered = with(&|sealed| sealed.ciphertext = Bytes::from_static(b"1junk"));
    assert_eq!(unwrap(&key, &altered).await, Err(Kind::Corrupt));
    let bare = with(&|sealed| sealed.ciphertext = sealed.ciphertext.slice(1..));
    assert_eq!(unwrap(&key, &bare).await, Err(Kind::Corrupt));
    let foreign = with(&|sealed| sealed.key_id = key_id(B));
    let asked = fake.count("Decrypt");
    assert_eq!(unwrap(&key, &foreign).await, Err(Kind::KeyState));
    assert_eq!(fake.count("Decrypt"), asked, "KMS is not asked for a key that is not ours");
    let other = wrap(&fake.key(B).await, b"seed").await;
    let relabelled = with(&|sealed| sealed.ciphertext = other.ciphertext.clone());
    assert_eq!(unwrap(&key, &relabelled).await, Err(Kind::KeyState));
    assert!(!fake.state().calls.iter().any(|(op, key, _)| op == "Decrypt" && key.is_empty()));
}

#[tokio::test]
async fn bad_answers_are_clear_errors_and_change_nothing() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let (sealed, config) = (wrap(&key, b"seed").await, fake.config(A));
    let (server, none) = (&fake.server, || {});
    let decrypt = async || {
        key.decrypt(&sealed, &call()).await.map(|plain| assert_eq!(plain.expose(), b"seed"))
    };
    let encrypt = async || key.encrypt(&version(A, 1), b"seed", &call()).await.map(drop);
    let connect = async || fake.connect(&config, None).await.map(drop);
    let rotate = async || key.ask_for_material(A).await;
    takes_no_bad_answer(server, none, decrypt).await;
    takes_no_bad_answer(server, none, encrypt).await;
    takes_no_bad_answer(server, none, connect).await;
    takes_no_bad_answer(server, none, rotate).await;
    // What another endpoint than AWS's says in good faith, and what a firewall or a portal does.
    let (blob, page) = ("aHVudGVyMg==", "<html>Please log in to the network: hunter2</html>");
    let other = |key: Option<&str>| {
        Reply::json(200, &json!({"KeyId": key, "CiphertextBlob": blob, "Plaintext": blob}))
    };
    let refused = |status| Reply { body: page.into(), ..Reply::json(status, &json!({})) };
    let strange = [
        ("another key's ARN", other(Some(B))),
        ("a key that is no ARN", other(Some("1234abcd-12ab-34cd-56ef-1234567890ab"))),
        ("no key", other(None)),
        ("a firewall's page", refused(403)),
        ("a portal's page", refused(401)),
    ];
    takes_none_of(server, &strange, none, decrypt).await;
    takes_none_of(server, &strange, none, encrypt).await;
    takes_none_of(server, &strange, none, rotate).await;
    let described = |metadata: Value| Reply::json(200, &json!({"KeyMetadata": metadata}));
    let strange = [
        ("no ARN", described(json!({"KeyId": A}))),
        ("an ARN that is none", described(json!({"KeyId": A, "Arn": "kms"}))),
        ("a firewall's page", refused(403)),
    ];
    takes_none_of(server, &strange, none, connect).await;
    takes_none_of(server, &strange[2..], none, async || {
        key.client
            .describe(A, own_deadline())
            .await
            .map_or_else(|failure| Err(failure.error), |_| Ok(()))
    })
    .await;
    let wrong = [
        ("RSA_2048", "ENCRYPT_DECRYPT"),
        ("RSA_4096", "SIGN_VERIFY"),
        ("HMAC_256", "GENERATE_VERIFY_MAC"),
        ("ECC_NIST_P256", "KEY_AGREEMENT"),
        ("SYMMETRIC_DEFAULT", "SIGN_VERIFY"),
        ("AES_1024", "ENCRYPT_DECRYPT"),
    ];
    let wrong = wrong.map(|(spec, usage)| {
        let metadata = json!({
            "KeyId": A, "Arn": A, "KeySpec": spec, "KeyUsage": usage, "KeyState": "Enabled",
        });
        (spec, json!({"KeyMetadata": metadata}))
    });
    takes_no_wrong_key(server, &wrong, async || key.key_id().await.map(drop)).await;
    takes_no_wrong_key(server, &wrong, connect).await;
    assert_eq!(key.key_id().await.unwrap(), version(A, 0xf0), "moved by the good rotations alone");
}

#[tokio::test]
async fn keys_of_equal_settings_share_a_client() {
    let fake = Fake::start().await;
    let (a, b) = (fake.key(A).await, fake.key(B).await);
    assert!(Arc::ptr_eq(&a.client.account, &b.client.account));
}

#[tokio::test]
async fn the_source_of_the_calls_is_told_and_signed() {
    let fake = Fake::start().await;
    let arn = "arn:aws:eks:us-east-1:444455556666:cluster/prod";
    let mut config = fake.document(A);
    config["settings"]["sourceArn"] = arn.into();
    let key = fake.connect(&serde_json::from_value(config).unwrap(), None).await.unwrap();
    wrap(&key, b"seed").await;
    for (operation, _, headers) in &fake.state().calls {
        assert_eq!(headers["x-amz-source-arn"], arn, "{operation}");
        assert_eq!(headers["x-amz-source-account"], "444455556666");
        let signed = headers["authorization"].to_str().unwrap();
        assert!(signed.contains("x-amz-source-account;x-amz-source-arn"), "{signed}");
    }
}
