//! Where a shim's admin server can be reached without a cluster's help.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sidekey_core::Endpoint;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::http::{Reply, get};
use crate::Error;

/// A shim's admin server.
#[derive(Clone, Debug)]
pub enum Address {
    /// Its `adminSocket`.
    Unix(Endpoint),
    /// Its `admin`, on this host's loopback.
    Loopback(SocketAddr),
    /// Its `adminTls`.
    Tls {
        /// `host:port`.
        authority: String,
        /// What it must have in its certificate.
        name: String,
        /// Who we are, and whom we trust.
        credentials: Credentials,
    },
}

/// A certificate to show, and the authority to trust; PEM files.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Credentials {
    /// CA of the shims' certificates, for https
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate to show to them
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

impl Address {
    /// Reads `unix:///path`, `http://127.0.0.1:port` or `https://host:port`.
    pub fn parse(text: &str, credentials: &Credentials) -> Result<Self, Error> {
        let bad = |why: &str| {
            Error::usage(format!("{text:?} is no admin server: {why}")).hint(
                "give unix:///path of its adminSocket, http://127.0.0.1:port of its admin, \
                 or https://host:port of its adminTls",
            )
        };
        if text.starts_with("unix:") || text.starts_with('/') {
            let endpoint = Endpoint::from_str(text).map_err(|error| bad(&error.to_string()))?;
            return Ok(Self::Unix(endpoint));
        }
        let uri: Uri = text.parse().map_err(|_| bad("it is no URL"))?;
        let host = uri.host().ok_or_else(|| bad("it has no host"))?;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        match uri.scheme_str() {
            Some("http") => {
                let ip = if bare == "localhost" { Some([127, 0, 0, 1].into()) } else { None };
                let ip: Option<IpAddr> = ip.or_else(|| bare.parse().ok());
                let ip = ip.filter(IpAddr::is_loopback);
                let ip = ip.ok_or_else(|| bad("plain http is for loopback alone"))?;
                Ok(Self::Loopback((ip, uri.port_u16().unwrap_or(super::SHIM_PORT)).into()))
            }
            Some("https") => {
                let authority = format!("{host}:{}", uri.port_u16().unwrap_or(443));
                let credentials = credentials.clone();
                Ok(Self::Tls { authority, name: bare, credentials })
            }
            _ => Err(bad("its scheme is not known")),
        }
    }

    /// GET of a path.
    pub(crate) async fn fetch(&self, path: &str) -> Result<Reply, Error> {
        let unreachable = |error: std::io::Error| {
            Error::failed(format!("cannot connect to {self}")).because(error)
        };
        match self {
            Self::Unix(endpoint) => {
                get(endpoint.connect().await.map_err(unreachable)?, "localhost", path).await
            }
            Self::Loopback(address) => {
                let stream = TcpStream::connect(address).await.map_err(unreachable)?;
                get(stream, &address.to_string(), path).await
            }
            Self::Tls { authority, name, credentials } => {
                let config = credentials.client()?;
                let stream = TcpStream::connect(authority).await.map_err(unreachable)?;
                let server = ServerName::try_from(name.clone()).map_err(|error| {
                    Error::usage(format!("{name:?} is no name of a server")).because(error)
                })?;
                let stream = TlsConnector::from(config).connect(server, stream).await;
                get(stream.map_err(unreachable)?, authority, path).await
            }
        }
    }
}

impl Credentials {
    /// TLS that shows the certificate and trusts the CA alone.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, Error> {
        let (Some(ca), Some(cert), Some(key)) = (&self.ca, &self.cert, &self.key) else {
            return Err(Error::usage("https needs --ca, --cert and --key").hint(
                "the shim lets in whom `adminTls.allow` names, with a certificate of its CA",
            ));
        };
        let bad = |path: &PathBuf, error: rustls::pki_types::pem::Error| {
            Error::usage(format!("cannot use {}", path.display())).because(error)
        };
        let certificates = |path: &PathBuf| -> Result<Vec<_>, Error> {
            let list = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
            list.map_err(|error| bad(path, error))
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| {
                Error::usage(format!("cannot trust {}", ca.display())).because(error)
            })?;
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error))?;
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(cert)?, secret);
        config
            .map(Arc::new)
            .map_err(|error| Error::usage(format!("cannot show {}", cert.display())).because(error))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(endpoint) => endpoint.fmt(f),
            Self::Loopback(address) => write!(f, "http://{address}"),
            Self::Tls { authority, .. } => write!(f, "https://{authority}"),
        }
    }
}
