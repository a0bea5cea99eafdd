//! A control plane: one etcd, and what all its kube-apiservers share.

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
    /// Where everything of this control plane lies.
    pub scratch: Scratch,
    /// The store.
    pub etcd: Etcd,
    pub(crate) authority: Authority,
    pub(crate) service_account: ServiceAccountKeys,
    pub(crate) tokens: PathBuf,
    pub(crate) admin_token: String,
}

impl ControlPlane {
    /// Starts etcd and makes certificates, keys and an administrator's token.
    pub async fn start(name: &str) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let shared = scratch.subdir("shared")?;
        let authority = Authority::new(&format!("{name} test CA"))?;
        let service_account = ServiceAccountKeys::create(&shared)?;
        let admin_token = random_token()?;
        let line = format!("{admin_token},admin,admin,\"system:masters\"\n");
        let tokens = write(&shared, "tokens.csv", &line)?;
        let etcd = Etcd::start(scratch.path()).await?;
        Ok(Self { scratch, etcd, authority, service_account, tokens, admin_token })
    }
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).ok().context("no randomness")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
