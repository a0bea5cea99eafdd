//! Asking a running proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sidekey_core::config::parse_duration;
use sidekey_core::{Answer, Error, Kind, Output, answer, mistakes, read_file};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::config::ProxyConfig;
use crate::config::Address;
use crate::link::{Link, Tls};
use crate::tls::{Identity, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  sidekey-proxy probe --config proxy.yaml            # it listens (startup probe)
  sidekey-proxy probe --config proxy.yaml --healthy  # its plugin is reached, its certificate is good
  sidekey-proxy probe --endpoint https://kms.example:8443 --ca ca.crt --cert tls.crt --key tls.key

The last asks for Status as a client does, from wherever that client runs.
`sidekey-shim probe-proxy` is this command too. Exit codes: 0 yes, 1 no.";

/// What is asked, and of whom.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Probe {
    /// Configuration of a proxy on this host
    #[arg(long, value_name = "FILE", required_unless_present = "endpoint")]
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
    pub(crate) output: Output,
}

/// Whom to ask as a client, and as which.
#[derive(Debug, Args)]
struct AsClient {
    /// Any proxy, as in `endpoints` of a key, to be asked as a client
    #[arg(long, value_name = "URL", required = false, conflicts_with = "config")]
    #[arg(requires_all = ["ca", "cert", "key"])]
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

/// Asks, and gives the answer.
pub(crate) fn probe(probe: Probe) -> Result<Answer, Error> {
    let Probe { config, healthy, client, timeout: limit, .. } = probe;
    let asking = async {
        match client {
            Some(client) => client.ask(Instant::now() + limit).await,
            None => of_config(&config.unwrap_or_default(), healthy).await,
        }
    };
    answer(async {
        tokio::time::timeout(limit, asking)
            .await
            .unwrap_or_else(|_| Err(Error::new(Kind::Timeout, format!("no answer in {limit:?}"))))
    })
}

impl AsClient {
    /// Asks for Status over the connection that the shim makes for its keys.
    async fn ask(self, deadline: Instant) -> Result<Answer, Error> {
        let Self { endpoint, ca, cert, key, server_name } = self;
        let identity = Identity::load(TlsFiles { ca, cert, key })?;
        let tls = Some(Tls { identity, server_name });
        let link = Link::new(endpoint.clone(), Vec::new(), tls, Arc::default());
        let key_id = link.client(deadline).await?.status(deadline).await?.key_id.hash();
        let json = json!({"listens": true, "healthy": true, "key_id_hash": key_id});
        Ok(Answer { text: format!("{endpoint} is healthy, key_id {key_id}"), json })
    }
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
