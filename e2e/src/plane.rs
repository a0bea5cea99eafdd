//! A control plane: one etcd, and what all its kube-apiservers share.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use aws_lc_rs::rand;

use crate::etcd::Etcd;
use crate::pki::{Authority, ServiceAccountKeys, write};
use crate::scratch::Scratch;

/// One etcd, and the identity of any number of kube-apiservers on it.
///
/// The scratch directory goes last: declare plugins and kube-apiservers after
/// it, so that they are dropped, and ended, before it.
pub struct ControlPlane {
    /// The store.
    pub etcd: Etcd,
    /// Where everything of this control plane lies: removed after etcd has ended.
    pub scratch: Scratch,
    pub(crate) authority: Authority,
    pub(crate) service_account: ServiceAccountKeys,
    pub(crate) tokens: PathBuf,
    pub(crate) admin_token: String,
}

impl ControlPlane {
    /// Starts etcd and makes certificates, keys and an administrator's token.
    pub async fn start(name: &str) -> Result<Self> {
        Self::start_in(Scratch::new(name)?, name, Ipv4Addr::LOCALHOST).await
    }

    /// The same in a directory that is there already, with etcd on `address`.
    pub async fn start_in(scratch: Scratch, name: &str, address: Ipv4Addr) -> Result<Self> {
        let shared = scratch.subdir("shared")?;
        let authority = Authority::new(&format!("{name} test CA"))?;
        let service_account = ServiceAccountKeys::create(&shared)?;
        let admin_token = random_token()?;
        let line = format!("{admin_token},admin,admin,\"system:masters\"\n");
        let tokens = write(&shared, "tokens.csv", &line)?;
        let etcd = Etcd::start_on(address, scratch.path()).await?;
        Ok(Self { etcd, scratch, authority, service_account, tokens, admin_token })
    }
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).ok().context("no randomness")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
