//! A machine of its own for one node: namespaces for its network, its mounts
//! and its processes, behind one link to this host.
//!
//! All of it hangs on one process, the first of its process namespace. When
//! that one ends, the kernel kills every other process in there, containers
//! included, and with the last of them go mounts, bridge, links, routes and
//! iptables rules. So ending a machine is ending one pid, and two machines never
//! meet. Making one takes root.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::inside::{Inside, child_of};
use crate::packages;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// A thousand addresses for each machine, out of those for networks that nobody
/// outside ever sees (RFC 6598).
const NETWORK: u32 = u32::from_be_bytes([100, 64, 0, 0]);
const SLOT: u32 = 1 << 10;
const SLOTS: u32 = 1 << 12;

/// The name of the link on the machine.
const FAR: &str = "up0";

/// What a machine's first process does: everything that its programs write to
/// fixed places of a host goes to memory of its own.
const INIT: &str = r#"
set -e
mount --make-rshared /
for dir in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$dir"; done
"$1" link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
sleep infinity &
wait
"#;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The addresses of one machine, no other has them.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    base: u32,
}

impl Addresses {
    fn of(slot: u32) -> Self {
        Self { base: NETWORK + slot * SLOT }
    }

    /// This host, as the machine and its pods see it.
    pub fn host(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1)
    }

    /// The machine.
    pub fn node(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 2)
    }

    /// The addresses of its pods.
    pub fn pods(&self) -> String {
        format!("{}/24", Ipv4Addr::from(self.base + 256))
    }

    /// The addresses of Services.
    pub fn services(&self) -> String {
        format!("{}/24", Ipv4Addr::from(self.base + 512))
    }

    /// The address of the n-th Service: 1 is kube-apiserver's.
    pub fn service(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 512 + u32::from(number))
    }
}

/// One machine, gone with everything on it when this is dropped.
#[derive(Debug)]
pub struct Machine {
    holder: Process,
    init: u32,
    ip: PathBuf,
    nsenter: PathBuf,
    link: String,
    addresses: Addresses,
    cgroup: PathBuf,
}

impl Machine {
    /// Makes one; its files are in `dir`, a directory of a [`Scratch`](crate::Scratch).
    pub async fn create(dir: &Path) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this test runs a Kubernetes node, which takes root: run it as root"
        );
        for hidden in ["/run", "/var/lib", "/var/log"] {
            let dir = dir.display();
            ensure!(
                !Path::new(&dir.to_string()).starts_with(hidden),
                "{dir} lies in {hidden}, which a node of the tests cannot see: set TMPDIR elsewhere"
            );
        }
        let ip = packages::program("ip", "iproute2").await?;
        let unshare = packages::program("unshare", "util-linux").await?;
        let nsenter = packages::program("nsenter", "util-linux").await?;
        packages::program("find", "findutils").await?;
        let mut holder = Spec::new("machine", unshare, dir.join("machine.log"))
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", INIT, "machine"])
            .arg(&ip)
            .start()?;
        let ready = |line: &str| (line == "ready").then_some(());
        let made = holder.wait_for_log("its namespaces are made", PATIENCE, ready).await;
        made.context("a node needs namespaces of its own: in a container that takes --privileged")?;
        let init = child_of(holder.pid().context("no pid")?)?;
        let (link, addresses) = connect(&ip, init)?;
        let cgroup = control_group(dir)?;
        for place in places(&cgroup) {
            let make = || format!("cannot make the control group {}", place.display());
            std::fs::create_dir_all(&place).with_context(make)?;
        }
        let machine = Self { holder, init, ip, nsenter, link, addresses, cgroup };
        machine.configure()?;
        Ok(machine)
    }

    /// The process on which it hangs, as this host sees it.
    pub fn pid(&self) -> u32 {
        self.init
    }

    /// The one who waits for that process, and ends with it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.holder
    }

    /// Its addresses.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The control group in which all its containers are to be: it goes with
    /// the machine, on drop and by the watchdog.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// What to start so that `program` runs on the machine: `spec` for nsenter.
    pub fn spec(&self, name: &str, program: &Path, log: &Path) -> Spec {
        Spec::new(name, &self.nsenter, log).args(self.entry()).arg(program)
    }

    /// Starts a program on the machine.
    pub fn start(&self, spec: Spec) -> Result<Inside> {
        Ok(Inside::new(spec.start()?))
    }

    /// Runs a short command on the machine and gives what it printed.
    pub async fn run(&self, program: &Path, args: &[&str]) -> Result<String> {
        let what = || format!("{} {}", program.display(), args.join(" "));
        let ran = tokio::process::Command::new(&self.nsenter)
            .args(self.entry())
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(what)?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "{}: {}: {}", what(), ran.status, said.trim());
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// A path as the machine sees it, tmpfs mounts and volumes of pods included.
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.init));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn entry(&self) -> [String; 5] {
        let target = format!("--target={}", self.init);
        [target, "--net".into(), "--mount".into(), "--pid".into(), "--".into()]
    }

    fn configure(&self) -> Result<()> {
        let (host, node) = (self.addresses.host().to_string(), self.addresses.node().to_string());
        run(&self.ip, &["address", "add", &format!("{host}/30"), "dev", &self.link])?;
        run(&self.ip, &["link", "set", &self.link, "up"])?;
        self.inside(&["address", "add", &format!("{node}/30"), "dev", FAR])?;
        self.inside(&["link", "set", FAR, "up"])?;
        self.inside(&["route", "add", "default", "via", &host])?;
        // So a test reaches pods and Services as anything in the cluster does.
        for network in [self.addresses.pods(), self.addresses.services()] {
            run(&self.ip, &["route", "add", &network, "via", &node, "dev", &self.link])?;
        }
        Ok(())
    }

    /// `ip` on the machine.
    fn inside(&self, args: &[&str]) -> Result<()> {
        let net = format!("--net=/proc/{}/ns/net", self.init);
        let ip = self.ip.display().to_string();
        run(&self.nsenter, &[&[net.as_str(), ip.as_str()], args].concat())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The first process ends last: when the holder has seen it end, every
        // other one of the machine is gone.
        let init = i32::try_from(self.init).ok().and_then(Pid::from_raw);
        if let Some(init) = init.filter(|_| self.holder.check_running().is_ok()) {
            let _ = kill_process(init, Signal::KILL);
        }
        let holder = &mut self.holder;
        if !until(Duration::from_secs(30), || !matches!(holder.ended(), Ok(None))) {
            eprintln!("the machine of a node still runs 30 s after it was killed");
        }
        // Their end would do it too, some time later.
        let _ = run(&self.ip, &["link", "delete", &self.link]);
        if let Err(error) = remove_control_groups(&self.cgroup) {
            eprintln!("{error:#}");
        }
    }
}

/// Takes a network that nobody has yet: the name of the link is the lock.
fn connect(ip: &Path, init: u32) -> Result<(String, Addresses)> {
    let mut last = None;
    for _ in 0..50 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let slot = std::process::id().wrapping_mul(31).wrapping_add(number) % SLOTS;
        let (link, to) = (format!("skc{slot}"), init.to_string());
        let pair = ["type", "veth", "peer", "name", FAR, "netns", &to];
        match run(ip, &[&["link", "add", link.as_str()], &pair[..]].concat()) {
            Ok(()) => return Ok((link, Addresses::of(slot))),
            Err(error) => last = Some(error),
        }
    }
    bail!("cannot make a link to a machine: {:#}", last.context("none was tried")?)
}

/// `/<scratch directory of this process>/<directory of this cluster>`: the
/// watchdog removes what has the first of these names.
fn control_group(dir: &Path) -> Result<PathBuf> {
    let part = |path: Option<&Path>| path.and_then(Path::file_name).map(PathBuf::from);
    let names = part(dir.parent()).zip(part(Some(dir)));
    let (process, own) = names.context("a scratch directory has no parent")?;
    Ok(Path::new("/").join(process).join(own))
}

/// Where a control group is: in the one hierarchy of version 2, or in all of version 1.
fn places(group: &Path) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let relative = group.strip_prefix("/").unwrap_or(group);
    if root.join("cgroup.controllers").exists() {
        return vec![root.join(relative)];
    }
    let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten();
    let hierarchies = hierarchies.map(|entry| entry.path());
    let real = hierarchies.filter(|path| path.join("cgroup.procs").exists() && !path.is_symlink());
    real.map(|path| path.join(relative)).collect()
}

/// Removes a control group with all in it.
fn remove_control_groups(group: &Path) -> Result<()> {
    for place in places(group) {
        // It is busy until the kernel has buried the last process in it.
        let mut removed = Ok(());
        until(Duration::from_secs(10), || {
            removed = remove_tree(&place);
            removed.is_ok()
        });
        removed.with_context(|| format!("cannot remove the control group {}", place.display()))?;
        // The parent is shared by the clusters of this process: the last one takes it.
        let _ = place.parent().map(std::fs::remove_dir);
    }
    Ok(())
}

/// Waits for a condition where nothing can be awaited: in a drop.
#[expect(clippy::disallowed_methods, reason = "a drop has to block, and this one has a deadline")]
fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Directories only: the files in them are the kernel's.
fn remove_tree(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(dir).with_context(|| dir.display().to_string())
}

fn run(program: &Path, args: &[&str]) -> Result<()> {
    let what = || format!("{} {}", program.display(), args.join(" "));
    let ran = Command::new(program).args(args).stdin(Stdio::null()).output().with_context(what)?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{}: {}", what(), said.trim());
    Ok(())
}
