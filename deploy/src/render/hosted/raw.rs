//! `secretEncryption` as it is written: every field optional, so that one mistake hides no other.

use serde::Deserialize;
use serde_json::Value;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawEncryption {
    pub(super) r#type: Option<String>,
    pub(super) kms: Option<RawKms>,
    pub(super) aescbc: Option<RawAescbc>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawKms {
    pub(super) provider: Option<String>,
    pub(super) ibmcloud: Option<RawIbm>,
    pub(super) aws: Option<RawAws>,
    pub(super) azure: Option<RawAzure>,
    /// HyperShift has none; others have proposed it.
    pub(super) gcp: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawName {
    pub(super) name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawAescbc {
    pub(super) active_key: Option<RawName>,
    pub(super) backup_key: Option<RawName>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawAws {
    pub(super) region: Option<String>,
    pub(super) active_key: Option<RawArn>,
    pub(super) backup_key: Option<RawArn>,
    pub(super) auth: Option<RawAwsAuth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawArn {
    pub(super) arn: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawAwsAuth {
    pub(super) aws_kms: Option<String>,
    /// What it is called in some descriptions.
    #[serde(rename = "awsKMSRoleARN")]
    pub(super) role_arn: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawAzure {
    pub(super) active_key: Option<RawAzureKey>,
    pub(super) backup_key: Option<RawAzureKey>,
    pub(super) kms: Option<RawIdentity>,
    pub(super) workload_identity: Option<RawIdentity>,
    pub(super) key_vault_type: Option<String>,
    pub(super) key_vault_access: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIdentity {
    #[serde(rename = "clientID")]
    pub(super) client: Option<String>,
    pub(super) object_encoding: Option<String>,
    pub(super) credentials_secret_name: Option<String>,
    /// What HyperShift had in the place of `credentialsSecretName` once.
    pub(super) certificate_name: Option<Value>,
    #[serde(rename = "tenantID")]
    pub(super) tenant: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawAzureKey {
    pub(super) key_vault_name: Option<String>,
    pub(super) key_name: Option<String>,
    pub(super) key_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIbm {
    pub(super) region: Option<String>,
    pub(super) auth: Option<RawIbmAuth>,
    pub(super) key_list: Option<Vec<Option<RawIbmKey>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawIbmAuth {
    pub(super) r#type: Option<String>,
    pub(super) unmanaged: Option<RawUnmanaged>,
    pub(super) managed: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawUnmanaged {
    pub(super) credentials: Option<RawName>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawIbmKey {
    #[serde(rename = "crkID")]
    pub(super) crk: Option<String>,
    #[serde(rename = "instanceID")]
    pub(super) instance: Option<String>,
    #[serde(rename = "correlationID")]
    pub(super) correlation: Option<String>,
    pub(super) url: Option<String>,
    pub(super) key_version: Option<i64>,
}
