//! Keys of the three vendors, as a SecretEncryption names them, with a backend for each.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};

use super::Managed;
use crate::cluster::Exposed;
use crate::local::PROGRAM;
use crate::openbao::Prepared;
use crate::openbao::auth::AppRole;
use crate::openbao::client::TransitKey;
use crate::{LocalPlugin, OpenBao, binaries};

/// The Secret with the credentials of the AWS provider.
const AWS_SECRET: &str = "aws-keys";
const VAULT_SECRET: &str = "vault-keys";
const LOCAL_SECRET: &str = "local-keys";

/// The role that tokens are for, and where providers find theirs.
const ROLE: &str = "arn:aws:iam::123456789012:role/kms";
const TOKEN_FILE: &str = "/var/run/secrets/openshift/serviceaccount/token";

/// The policy of whoever may ask Vault for a new version.
const MORE_VERSIONS: &str = "kms-rotate";

/// Servers that were started: each has a directory of its own.
static SERVERS: AtomicU32 = AtomicU32::new(0);

/// Keys of the simulated AWS, and an access key that may use them.
#[derive(Clone, Debug)]
pub struct AwsKeys {
    url: String,
    /// Their ARNs.
    pub arns: Vec<String>,
}

impl AwsKeys {
    /// So many keys, and one access key, in a Secret of this namespace: the HostedCluster's, or the
    /// control plane's where there is none.
    pub async fn create(managed: &Managed, namespace: &str, count: usize) -> Result<Self> {
        let owner = managed.hosted.moto.owner();
        let mut arns = Vec::new();
        for _ in 0..count {
            arns.push(owner.create_key().await?);
        }
        let keys = Self { url: managed.hosted.aws_url(), arns };
        keys.admit(managed, "first").await?;
        keys.put_credentials(managed, namespace, "first").await?;
        Ok(keys)
    }

    /// Lets AWS know no access key at all: whoever comes must have a web identity token.
    pub async fn admit_tokens_alone(&self, managed: &Managed) -> Result<()> {
        managed.hosted.moto.accept_access_keys(&[]).await?;
        managed.hosted.moto.accept_any_token().await
    }

    /// The web identity tokens that AWS has seen so far, which must be the hosted cluster's own:
    /// it says so itself.
    pub async fn reviewed_tokens(&self, managed: &Managed) -> Result<BTreeSet<String>> {
        let sessions = managed.hosted.moto.sessions().await?;
        let tokens: BTreeSet<String> = sessions.into_values().collect();
        let client = managed.hosted.service()?;
        for token in &tokens {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                "spec": {"token": token, "audiences": ["openshift"]},
            });
            let path = "/apis/authentication.k8s.io/v1/tokenreviews";
            let said = client.send(Method::POST, path, Some(&review)).await?;
            let status = &said["status"];
            let user = &status["user"]["username"];
            ensure!(status["authenticated"] == true, "{status}");
            ensure!(*user == "system:serviceaccount:kube-system:kms-provider", "{status}");
        }
        Ok(tokens)
    }

    /// Lets AWS know an access key of this name, and no other.
    pub async fn admit(&self, managed: &Managed, name: &str) -> Result<()> {
        managed.hosted.moto.check_signatures(name, &secret_of(name)).await?;
        managed.hosted.moto.accept_access_keys(&[name]).await
    }

    /// Lets AWS know several.
    pub async fn admit_both(&self, managed: &Managed, names: [&str; 2]) -> Result<()> {
        for name in names {
            managed.hosted.moto.check_signatures(name, &secret_of(name)).await?;
        }
        managed.hosted.moto.accept_access_keys(&names).await
    }

    /// Writes the credentials that providers log in with.
    pub async fn put_credentials(
        &self,
        managed: &Managed,
        namespace: &str,
        name: &str,
    ) -> Result<()> {
        let secret = secret_of(name);
        let data = [("access-key-id", name), ("secret-access-key", secret.as_str())];
        managed.put_secret_in(namespace, AWS_SECRET, &data).await
    }

    /// Where AWS is. How to log in is the HostedCluster's own role.
    pub fn place(&self) -> Value {
        json!({"vendors": {"aws": {"settings": self.address()}}})
    }

    /// What a HostedCluster has no field for: where AWS is, and how to log in otherwise than with
    /// its role.
    pub fn settings(&self) -> Value {
        json!({"vendors": {"aws": self.reached()}})
    }

    /// The key of this number in a SecretEncryption; `index` counts the ARNs.
    pub fn key(&self, id: u64, index: usize) -> Value {
        self.key_of(id, &self.arns[index])
    }

    /// The same for any ARN.
    pub fn key_of(&self, id: u64, arn: &str) -> Value {
        let mut key = self.reached();
        key["id"] = id.into();
        key["type"] = "aws".into();
        key["kek"] = json!({"key": arn});
        key
    }

    /// The same key, with a role to log in to: the provider has a token of the hosted cluster.
    pub fn key_with_role(&self, id: u64, index: usize) -> Value {
        json!({
            "id": id, "type": "aws", "kek": {"key": self.arns[index]},
            "settings": self.address(),
            "credentials": {"roleArn": ROLE, "webIdentityTokenFile": TOKEN_FILE},
        })
    }

    /// The simulated AWS has no certificate, and is outside of the pods.
    fn address(&self) -> Value {
        json!({"endpoint": self.url, "stsEndpoint": self.url, "allowPlaintext": true})
    }

    fn reached(&self) -> Value {
        let file = |name: &str| json!({"name": name, "secret": {"name": AWS_SECRET, "key": name}});
        json!({
            "settings": {"endpoint": self.url, "allowPlaintext": true},
            "credentials": {
                "accessKeyIdFile": "/etc/sidekey/access-key-id",
                "secretAccessKeyFile": "/etc/sidekey/secret-access-key",
            },
            "files": [file("access-key-id"), file("secret-access-key")],
        })
    }
}

fn secret_of(access_key: &str) -> String {
    format!("secret of {access_key}")
}

/// A key of OpenBao's transit engine, in a real server that pods reach.
pub struct VaultKey {
    exposed: Exposed,
    role: AppRole,
    /// The key itself.
    pub key: TransitKey,
    /// The server.
    pub bao: OpenBao,
}

impl VaultKey {
    /// A server, a key in it, and a role that may use it, with its secret-id in a Secret.
    pub async fn create(managed: &Managed) -> Result<Self> {
        let scratch = &managed.hosted.cluster.ground().plane().scratch;
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let bao = OpenBao::start(scratch, &format!("bao-{number}")).await?;
        let Prepared { key, role } = bao.prepare().await?;
        // For `autoRotation`.
        bao.root().policy(MORE_VERSIONS, &[("transit/keys/kms/rotate", &["update"])]).await?;
        role.give(&["kms", MORE_VERSIONS]).await?;
        let exposed = managed.hosted.cluster.expose(bao.socket_address()).await?;
        let (ca, secret_id) = (bao.authority().pem(), role.secret_id().await?);
        let data = [("vault-ca.crt", ca.as_str()), ("secret-id", &secret_id)];
        managed.put_secret_in(managed.namespace(), VAULT_SECRET, &data).await?;
        Ok(Self { exposed, role, key, bao })
    }

    /// The key of this number in a SecretEncryption.
    pub fn key(&self, id: u64) -> Value {
        let file =
            |name: &str| json!({"name": name, "secret": {"name": VAULT_SECRET, "key": name}});
        let tls = json!({"caFile": "/etc/sidekey/vault-ca.crt", "serverName": "localhost"});
        json!({
            "id": id, "type": "vault", "kek": {"keyPath": self.key.key_path()},
            "settings": {"address": format!("https://{}", self.exposed.address()), "tls": tls},
            "credentials": {"appRole": {
                "roleId": self.role.role_id, "secretIdFile": "/etc/sidekey/secret-id",
            }},
            "files": [file("vault-ca.crt"), file("secret-id")],
        })
    }
}

impl VaultKey {
    /// The same key as `spec.encryption.kms.vault` of an APIServer, with the objects that it refers
    /// to. The image there is of OpenShift's own plugin, which nothing pulls here.
    pub async fn of_api_server(&self, managed: &Managed) -> Result<Value> {
        let (namespace, client) = ("openshift-config", managed.hosted.cluster.client());
        let made =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        client.apply(&made).await?;
        let data = json!({"ca-bundle.crt": self.bao.authority().pem()});
        let metadata = json!({"name": "vault-ca", "namespace": namespace});
        let bundle =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        client.apply(&bundle).await?;
        let secret_id = self.role.secret_id().await?;
        let login = [("role-id", self.role.role_id.as_str()), ("secret-id", &secret_id)];
        managed.put_secret_in(namespace, "vault-role", &login).await?;
        Ok(json!({
            "kmsPluginImage": format!("registry.example/vault-kms@sha256:{}", "0".repeat(64)),
            "vaultAddress": format!("https://{}", self.exposed.address()),
            "vaultKeyPath": self.key.key_path(),
            "tls": {"caBundle": {"name": "vault-ca"}, "serverName": "localhost"},
            "authentication": {"type": "AppRole", "appRole": {"secret": {"name": "vault-role"}}},
        }))
    }
}

/// A key in a file, which a Secret has.
#[derive(Clone, Debug)]
pub struct LocalKey {
    name: String,
    lineage: String,
}

impl LocalKey {
    /// A new one; `name` tells it from others.
    pub async fn create(managed: &Managed, name: &str) -> Result<Self> {
        let dir = managed.dir.join(format!("local-{name}"));
        std::fs::create_dir_all(&dir)?;
        let plugin = LocalPlugin::in_directory(&dir, name, &dir.join("key")).await?;
        let path = plugin.key_file().display().to_string();
        let show = ["show", "--key-file", path.as_str(), "-o", "json"];
        let said = binaries::run(PROGRAM, &show).await?.ok()?;
        let shown: Value = serde_json::from_str(&said.stdout).context("no JSON")?;
        let lineage = shown["lineage"].as_str().with_context(|| format!("no lineage: {shown}"))?;
        let text = std::fs::read_to_string(plugin.key_file())?;
        let secret = format!("{LOCAL_SECRET}-{name}");
        managed.put_secret_in(managed.namespace(), &secret, &[(name, &text)]).await?;
        Ok(Self { name: name.to_owned(), lineage: lineage.to_owned() })
    }

    /// The key of this number in a SecretEncryption.
    pub fn key(&self, id: u64) -> Value {
        let name = &self.name;
        json!({
            "id": id, "type": "local", "kek": {"lineage": self.lineage},
            "credentials": {"keyFile": format!("/etc/sidekey/{name}")},
            "files": [{
                "name": name, "secret": {"name": format!("{LOCAL_SECRET}-{name}"), "key": name},
            }],
        })
    }
}
