//! Every vendor there is: its KMS with one key, and its provider in front of it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;
use tonic::async_trait;

use crate::aws::{AwsPlugin, Moto};
use crate::binaries;
use crate::fakes::ibm::{KeyProtect, READER};
use crate::fakes::{Fake, azure};
use crate::gateway::Fault;
use crate::gcp::{self, GcpBackend, GcpPlugin};
use crate::kmip::KmipServer;
use crate::local::LocalPlugin;
use crate::okms::{self, OkmsBackend};
use crate::openbao::OpenBao;
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::sidecar::Sidecar;
use crate::softhsm::{self, SoftHsm};
use crate::vault::VaultPlugin;

/// Starts the KMS of every vendor, by the name of its folder under `providers/`. A new vendor
/// is one line here, and a [`Kms`] below.
pub async fn every(scratch: &Scratch) -> Result<Vec<(&'static str, Box<dyn Kms>)>> {
    Ok(vec![
        ("local", Box::new(Local::start(scratch)?)),
        ("aws", Box::new(Aws::start(scratch).await?)),
        ("azure", Box::new(Azure::key_vault(scratch).await?)),
        // HyperShift forbids this move.
        ("azure", Box::new(Azure::managed_hsm(scratch).await?)),
        ("vault", Box::new(Vault::start(scratch).await?)),
        ("gcp", Box::new(Gcp(GcpBackend::start(scratch).await?))),
        ("ibmcloud", Box::new(IbmCloud::start(scratch).await?)),
        ("kmip", Box::new(Kmip::start(scratch).await?)),
        ("okms", Box::new(Okms(OkmsBackend::start(scratch, "etcd").await?))),
        ("pkcs11", Box::new(Pkcs11::start(scratch).await?)),
    ])
}

/// A vendor's KMS with one key.
#[async_trait(?Send)]
pub trait Kms {
    /// Starts a provider for that key, and waits until it is ready.
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider>;

    /// The KMS is gone from now on, and the key with it.
    fn end(&mut self) -> Result<()>;
}

/// A running provider, whoever's it is.
pub struct Provider {
    sidecar: Box<dyn DerefMut<Target = Sidecar> + Send>,
    /// Where it serves the key, as a shim's configuration writes it.
    pub endpoint: String,
}

impl Deref for Provider {
    type Target = Sidecar;

    fn deref(&self) -> &Sidecar {
        &self.sidecar
    }
}

impl DerefMut for Provider {
    fn deref_mut(&mut self) -> &mut Sidecar {
        &mut self.sidecar
    }
}

/// A key file, which the providers of all nodes share.
struct Local {
    key_file: PathBuf,
}

impl Local {
    fn start(scratch: &Scratch) -> Result<Self> {
        Ok(Self { key_file: scratch.subdir("local")?.join("key") })
    }
}

#[async_trait(?Send)]
impl Kms for Local {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let plugin = LocalPlugin::with_key_file(scratch, name, &self.key_file).await?;
        Ok(Provider { endpoint: plugin.endpoint(), sidecar: Box::new(plugin) })
    }

    fn end(&mut self) -> Result<()> {
        Ok(fs::remove_file(&self.key_file)?)
    }
}

/// moto, reached with the Go plugin's flags.
struct Aws {
    moto: Moto,
    arn: String,
}

impl Aws {
    async fn start(scratch: &Scratch) -> Result<Self> {
        let moto = Moto::start(&scratch.subdir("aws")?).await?;
        let arn = moto.owner().create_key().await?;
        Ok(Self { moto, arn })
    }
}

#[async_trait(?Send)]
impl Kms for Aws {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let plugin = AwsPlugin::start(scratch, name, &self.arn, &self.moto.url()).await?;
        Ok(Provider { endpoint: plugin.endpoint("kms"), sidecar: Box::new(plugin) })
    }

    fn end(&mut self) -> Result<()> {
        self.moto.process().kill()
    }
}

/// A fake of Azure, with one key in a vault or a Managed HSM.
struct Azure {
    host: &'static str,
    fake: Fake<azure::Azure>,
    secret: PathBuf,
}

impl Azure {
    const CLIENT: &str = "99999999-8888-7777-6666-555555555555";

    async fn key_vault(scratch: &Scratch) -> Result<Self> {
        Self::start(scratch, "sidekey-matrix.vault.azure.net", azure::KeyKind::Rsa(2048)).await
    }

    async fn managed_hsm(scratch: &Scratch) -> Result<Self> {
        Self::start(scratch, "sidekey-matrix.managedhsm.azure.net", azure::KeyKind::Aes).await
    }

    async fn start(scratch: &Scratch, host: &'static str, kind: azure::KeyKind) -> Result<Self> {
        let mut service = azure::Azure::new(host);
        service.make("etcd", kind)?;
        service.secret(Self::CLIENT, "a-secret");
        let fake = Fake::start(scratch, host, service).await?;
        let secret = scratch.subdir("azure-client")?.join("secret");
        fs::write(&secret, "a-secret")?;
        Ok(Self { host, fake, secret })
    }
}

#[async_trait(?Send)]
impl Kms for Azure {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let (url, file) = (self.fake.url(), dir.join("config.yaml"));
        let config = json!({"admin": "127.0.0.1:0", "keys": [{
            "id": 1, "type": "azure", "listen": endpoint,
            "kek": {"vault": format!("https://{}", self.host), "key": "etcd"},
            "settings": {"endpoint": url, "authority": url, "caFile": self.fake.ca()},
            "credentials": {
                "tenantId": azure::TENANT, "clientId": Self::CLIENT, "clientSecretFile": self.secret,
            },
        }]});
        fs::write(&file, config.to_string())?;
        let program = binaries::path_async("sidekey-azure").await?;
        let spec = Spec::new(format!("sidekey-azure {name}"), program, dir.join("plugin.log"));
        let config = format!("--config={}", file.display());
        let mut sidecar = Sidecar::start(spec.arg(config).env_clear()).await?;
        sidecar.wait_ready().await?;
        Ok(Provider { endpoint, sidecar: Box::new(Box::new(sidecar)) })
    }

    fn end(&mut self) -> Result<()> {
        self.fake.gateway().inject(Fault::Cut);
        Ok(())
    }
}

/// A real OpenBao over TLS, with AppRole.
struct Vault {
    bao: OpenBao,
    role_id: String,
    secret_id: PathBuf,
}

impl Vault {
    async fn start(scratch: &Scratch) -> Result<Self> {
        let bao = OpenBao::start(scratch, "bao").await?;
        let role = bao.prepare().await?.role;
        let secret_id = scratch.subdir("vault")?.join("secret-id");
        fs::write(&secret_id, role.secret_id().await?)?;
        Ok(Self { bao, role_id: role.role_id, secret_id })
    }
}

#[async_trait(?Send)]
impl Kms for Vault {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let config = json!({"keys": [{
            "id": 1, "type": "vault", "listen": endpoint,
            "kek": {"mount": "transit", "key": "kms"},
            "settings": {"address": self.bao.address(), "tls": {"caFile": self.bao.ca()}},
            "credentials": {"appRole": {"roleId": self.role_id, "secretIdFile": self.secret_id}},
        }]});
        let plugin = VaultPlugin::start(&dir, name, &config).await?;
        Ok(Provider { endpoint, sidecar: Box::new(plugin) })
    }

    fn end(&mut self) -> Result<()> {
        self.bao.process().kill()
    }
}

/// A fake of Cloud KMS, with the key of a service account.
struct Gcp(GcpBackend);

#[async_trait(?Send)]
impl Kms for Gcp {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let config = json!({"keys": [self.0.document(1, &self.0.key, &endpoint)]});
        let program = binaries::path_async(gcp::PROGRAM).await?;
        let mut plugin = GcpPlugin::spawn(&program, &dir, &config, &[]).await?;
        plugin.wait_ready().await?;
        Ok(Provider { endpoint, sidecar: Box::new(plugin) })
    }

    fn end(&mut self) -> Result<()> {
        self.0.fake.gateway().inject(Fault::Cut);
        Ok(())
    }
}

/// A fake Key Protect over TLS, with an API key.
struct IbmCloud {
    fake: Fake<KeyProtect>,
    instance: String,
    key: String,
    api_key: PathBuf,
}

impl IbmCloud {
    async fn start(scratch: &Scratch) -> Result<Self> {
        let mut service = KeyProtect::default();
        let instance = service.instance();
        let key = service.create(&instance);
        let api_key = scratch.subdir("ibmcloud")?.join("api-key");
        fs::write(&api_key, service.api_key(&READER))?;
        let fake = Fake::start(scratch, "key-protect", service).await?;
        Ok(Self { fake, instance, key, api_key })
    }
}

#[async_trait(?Send)]
impl Kms for IbmCloud {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let document = json!({"admin": "127.0.0.1:0", "keys": [{
            "id": 1, "type": "ibmcloud", "listen": endpoint,
            "kek": {"instance": self.instance, "key": self.key},
            "settings": {
                "address": self.fake.url(), "tokenUrl": self.fake.url(), "caFile": self.fake.ca(),
            },
            "credentials": {"apiKeyFile": self.api_key},
        }]});
        let config = dir.join("config.yaml");
        fs::write(&config, document.to_string())?;
        let program = binaries::path_async("sidekey-ibmcloud").await?;
        let name = format!("sidekey-ibmcloud {name}");
        let spec = Spec::new(name, program, dir.join("plugin.log"));
        let mut sidecar = Sidecar::start(spec.arg("--config").arg(config)).await?;
        sidecar.wait_ready().await?;
        // A box leads to its process as the plugins of other vendors do.
        Ok(Provider { endpoint, sidecar: Box::new(Box::new(sidecar)) })
    }

    fn end(&mut self) -> Result<()> {
        self.fake.gateway().inject(Fault::Cut);
        Ok(())
    }
}

/// A KMIP server with one key, which is followed by its name.
struct Kmip(KmipServer);

impl Kmip {
    async fn start(scratch: &Scratch) -> Result<Self> {
        let server = KmipServer::start(scratch, "kmip-server").await?;
        server.create("etcd", json!({})).await?;
        Ok(Self(server))
    }
}

#[async_trait(?Send)]
impl Kms for Kmip {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let kek = json!({"name": "etcd"});
        let mut key = json!({"id": 1, "type": "kmip", "listen": endpoint, "kek": kek});
        self.0.identities().fill(&mut key, &[self.0.address()]);
        let document = json!({"admin": "127.0.0.1:0", "keys": [key]});
        let config = dir.join("config.yaml");
        fs::write(&config, document.to_string())?;
        let program = binaries::path_async("sidekey-kmip").await?;
        let spec = Spec::new(format!("sidekey-kmip {name}"), program, dir.join("plugin.log"));
        let mut sidecar = Sidecar::start(spec.arg("--config").arg(config)).await?;
        sidecar.wait_ready().await?;
        Ok(Provider { endpoint, sidecar: Box::new(Box::new(sidecar)) })
    }

    fn end(&mut self) -> Result<()> {
        self.0.process().kill()
    }
}

/// A fake OKMS over mutual TLS, with a key that is found by its label.
struct Okms(OkmsBackend);

#[async_trait(?Send)]
impl Kms for Okms {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let key = self.0.document(1, &self.0.labelled("etcd"), &endpoint);
        let program = binaries::path_async(okms::PROGRAM).await?;
        let mut sidecar = okms::spawn(&program, &dir, &json!({"keys": [key]})).await?;
        sidecar.wait_ready().await?;
        Ok(Provider { endpoint, sidecar: Box::new(Box::new(sidecar)) })
    }

    fn end(&mut self) -> Result<()> {
        self.0.fake.gateway().inject(Fault::Cut);
        Ok(())
    }
}

/// A token of SoftHSM with an AES key.
struct Pkcs11(SoftHsm);

impl Pkcs11 {
    async fn start(scratch: &Scratch) -> Result<Self> {
        let hsm = SoftHsm::start(scratch, "softhsm").await?;
        hsm.make_aes("etcd", "01", 32).await?;
        Ok(Self(hsm))
    }
}

#[async_trait(?Send)]
impl Kms for Pkcs11 {
    async fn provider(&self, scratch: &Scratch, name: &str) -> Result<Provider> {
        let dir = scratch.subdir(name)?;
        let endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let config = dir.join("config.yaml");
        let entry = self.0.entry(1, "etcd", &endpoint);
        fs::write(&config, json!({"admin": "127.0.0.1:0", "keys": [entry]}).to_string())?;
        let program = binaries::path_async(softhsm::PROGRAM).await?;
        let spec = Spec::new(format!("sidekey-pkcs11 {name}"), program, dir.join("plugin.log"));
        let spec = spec.env(softhsm::CONF, self.0.conf());
        let mut sidecar = Sidecar::start(spec.arg("--config").arg(config)).await?;
        sidecar.wait_ready().await?;
        Ok(Provider { endpoint, sidecar: Box::new(Box::new(sidecar)) })
    }

    fn end(&mut self) -> Result<()> {
        self.0.unplug()
    }
}
