//! AWS, as far as it can be had here: moto (KMS, STS, instance metadata; what
//! it lacks is simulated by `e2e/python/aws.py`) and local-kms, a second
//! implementation of KMS; and `sidekey-aws` as a process under test.

mod local_kms;
mod moto;
mod plugin;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::http::HttpClient;
use crate::python::{self, Python};

pub use local_kms::LocalKms;
pub use moto::{KmsFault, Moto};
pub use plugin::{AwsPlugin, PROGRAM};

/// Installs moto, so that no test waits for it.
pub async fn install() -> Result<()> {
    Python::with(&python::MOTO).await.map(drop)
}

/// The region of everything that says no other.
pub const REGION: &str = "us-east-1";

/// The account of everything.
pub const ACCOUNT: &str = "123456789012";

/// The access key with which the tests themselves call; it is never refused.
const HARNESS: &str = "harness";

/// The owner of the keys: calls KMS directly, as the AWS console would.
#[derive(Clone, Debug)]
pub struct KmsOwner {
    address: SocketAddr,
    region: String,
}

impl KmsOwner {
    fn new(address: SocketAddr) -> Self {
        Self { address, region: REGION.to_owned() }
    }

    /// The same in another region.
    pub fn in_region(&self, region: &str) -> Self {
        Self { address: self.address, region: region.to_owned() }
    }

    /// Any operation, such as `DescribeKey`.
    pub async fn call(&self, operation: &str, body: Value) -> Result<Value> {
        let region = &self.region;
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={HARNESS}/20260101/{region}/kms/aws4_request, \
             SignedHeaders=host, Signature=none"
        );
        let target = format!("TrentService.{operation}");
        let headers = [("authorization", authorization.as_str()), ("x-amz-target", &target)];
        // moto closes each connection after its answer: none can be kept.
        let http = HttpClient::plain(self.address);
        let answer = http.send_with(Method::POST, "/", &headers, Some(&body)).await?;
        let answer = answer.ok().with_context(|| format!("{operation} {body}"))?;
        if answer.body.is_empty() { Ok(Value::Null) } else { answer.json() }
    }

    /// A new symmetric key; tells its ARN.
    pub async fn create_key(&self) -> Result<String> {
        self.create_key_with(json!({})).await
    }

    /// A new key with more said about it, such as `{"MultiRegion": true}`.
    pub async fn create_key_with(&self, more: Value) -> Result<String> {
        let mut body = json!({"KeyUsage": "ENCRYPT_DECRYPT", "KeySpec": "SYMMETRIC_DEFAULT"});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let made = self.call("CreateKey", body).await?;
        text(&made["KeyMetadata"]["Arn"])
    }

    /// Makes new key material, as RotateKeyOnDemand and the yearly rotation do; tells its id.
    pub async fn rotate(&self, arn: &str) -> Result<String> {
        let before = self.material_id(arn).await?;
        self.call("RotateKeyOnDemand", json!({"KeyId": arn})).await?;
        let after = self.material_id(arn).await?;
        ensure!(before != after, "the material of {arn} is still {before}");
        Ok(after)
    }

    /// The id of the key's current material.
    pub async fn material_id(&self, arn: &str) -> Result<String> {
        let told = self.call("DescribeKey", json!({"KeyId": arn})).await?;
        text(&told["KeyMetadata"]["CurrentKeyMaterialId"])
    }

    /// DisableKey, EnableKey and the like.
    pub async fn change_state(&self, operation: &str, arn: &str) -> Result<()> {
        // moto takes the bare id alone here.
        let id = arn.rsplit('/').next().unwrap_or(arn);
        let mut body = json!({"KeyId": id});
        if operation == "ScheduleKeyDeletion" {
            body["PendingWindowInDays"] = 7.into();
        }
        self.call(operation, body).await.map(drop)
    }

    /// Points an alias at a key; makes it if it is not there.
    pub async fn alias(&self, name: &str, arn: &str) -> Result<()> {
        let id = arn.rsplit('/').next().unwrap_or(arn);
        let body = json!({"AliasName": name, "TargetKeyId": id});
        match self.call("UpdateAlias", body.clone()).await {
            Ok(_) => Ok(()),
            Err(_) => self.call("CreateAlias", body).await.map(drop),
        }
    }

    /// What KMS itself answers to Encrypt.
    pub async fn encrypt(
        &self,
        arn: &str,
        plaintext: &[u8],
        context: &[(&str, &str)],
    ) -> Result<Vec<u8>> {
        let body = json!({
            "KeyId": arn, "Plaintext": STANDARD.encode(plaintext), "EncryptionContext": map(context)
        });
        let answer = self.call("Encrypt", body).await?;
        Ok(STANDARD.decode(text(&answer["CiphertextBlob"])?)?)
    }

    /// What KMS itself answers to Decrypt.
    pub async fn decrypt(
        &self,
        arn: &str,
        ciphertext: &[u8],
        context: &[(&str, &str)],
    ) -> Result<Vec<u8>> {
        let body = json!({
            "KeyId": arn, "CiphertextBlob": STANDARD.encode(ciphertext),
            "EncryptionContext": map(context)
        });
        let answer = self.call("Decrypt", body).await?;
        Ok(STANDARD.decode(text(&answer["Plaintext"])?)?)
    }
}

fn map(context: &[(&str, &str)]) -> Map<String, Value> {
    context.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("KMS answered {value}"))?.to_owned())
}
