//! TCP ports that nobody else takes between choosing and listening.
//!
//! Asking the kernel for port 0 and closing it again is a race that parallel
//! tests lose: the number can go to any outgoing connection. Here ports come
//! from below the kernel's own range and are locked by a file while in use.

use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// How many ports below the kernel's ephemeral range are used.
const SPAN: u32 = 12_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port that is ours until this is dropped, on loopback if not said otherwise.
#[derive(Debug)]
pub struct Port {
    ip: Ipv4Addr,
    number: u16,
    _lock: File,
}

impl Port {
    /// Takes a free one.
    pub fn free() -> Result<Self> {
        Self::free_on(Ipv4Addr::LOCALHOST)
    }

    /// The same on another address of this host.
    pub fn free_on(ip: Ipv4Addr) -> Result<Self> {
        let dir = lock_directory()?;
        let first = first_port();
        let start = std::process::id().wrapping_mul(97);
        for _ in 0..SPAN {
            let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % SPAN;
            let number = u16::try_from(first + offset).context("port range beyond 65535")?;
            let path = dir.join(format!("{number}.lock"));
            let lock =
                File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            if lock.try_lock().is_err() {
                continue;
            }
            if TcpListener::bind((ip, number)).is_ok() {
                return Ok(Self { ip, number, _lock: lock });
            }
        }
        bail!("no free TCP port on {ip} from {first} on; are many tests hanging?")
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((self.ip, self.number))
    }
}

fn lock_directory() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("sidekey-e2e-ports-{user}"));
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(&dir)
        .with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Outgoing connections get their ports from this range of the kernel's.
fn first_port() -> u32 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest = range
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u32>().ok())
        .unwrap_or(32_768);
    lowest.clamp(SPAN + 2_000, 65_000) - SPAN
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_port_is_given_out_once_while_it_is_held() {
        let ports: Vec<Port> = (0..50).map(|_| Port::free().unwrap()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
        for port in &ports {
            TcpListener::bind(port.address()).expect("nobody else listens there");
        }
    }
}
