//! Asking a running proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sidekey_core::config::parse_duration;
use sidekey_core::{Answer, Error, Kind, Output, answer, mistakes, read_file};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::config::ProxyConfig;
use crate::probe_proxy::{AsClient, probe_proxy};

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
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "endpoint",
        conflicts_with = "endpoint"
    )]
    config: Option<PathBuf>,
    /// Ask for more than a listening port; needs `admin` in the configuration
    #[arg(long, requires = "config")]
    healthy: bool,
    #[command(flatten)]
    client: Option<AsClient>,
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
    if let Some(client) = probe.client {
        return probe_proxy(client, limit);
    }
    let path = probe.config.unwrap_or_default();
    answer(async {
        tokio::time::timeout(limit, of_config(&path, probe.healthy))
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
