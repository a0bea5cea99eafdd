//! Whom to trust: the public roots that are built in, or a bundle in their place.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use sidekey_core::{Error, Kind, Secret};

/// A client that trusts the certificates of `bundle`, or the public ones without it.
pub(crate) fn client(bundle: Option<&Secret>) -> Result<Arc<ClientConfig>, Error> {
    let roots = match bundle {
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        Some(bundle) => read(bundle)?,
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Bug, "TLS cannot be set up").with_source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read(bundle: &Secret) -> Result<RootCertStore, Error> {
    let bad = |why: String| {
        Error::new(Kind::Config, format!("the CA bundle {why}"))
            .with_hint("it must hold PEM certificates, whole")
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.expose()) {
        let certificate =
            certificate.map_err(|error| bad(format!("cannot be read as PEM: {error}")))?;
        // Bundles of the system hold certificates that no TLS library takes; the others count.
        if let Err(error) = roots.add(certificate) {
            tracing::debug!(%error, "a certificate of the CA bundle is passed over");
        }
    }
    if roots.is_empty() {
        return Err(bad("holds no usable certificate".to_owned()));
    }
    Ok(roots)
}
