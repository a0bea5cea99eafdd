//! From files to something that can be used, or to what is wrong with them.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::server::danger::ClientCertVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};
use sidekey_core::certificate::Certificate;
use sidekey_core::tls::{self, KeyPair, TlsPolicy, Unusable};
use sidekey_core::{Digest, Error, Files};

use super::TlsFiles;

/// Both sides are ours.
static VERSIONS: [&SupportedProtocolVersion; 1] = [&TLS13];

/// One state of the files.
pub(super) struct Loaded {
    pub(super) client: Arc<ClientConfig>,
    pub(super) http2: Arc<ServerConfig>,
    pub(super) http1: Arc<ServerConfig>,
    pub(super) clients: Arc<dyn ClientCertVerifier>,
    pub(super) servers: Arc<dyn ServerCertVerifier>,
    pub(super) leaf: Certificate,
    pub(super) digest: Digest,
}

impl Loaded {
    pub(super) fn read(paths: &TlsFiles) -> Result<Self, Error> {
        Self::parse(paths, &Files::read(paths.all())?)
    }

    pub(super) fn parse(paths: &TlsFiles, files: &Files) -> Result<Self, Error> {
        let roots = tls::authorities(&paths.ca, files, Unusable::Refuse)?;
        let pair = KeyPair::read(&paths.cert, &paths.key, files)?;
        let http2 =
            TlsPolicy { provider: Arc::new(provider()), versions: &VERSIONS, protocol: "h2" };
        let http1 = TlsPolicy { protocol: "http/1.1", ..http2.clone() };
        let clients = tls::client_verifier(&http2, roots.clone())?;
        Ok(Self {
            leaf: pair.leaf()?,
            http2: Arc::new(tls::server(&http2, clients.clone(), &pair)?),
            http1: Arc::new(tls::server(&http1, clients.clone(), &pair)?),
            clients,
            servers: tls::server_verifier(&http2, roots.clone())?,
            client: Arc::new(tls::client(&http2, roots, Some(&pair))?),
            digest: files.digest(),
        })
    }

    pub(super) fn expiry_text(&self) -> impl fmt::Display + use<> {
        sidekey_core::time(self.leaf.not_after)
    }
}

/// The order is said here, so that no feature of a crate decides it; which of them are approved,
/// where that counts, the crate knows.
fn provider() -> CryptoProvider {
    let mut kx_groups =
        vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1];
    kx_groups.retain(|group| group.fips() || !cfg!(feature = "fips"));
    CryptoProvider { kx_groups, ..aws_lc_rs::default_provider() }
}
