//! The ways to log in, made ready by an operator.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::client::Bao;

/// One AppRole.
#[derive(Clone, Debug)]
pub struct AppRole {
    bao: Bao,
    path: String,
    /// What is public of it.
    pub role_id: String,
}

impl AppRole {
    /// Makes a role at a mounted AppRole method; `options` such as `token_ttl`
    /// are added to its policies.
    pub async fn create(
        bao: &Bao,
        mount: &str,
        name: &str,
        policies: &[&str],
        options: &Value,
    ) -> Result<Self> {
        let path = format!("auth/{mount}/role/{name}");
        bao.write(&path, &with_policies(options, policies)).await?;
        let answer = bao.read(&format!("{path}/role-id")).await?;
        let role_id = text(&answer["data"]["role_id"]).context("no role_id")?;
        Ok(Self { bao: bao.clone(), path, role_id })
    }

    /// Whoever logs in from now on has these policies.
    pub async fn give(&self, policies: &[&str]) -> Result<()> {
        self.bao.write(&self.path, &with_policies(&json!({}), policies)).await.map(drop)
    }

    /// A new secret-id.
    pub async fn secret_id(&self) -> Result<String> {
        let answer = self.bao.write(&format!("{}/secret-id", self.path), &json!({})).await?;
        text(&answer["data"]["secret_id"]).context("no secret_id")
    }

    /// A new secret-id in a wrapping: the token with which it is fetched once.
    pub async fn wrapped_secret_id(&self, ttl: &str) -> Result<String> {
        self.bao.write_wrapped(&format!("{}/secret-id", self.path), &json!({}), ttl).await
    }

    /// That secret-id opens nothing any more, and tokens got by it stay.
    pub async fn revoke(&self, secret_id: &str) -> Result<()> {
        let order = json!({"secret_id": secret_id});
        self.bao.write(&format!("{}/secret-id/destroy", self.path), &order).await.map(drop)
    }

    /// The mount's login path.
    pub fn login_path(&self) -> String {
        let mount = self.path.split("/role/").next().unwrap_or_default();
        format!("{mount}/login")
    }
}

impl Bao {
    /// Makes a token; `options` such as `ttl` or `period` are added.
    pub async fn make_token(&self, policies: &[&str], options: &Value) -> Result<String> {
        let mut order = options.clone();
        order["policies"] = json!(policies);
        let answer = self.write("auth/token/create", &order).await?;
        text(&answer["auth"]["client_token"]).context("no client_token")
    }

    /// Ends a token at once.
    pub async fn revoke_token(&self, token: &str) -> Result<()> {
        self.write("auth/token/revoke", &json!({"token": token})).await.map(drop)
    }

    /// Ends every token that was given by a login at this mount; tells how
    /// many there were.
    pub async fn revoke_logins(&self, mount: &str) -> Result<usize> {
        let path = format!("sys/leases/lookup/auth/{mount}/login");
        let listed = self.call(hyper::Method::from_bytes(b"LIST")?, &path, None).await?;
        let count = match listed.status {
            404 => 0,
            _ => listed.ok()?.json()?["data"]["keys"].as_array().map_or(0, Vec::len),
        };
        let order = format!("sys/leases/revoke-prefix/auth/{mount}/login");
        self.write(&order, &json!({"sync": true})).await?;
        Ok(count)
    }

    /// Makes a role of a mounted TLS certificate method for those whose
    /// certificate this authority signed.
    pub async fn certificate_role(
        &self,
        mount: &str,
        name: &str,
        authority: &str,
        policies: &[&str],
    ) -> Result<()> {
        let role = with_policies(&json!({"certificate": authority}), policies);
        self.write(&format!("auth/{mount}/certs/{name}"), &role).await.map(drop)
    }

    /// Makes a role of a mounted JWT method: tokens signed by this key, for
    /// this audience, with that subject.
    pub async fn jwt_role(
        &self,
        mount: &str,
        name: &str,
        public_key: &str,
        audience: &str,
        subject: &str,
        policies: &[&str],
    ) -> Result<()> {
        let config = json!({"jwt_validation_pubkeys": [public_key]});
        self.write(&format!("auth/{mount}/config"), &config).await?;
        let role = json!({
            "role_type": "jwt", "user_claim": "sub",
            "bound_audiences": [audience], "bound_subject": subject,
        });
        let role = with_policies(&role, policies);
        self.write(&format!("auth/{mount}/role/{name}"), &role).await.map(drop)
    }
}

fn with_policies(options: &Value, policies: &[&str]) -> Value {
    let mut role = options.clone();
    role["token_policies"] = json!(policies);
    role
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}
