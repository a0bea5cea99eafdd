//! Trust in the server, and our own certificate where it asks for one.
//!
//! There is no switch that verifies less. Where no bundle is configured, the one of the system is
//! used, as every other client of Vault does; it is watched like any other file.

mod validity;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use sidekey_core::{Error, Files, Kind};

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

/// When the certificate that we show expires.
pub(crate) fn expiry(pair: &Pair, files: &Files) -> Option<SystemTime> {
    certificates(&pair.cert, files).ok()?.first().and_then(|leaf| validity::end(leaf))
}

/// What a TLS connection is made with.
///
/// No resumption: connections are kept open, and a ticket would outlive the trust under which it
/// was given.
pub(crate) fn client(
    bundle: &Path,
    pair: Option<&Pair>,
    files: &Files,
) -> Result<Arc<ClientConfig>, Error> {
    let unusable = |error| bad(bundle, "cannot be used", error);
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(authorities(bundle, files)?);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = certificates(&pair.cert, files)?;
            let key = PrivateKeyDer::from_pem_slice(files.secret(&pair.key)?.expose())
                .map_err(|error| bad(&pair.key, "holds no private key", error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| bad(&pair.cert, "and its key cannot be used", error))?
        }
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A bundle of the system may hold certificates that cannot be used; of a configured one each
/// must be sound, because each was meant.
fn authorities(path: &Path, files: &Files) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let of_system = SYSTEM_BUNDLES.iter().any(|bundle| Path::new(bundle) == path);
    for certificate in certificates(path, files)? {
        match roots.add(certificate) {
            Err(error) if !of_system => {
                return Err(bad(path, "holds a certificate that cannot be used", error));
            }
            _ => {}
        }
    }
    Ok(roots)
}

fn certificates(path: &Path, files: &Files) -> Result<Vec<CertificateDer<'static>>, Error> {
    let list: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(files.secret(path)?.expose()).collect();
    match list {
        Ok(list) if list.is_empty() => {
            Err(Error::new(Kind::Config, format!("file {path:?} holds no certificate"))
                .with_hint("write it as PEM, with BEGIN CERTIFICATE"))
        }
        Ok(list) => Ok(list),
        Err(error) => Err(bad(path, "is not PEM", error)),
    }
}

fn bad(
    path: &Path,
    what: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(Kind::Config, format!("file {path:?} {what}")).with_source(error)
}
