//! Who we are, by every form that Google has.

use std::time::Duration;

use sidekey_e2e::fakes::gcp::Tokens;
use sidekey_rest::lease::Source;
use sidekey_rest::testing::takes_no_bad_answer;
use sidekey_rest::{Http, Limits, Proxy, Trust};

use super::*;
use crate::adc::Login;

const HOUR: Duration = Duration::from_secs(3600);
const ALL: [&str; 3] = [ENCRYPT, DECRYPT, LOOK];

/// Wraps and unwraps with a file of credentials.
async fn works(stage: &Stage, file: &Value) -> Result<(), Error> {
    stage.write("credentials.json", &file.to_string());
    let client = connect(&stage.document()).await?;
    let key_id = client.key_id().await?;
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await?;
    assert_eq!(client.decrypt(&sealed, &call()).await?.expose(), PLAINTEXT);
    let kind = file["type"].as_str().unwrap();
    assert!(client.note().unwrap().ends_with(kind), "{:?}", client.note());
    assert!(client.expiry().is_some());
    Ok(())
}

fn login(stage: &Stage) -> Login {
    let (config, files) = read(&stage.document()).unwrap();
    let bundle = config.settings.ca_file.as_deref();
    let refuse = sidekey_core::tls::Unusable::Refuse;
    let trust = Trust::new(bundle, refuse, None, &files, "caFile").unwrap();
    Login::new(&config, &files, &Http::new(&trust, Proxy::default(), Limits::default())).unwrap()
}

/// The credentials of every form, by name, all of them good.
fn forms(stage: &Stage) -> Vec<(&'static str, Value)> {
    let (url, mut service) = (stage.server.url(), stage.service());
    let (subject, principal) = Tokens::subject_token("system:serviceaccount:kube-system:kms", HOUR);
    let robot = "robot@example.iam.gserviceaccount.com";
    for who in [ACCOUNT, "person@example.com", principal.as_str(), robot] {
        service.allow(who, &ALL);
    }
    for who in [principal.as_str(), ACCOUNT] {
        service.tokens.impersonators.insert((who.to_owned(), robot.to_owned()));
    }
    let token = stage.write("token", &format!("{subject}\n"));
    let json = stage.write("token.json", &json!({"value": subject}).to_string());
    service.tokens.subject = json!({"value": subject}).to_string();
    let field = json!({"type": "json", "subject_token_field_name": "value"});
    let account = service.tokens.service_account(ACCOUNT, &url);
    let user = service.tokens.user("person@example.com", &url);
    let tokens = &service.tokens;
    let from_url =
        json!({"url": format!("{url}/subject"), "headers": {"Metadata": "true"}, "format": field});
    vec![
        ("a service account's key", account.clone()),
        ("a person's refresh token", user),
        ("a file, federated", tokens.external(&json!({"file": token}), None, &url)),
        (
            "a file of JSON, federated, impersonating",
            tokens.external(&json!({"file": json, "format": field}), Some(robot), &url),
        ),
        ("an address, federated", tokens.external(&from_url, Some(robot), &url)),
        ("a service account, impersonating", tokens.impersonated(&account, robot, &url)),
    ]
}

#[tokio::test]
async fn credentials_of_every_form_are_taken() {
    let stage = Stage::start().await;
    for (name, file) in forms(&stage) {
        if let Err(error) = works(&stage, &file).await {
            panic!("{name}: {}", error.report());
        }
    }
}

#[tokio::test]
async fn bad_answers_of_no_endpoint_of_tokens_are_taken() {
    let stage = Stage::start().await;
    for (name, file) in forms(&stage) {
        stage.write("credentials.json", &file.to_string());
        let login = login(&stage);
        println!("{name}");
        takes_no_bad_answer(&stage.server, || {}, async || login.fetch(soon()).await.map(drop))
            .await;
    }
}

#[tokio::test]
async fn refused_credentials_are_told_and_not_sent_again() {
    let stage = Stage::start().await;
    stage.service().tokens.accounts.clear();
    let client = stage.connect().await;
    for _ in 0..5 {
        let error = client.key_id().await.unwrap_err();
        assert!(error.kind() == Kind::Denied && error.is_lasting(), "{}", error.report());
        assert!(error.report().contains("invalid_grant"), "{}", error.report());
    }
    assert_eq!(stage.asked("/token"), 1);
    // Whoever may not be the other one is told which right that takes.
    let url = stage.server.url();
    let (subject, _) = Tokens::subject_token("stranger", HOUR);
    let token = stage.write("token", &subject);
    let source = json!({"file": token});
    let file = stage.service().tokens.external(&source, Some("robot@example.com"), &url);
    let error = works(&stage, &file).await.unwrap_err();
    assert!(error.kind() == Kind::Denied && error.is_lasting(), "{}", error.report());
    assert!(error.report().contains("workloadIdentityUser"), "{}", error.report());
    let stale = Tokens::subject_token("stranger", Duration::ZERO).0;
    stage.write("token", &stale);
    let error = works(&stage, &file).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(!error.report().contains(&stale));
}

#[tokio::test]
async fn a_token_that_is_no_longer_taken_is_replaced_once() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    stage.service().tokens.revoke();
    // It is fresh: another one would be refused for the same reason.
    let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
    assert_eq!((error.kind(), stage.asked("/token")), (Kind::Denied, 1));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    // The attempt ends with that, and core makes the next one.
    assert!(client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err().is_mended());
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(stage.asked("/token"), 2);
}

#[tokio::test]
async fn keys_with_the_same_credentials_share_one_token() {
    let stage = Stage::start().await;
    let other = stage.service().create_key("other");
    let mut document = stage.document();
    document["kek"]["key"] = other.into();
    let (one, two) = (stage.connect().await, connect(&document).await.unwrap());
    assert_ne!(one.key_id().await.unwrap(), two.key_id().await.unwrap());
    assert_eq!(stage.asked("/token"), 1);
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_and_nothing_of_them_is_shown() {
    let stage = Stage::start().await;
    let url = stage.server.url();
    let account = stage.service().tokens.service_account(ACCOUNT, &url);
    let with = |name: &str, value: Value| {
        let mut file = account.clone();
        file[name] = value;
        file.to_string()
    };
    let mut twice = stage.service().tokens.impersonated(&account, "robot", &url);
    twice["source_credentials"]["service_account_impersonation_url"] =
        twice["service_account_impersonation_url"].clone();
    let source = |source: Value| stage.service().tokens.external(&source, None, &url).to_string();
    for text in [
        "hunter2".to_owned(),
        "[]".into(),
        "{}".into(),
        r#"{"type": "service_account", "private_key": 7}"#.into(),
        with("type", "gdch_service_account".into()),
        with("private_key", "hunter2".into()),
        with("private_key", "aHVudGVyMg==".into()),
        with("token_uri", "http://far.example/token".into()),
        with("token_uri", "hunter".into()),
        source(json!({})),
        source(json!({"executable": {"command": "/bin/x"}})),
        source(json!({"environment_id": "aws1"})),
        source(json!({"url": "http://far.example/token"})),
        json!({"type": "impersonated_service_account"}).to_string(),
        twice.to_string(),
    ] {
        stage.write("credentials.json", &text);
        let error = connect(&stage.document()).await.err().unwrap();
        assert_eq!(error.kind(), Kind::Config, "{text}: {}", error.report());
        let said = error.report();
        assert!(error.hint().is_some() && !said.contains("hunter2"), "{said}");
        assert!(!said.contains("aHVudGVy"), "{said}");
    }
    // What is near may be asked in plain text.
    stage.write("credentials.json", &source(json!({"url": "http://169.254.169.254/token"})));
    assert!(connect(&stage.document()).await.is_ok());
}
