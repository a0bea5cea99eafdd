//! Sessions that end, refusals of credentials, and a clock that is off.

use std::sync::atomic::{AtomicUsize, Ordering};

use sidekey_rest::testing::{Fake as Server, Reply};

use super::*;

#[tokio::test]
async fn refused_credentials_are_fetched_anew_once_and_each_attempt_is_one_call() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let sealed = wrap(&key, b"seed").await;
    fake.state().refuse.insert("Decrypt".into(), "ExpiredTokenException");
    let asked = fake.count("Decrypt");
    for (attempt, mended) in [(1, true), (2, false)] {
        let error = key.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_mended()), (Kind::Denied, mended));
        assert!(error.needs_reload());
        assert_eq!(fake.count("Decrypt"), asked + attempt);
    }
}

#[tokio::test]
async fn a_clock_that_is_set_costs_no_call_and_is_followed_back_and_forth() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let sealed = wrap(&key, b"seed").await;
    fake.state().minds_time = true;
    // What was right before the clock was set is wrong now; the other way round it is the same.
    for ahead in [3600, -3600, 7 * 3600, 0] {
        fake.state().ahead = ahead;
        let asked = fake.count("Decrypt");
        assert_eq!(unwrap(&key, &sealed).await.as_deref(), Ok(&b"seed"[..]), "{ahead}");
        assert_eq!(unwrap(&key, &sealed).await.as_deref(), Ok(&b"seed"[..]), "{ahead}");
        assert_eq!(fake.count("Decrypt"), asked + 3, "refused once, and never again");
    }
    // A signature that is wrong for another reason is not tried again for it.
    fake.state().refuse.insert("Decrypt".into(), "InvalidSignatureException");
    let asked = fake.count("Decrypt");
    assert_eq!(unwrap(&key, &sealed).await, Err(Kind::Denied));
    assert_eq!(fake.count("Decrypt"), asked + 1);
}

#[tokio::test]
async fn a_clock_that_is_wrong_from_the_start_keeps_no_key_from_being_connected() {
    let fake = Fake::start().await;
    fake.state().minds_time = true;
    fake.state().ahead = 3600;
    let first = fake.key(A).await;
    let sealed = wrap(&first, b"seed").await;
    // The second one's client has to learn by itself what the first one's has told everybody.
    let second = fake.key(A).await;
    assert_eq!(unwrap(&second, &sealed).await.as_deref(), Ok(&b"seed"[..]));
}

/// An STS that gives a session of its own to each who asks.
async fn sts() -> Server {
    let given = AtomicUsize::new(0);
    Server::https(move |seen| {
        let session = given.fetch_add(1, Ordering::SeqCst);
        let end = sidekey_core::time(SystemTime::now() + Duration::from_secs(3600));
        let by_token = String::from_utf8_lossy(&seen.body).contains("Action=AssumeRoleWith");
        let action = if by_token { "AssumeRoleWithWebIdentity" } else { "AssumeRole" };
        let text = format!(
            "<{action}Response><{action}Result><Credentials>\
             <AccessKeyId>ASIA{session}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
             <SessionToken>t</SessionToken><Expiration>{end}</Expiration></Credentials>\
             </{action}Result></{action}Response>"
        );
        Reply { body: text.into(), ..Reply::json(200, &serde_json::Value::Null) }
    })
    .await
}

#[tokio::test]
async fn a_session_that_dies_under_many_calls_is_replaced_once_and_fails_none_of_them() {
    let (fake, sts) = (Fake::start().await, sts().await);
    let mut config = fake.document(A);
    config["settings"]["stsEndpoint"] = sts.url().into();
    let bundle = format!("{}{}", fake.server.ca, sts.ca);
    config["settings"]["caBundle"] = fake.write("both.pem", &bundle).to_str().unwrap().into();
    config["credentials"] = serde_json::json!({
        "roleArn": "arn:aws:iam::1:role/x", "webIdentityTokenFile": fake.write("token", "jwt"),
    });
    let config = serde_json::from_value(config).unwrap();
    let key = Arc::new(fake.connect(&config, None).await.unwrap());
    let sealed = wrap(&key, b"seed").await;
    assert_eq!(sts.seen().len(), 1);
    fake.state().dead = Some("ASIA0");
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let (key, sealed) = (key.clone(), sealed.clone());
            tokio::spawn(async move { unwrap(&key, &sealed).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().as_deref(), Ok(&b"seed"[..]));
    }
    assert_eq!(sts.seen().len(), 2, "one new session for all");
}

#[tokio::test]
async fn an_sts_that_fails_is_asked_once_also_where_a_profile_leads_there() {
    let fake = Fake::start().await;
    let sts = Server::https(|_| Reply::json(503, &serde_json::Value::Null)).await;
    let profile = format!(
        "[default]\nrole_arn = arn:aws:iam::111122223333:role/x\nsource_profile = base\n\
         endpoint_url = {}\n[profile base]\naws_access_key_id = a\naws_secret_access_key = b\n",
        sts.url()
    );
    let mut config = fake.document(A);
    let bundle = format!("{}{}", fake.server.ca, sts.ca);
    config["settings"]["caBundle"] = fake.write("both.pem", &bundle).to_str().unwrap().into();
    config["credentials"] = serde_json::json!({"configFile": fake.write("profile", &profile)});
    let config = serde_json::from_value(config).unwrap();
    let error = fake.connect(&config, None).await.map(drop).unwrap_err();
    assert!(error.kind().is_transient(), "{}", error.report());
    assert_eq!(sts.seen().len(), 1, "core retries, and nobody else: {}", error.report());
}

#[tokio::test]
async fn credentials_that_kms_refuses_are_not_fetched_for_every_call() {
    let fake = Fake::start().await;
    let key = fake.key(A).await;
    let sealed = wrap(&key, b"seed").await;
    fake.state().refuse.insert("Decrypt".into(), "ExpiredTokenException");
    let asked = fake.count("Decrypt");
    for _ in 0..10 {
        assert_eq!(unwrap(&key, &sealed).await, Err(Kind::Denied));
    }
    assert_eq!(fake.count("Decrypt"), asked + 11, "one of them was made again");
}

#[tokio::test]
async fn no_bad_answer_of_sts_is_taken() {
    let (fake, sts) = (Fake::start().await, sts().await);
    let mut document = fake.document(A);
    document["settings"]["stsEndpoint"] = sts.url().into();
    let bundle = format!("{}{}", fake.server.ca, sts.ca);
    document["settings"]["caBundle"] = fake.write("both.pem", &bundle).to_str().unwrap().into();
    let mut assumed = document.clone();
    assumed["credentials"]["roleArn"] = "arn:aws:iam::1:role/x".into();
    document["credentials"] = json!({
        "roleArn": "arn:aws:iam::1:role/x", "webIdentityTokenFile": fake.write("token", "jwt"),
    });
    let page = "<html>Please log in to the network: hunter2</html>";
    let refused = |status| Reply { body: page.into(), ..Reply::json(status, &json!({})) };
    let pages = [("a firewall's page", refused(403)), ("a portal's page", refused(401))];
    for document in [document, assumed] {
        let config: Config = serde_json::from_value(document).unwrap();
        let connect = async || {
            let result = fake.connect(&config, None).await.map(drop);
            assert!(!result.as_ref().is_err_and(Error::is_lasting), "it may pass");
            result
        };
        takes_no_bad_answer(&sts, || {}, connect).await;
        takes_none_of(&sts, &pages, || {}, connect).await;
    }
}
