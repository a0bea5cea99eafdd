//! Another host: a network namespace behind a link that can be cut.
//!
//! The namespace has no name and lives only as long as the processes in it, so
//! that it goes, and its link with it, when they are ended. Making it takes root.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::packages;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// Four addresses for each host, out of those set aside for tests of networks.
const NETWORK: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const HOSTS: u32 = 1 << 15;

/// The name of the link on that host.
const FAR: &str = "up0";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Another host, reached by one link.
#[derive(Debug)]
pub struct Host {
    holder: Process,
    ip: PathBuf,
    link: String,
    address: Ipv4Addr,
}

impl Host {
    /// Makes one; its log is `host.log` in `dir`.
    pub async fn create(dir: &Path) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this test makes a network namespace, which takes root: run it as root"
        );
        let ip = packages::program("ip", "iproute2").await?;
        let unshare = packages::program("unshare", "util-linux").await?;
        let mut holder = Spec::new("another host", unshare, dir.join("host.log"))
            .args(["--net", "sleep", "infinity"])
            .start()?;
        let own = std::fs::read_link("/proc/self/ns/net").context("no /proc")?;
        let pid = holder.pid().context("no pid")?;
        holder
            .wait_until("it has a network of its own", PATIENCE, async || {
                let its = std::fs::read_link(format!("/proc/{pid}/ns/net"))?;
                ensure!(its != own, "it is still in ours");
                Ok(())
            })
            .await?;
        Self::connect(holder, ip, pid)
    }

    /// Where it is reached.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What to start instead of `program`, so that it runs on this host:
    /// a program and its first arguments.
    pub async fn running(&self, program: &Path) -> Result<(PathBuf, Vec<String>)> {
        let nsenter = packages::program("nsenter", "util-linux").await?;
        Ok((nsenter, vec![self.namespace()?, program.display().to_string()]))
    }

    /// Does `work` on this host, in a thread: sockets that it makes are the host's own, wherever
    /// they are used afterwards.
    pub fn on<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
        let pid = self.holder.pid().context("the host is gone")?;
        let network = File::open(format!("/proc/{pid}/ns/net")).context("no network")?;
        let done = std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                work()
            });
            there.join()
        });
        let done = done.map_err(|_| anyhow!("work on another host panicked"))?;
        done.context("cannot work on another host")
    }

    /// Cuts the link at its far end: packets get lost, and nobody is told.
    pub fn cut(&self) -> Result<()> {
        self.inside(&["link", "set", FAR, "down"])
    }

    /// Mends the link.
    pub fn heal(&self) -> Result<()> {
        self.inside(&["link", "set", FAR, "up"])
    }

    /// Takes a network that nobody has yet.
    fn connect(holder: Process, ip: PathBuf, pid: u32) -> Result<Self> {
        let mut last = None;
        for _ in 0..50 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let slot = std::process::id().wrapping_mul(31).wrapping_add(number) % HOSTS;
            let (near, far) = (Ipv4Addr::from(NETWORK + slot * 4 + 1), NETWORK + slot * 4 + 2);
            let (link, address) = (format!("skn{slot}"), Ipv4Addr::from(far));
            let to = pid.to_string();
            let pair = ["type", "veth", "peer", "name", FAR, "netns", &to];
            if let Err(error) = run(&ip, &[&["link", "add", link.as_str()], &pair[..]].concat()) {
                last = Some(error);
                continue;
            }
            let host = Self { holder, ip, link, address };
            host.configure(near)?;
            return Ok(host);
        }
        bail!("cannot make a link to another host: {:#}", last.context("none was tried")?)
    }

    fn configure(&self, near: Ipv4Addr) -> Result<()> {
        run(&self.ip, &["address", "add", &format!("{near}/30"), "dev", &self.link])?;
        run(&self.ip, &["link", "set", &self.link, "up"])?;
        self.inside(&["link", "set", "lo", "up"])?;
        self.inside(&["address", "add", &format!("{}/30", self.address), "dev", FAR])?;
        self.heal()
    }

    /// `ip` on that host.
    fn inside(&self, args: &[&str]) -> Result<()> {
        let (net, ip) = (self.namespace()?, self.ip.display().to_string());
        run(Path::new("nsenter"), &[&[net.as_str(), ip.as_str()], args].concat())
    }

    fn namespace(&self) -> Result<String> {
        let pid = self.holder.pid().context("the host is gone")?;
        Ok(format!("--net=/proc/{pid}/ns/net"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The end of the namespace would do it too, some time later.
        let _ = run(&self.ip, &["link", "delete", &self.link]);
    }
}

fn run(program: &Path, args: &[&str]) -> Result<()> {
    let what = || format!("{} {}", program.display(), args.join(" "));
    let ran = Command::new(program).args(args).stdin(Stdio::null()).output().with_context(what)?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{}: {}", what(), said.trim());
    Ok(())
}
