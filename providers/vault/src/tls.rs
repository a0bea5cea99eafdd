//! Trust in the server, and our own certificate where it asks for one.
//!
//! There is no switch that verifies less. Where no bundle is configured, the one of the system is
//! used, as every other client of Vault does; it is watched like any other file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use sidekey_core::tls::{self, KeyPair, TlsPolicy, Unusable};
use sidekey_core::{Error, Files};

/// Where distributions keep the certificates that the system trusts.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/cacert.pem",
];

/// A certificate with its key, in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The certificate and those between it and its CA.
    pub(crate) cert: PathBuf,
    /// Its key; may be the same file.
    pub(crate) key: PathBuf,
}

/// The bundle of the system, if there is one; images without a distribution name theirs.
pub(crate) fn system_bundle() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.or_else(|| SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()))
}

/// What a TLS connection is made with, and when the certificate that we show expires.
pub(crate) fn client(
    bundle: &Path,
    pair: Option<&Pair>,
    files: &Files,
) -> Result<(Arc<ClientConfig>, Option<SystemTime>), Error> {
    let policy = TlsPolicy {
        provider: Arc::new(aws_lc_rs::default_provider()),
        versions: rustls::DEFAULT_VERSIONS,
        protocol: "http/1.1",
    };
    let of_system = SYSTEM_BUNDLES.iter().any(|system| Path::new(system) == bundle);
    let unusable = if of_system { Unusable::Skip } else { Unusable::Refuse };
    let roots = tls::authorities(bundle, files, unusable)?;
    let pair = pair.map(|pair| KeyPair::read(&pair.cert, &pair.key, files)).transpose()?;
    let config = tls::client(&policy, roots, pair.as_ref())?;
    let expiry = pair.and_then(|pair| Some(pair.leaf().ok()?.not_after));
    Ok((Arc::new(config), expiry))
}
