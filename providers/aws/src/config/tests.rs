use serde_json::{Value, json};

use super::*;

const A: &str = "arn:aws:kms:us-east-1:111122223333:key/aaaaaaaa-12ab-34cd-56ef-1234567890ab";

fn read(value: Value) -> Config {
    serde_json::from_value(value).unwrap()
}

fn mistakes(value: Value) -> Vec<String> {
    let mut problems = Problems::default();
    read(value).check(&mut problems);
    problems.iter().map(|problem| problem.path.clone()).collect()
}

#[test]
fn the_region_comes_from_the_key_unless_it_is_set() {
    assert_eq!(read(json!({"kek": {"key": A}})).region().as_deref(), Some("us-east-1"));
    assert_eq!(read(json!({"kek": {"key": "alias/x"}})).region(), None);
    let replica = json!({"kek": {
        "key": "arn:aws:kms:us-east-1:111122223333:key/mrk-1", "region": "eu-west-1",
    }});
    assert!(mistakes(replica.clone()).is_empty());
    assert_eq!(read(replica).region().as_deref(), Some("eu-west-1"));
    assert_eq!(mistakes(json!({"kek": {"key": A, "region": "eu-west-1"}})), ["kek.region"]);
}

#[test]
fn every_mistake_is_found_at_once() {
    let found = mistakes(json!({
        "kek": {"key": "no key", "encryptionContext": {"a": "x".repeat(9000)}},
        "settings": {
            "endpoint": "kms.example.com", "stsEndpoint": "ftp://x", "sourceArn": "x",
            "caBundle": "ca.pem", "connectTimeout": "0s", "attemptTimeout": 5,
        },
        "credentials": {
            "sharedCredentialsFile": "creds", "webIdentityTokenFile": "/token",
            "secretAccessKeyFile": "/secret", "externalId": "x",
        },
    }));
    let expected = [
        "kek.key",
        "kek.encryptionContext",
        "settings.endpoint",
        "settings.stsEndpoint",
        "settings.sourceArn",
        "settings.caBundle",
        "settings.connectTimeout",
        "settings.attemptTimeout",
        "credentials.sharedCredentialsFile",
        "credentials.webIdentityTokenFile",
        "credentials.roleArn",
        "credentials.accessKeyIdFile",
        "credentials.externalId",
    ];
    assert_eq!(found, expected);
    assert_eq!(mistakes(json!({})), ["kek.key"]);
}

#[test]
fn hypershifts_variables_lead_to_the_credentials_and_to_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let (shared, token) = (directory.path().join("credentials"), directory.path().join("token"));
    let text = format!("[default]\nrole_arn = x\nweb_identity_token_file = {}\n", token.display());
    std::fs::write(&shared, text).unwrap();
    std::fs::write(&token, "token").unwrap();
    let config = read(json!({"credentials": {"sharedCredentialsFile": shared}}));
    let environment = Environment::of(|_| None);
    let files = config.files(&environment);
    assert_eq!(files.first(), Some(&shared));
    assert_eq!(files.len(), 1);
    let read = Files::read(files.iter().map(PathBuf::as_path)).unwrap();
    assert_eq!(config.named_files(&read, &environment), [token]);
}

#[test]
fn where_there_are_no_profiles_nothing_is_named_and_nothing_breaks() {
    let (files, environment) = (Files::read([]).unwrap(), Environment::of(|_| None));
    assert!(read(json!({})).named_files(&files, &environment).is_empty());
    let profiles = read(json!({})).profiles(&files, &environment).unwrap();
    assert!(!profiles.has_credentials() && profiles.web_identity().is_none());
}

#[test]
fn variables_count_only_where_no_credentials_are_configured() {
    let environment = Environment::of(|name| match name {
        "AWS_SHARED_CREDENTIALS_FILE" => Some("/aws/credentials".into()),
        "AWS_WEB_IDENTITY_TOKEN_FILE" => Some("/token".into()),
        "AWS_CA_BUNDLE" => Some("/ca.pem".into()),
        _ => None,
    });
    let files = |value| {
        let files = read(value).files(&environment).into_iter();
        files.map(|path| path.display().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(files(json!({})), ["/aws/credentials", "/token", "/ca.pem"]);
    let own = json!({
        "settings": {"caBundle": "/own.pem"},
        "credentials": {"webIdentityTokenFile": "/own", "roleArn": "x"},
    });
    assert_eq!(files(own), ["/own", "/own.pem"]);
    let keys = Environment::of(|name| match name {
        "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("x".into()),
        _ => None,
    });
    assert!(read(json!({})).files(&keys).is_empty());
}

#[test]
fn plain_text_leaves_the_machine_only_where_that_is_allowed() {
    let with = |url: &str, allowed: bool| {
        let settings = json!({"endpoint": url, "stsEndpoint": url, "allowPlaintext": allowed});
        mistakes(json!({"kek": {"key": A}, "settings": settings}))
    };
    assert_eq!(with("http://kms.example", false), ["settings.endpoint", "settings.stsEndpoint"]);
    assert!(with("http://kms.example", true).is_empty());
    assert!(with("http://127.0.0.1:5000", false).is_empty());
    assert!(with("https://kms.example", false).is_empty());
}
