//! Asking a socket proxy as the shim does: a command of both.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sidekey_core::config::parse_duration;
use sidekey_core::{Answer, Error, Output, answer};
use tokio::time::Instant;

use crate::config::Address;
use crate::link::{Link, Tls};
use crate::tls::{Identity, TlsFiles};

const EXAMPLES: &str = "\
Example:
  sidekey-shim probe-proxy --endpoint https://kms.example:8443 --ca ca.crt --cert tls.crt --key tls.key

Exit codes: 0 its plugin is healthy, 1 it is not, or cannot be asked.";

/// What is asked.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("endpoint", |argument| argument.required(true)))]
pub(crate) struct ProbeProxy {
    #[command(flatten)]
    pub(crate) client: AsClient,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
}

/// Whom to ask, and as whom. A command may have others to ask, so the first is not required here.
#[derive(Debug, Args)]
pub(crate) struct AsClient {
    /// Any proxy, as in `endpoints` of a key, to be asked as a client
    #[arg(long, value_name = "URL", required = false, requires_all = ["ca", "cert", "key"])]
    endpoint: Address,
    /// Who signed the proxy's certificate
    #[arg(long, value_name = "FILE", required = false, requires = "endpoint")]
    ca: PathBuf,
    /// The client's certificate
    #[arg(long, value_name = "FILE", required = false, requires = "endpoint")]
    cert: PathBuf,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", required = false, requires = "endpoint")]
    key: PathBuf,
    /// The name in the proxy's certificate, if it is not that of the URL
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    server_name: Option<String>,
}

/// Asks over the connection that the shim makes for its keys, and gives the answer.
pub(crate) fn probe_proxy(client: AsClient, timeout: Duration) -> Result<Answer, Error> {
    let AsClient { endpoint, ca, cert, key, server_name } = client;
    let identity = Identity::load(TlsFiles { ca, cert, key })?;
    let tls = Some(Tls { identity, server_name });
    let link = Link::new(endpoint.clone(), Vec::new(), tls, Arc::default());
    answer(async {
        let deadline = Instant::now() + timeout;
        let key_id = link.client(deadline).await?.status(deadline).await?.key_id.hash();
        let json = json!({"listens": true, "healthy": true, "key_id_hash": key_id});
        Ok(Answer { text: format!("{endpoint} is healthy, key_id {key_id}"), json })
    })
}
