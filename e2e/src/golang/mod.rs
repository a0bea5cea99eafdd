//! Servers built from Go modules by the small wrappers in `e2e/go`, once, and
//! kept in the cache.
//!
//! The name of a cached binary carries a digest of the wrapper's files, the
//! build flags and the Go version, so a stale one is never used. Binaries are
//! built under another name and renamed, so a half-built one is never seen.

mod toolchain;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest;

use crate::cache::{self, Lock, say};
use crate::watchdog::Watchdog;
pub use toolchain::Toolchain;

/// One server: a wrapper module and how to build it.
#[derive(Clone, Copy, Debug)]
pub struct GoServer {
    /// The binary's name.
    pub name: &'static str,
    /// The version that `--version` must print.
    pub version: &'static str,
    /// The directory with go.mod, go.sum and main.go.
    pub wrapper: &'static str,
    /// For the linker, on top of `-s -w`.
    pub ldflags: &'static str,
    /// What the first build costs, told to the one who waits for it.
    pub cost: &'static str,
}

/// The kube-apiserver that the tests run.
pub const KUBE_APISERVER: GoServer = GoServer {
    name: "kube-apiserver",
    version: "1.36.3",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/kubernetes"),
    ldflags: "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
              -X k8s.io/component-base/version.gitMajor=1 \
              -X k8s.io/component-base/version.gitMinor=36",
    cost: "6 minutes the first time",
};

/// How often that kube-apiserver looks at its EncryptionConfiguration, if not once a minute; see
/// `go/kubernetes/main.go`.
pub(crate) const CONFIG_POLL: &str = "SIDEKEY_E2E_CONFIG_POLL";

/// Everything else of Kubernetes, in one binary: `kubelet`, `kube-proxy`,
/// `kube-scheduler` or `kube-controller-manager` is its first argument.
pub const NODE: GoServer = GoServer {
    name: "node",
    version: "1.36.3",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/node"),
    ldflags: KUBE_APISERVER.ldflags,
    cost: "8 minutes the first time",
};

/// The kubectl that benchmarks compare with.
pub const KUBECTL: GoServer = GoServer {
    name: "kubectl",
    version: "1.36.3",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/kubectl"),
    ldflags: KUBE_APISERVER.ldflags,
    cost: "a minute or two the first time",
};

/// The CoreDNS of a cluster.
pub const COREDNS: GoServer = GoServer {
    name: "coredns",
    version: "1.12.4",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/coredns"),
    ldflags: "",
    cost: "a minute or two the first time",
};

/// What the pods of the tests run where they need no program of ours.
pub const POD: GoServer = GoServer {
    name: "pod",
    version: "1.0.0",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/pod"),
    ldflags: "",
    cost: "some seconds the first time",
};

/// The etcd that the tests run.
pub const ETCD: GoServer = GoServer {
    name: "etcd",
    version: "3.6.16",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/etcd"),
    ldflags: "",
    cost: "a minute the first time",
};

/// The OpenBao that the tests run.
pub const OPENBAO: GoServer = GoServer {
    name: "openbao",
    version: "2.4.0",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/openbao"),
    ldflags: "-X github.com/openbao/openbao/version.fullVersion=2.4.0",
    cost: "6 minutes the first time",
};

/// The local-kms that the tests run.
pub const LOCAL_KMS: GoServer = GoServer {
    name: "local-kms",
    version: "e4d9425700fe",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/local-kms"),
    ldflags: "",
    cost: "20 seconds the first time",
};

/// The KMIP server that the tests run, on OVHcloud's kmip-go.
pub const KMIP: GoServer = GoServer {
    name: "kmip",
    version: "0.8.0",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/kmip"),
    ldflags: "",
    cost: "some seconds the first time",
};

/// Google's own client of Cloud KMS, by which the fake of that is proven.
pub const GCP_CLIENT: GoServer = GoServer {
    name: "gcp-client",
    version: "1.36.1",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/gcp-client"),
    ldflags: "",
    cost: "a minute the first time",
};

/// IBM's own client of Key Protect, for the proof of our fake of that.
pub const KEYPROTECT_CLIENT: GoServer = GoServer {
    name: "keyprotect-client",
    version: "0.15.1",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/keyprotect-client"),
    ldflags: "",
    cost: "some seconds the first time",
};

/// OVHcloud's own client of OKMS, for the proof of our fake of that.
pub const OKMS_CLIENT: GoServer = GoServer {
    name: "okms-client",
    version: "0.5.1",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/okms-client"),
    ldflags: "",
    cost: "some seconds the first time",
};

/// The Azure/kubernetes-kms that `sidekey-azure` takes the place of.
pub const AZURE_KMS: GoServer = GoServer {
    name: "azure-kms",
    version: "0.11.0",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/azure-kms"),
    ldflags: "",
    cost: "two minutes the first time",
};

/// Microsoft's own client of Key Vault, azkeys, with azidentity.
pub const AZURE_CLIENT: GoServer = GoServer {
    name: "azure-client",
    version: "1.5.0",
    wrapper: concat!(env!("CARGO_MANIFEST_DIR"), "/go/azure-client"),
    ldflags: "",
    cost: "half a minute the first time",
};

impl GoServer {
    /// The binary's path, built now if the cache does not have it. Blocks.
    pub fn build(&self) -> Result<PathBuf> {
        let what = || format!("cannot provide {} {}", self.name, self.version);
        self.build_in(&cache::directory()?).with_context(what)
    }

    /// The same from async code.
    pub async fn build_async(self) -> Result<PathBuf> {
        tokio::task::spawn_blocking(move || self.build()).await?
    }

    fn build_in(&self, cache: &Path) -> Result<PathBuf> {
        let wrapper = Path::new(self.wrapper);
        let go = Toolchain::at_least(&required_version(wrapper)?, cache)?;
        let dir = cache.join("bin");
        let name = format!("{}-{}-{}", self.name, self.version, self.digest(&go)?);
        let target = dir.join(&name);
        if target.is_file() {
            return Ok(target);
        }
        let _lock = Lock::take(&dir, self.name)?;
        if target.is_file() {
            return Ok(target);
        }
        say(&format!("building {} v{} from Go modules, {}", self.name, self.version, self.cost));
        // The lock is ours: whatever lies here was left by a build that died.
        let unfinished = dir.join(format!("{}.unfinished", self.name));
        self.compile(&go, &unfinished, &dir.join(format!("{}.log", self.name)))?;
        self.check(&unfinished)?;
        std::fs::rename(&unfinished, &target)
            .with_context(|| format!("cannot rename to {}", target.display()))?;
        say(&format!("built {}", target.display()));
        Ok(target)
    }

    fn arguments(&self) -> Vec<String> {
        let ldflags = format!("-s -w {}", self.ldflags);
        ["build", "-trimpath", "-ldflags", ldflags.trim()].map(str::to_owned).to_vec()
    }

    /// All that decides what the binary will be.
    fn digest(&self, go: &Toolchain) -> Result<String> {
        let wrapper = Path::new(self.wrapper);
        let list = || format!("cannot list {}", wrapper.display());
        let mut files = std::fs::read_dir(wrapper)
            .with_context(list)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        files.retain(|path| {
            path.extension().is_some_and(|end| end == "go" || end == "mod" || end == "sum")
        });
        files.sort();
        let mut context = digest::Context::new(&digest::SHA256);
        let mut add = |bytes: &[u8]| {
            context.update(&(bytes.len() as u64).to_be_bytes());
            context.update(bytes);
        };
        add(go.version().as_bytes());
        self.arguments().iter().for_each(|argument| add(argument.as_bytes()));
        for path in files {
            let read = || format!("cannot read {}", path.display());
            add(path.file_name().unwrap_or_default().as_encoded_bytes());
            add(&std::fs::read(&path).with_context(read)?);
        }
        let hash = context.finish();
        Ok(hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn compile(&self, go: &Toolchain, output: &Path, log: &Path) -> Result<()> {
        let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = Command::new(go.path());
        command
            .args(self.arguments())
            .arg("-o")
            .arg(output)
            .arg(".")
            .current_dir(self.wrapper)
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            .env_remove("GOOS")
            .env_remove("GOARCH")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let status = run_with_heartbeat(command, self.name)?;
        if !status.success() {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            bail!(
                "go build in {} failed ({status}):\n{text}\
                 Go fetches modules through GOPROXY; a 403 or time-out there is the usual cause. \
                 To see it alone: cd {} && CGO_ENABLED=0 {} build -o /dev/null .",
                self.wrapper,
                self.wrapper,
                go.path().display()
            );
        }
        Ok(())
    }

    fn check(&self, binary: &Path) -> Result<()> {
        let ran = Command::new(binary)
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        let text = String::from_utf8_lossy(&ran.stdout);
        ensure!(
            ran.status.success() && text.contains(self.version),
            "the built {} says {text:?} to --version, not {}",
            self.name,
            self.version
        );
        Ok(())
    }
}

/// Runs a slow command and shows each half minute that it is still alive.
fn run_with_heartbeat(mut command: Command, name: &str) -> Result<ExitStatus> {
    let watchdog = Watchdog::of_this_process()?;
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let pid = child.id();
    watchdog.guard(pid)?;
    let begun = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait()));
    loop {
        match receiver.recv_timeout(Duration::from_secs(30)) {
            Ok(status) => {
                let _ = waiter.join();
                watchdog.release(pid)?;
                return Ok(status?);
            }
            Err(RecvTimeoutError::Timeout) => {
                say(&format!("still building {name}, {} s so far", begun.elapsed().as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => bail!("lost sight of the build of {name}"),
        }
    }
}

/// The `go` line of the wrapper's go.mod.
fn required_version(wrapper: &Path) -> Result<String> {
    let path = wrapper.join("go.mod");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("go "));
    Ok(line.with_context(|| format!("{} has no go line", path.display()))?.trim().to_owned())
}
