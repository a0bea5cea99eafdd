//! Asking a socket proxy as the shim does. It is the shim's command, not the proxy's: a proxy needs
//! neither a resolver nor a TLS client, which are a quarter of a MiB of every process.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Uri;
use serde_json::json;
use sidekey_core::config::parse_duration;
use sidekey_core::proto::v2::StatusRequest;
use sidekey_core::{Answer, Error, Kind, Output, answer, client, healthy_key_id};
use tokio::net::TcpStream;

use crate::tls::{Identity, TlsFiles};

const EXAMPLES: &str = "\
Example:
  sidekey-shim probe-proxy --endpoint https://kms.example:8443 --ca ca.crt --cert tls.crt --key tls.key

Exit codes: 0 its plugin is healthy, 1 it is not, or cannot be asked.";

/// What is asked, and as whom.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProbeProxy {
    /// The proxy, as in `endpoints` of a key
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// Who signed the proxy's certificate
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// The shim's certificate
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// The key of that certificate
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The name in the proxy's certificate, if it is not that of the URL
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    timeout: Duration,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
}

/// Asks, and gives the answer.
pub(crate) fn probe_proxy(asked: &ProbeProxy) -> Result<Answer, Error> {
    let limit = asked.timeout;
    answer(async {
        tokio::time::timeout(limit, status(asked)).await.unwrap_or_else(|_| {
            let text = format!("{} did not answer in {limit:?}", asked.endpoint);
            Err(Error::new(Kind::Timeout, text))
        })
    })
}

async fn status(asked: &ProbeProxy) -> Result<Answer, Error> {
    let invalid = |text: String| Error::new(Kind::Invalid, text);
    let url = &asked.endpoint;
    let uri: Uri = url.parse().map_err(|_| invalid(format!("{url:?} is no URL")))?;
    let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
    let host = host.ok_or_else(|| invalid(format!("{url:?} is not https://host:port")))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ProbeProxy { ca, cert, key, .. } = asked;
    let files = TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() };
    let identity = Identity::load(files)?;
    let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::new(Kind::Unavailable, format!("cannot reach {url}")).with_source(error)
    };
    let tcp = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await;
    let tcp = tcp.map_err(|error| unreachable(error.into()))?;
    let name = asked.server_name.as_deref().unwrap_or(host);
    let stream = identity.connect(tcp, name).await?;
    let group = stream.get_ref().1.negotiated_key_exchange_group().map(|group| group.name());
    let group = group.map(|group| format!("{group:?}"));
    let mut client =
        client::over(stream, uri.clone()).await.map_err(|error| unreachable(error.into()))?;
    let status = client.status(StatusRequest {}).await.map_err(|status| {
        let text = format!("{url} answered {:?}: {}", status.code(), status.message());
        let error = Error::new(Kind::Unavailable, text);
        match std::error::Error::source(&status) {
            // Not an answer but the end of the connection: the cause says whose fault it is.
            Some(cause) => error.with_hint(root(cause)),
            None => error,
        }
    })?;
    let key_id_hash = healthy_key_id(&status.into_inner())?.hash();
    let json = json!({
        "listens": true, "healthy": true, "key_id_hash": key_id_hash, "key_exchange": group
    });
    let group = group.unwrap_or_default();
    Ok(Answer { text: format!("{url} is healthy, key_id {key_id_hash}, {group}"), json })
}

/// The last cause, which is the first in time.
fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
