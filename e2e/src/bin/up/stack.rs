//! What `cargo up` runs: the provider, and a cluster if asked for.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sidekey_core::Endpoint;
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::process::Process;
use sidekey_e2e::{ControlPlane, EncryptionConfiguration, KubeApiserver, LocalPlugin};

use crate::trial::{Trial, round_trip};

/// The name in EncryptionConfiguration, which every stored object will carry.
const PROVIDER: &str = "sidekey";

/// How often a look is taken at whether everything still runs.
const LOOK: Duration = Duration::from_millis(250);

/// How long a process may take to end when asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that runs. Fields are dropped, and so ended, in this order.
pub(crate) struct Stack {
    cluster: Option<Cluster>,
    pub(crate) plugin: LocalPlugin,
    pub(crate) trial: Trial,
    pub(crate) encryption_file: PathBuf,
    pub(crate) encryption: EncryptionConfiguration,
    _lock: File,
}

/// A real control plane without nodes.
pub(crate) struct Cluster {
    server: KubeApiserver,
    plane: ControlPlane,
    kubeconfig: PathBuf,
}

impl Stack {
    /// Starts everything and tries it out.
    pub(crate) async fn start(dir: &Path, with_cluster: bool) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let dir = dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?;
        let lock = lock(&dir)?;
        // Checked first: a long path would otherwise fail deep inside, with less to say.
        let endpoint: Endpoint = dir
            .join("kms.sock")
            .to_str()
            .context("the directory's path is not UTF-8; choose another with --dir")?
            .parse()
            .context("choose a shorter directory with --dir")?;
        let plugin = LocalPlugin::in_directory(&dir, "up", &dir.join("key")).await?;
        let trial =
            round_trip(&endpoint).await.context("the round trip through the socket failed")?;
        let encryption = EncryptionConfiguration::kms(PROVIDER, plugin.endpoint());
        let encryption_file = dir.join("encryption-configuration.yaml");
        write_private(&encryption_file, &encryption.to_string())?;
        let cluster = match with_cluster {
            true => Some(Cluster::start(&dir, encryption.clone()).await?),
            false => None,
        };
        Ok(Self { cluster, plugin, trial, encryption_file, encryption, _lock: lock })
    }

    /// The cluster's kubeconfig, if there is a cluster.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.cluster.as_ref().map(|cluster| cluster.kubeconfig.as_path())
    }

    /// The pids of all processes, by program.
    pub(crate) fn pids(&mut self) -> Vec<(String, u32)> {
        let mut processes = vec![self.plugin.process()];
        if let Some(cluster) = &mut self.cluster {
            processes.push(cluster.plane.etcd.process());
            processes.push(cluster.server.process());
        }
        let program = |process: &Process| process.name().split(' ').next().map(str::to_owned);
        processes.iter().filter_map(|process| Some((program(process)?, process.pid()?))).collect()
    }

    /// Returns when one of the processes has ended, with the last lines of its log.
    pub(crate) async fn watch(&mut self) -> anyhow::Error {
        loop {
            if let Err(ended) = self.look() {
                return ended;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn look(&mut self) -> Result<()> {
        self.plugin.process().check_running()?;
        if let Some(cluster) = &mut self.cluster {
            cluster.plane.etcd.process().check_running()?;
            cluster.server.process().check_running()?;
        }
        Ok(())
    }

    /// Ends everything, those who need others first. What does not end in time is killed.
    pub(crate) async fn stop(mut self) -> Result<()> {
        if let Some(cluster) = &mut self.cluster {
            cluster.server.process().terminate(PATIENCE).await?;
            cluster.plane.etcd.process().terminate(PATIENCE).await?;
            // It leads nowhere any more.
            let _ = std::fs::remove_file(&cluster.kubeconfig);
        }
        let status = self.plugin.process().terminate(PATIENCE).await?;
        if !status.success() {
            bail!("sidekey-local ended with {status}\n{}", self.plugin.process().log_tail());
        }
        Ok(())
    }
}

impl Cluster {
    async fn start(dir: &Path, encryption: EncryptionConfiguration) -> Result<Self> {
        let plane = ControlPlane::start("up").await?;
        let options = Options::new("kube-apiserver").encryption(encryption);
        let server = KubeApiserver::start(&plane, options).await?;
        let kubeconfig = dir.join("kubeconfig");
        write_private(&kubeconfig, &server.kubeconfig())?;
        Ok(Self { server, plane, kubeconfig })
    }
}

/// One `cargo up` at a time in a directory: two would fight for the socket.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        bail!(
            "another cargo up runs in {}: end it, or choose another directory with --dir",
            dir.display()
        );
    }
    Ok(file)
}

/// Writes a file that only its owner may read, in place of an older one.
fn write_private(path: &Path, text: &str) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new).with_context(what)?;
    file.write_all(text.as_bytes()).with_context(what)?;
    std::fs::rename(&new, path).with_context(what)
}
