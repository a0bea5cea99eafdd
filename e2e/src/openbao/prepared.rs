//! What the provider's README asks an operator to prepare in Vault.

use anyhow::Result;
use serde_json::json;

use super::OpenBao;
use super::auth::AppRole;
use super::client::TransitKey;

/// A key of the transit engine, and a role that may use it and nothing else.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// `kms` at the mount `transit`.
    pub key: TransitKey,
    /// `kms` at the mount `approle`.
    pub role: AppRole,
}

impl OpenBao {
    /// Prepares a fresh server: engine, key, policy, login method, role.
    pub async fn prepare(&self) -> Result<Prepared> {
        let root = self.root();
        root.enable("transit", "transit").await?;
        root.enable_auth("approle", "approle").await?;
        let key = root.make_key("transit", "kms").await?;
        let rules: [(&str, &[&str]); 3] = [
            ("transit/keys/kms", &["read"]),
            ("transit/encrypt/kms", &["update"]),
            ("transit/decrypt/kms", &["update"]),
        ];
        root.policy("kms", &rules).await?;
        let role = AppRole::create(&root, "approle", "kms", &["kms"], &json!({})).await?;
        Ok(Prepared { key, role })
    }
}
