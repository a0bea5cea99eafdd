//! Keys that come, go and come back.

use super::*;

/// What the core says once it is done with a rotation to this key.
fn done(fake: &Fake, id: u64, history: Value) {
    let state =
        json!([{"id": id, "type": "aws", "role": "write", "fingerprint": fingerprint(fake, id)}]);
    status(fake, json!({"activeKey": turn(fake, id), "keys": state, "history": history}));
}

fn past(from: &Value, to: &Value, state: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({"from": from, "to": to, "state": state, "startedTime": time, "completionTime": time})
}

#[tokio::test]
async fn editing_the_key_twice_and_back_gives_three_numbers() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let first = turn(&fake, 1);
    done(&fake, 1, json!([]));
    edit(&fake, aws(K2)).await;
    let second = turn(&fake, 2);
    assert_stable_mirror(&fake).await;
    let one = past(&first, &second, "Completed");
    done(&fake, 2, json!([one]));
    edit(&fake, aws(K3)).await;
    let third = turn(&fake, 3);
    let two = past(&second, &third, "Completed");
    done(&fake, 3, json!([two, one]));
    edit(&fake, aws(K1)).await;
    let ids: Vec<String> = keys(&fake).into_iter().filter(|key| key.ends_with("write")).collect();
    assert_eq!(ids, ["4 aws write"], "an old KEK that is made active again gets a new number");
    assert_eq!(fingerprint(&fake, 4), first["fingerprint"].as_str().unwrap());
    assert_stable_mirror(&fake).await;
}

/// The status of the HostedCluster may follow; the document may not change.
async fn assert_stable_mirror(fake: &Fake) {
    pass(fake).await;
    assert_stable(fake).await;
}

#[tokio::test]
async fn the_key_that_writes_keeps_its_number_when_a_rotation_is_given_up() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let first = turn(&fake, 1);
    done(&fake, 1, json!([]));
    edit(&fake, aws(K2)).await;
    assert!(keys(&fake).contains(&"2 aws write".to_owned()));
    let second = turn(&fake, 2);
    let time = "2026-01-01T00:00:00Z";
    let rotation = |stage: &str| json!({"activeKey": first, "targetKey": second, "rotation": {"stage": stage, "startedTime": time}});
    status(&fake, rotation("ReadOnlyDeploy"));
    pass(&fake).await;
    edit(&fake, aws(K1)).await;
    assert!(keys(&fake).contains(&"1 aws write".to_owned()), "{:?}", keys(&fake));
    // The number of a rotation that was given up is not used again, nor is any other.
    done(&fake, 1, json!([past(&first, &second, "Interrupted")]));
    pass(&fake).await;
    pass(&fake).await;
    assert_eq!(keys(&fake), ["1 aws write"]);
    edit(&fake, aws(K2)).await;
    assert!(keys(&fake).contains(&"3 aws write".to_owned()), "{:?}", keys(&fake));
    assert_stable_mirror(&fake).await;
}

#[tokio::test]
async fn there_is_no_way_back_to_a_number_once_its_successor_is_promoted() {
    for stage in ["WritePromote", "Migrating"] {
        let fake = world(aws(K1));
        pass(&fake).await;
        let first = turn(&fake, 1);
        done(&fake, 1, json!([]));
        edit(&fake, aws(K2)).await;
        let second = turn(&fake, 2);
        let rotation = json!({"stage": stage, "startedTime": "2026-01-01T00:00:00Z"});
        status(&fake, json!({"activeKey": first, "targetKey": second, "rotation": rotation}));
        pass(&fake).await;
        edit(&fake, aws(K1)).await;
        let now = keys(&fake);
        assert!(now.contains(&"3 aws write".to_owned()), "{stage}: {now:?}");
        assert!(now.contains(&"2 aws read".to_owned()), "{stage}: {now:?}");
        assert_stable_mirror(&fake).await;
    }
}

#[tokio::test]
async fn a_number_that_nobody_saw_is_not_used_again() {
    let fake = world(aws(K1));
    pass(&fake).await;
    done(&fake, 1, json!([]));
    edit(&fake, aws(K2)).await;
    edit(&fake, aws(K1)).await;
    edit(&fake, aws(K3)).await;
    let writer: Vec<String> =
        keys(&fake).into_iter().filter(|key| key.ends_with("write")).collect();
    assert_eq!(writer, ["3 aws write"]);
}

#[tokio::test]
async fn keys_keep_their_numbers_when_the_document_was_deleted() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let print = fingerprint(&fake, 1);
    fake.lock().objects.remove(ENCRYPTION);
    let config = format!(
        "keys: [{{id: 5, role: read, fingerprint: '{print}'}}, {{id: 6, role: write, fingerprint: '{print}'}}]"
    );
    fake.put_secret(PLANE, "sidekey-shim", &[("config.yaml", config.as_bytes())]);
    pass(&fake).await;
    assert_eq!(keys(&fake), ["6 aws write"]);
    fake.lock().objects.remove(ENCRYPTION);
    edit(&fake, aws(K2)).await;
    assert_eq!(keys(&fake), ["7 aws write"]);
}

#[tokio::test]
async fn a_backup_key_is_never_dropped() {
    let mut both = aws(K1);
    both["kms"]["aws"]["backupKey"] = json!({"arn": K2});
    let fake = world(both);
    pass(&fake).await;
    assert_eq!(keys(&fake), ["1 aws read", "2 aws write"]);
    done(&fake, 2, json!([]));
    // HyperShift's status speaks of the active key alone from now on.
    assert_stable_mirror(&fake).await;
    assert_eq!(keys(&fake), ["1 aws read", "2 aws write"]);
    let mut next = aws(K3);
    next["kms"]["aws"]["backupKey"] = json!({"arn": K2});
    edit(&fake, next).await;
    assert!(keys(&fake).contains(&"1 aws read".to_owned()), "{:?}", keys(&fake));
    assert!(keys(&fake).contains(&"3 aws write".to_owned()), "{:?}", keys(&fake));
}

#[tokio::test]
async fn a_change_of_provider_keeps_the_old_key_with_its_login() {
    let fake = world(aws(K1));
    pass(&fake).await;
    done(&fake, 1, json!([]));
    pass(&fake).await;
    edit(&fake, azure("1")).await;
    assert_eq!(keys(&fake), ["1 aws read", "2 azure write"]);
    let now = spec(&fake);
    assert_eq!(now["keys"][0]["credentials"]["roleArn"], "arn:aws:iam::1:role/kms");
    assert_stable_mirror(&fake).await;
    // Everything is under the new one: what happens to the old one is the core's business.
    let second = json!({"id": 2, "vendor": "azure", "fingerprint": fingerprint(&fake, 2)});
    status(&fake, json!({"activeKey": second}));
    pass(&fake).await;
    assert_stable_mirror(&fake).await;
    assert_eq!(keys(&fake), ["2 azure write"]);
    edit(&fake, aws(K1)).await;
    let now = keys(&fake);
    assert!(
        now.contains(&"3 aws write".to_owned()) && now.contains(&"2 azure read".to_owned()),
        "{now:?}"
    );
}

#[tokio::test]
async fn a_change_of_type_keeps_the_cipher_until_it_is_retired() {
    let fake = world(aescbc("aes"));
    pass(&fake).await;
    assert!(fault(&fake).1.contains("Secret clusters/aes, key key: not found"));
    fake.put_secret(SOURCES, "aes", &[("key", &[7; 32])]);
    pass(&fake).await;
    let now = spec(&fake);
    let cipher = now["ciphers"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!((&now["write"], &now["keys"]), (&json!(cipher), &json!([])));
    assert_eq!(now["resources"], json!(["secrets"]));
    let copy = now["ciphers"][0]["secret"]["name"].as_str().unwrap().to_owned();
    assert_eq!(fake.content(PLANE, &copy, "key").unwrap(), [7; 32]);
    assert_stable(&fake).await;
    // Another key in the same Secret is another key: what the first one wrote must stay readable.
    fake.put_secret(SOURCES, "aes", &[("key", &[8; 32])]);
    pass(&fake).await;
    assert_eq!(fake.content(PLANE, &copy, "key").unwrap(), [7; 32]);
    let names = |fake: &Fake| -> Vec<String> {
        let spec = spec(fake);
        let list = spec["ciphers"].as_array().cloned().unwrap_or_default();
        list.iter().map(|cipher| cipher["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&fake).len(), 2);
    assert_ne!(spec(&fake)["write"], json!(cipher));
    edit(&fake, aws(K1)).await;
    assert_eq!((keys(&fake), names(&fake).len()), (vec!["1 aws write".to_owned()], 2));
    assert_eq!(spec(&fake)["write"], "keys");
    let retired = json!([{"id": cipher, "type": "aescbc", "fingerprint": "x", "retiredTime": "t", "advice": "a"}]);
    status(&fake, json!({"activeKey": turn(&fake, 1), "retired": retired}));
    pass(&fake).await;
    assert_eq!(names(&fake).len(), 1, "nothing stored needs it");
    edit(&fake, aescbc("aes")).await;
    assert_eq!(spec(&fake)["resources"].as_array().unwrap().len(), 5, "never fewer");
    assert_eq!(keys(&fake), ["1 aws write"], "it reads");
    assert_ne!(spec(&fake)["write"], "keys");
}
