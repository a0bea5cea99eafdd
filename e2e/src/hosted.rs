//! A hosted control plane as HyperShift lays it out: etcd and a Deployment of
//! two kube-apiserver pods with KMS sidecars, in a namespace of a management
//! cluster whose kubelet, scheduler and controllers are the real ones.
//!
//! What HyperShift's own programs would do is imitated: its operator by
//! [`Hosted::roll_out`], which applies what that would apply, and its token
//! minter by a small container that empties and fills the token's file just as
//! that does. AWS is moto. What differs from HyperShift's pods is said in
//! [`manifests`].
//!
//! **Load through a roll-out** takes the way that users of a hosted cluster
//! have, a balancer that knows which pods are ready: here the Service, with a
//! connection for each request ([`Hosted::service`]). kube-apiserver goes on
//! serving for a while after it was told to end, so that what was led to it
//! before the balancer knew is answered; its sidecars are told at the same moment,
//! and must do the same. Nothing is sent twice.

mod credentials;
mod etcd;
pub mod manifests;
mod sidecars;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::aws::Moto;
use crate::cluster::{Exposed, Pod, ScratchImage};
use crate::etcd::{Entry, entries};
use crate::http::HttpClient;
use crate::metrics::Metrics;
use crate::pki::{Authority, CertificateFiles, ServiceAccountKeys};
use crate::wait::{LONG_PATIENCE, PATIENCE, eventually};
use crate::{Cluster, Kind, KubeClient, Scratch, golang, images};
use etcd::{ETCD, ETCD_IMAGE};
pub use manifests::{ADMIN, NAMESPACE, Role, provider_name, web_identity};
use manifests::{CREDENTIALS, HEALTH, Layout, SERVER, SERVER_IMAGE};

/// The name in the certificate of the one who may ask shims for their state.
const OPERATOR: &str = "operator";

/// The token of the hosted cluster's administrator.
const TOKEN: &str = "hosted-administrator";

/// One hosted control plane. Dropped, and so ended, in this order.
pub struct Hosted {
    tls: Authority,
    operator: CertificateFiles,
    aws_image: String,
    shim_image: String,
    namespace: String,
    /// Of the Service of its kube-apiservers.
    address: Ipv4Addr,
    exposed: Exposed,
    /// The simulated AWS.
    pub moto: Moto,
    /// The management cluster, which it may share with others.
    pub cluster: Arc<Cluster>,
}

impl Hosted {
    /// A management cluster with etcd and everything that the kube-apiserver pods
    /// mount but what says how to encrypt; to be followed by [`roll_out`](Self::roll_out).
    pub async fn start(name: &str, token: &str) -> Result<Self> {
        let scratch = Scratch::new(&format!("{name}-images"))?;
        let images = images::ready(&["aws", "shim"], scratch.path());
        let (cluster, built) = tokio::try_join!(Cluster::start(name), images)?;
        for image in &built {
            cluster.load_image(&image.archive).await?;
        }
        load_servers(&cluster).await?;
        let images = [0, 1].map(|index: usize| built[index].reference.clone());
        Self::on(Arc::new(cluster), NAMESPACE, images, token).await
    }

    /// The same on a cluster that is there, in a namespace of its own; `images` are those of
    /// `sidekey-aws` and of the shim, which it must know, and so must it the [servers](load_servers).
    pub async fn on(
        cluster: Arc<Cluster>,
        namespace: &str,
        images: [String; 2],
        token: &str,
    ) -> Result<Self> {
        let dir = cluster.ground().plane().scratch.subdir(&format!("hosted-{namespace}"))?;
        let address = balancer(&cluster, namespace).await?;
        let moto = Moto::start(&dir).await?;
        moto.accept_tokens(&[token]).await?;
        moto.accept_access_keys(&[]).await?;
        let exposed = cluster.expose(moto.address()).await?;
        let tls = Authority::new("hosted CA")?;
        let operator = tls.peer(&dir, OPERATOR, &[OPERATOR])?;
        let [aws_image, shim_image] = images;
        let namespace = namespace.to_owned();
        let hosted = Self {
            tls,
            operator,
            aws_image,
            shim_image,
            namespace,
            address,
            exposed,
            moto,
            cluster,
        };
        hosted.prepare(&dir, token).await?;
        Ok(hosted)
    }

    async fn prepare(&self, dir: &Path, token: &str) -> Result<()> {
        let client = self.cluster.client();
        self.put_etcd_certificates(dir).await?;
        for object in etcd::objects(&self.namespace) {
            client.apply(&object).await?;
        }
        self.put_secret("kas-pki", &self.pki(dir)?).await?;
        self.put_secret("kms-token", &[("token", token.to_owned())]).await?;
        let credentials = manifests::web_identity("kms-provider");
        self.put_secret(CREDENTIALS, &[("credentials", credentials)]).await?;
        client.wait_pod_ready(&self.namespace, &format!("{ETCD}-0")).await?;
        Ok(())
    }

    fn pki(&self, dir: &Path) -> Result<Vec<(&'static str, String)>> {
        let pods = self.cluster.ground().addresses().pods();
        let network = pods.split('/').next().unwrap_or_default().parse::<Ipv4Addr>()?;
        let pods = (1..255).map(|host| Ipv4Addr::from(u32::from(network) + host));
        // A pod's address is not known before it runs: its certificate fits all.
        let names = [self.address].into_iter().chain(pods).map(|ip| ip.to_string());
        let service = format!("{SERVER}.{}.svc", self.namespace);
        let own = ["localhost".to_owned(), SERVER.to_owned(), service];
        let names: Vec<String> = names.chain(own).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let serving = self.tls.peer(dir, SERVER, &names)?;
        let accounts = ServiceAccountKeys::create(dir)?;
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(vec![
            ("ca.crt", self.tls.pem()),
            ("tls.crt", read(&serving.certificate)?),
            ("tls.key", read(&serving.key)?),
            ("service-account.key", read(&accounts.private)?),
            ("service-account.pub", read(&accounts.public)?),
            ("tokens.csv", format!("{TOKEN},admin,admin,\"system:masters\"\n")),
        ])
    }

    /// Creates a Secret of the hosted control plane, or replaces it.
    pub async fn put_secret(&self, name: &str, data: &[(&str, String)]) -> Result<()> {
        let data: serde_json::Map<String, Value> = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into()))
            .collect();
        let metadata = json!({"name": name, "namespace": self.namespace});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
        self.cluster.client().apply(&secret).await?;
        Ok(())
    }

    /// Without shim: the write key's sidecar is `aws-kms-active`, the read key's
    /// `aws-kms-backup`, whichever keys these are. Imitates what HyperShift's
    /// operator does, and waits as it does: until all pods are of the new form and
    /// ready, and no pod is ending.
    pub async fn roll_out(&self, write: &str, read: Option<&str>) -> Result<Vec<Pod>> {
        let config = manifests::native_encryption(write, read);
        let layout = Layout::Native { write, read };
        self.apply_server(&config, &layout).await
    }

    /// With the shim in front: one provider process for all keys. The head Secrets
    /// `sidekey-shim` and `sidekey-provider-aws` must be there.
    pub async fn roll_out_with_shim(&self) -> Result<Vec<Pod>> {
        self.apply_server(&manifests::shim_encryption(), &Layout::Shim).await
    }

    /// The Deployment before anything is encrypted: no sidecar, no flag and no volume for it.
    pub fn bare(&self) -> Value {
        manifests::bare(&self.namespace)
    }

    /// The same with one pod, which ends quickly: where it is not about roll-outs.
    pub fn bare_alone(&self) -> Value {
        let mut deployment = self.bare();
        deployment["spec"]["replicas"] = 1.into();
        let args = deployment.pointer_mut("/spec/template/spec/containers/0/args");
        for flag in args.and_then(Value::as_array_mut).into_iter().flatten() {
            if flag.as_str().is_some_and(|flag| flag.starts_with("--shutdown-delay-duration=")) {
                *flag = "--shutdown-delay-duration=1s".into();
            }
        }
        deployment
    }

    /// Applies a Deployment of kube-apiserver, and waits until it is rolled out.
    pub async fn roll_out_as(&self, deployment: &Value) -> Result<Vec<Pod>> {
        self.cluster.client().apply(deployment).await?;
        self.cluster.client().wait_deployment(&self.namespace, SERVER).await
    }

    /// The images under test: that of `sidekey-aws` and that of the shim.
    pub fn images(&self) -> [&str; 2] {
        [&self.aws_image, &self.shim_image]
    }

    /// AWS, as pods and this host reach it.
    pub fn aws_url(&self) -> String {
        format!("http://{}", self.exposed.address())
    }

    /// etcd's client address, reached from this host.
    pub async fn etcd_url(&self) -> Result<String> {
        let pod = self.cluster.client().pod(&self.namespace, &format!("{ETCD}-0")).await?;
        Ok(format!("http://{}:2379", address(&pod)?))
    }

    /// The namespace of the control plane.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Writes a kubeconfig of the hosted cluster's administrator, through the balancer.
    pub fn kubeconfig(&self, path: &Path) -> Result<()> {
        let text = self.kubeconfig_at(&self.address.to_string());
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The same as text, for those who know the balancer under this name or address.
    pub fn kubeconfig_at(&self, host: &str) -> String {
        let server = format!("https://{host}:6443");
        let ca = STANDARD.encode(self.tls.pem());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "hosted",
            "clusters": [{
                "name": "hosted",
                "cluster": {"server": server, "certificate-authority-data": ca},
            }],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "hosted", "context": {"cluster": "hosted", "user": "admin"}}],
        });
        config.to_string()
    }

    /// The certificate of the one who may ask shims for their state over mutual TLS.
    pub fn operator(&self) -> &CertificateFiles {
        &self.operator
    }

    async fn apply_server(&self, encryption: &str, layout: &Layout<'_>) -> Result<Vec<Pod>> {
        let config = [("config.yaml", encryption.to_owned())];
        self.put_secret("kas-secret-encryption-config", &config).await?;
        let url = self.aws_url();
        let images = manifests::Images { aws: &self.aws_image, shim: &self.shim_image };
        let deployment = manifests::server(&self.namespace, layout, encryption, &images, &url);
        self.roll_out_as(&deployment).await
    }

    /// Writes the shim's head: these keys, by number, each at the provider's
    /// socket for it.
    pub async fn put_shim_head(&self, revision: u64, keys: &[(u64, Role)]) -> Result<()> {
        let text = manifests::shim_head(revision, keys, OPERATOR);
        self.put_secret("sidekey-shim", &[("shim.yaml", text)]).await
    }

    /// Writes the provider's head: these keys, by number and ARN.
    pub async fn put_provider_head(&self, revision: u64, keys: &[(u64, &str)]) -> Result<()> {
        let text = manifests::provider_head(revision, keys);
        self.put_secret("sidekey-provider-aws", &[("config.yaml", text)]).await
    }

    /// The pods of kube-apiserver, ending ones included.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        self.cluster.client().pods(&self.namespace, &format!("app={SERVER}")).await
    }

    /// An error unless just these pods are there, and no container of theirs was
    /// started again.
    pub async fn nothing_has_restarted(&self, before: &[Pod]) -> Result<()> {
        let now = self.pods().await?;
        ensure!(now.len() == before.len(), "{} pods were {}", now.len(), before.len());
        for pod in &now {
            let same = before.iter().find(|old| old.uid == pod.uid);
            let same = same.with_context(|| format!("{} is new", pod.summary()))?;
            let ids = |pod: &Pod| {
                let mut ids: Vec<String> = pod.containers.iter().map(|c| c.id.clone()).collect();
                ids.sort();
                ids
            };
            ensure!(pod.restarts() == 0 && ids(pod) == ids(same), "{}", pod.summary());
        }
        Ok(())
    }

    /// The way through the balancer, with a connection for each request.
    pub fn service(&self) -> Result<KubeClient> {
        let address = SocketAddr::from((self.address, 6443));
        Ok(KubeClient::new("the Service", self.https(address)?.connecting_anew()))
    }

    /// The way to one pod.
    pub fn server(&self, pod: &Pod) -> Result<KubeClient> {
        Ok(KubeClient::new(&pod.name, self.https((address(pod)?, 6443).into())?))
    }

    /// Waits until the hosted cluster can be written to, through the balancer.
    pub async fn wait_usable(&self) -> Result<()> {
        let client = self.service()?;
        eventually("the hosted cluster is usable", PATIENCE, async || {
            client.get("/api/v1/namespaces/default").await
        })
        .await?;
        Ok(())
    }

    /// What the shim of a pod says of itself, over mutual TLS.
    pub async fn shim_status(&self, pod: &Pod) -> Result<Value> {
        let tls = self.tls.connector_with(&self.operator)?;
        let http = HttpClient::tls((address(pod)?, ADMIN).into(), tls, None).connecting_anew();
        http.get("/status").await?.ok()?.json()
    }

    /// The metrics of a pod's provider, on its first health port.
    pub async fn provider_metrics(&self, pod: &Pod) -> Result<Metrics> {
        let http = self.cluster.pod_http(pod, HEALTH)?;
        Metrics::parse(&http.get("/metrics").await?.ok()?.text())
    }

    /// The ways to the health ports of a pod's KMS sidecars, in HyperShift's own
    /// layout.
    pub fn sidecars(&self, pod: &Pod) -> Result<Vec<HttpClient>> {
        let all = [("aws-kms-active", HEALTH), ("aws-kms-backup", HEALTH + 1)];
        let has = |name: &str| pod.containers.iter().any(|container| container.name == name);
        let there = all.into_iter().filter(|(name, _)| has(name));
        there.map(|(_, port)| self.cluster.pod_http(pod, port)).collect()
    }

    /// Waits until a pod's kube-apiserver writes under the key_id with this hash.
    pub async fn wait_key_id(&self, pod: &Pod, hash: &str) -> Result<()> {
        let client = self.server(pod)?;
        let name = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds";
        eventually(format!("{} has seen key_id {hash}", pod.name), LONG_PATIENCE, async || {
            // The question makes it call Status at most 20 s after the last time,
            // and is answered well once the new data key is made.
            client.raw("/readyz").await?.ok()?;
            let metrics = Metrics::parse(&client.raw("/metrics").await?.ok()?.text())?;
            let last = metrics.find(name, &[]).max_by(|a, b| a.value.total_cmp(&b.value));
            let last = last.and_then(|sample| sample.labels.get("key_id_hash"));
            ensure!(last.is_some_and(|last| last == hash), "the last one was {last:?}");
            Ok(())
        })
        .await?;
        client.raw("/readyz").await?.ok()?;
        Ok(())
    }

    /// What the hosted etcd holds of the load's objects of a kind in a namespace.
    pub async fn stored(&self, kind: Kind, namespace: &str) -> Result<Vec<Entry>> {
        let prefix = format!("/registry/{}/{namespace}/load", kind.plural());
        self.stored_between(&format!("{prefix}-"), &format!("{prefix}.")).await
    }

    /// Everything of a resource as etcd has it.
    pub async fn stored_of(&self, resource: &str) -> Result<Vec<Entry>> {
        let prefix = format!("/registry/{resource}");
        self.stored_between(&format!("{prefix}/"), &format!("{prefix}0")).await
    }

    async fn stored_between(&self, first: &str, end: &str) -> Result<Vec<Entry>> {
        let pod = self.cluster.client().pod(&self.namespace, &format!("{ETCD}-0")).await?;
        let range = json!({"key": STANDARD.encode(first), "range_end": STANDARD.encode(end)});
        let http = self.cluster.pod_http(&pod, 2379)?;
        entries(&http.post("/v3/kv/range", &range).await?.ok()?.json()?)
    }

    fn https(&self, address: SocketAddr) -> Result<HttpClient> {
        Ok(HttpClient::tls(address, self.tls.connector()?, Some(TOKEN.to_owned())))
    }
}

/// Makes the namespace, and the Service in it that stands for the balancer; gives its address.
async fn balancer(cluster: &Cluster, namespace: &str) -> Result<Ipv4Addr> {
    let (client, metadata) = (cluster.client(), json!({"name": namespace}));
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    client.apply(&object).await?;
    let service = client.apply(&manifests::service(namespace)).await?;
    let address = service["spec"]["clusterIP"].as_str().context("a Service without address")?;
    Ok(address.parse()?)
}

/// Makes etcd and kube-apiserver known to a cluster, for all hosted control planes on it.
pub async fn load_servers(cluster: &Cluster) -> Result<()> {
    for archive in server_images().await? {
        cluster.load_image(&archive).await?;
    }
    Ok(())
}

fn address(pod: &Pod) -> Result<Ipv4Addr> {
    pod.address.with_context(|| format!("{} has no address", pod.summary()))
}

/// etcd and kube-apiserver, as images of the harness: their archives.
pub(crate) async fn server_images() -> Result<Vec<PathBuf>> {
    let mut archives = Vec::new();
    for (server, image) in [(golang::ETCD, ETCD_IMAGE), (golang::KUBE_APISERVER, SERVER_IMAGE)] {
        let program = server.build_async().await?;
        archives.push(ScratchImage::new(image).program(program, server.name).archive()?);
    }
    Ok(archives)
}
