//! From files to something that can be used, or to what is wrong with them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sidekey_core::{Error, Files, Kind};

use super::leaf::Leaf;
use super::{Digest, TlsFiles};

/// One state of the files.
pub(super) struct Loaded {
    pub(super) client: Arc<ClientConfig>,
    pub(super) http2: Arc<ServerConfig>,
    pub(super) http1: Arc<ServerConfig>,
    pub(super) clients: Arc<dyn ClientCertVerifier>,
    pub(super) leaf: Leaf,
    pub(super) digest: Digest,
}

impl Loaded {
    pub(super) fn read(paths: &TlsFiles) -> Result<Self, Error> {
        Self::parse(paths, &Files::read(paths.all())?)
    }

    pub(super) fn parse(paths: &TlsFiles, files: &Files) -> Result<Self, Error> {
        let roots = Arc::new(authorities(&paths.ca, files)?);
        let chain = certificates(&paths.cert, files)?;
        let key = PrivateKeyDer::from_pem_slice(files.secret(&paths.key)?.expose())
            .map_err(|error| bad(&paths.key, "holds no private key", error))?;
        let leaf = match chain.first().map(|leaf| Leaf::parse(leaf)) {
            Some(Ok(leaf)) => leaf,
            Some(Err(error)) => return Err(bad(&paths.cert, "holds no X.509 certificate", error)),
            None => return Err(empty(&paths.cert)),
        };
        let pair = |error| bad(&paths.cert, "and its key cannot be used", error);
        let provider = Arc::new(provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| bad(&paths.ca, "cannot be used", error))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(pair)?
            .with_client_cert_verifier(clients.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(pair)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(pair)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(pair)?;
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![b"h2".to_vec()];
        let mut http1 = server.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        server.alpn_protocols = vec![b"h2".to_vec()];
        let (client, http2, http1) = (Arc::new(client), Arc::new(server), Arc::new(http1));
        Ok(Self { client, http2, http1, clients, leaf, digest: files.digest() })
    }

    pub(super) fn expiry_text(&self) -> impl fmt::Display + use<> {
        sidekey_core::time(self.leaf.expires)
    }
}

/// The order is said here, so that no feature of a crate decides it.
fn provider() -> CryptoProvider {
    CryptoProvider {
        kx_groups: vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
            kx_group::SECP384R1,
        ],
        ..aws_lc_rs::default_provider()
    }
}

fn authorities(path: &Path, files: &Files) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, files)? {
        roots
            .add(certificate)
            .map_err(|error| bad(path, "holds a certificate that cannot be used", error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path, files: &Files) -> Result<Vec<CertificateDer<'static>>, Error> {
    let list: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(files.secret(path)?.expose()).collect();
    match list {
        Ok(list) if list.is_empty() => Err(empty(path)),
        Ok(list) => Ok(list),
        Err(error) => Err(bad(path, "is not PEM", error)),
    }
}

fn empty(path: &Path) -> Error {
    Error::new(Kind::Config, format!("file {path:?} holds no certificate"))
        .with_hint("write it as PEM, with BEGIN CERTIFICATE")
}

fn bad(
    path: &Path,
    what: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(Kind::Config, format!("file {path:?} {what}")).with_source(error)
}
