//! Asking a running proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Uri;
use serde_json::json;
use sidekey_core::config::parse_duration;
use sidekey_core::proto::v2::StatusRequest;
use sidekey_core::{
    Answer, Error, Kind, Output, answer, client, healthy_key_id, mistakes, read_file,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::config::ProxyConfig;
use crate::tls::{Identity, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  sidekey-proxy probe --config proxy.yaml            # it listens (startup probe)
  sidekey-proxy probe --config proxy.yaml --healthy  # its plugin is reached, its certificate is good
  sidekey-proxy probe --endpoint https://kms.example:8443 --ca ca.crt --cert tls.crt --key tls.key

The last asks for Status as a client does, from wherever that client runs.
Exit codes: 0 yes, 1 no.";

/// What is asked, and of whom.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Probe {
    /// Configuration of a proxy on this host
    #[arg(long, value_name = "FILE", required_unless_present = "endpoint")]
    config: Option<PathBuf>,
    /// Ask for more than a listening port; needs `admin` in the configuration
    #[arg(long, requires = "config")]
    healthy: bool,
    /// Any proxy, to be asked as a client
    #[arg(long, value_name = "URL", conflicts_with = "config", requires_all = ["ca", "cert", "key"])]
    endpoint: Option<String>,
    /// Who signed the proxy's certificate
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    ca: Option<PathBuf>,
    /// The client's certificate
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    key: Option<PathBuf>,
    /// The name in the proxy's certificate, if it is not that of the URL
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    server_name: Option<String>,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    timeout: Duration,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Output,
}

/// Asks, and gives the answer.
pub(super) fn probe(probe: Probe) -> Result<Answer, Error> {
    let limit = probe.timeout;
    let asking = async {
        match (&probe.endpoint, &probe.config) {
            (Some(url), _) => as_client(&probe, url).await,
            (None, Some(path)) => of_config(path, probe.healthy).await,
            (None, None) => Err(Error::new(Kind::Invalid, "give --config or --endpoint")),
        }
    };
    answer(async {
        tokio::time::timeout(limit, asking)
            .await
            .unwrap_or_else(|_| Err(Error::new(Kind::Timeout, format!("no answer in {limit:?}"))))
    })
}

async fn of_config(path: &std::path::Path, healthy: bool) -> Result<Answer, Error> {
    let config =
        read_file(path).and_then(|document| ProxyConfig::parse(&document)).map_err(|problems| {
            Error::new(Kind::Invalid, mistakes(&path.display().to_string(), &problems))
        })?;
    if healthy {
        let address = config.options.admin.address.ok_or_else(|| {
            Error::new(Kind::Invalid, format!("{path:?} has no admin address to ask"))
                .with_hint("set admin, or leave --healthy out")
        })?;
        return health(address).await;
    }
    let address = reachable(config.listen);
    connect(address).await?;
    let text = format!("{address} listens");
    Ok(Answer { json: json!({"listens": true}), text })
}

/// Asks the admin server: a proxy's own certificate is not one of its clients'.
async fn health(address: SocketAddr) -> Result<Answer, Error> {
    let address = reachable(address);
    let mut stream = connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut text = String::new();
    let talk = async {
        stream.write_all(request.as_bytes()).await?;
        stream.take(64 * 1024).read_to_string(&mut text).await
    };
    talk.await.map_err(|error| {
        Error::new(Kind::Unavailable, format!("{address} does not answer")).with_source(error)
    })?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
    if text.starts_with("HTTP/1.1 200 ") {
        let text = format!("{address} is healthy");
        return Ok(Answer { json: json!({"listens": true, "healthy": true}), text });
    }
    Err(Error::new(Kind::Unavailable, format!("{address} is not healthy: {body}")))
}

async fn as_client(probe: &Probe, url: &str) -> Result<Answer, Error> {
    let invalid = |text: String| Error::new(Kind::Invalid, text);
    let uri: Uri = url.parse().map_err(|_| invalid(format!("{url:?} is no URL")))?;
    let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
    let host = host.ok_or_else(|| invalid(format!("{url:?} is not https://host:port")))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let (Some(ca), Some(cert), Some(key)) = (&probe.ca, &probe.cert, &probe.key) else {
        return Err(invalid("give --ca, --cert and --key".to_owned()));
    };
    let files = TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() };
    let identity = Identity::load(files)?;
    let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::new(Kind::Unavailable, format!("cannot reach {url}")).with_source(error)
    };
    let tcp = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await;
    let tcp = tcp.map_err(|error| unreachable(error.into()))?;
    let name = probe.server_name.as_deref().unwrap_or(host);
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

async fn connect(address: SocketAddr) -> Result<TcpStream, Error> {
    TcpStream::connect(address).await.map_err(|error| {
        Error::new(Kind::Unavailable, format!("nobody listens on {address}")).with_source(error)
    })
}

/// An address to connect to: one that stands for all of them is reached on loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
