//! A real kube-apiserver, any number of them on one etcd.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::encryption::EncryptionConfiguration;
use crate::golang;
use crate::http::HttpClient;
use crate::kube::KubeClient;
use crate::metrics::Metrics;
use crate::pki::write;
use crate::plane::ControlPlane;
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::wait::{LONG_PATIENCE, PATIENCE, eventually};

/// How one kube-apiserver is to run.
#[derive(Clone, Debug)]
pub struct Options {
    name: String,
    encryption: Option<EncryptionConfiguration>,
    args: Vec<String>,
    address: Ipv4Addr,
    names: Vec<String>,
}

impl Options {
    /// Plain storage; `name` tells replicas apart.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            encryption: None,
            args: Vec::new(),
            address: Ipv4Addr::LOCALHOST,
            names: Vec::new(),
        }
    }

    /// Listens on another address of this host than loopback, and is also known
    /// under these names and addresses.
    pub fn address(mut self, address: Ipv4Addr, names: impl IntoIterator<Item = String>) -> Self {
        self.address = address;
        self.names.extend(names);
        let (bind, advertise) = ("--bind-address", "--advertise-address");
        self.arg(format!("{bind}={address}")).arg(format!("{advertise}={address}"))
    }

    /// Encrypts by this configuration.
    pub fn encryption(mut self, encryption: EncryptionConfiguration) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// Adds a flag such as `--encryption-provider-config-automatic-reload=true`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }
}

/// One kube-apiserver.
#[derive(Debug)]
pub struct KubeApiserver {
    process: Process,
    port: Port,
    http: HttpClient,
    encryption_file: PathBuf,
    ca: String,
    token: String,
}

impl KubeApiserver {
    /// Starts one and waits until it is ready and can be written to.
    pub async fn start(plane: &ControlPlane, options: Options) -> Result<Self> {
        let mut server = Self::spawn(plane, options).await?;
        server.wait_ready().await?;
        Ok(server)
    }

    /// Starts one without waiting, for those that are not to become ready.
    pub async fn spawn(plane: &ControlPlane, options: Options) -> Result<Self> {
        let program = golang::KUBE_APISERVER.build_async().await?;
        let dir = plane.scratch.subdir(&options.name)?;
        let port = Port::free_on(options.address)?;
        let own = [options.address.to_string(), "localhost".to_owned()];
        let names: Vec<&str> = own.iter().chain(&options.names).map(String::as_str).collect();
        let serving = plane.authority.peer(&dir, &options.name, &names)?;
        let mut spec = Spec::new(
            format!("kube-apiserver {}", options.name),
            program,
            dir.join("kube-apiserver.log"),
        )
        .args(fixed_flags())
        .arg(format!("--etcd-servers={}", plane.etcd.url()))
        .arg(format!("--secure-port={}", port.number()))
        .arg(flag("cert-dir", &dir))
        .arg(flag("tls-cert-file", &serving.certificate))
        .arg(flag("tls-private-key-file", &serving.key))
        .arg(flag("token-auth-file", &plane.tokens))
        .arg(flag("service-account-key-file", &plane.service_account.public))
        .arg(flag("service-account-signing-key-file", &plane.service_account.private))
        .args(&options.args);
        let encryption_file = dir.join("encryption.yaml");
        if let Some(encryption) = &options.encryption {
            write(&dir, "encryption.yaml", &encryption.to_string())?;
            spec = spec.arg(flag("encryption-provider-config", &encryption_file));
        }
        let tls = plane.authority.connector()?;
        let token = plane.admin_token.clone();
        let http = HttpClient::tls(port.address(), tls, Some(token.clone()));
        let (process, ca) = (spec.start()?, plane.authority.pem());
        Ok(Self { process, port, http, encryption_file, ca, token })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// A client with an administrator's rights.
    pub fn client(&self) -> KubeClient {
        KubeClient::new(self.process.name(), self.http.clone())
    }

    /// A client of whoever has this token.
    pub fn client_of(&self, token: &str) -> KubeClient {
        KubeClient::new(self.process.name(), self.http.with_bearer(token))
    }

    /// The process, to be paused, killed and started again.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Kills it with SIGKILL, starts it again and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_ready().await
    }

    /// Waits until `/readyz` is good and the default namespace exists.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let http = self.http.clone();
        self.process
            .wait_until("it is ready", PATIENCE, async || {
                http.get("/readyz?verbose").await?.ok()?;
                http.get("/api/v1/namespaces/default").await?.ok()?;
                Ok(())
            })
            .await
    }

    /// The checks of `/readyz?verbose` and whether each is good.
    pub async fn readyz(&self) -> Result<BTreeMap<String, bool>> {
        let text = self.http.get("/readyz?verbose").await?.text();
        let check = |line: &str| {
            let good = line.starts_with("[+]");
            let rest = line.strip_prefix("[+]").or_else(|| line.strip_prefix("[-]"))?;
            Some((rest.split_whitespace().next()?.to_owned(), good))
        };
        let checks: BTreeMap<String, bool> = text.lines().filter_map(check).collect();
        if checks.is_empty() {
            bail!("/readyz?verbose lists no checks: {text}");
        }
        Ok(checks)
    }

    /// Waits until the `kms-providers` check is good or bad. Asking also makes
    /// kube-apiserver call the plugin's Status, at most each 20 s.
    pub async fn wait_kms_providers(&mut self, good: bool) -> Result<()> {
        let what = format!("kms-providers is {}", if good { "good" } else { "bad" });
        let checks = async || self.readyz().await?.get("kms-providers").copied().context("absent");
        let turned = eventually(what, LONG_PATIENCE, async || match checks().await? {
            now if now == good => Ok(()),
            now => bail!("it is {}", if now { "good" } else { "bad" }),
        });
        turned.await.with_context(|| self.process.log_tail())
    }

    /// A scrape of `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&self.http.get("/metrics").await?.ok()?.text())
    }

    /// The hash of the key_id that the plugin's Status announced last.
    pub async fn announced_key_id(&self, provider: &str) -> Result<String> {
        self.last_key_id("status_last_timestamp_seconds", &[("provider_name", provider)]).await
    }

    /// The hash of the key_id under which something was stored last.
    pub async fn written_key_id(&self, provider: &str) -> Result<String> {
        let labels = [("provider_name", provider), ("transformation_type", "to_storage")];
        self.last_key_id("last_timestamp_seconds", &labels).await
    }

    async fn last_key_id(&self, metric: &str, labels: &[(&str, &str)]) -> Result<String> {
        let name = format!("apiserver_envelope_encryption_key_id_hash_{metric}");
        let metrics = self.metrics().await?;
        let last = metrics.find(&name, labels).max_by(|a, b| a.value.total_cmp(&b.value));
        let last = last.with_context(|| format!("no {name} for {labels:?}"))?;
        last.labels.get("key_id_hash").cloned().context("no key_id_hash label")
    }

    /// Waits until all new writes carry the key_id with this hash.
    pub async fn wait_key_id(&mut self, provider: &str, hash: &str) -> Result<()> {
        let what = format!("{} has seen key_id {hash}", self.process.name());
        let seen = eventually(what, LONG_PATIENCE, async || {
            // The question makes it call Status at most 20 s after the last time.
            self.readyz().await?;
            let last = self.announced_key_id(provider).await?;
            ensure!(last == hash, "the last one was {last}");
            Ok(())
        });
        seen.await.with_context(|| self.process.log_tail())?;
        // The metric is set a moment before the new data key is made; the check
        // waits for that moment's end.
        self.wait_kms_providers(true).await
    }

    /// The EncryptionConfiguration file it reads, for tests of its own reload.
    pub fn encryption_file(&self) -> &Path {
        &self.encryption_file
    }

    /// A kubeconfig with an administrator's rights.
    pub fn kubeconfig(&self) -> String {
        kubeconfig(self.port.address(), &self.ca, &self.token)
    }
}

/// A kubeconfig for whoever has this token.
pub(crate) fn kubeconfig(address: SocketAddr, ca: &str, token: &str) -> String {
    let ca = STANDARD.encode(ca);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: sidekey
  cluster: {{server: \"https://{address}\", certificate-authority-data: {ca}}}
users:
- name: admin
  user: {{token: \"{token}\"}}
contexts:
- name: sidekey
  context: {{cluster: sidekey, user: admin}}
current-context: sidekey
"
    )
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// What all replicas have in common. Nothing writes the `kubernetes` endpoint:
/// there are no nodes, and a loopback address would be refused.
fn fixed_flags() -> [&'static str; 7] {
    [
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--profiling=false",
    ]
}
