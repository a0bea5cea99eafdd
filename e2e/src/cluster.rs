//! A whole Kubernetes cluster of one node: what users run, not a likeness of it.
//!
//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler run on this
//! host; kubelet, containerd and kube-proxy run on a [`Machine`] of its own, with
//! CoreDNS as a pod. Pods have their own addresses, Services and cluster names
//! work from pods, and a test reaches pods and Services from this host just so.
//! What pods are to reach on this host listens on [`Addresses::host`], or is put
//! there by [`Cluster::expose`].
//!
//! Images come from archives ([`Ground::load_image`]) and are never pulled: pods
//! say `imagePullPolicy: Never`. Everything lies in one scratch directory and in
//! the machine's namespaces, so clusters run side by side and leave nothing.

mod components;
mod containerd;
mod cri;
mod dns;
mod expose;
mod image;
mod inside;
mod kubelet;
mod machine;
mod objects;
mod partition;
mod static_apiserver;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::apiserver::{KubeApiserver, Options, kubeconfig};
use crate::etcd::Etcd;
use crate::http::HttpClient;
use crate::kube::KubeClient;
use crate::pki::write;
use crate::plane::ControlPlane;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::{PATIENCE, eventually};
use components::Component;
use containerd::Containerd;
pub use containerd::POD_IMAGE;
pub use expose::Exposed;
pub(crate) use image::ScratchImage;
pub use inside::Inside;
pub use kubelet::{Kubelet, NODE};
pub use machine::{Addresses, Machine};
pub use objects::{Container, Pod, manifest};
pub use partition::{Cut, Partition};
pub use static_apiserver::STATIC_APISERVER;

/// Writes the images of the harness's own pods into the cache, so that no cluster waits for them.
pub async fn write_images() -> Result<()> {
    containerd::pod_image().await?;
    dns::image().await?;
    static_apiserver::image().await?;
    crate::hosted::server_images().await?;
    Ok(())
}

/// How often a look is taken at whether everything still runs.
const LOOK: Duration = Duration::from_millis(250);

/// kubelet is asked for logs, commands and ports under its address: nobody resolves its name.
const KUBELET_ADDRESS: &str = "--kubelet-preferred-address-types=InternalIP";

/// What a cluster stands on before it has a kube-apiserver: etcd, certificates,
/// and a machine with containerd and images.
pub struct Ground {
    containerd: Containerd,
    machine: Machine,
    kubelet_dir: PathBuf,
    plane: ControlPlane,
}

impl Ground {
    /// Makes one. Takes root, and installs or builds what is missing.
    pub async fn prepare(name: &str) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let machine = Machine::create(scratch.path()).await?;
        let kubelet_dir = scratch.subdir("kubelet")?;
        let dir = scratch.subdir("containerd")?;
        for made in ["manifests", "logs", "plugins", "root"] {
            std::fs::create_dir_all(kubelet_dir.join(made))?;
        }
        let host = machine.addresses().host();
        let runtime = async {
            let containerd = Containerd::start(&machine, &dir).await?;
            let archive = containerd::pod_image().await?;
            containerd.import(&machine, &archive).await?;
            Ok::<_, anyhow::Error>(containerd)
        };
        let plane = ControlPlane::start_in(scratch, name, host);
        let (containerd, plane) = tokio::try_join!(runtime, plane)?;
        Ok(Self { containerd, machine, kubelet_dir, plane })
    }

    /// etcd, and the scratch directory of the cluster.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// Where the node runs.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Who has which address.
    pub fn addresses(&self) -> Addresses {
        self.machine.addresses()
    }

    /// Makes the images of a docker or OCI archive known to the node, and gives
    /// the names under which pods use them.
    pub async fn load_image(&self, archive: &Path) -> Result<Vec<String>> {
        self.containerd.import(&self.machine, archive).await
    }

    /// The same for an archive with one image, to be known as `name`.
    pub async fn load_image_as(&self, archive: &Path, name: &str) -> Result<()> {
        let names = self.load_image(archive).await?;
        ensure!(names.len() == 1, "{} has several images: {names:?}", archive.display());
        if names[0] == name {
            return Ok(());
        }
        self.containerd.tag(&self.machine, &names[0], name).await
    }

    /// Gives an image that the node knows one more name.
    pub async fn tag_image(&self, from: &str, to: &str) -> Result<()> {
        self.containerd.tag(&self.machine, from, to).await
    }

    /// Where kubelet finds the manifests of static pods, within a second.
    pub fn static_pods(&self) -> PathBuf {
        kubelet::static_pods(&self.kubelet_dir)
    }

    /// Puts a static pod there, or a new form of it, in one step.
    pub fn put_static_pod(&self, name: &str, manifest: &Value) -> Result<()> {
        // kubelet overlooks names that begin with a dot.
        let (new, file) = (format!(".{name}.json"), format!("{name}.json"));
        let path = write(&self.static_pods(), &new, &manifest.to_string())?;
        std::fs::rename(path, self.static_pods().join(file)).context("cannot rename a manifest")
    }

    /// Takes a static pod away.
    pub fn remove_static_pod(&self, name: &str) -> Result<()> {
        let path = self.static_pods().join(format!("{name}.json"));
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// How a kube-apiserver on this host is to run, so that the node and its
    /// pods reach it: to be completed with an encryption configuration.
    pub fn apiserver(&self) -> Options {
        let range = format!("--service-cluster-ip-range={}", self.addresses().services());
        Options::new("kube-apiserver")
            .address(self.addresses().host(), self.apiserver_names())
            .arg(range)
            .arg("--endpoint-reconciler-type=lease")
            .arg("--allow-privileged=true")
            .arg(KUBELET_ADDRESS)
    }

    /// Starts the rest, with kube-apiserver as a process of this host.
    pub async fn start(self, options: Options) -> Result<Cluster> {
        let apiserver = KubeApiserver::start(&self.plane, options);
        let dns = async { self.load_image(&dns::image().await?).await };
        let (apiserver, _) = tokio::try_join!(apiserver, dns)?;
        let address = apiserver.address();
        Cluster::assemble(self, Some(apiserver), address).await
    }

    /// Starts the rest, with kube-apiserver as a static pod that was put there
    /// and listens on the node's address and port [`STATIC_APISERVER`].
    pub async fn start_static(self) -> Result<Cluster> {
        self.load_image(&dns::image().await?).await?;
        let address = SocketAddr::from((self.addresses().node(), STATIC_APISERVER));
        Cluster::assemble(self, None, address).await
    }

    fn apiserver_names(&self) -> Vec<String> {
        let addresses = self.addresses();
        let own = [addresses.host(), addresses.node(), addresses.service(1)];
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        own.iter().map(Ipv4Addr::to_string).chain(names.map(str::to_owned)).collect()
    }
}

/// A whole cluster, ended with everything on it when this is dropped.
pub struct Cluster {
    scheduler: Component,
    manager: Component,
    proxy: Inside,
    kubelet: Kubelet,
    apiserver: Option<KubeApiserver>,
    client: KubeClient,
    kubeconfig: PathBuf,
    ground: Ground,
}

impl Cluster {
    /// Starts one with plain storage, and waits until its node is ready, Services
    /// work and names are answered.
    pub async fn start(name: &str) -> Result<Self> {
        let ground = Ground::prepare(name).await?;
        let options = ground.apiserver();
        ground.start(options).await
    }

    async fn assemble(
        ground: Ground,
        apiserver: Option<KubeApiserver>,
        address: SocketAddr,
    ) -> Result<Self> {
        let plane = &ground.plane;
        let (ca, token) = (plane.authority.pem(), plane.admin_token.clone());
        let text = kubeconfig(address, &ca, &token);
        let kubeconfig = write(plane.scratch.path(), "kubeconfig", &text)?;
        let http = HttpClient::tls(address, plane.authority.connector()?, Some(token));
        let client = KubeClient::new("kube-apiserver", http);
        let (machine, dir) = (&ground.machine, &ground.kubelet_dir);
        let mut kubelet = Kubelet::start(machine, dir, &kubeconfig).await?;
        // The others give up where there is none.
        let answers = kubelet.process().process().wait_until(
            "kube-apiserver is ready",
            PATIENCE,
            async || Ok(client.raw("/readyz").await?.ok()?),
        );
        answers.await?;
        let manager = components::manager(plane, &kubeconfig).await?;
        let scheduler = components::scheduler(plane, &kubeconfig).await?;
        let proxy = components::proxy(machine, plane.scratch.path(), &kubeconfig).await?;
        let mut cluster =
            Self { scheduler, manager, proxy, kubelet, apiserver, client, kubeconfig, ground };
        cluster.wait_complete().await?;
        Ok(cluster)
    }

    /// etcd, to be paused, killed and started again.
    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.ground.plane.etcd
    }

    /// What it stands on: images, static pods, addresses, etcd.
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// A client with an administrator's rights.
    pub fn client(&self) -> &KubeClient {
        &self.client
    }

    /// A kubeconfig with an administrator's rights.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// kube-apiserver, where it is a process of this host.
    pub fn apiserver(&self) -> Option<&KubeApiserver> {
        self.apiserver.as_ref()
    }

    /// The same, to be hurt.
    pub fn apiserver_mut(&mut self) -> Option<&mut KubeApiserver> {
        self.apiserver.as_mut()
    }

    /// kubelet, to be stopped and started again.
    pub fn kubelet(&mut self) -> &mut Kubelet {
        &mut self.kubelet
    }

    /// Kills containerd with kill -9 and starts it again: containers outlive it.
    pub async fn restart_containerd(&mut self) -> Result<()> {
        let Ground { containerd, machine, .. } = &mut self.ground;
        containerd.process().kill().await?;
        containerd.process().start()?;
        containerd.wait_ready(machine).await
    }

    /// See [`Ground::load_image`].
    pub async fn load_image(&self, archive: &Path) -> Result<Vec<String>> {
        self.ground.load_image(archive).await
    }

    /// Everything a container of a pod has logged, former runs included.
    pub fn logs(&self, pod: &Pod, container: &str) -> Result<String> {
        // The directory of a static pod has the name of its manifest's own uid.
        let mirror = "/metadata/annotations/kubernetes.io~1config.mirror";
        let uid = pod.object.pointer(mirror).and_then(Value::as_str).unwrap_or(&pod.uid);
        self.kubelet.logs(&pod.name, uid, &pod.namespace, container)
    }

    /// The same of every container of a namespace that has run, pods that are gone included as
    /// long as kubelet keeps them: `POD_UID/CONTAINER`, and the text.
    pub fn all_logs(&self, namespace: &str) -> Vec<(String, String)> {
        let dirs = self.kubelet.log_dirs(namespace).into_iter();
        dirs.map(|(name, dir)| (name, kubelet::read_logs(&dir).unwrap_or_default())).collect()
    }

    /// Says so if a program of ours has panicked in a container, also one that is gone.
    pub fn tell_of_panics(&self) {
        self.kubelet.tell_of_panics();
    }

    /// Where a volume of a pod is, for a look from this host: `kind` is `secret`,
    /// `configmap`, `projected` or `empty-dir`.
    pub fn volume(&self, pod: &Pod, kind: &str, name: &str) -> PathBuf {
        self.ground.machine.path(&self.kubelet.volume(&pod.uid, kind, name))
    }

    /// kill -9 of everything in a container, as the kernel does when memory is short.
    pub async fn kill_container(&self, id: &str) -> Result<()> {
        let kill = ["tasks", "kill", "--signal", "SIGKILL", "--all", id];
        self.ground.containerd.ctr(&self.ground.machine, &kill).await?;
        Ok(())
    }

    /// A client of what listens on a port of a pod, in plain HTTP.
    pub fn pod_http(&self, pod: &Pod, port: u16) -> Result<HttpClient> {
        let address = pod.address.with_context(|| format!("{} has no address", pod.summary()))?;
        Ok(HttpClient::plain((address, port).into()))
    }

    /// Lets pods reach what listens on loopback of this host.
    pub async fn expose(&self, to: SocketAddr) -> Result<Exposed> {
        self.expose_at(0, to).await
    }

    /// The same at a port that pods expect it at.
    pub async fn expose_at(&self, port: u16, to: SocketAddr) -> Result<Exposed> {
        Exposed::start((self.ground.addresses().host(), port), to).await
    }

    /// All its processes; those of the node as they are seen from here.
    pub fn processes(&mut self) -> Vec<&mut Process> {
        let mut all = vec![self.ground.plane.etcd.process()];
        all.extend(self.apiserver.as_mut().map(KubeApiserver::process));
        all.extend([self.manager.process(), self.scheduler.process()]);
        all.push(self.ground.machine.process());
        all.push(self.ground.containerd.process().process());
        all.extend([self.kubelet.process().process(), self.proxy.process()]);
        all
    }

    /// An error with the last lines of its log if a part of it has ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.processes().into_iter().try_for_each(Process::check_running)
    }

    /// Returns when a part of it has ended, and says which and why.
    pub async fn died(&mut self) -> anyhow::Error {
        loop {
            if let Err(died) = self.check_running() {
                return died;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the node is ready.
    pub async fn wait_node_ready(&mut self) -> Result<()> {
        let client = self.client.clone();
        let mut parts = async || -> Result<()> {
            self.check_running()?;
            let node = client.get(&format!("/api/v1/nodes/{NODE}")).await?;
            let conditions = node["status"]["conditions"].as_array();
            let ready = conditions.into_iter().flatten().find(|known| known["type"] == "Ready");
            let ready = ready.context("the node says nothing yet")?;
            ensure!(ready["status"] == "True", "{}", ready["message"]);
            Ok(())
        };
        let ready = eventually("the node is ready", PATIENCE, &mut parts).await;
        ready.with_context(|| self.kubelet.process().process().log_tail())
    }

    async fn wait_complete(&mut self) -> Result<()> {
        self.wait_node_ready().await?;
        for object in dns::objects(self.ground.addresses()) {
            self.client.apply(&object).await?;
        }
        let client = self.client.clone();
        tokio::select! {
            rolled = client.wait_deployment(dns::NAMESPACE, dns::NAME) => rolled?,
            died = self.died() => return Err(died),
        };
        // Pods of the default namespace need its service account.
        eventually("the default service account is there", PATIENCE, async || {
            self.client.get("/api/v1/namespaces/default/serviceaccounts/default").await
        })
        .await?;
        let dns = SocketAddr::from((self.ground.addresses().service(dns::SERVICE), 53));
        eventually("kube-proxy leads to CoreDNS", PATIENCE, async || {
            Ok(tokio::net::TcpStream::connect(dns).await?)
        })
        .await?;
        self.check_running()
    }
}
