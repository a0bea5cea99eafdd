use serde_json::{Value, json};

use super::*;

async fn start(kind: FakeKind) -> HttpClient {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(kind, listener));
    HttpClient::plain(address)
}

async fn kms(fake: &HttpClient, operation: &str, body: Value) -> (u16, Value) {
    let target = format!("TrentService.{operation}");
    let headers = [("authorization", "AWS4-HMAC-SHA256 x"), ("x-amz-target", target.as_str())];
    let answer = fake.send_with(hyper::Method::POST, "/", &headers, Some(&body)).await.unwrap();
    (answer.status, answer.json().unwrap())
}

async fn vault(fake: &HttpClient, path: &str, body: Value) -> (u16, Value) {
    let headers = [("x-vault-token", "fake-token")];
    let answer = fake.send_with(hyper::Method::POST, path, &headers, Some(&body)).await.unwrap();
    (answer.status, answer.json().unwrap())
}

#[tokio::test]
async fn the_fake_kms_gives_back_what_it_was_given_and_counts() {
    let fake = start(FakeKind::Aws).await;
    let (_, described) = kms(&fake, "DescribeKey", json!({"KeyId": AWS_KEYS[1]})).await;
    let (_, wrapped) =
        kms(&fake, "Encrypt", json!({"KeyId": AWS_KEYS[1], "Plaintext": "c2VjcmV0"})).await;
    let ciphertext = json!({"KeyId": AWS_KEYS[1], "CiphertextBlob": wrapped["CiphertextBlob"]});
    let (status, back) = kms(&fake, "Decrypt", ciphertext.clone()).await;
    assert_eq!((status, &back["Plaintext"]), (200, &json!("c2VjcmV0")));
    assert_eq!(back["KeyMaterialId"], described["KeyMetadata"]["CurrentKeyMaterialId"]);
    let calls = Calls::of(fake.address()).await.unwrap();
    for operation in ["DescribeKey", ENCRYPT, DECRYPT] {
        assert_eq!(calls.count(operation), 1, "{calls:?}");
    }
    let recorded = Recorded::last(&fake).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&recorded.body).unwrap(), ciphertext);
    assert_eq!(serde_json::from_str::<Value>(&recorded.answer).unwrap(), back);
    assert!(recorded.headers.iter().any(|(name, _)| name == "x-amz-target"), "{recorded:?}");
}

#[tokio::test]
async fn the_fake_kms_refuses_what_it_does_not_understand() {
    let fake = start(FakeKind::Aws).await;
    let (_, wrapped) =
        kms(&fake, "Encrypt", json!({"KeyId": AWS_KEYS[0], "Plaintext": "c2VjcmV0"})).await;
    let other = json!({"KeyId": AWS_KEYS[1], "CiphertextBlob": wrapped["CiphertextBlob"]});
    assert_eq!(kms(&fake, "Decrypt", other).await.1["__type"], "IncorrectKeyException");
    let alien = json!({"KeyId": AWS_KEYS[1], "CiphertextBlob": "c2VjcmV0"});
    assert_eq!(kms(&fake, "Decrypt", alien).await.1["__type"], "InvalidCiphertextException");
    let missing = kms(&fake, "DescribeKey", json!({"KeyId": "x"})).await;
    assert_eq!((missing.0, &missing.1["__type"]), (400, &json!("NotFoundException")));
    assert_eq!(fake.post("/", &json!({})).await.unwrap().status, 400, "not signed");
    let calls = Calls::of(fake.address()).await.unwrap();
    assert_eq!((calls.count(REFUSED), calls.count(DECRYPT)), (4, 0), "{calls:?}");
}

#[tokio::test]
async fn the_fake_vault_gives_back_what_it_was_given_and_counts() {
    let fake = start(FakeKind::Vault).await;
    let login = json!({"role_id": ROLE_ID, "secret_id": SECRET_ID});
    let login = fake.post("/v1/auth/approle/login", &login).await.unwrap();
    assert_eq!(login.json().unwrap()["auth"]["client_token"], "fake-token");
    let before = Calls::of(fake.address()).await.unwrap();
    let (_, wrapped) =
        vault(&fake, "/v1/transit/encrypt/bench", json!({"plaintext": "c2VjcmV0"})).await;
    let one = json!({"ciphertext": wrapped["data"]["ciphertext"]});
    let (_, back) = vault(&fake, "/v1/transit/decrypt/bench", one.clone()).await;
    assert_eq!(back["data"]["plaintext"], "c2VjcmV0");
    let both = json!({"batch_input": [one, one]});
    let (_, back) = vault(&fake, "/v1/transit/decrypt/bench", both).await;
    assert_eq!(back["data"]["batch_results"][1]["plaintext"], "c2VjcmV0");
    let calls = Calls::of(fake.address()).await.unwrap().since(&before);
    assert_eq!((calls.count(ENCRYPT), calls.count(DECRYPT), calls.count("Login")), (1, 2, 0));
}

#[tokio::test]
async fn the_fake_vault_refuses_strangers_and_other_ciphertexts() {
    let fake = start(FakeKind::Vault).await;
    assert_eq!(fake.get("/v1/transit/keys/bench").await.unwrap().status, 403);
    let login = json!({"role_id": ROLE_ID, "secret_id": "wrong"});
    assert_eq!(fake.post("/v1/auth/approle/login", &login).await.unwrap().status, 400);
    let alien = json!({"ciphertext": "vault:v1:c2VjcmV0"});
    assert_eq!(vault(&fake, "/v1/transit/decrypt/bench", alien).await.0, 400);
}
