//! TLS from files: what one snapshot of PEM files holds, as rustls wants it.
//!
//! Versions, key exchange and protocols are the caller's choice, and so is who must show a
//! certificate. It refuses to verify less than everything: there is no switch for that. Nor is
//! there any resumption: connections live long, and a ticket would outlive the trust under which
//! it was given.

pub mod certificate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::tls::certificate::Certificate;
use crate::{Error, Files, Kind};

/// What is spoken: the algorithms and the versions of TLS, and the protocol inside it.
#[derive(Clone, Debug)]
pub struct TlsPolicy {
    /// Algorithms, in order of preference.
    pub provider: Arc<CryptoProvider>,
    /// Versions of TLS.
    pub versions: &'static [&'static SupportedProtocolVersion],
    /// The protocol to agree on, such as `h2`.
    pub protocol: &'static str,
}

/// What to do with a certificate of a bundle that rustls cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Each was meant, so each must be sound.
    Refuse,
    /// Bundles of a distribution hold some of them.
    Skip,
}

/// A certificate, those between it and its CA, and its key.
pub struct KeyPair {
    file: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl KeyPair {
    /// Both may stand in one file.
    pub fn read(cert: &Path, key: &Path, files: &Files) -> Result<Self, Error> {
        let chain = certificates(cert, files)?;
        let key = PrivateKeyDer::from_pem_slice(files.secret(key)?.expose())
            .map_err(|error| bad(key, "holds no private key", error))?;
        Ok(Self { file: cert.to_owned(), chain, key })
    }

    /// What the certificate itself says.
    pub fn leaf(&self) -> Result<Certificate, Error> {
        let leaf = self.chain.first().map(|leaf| leaf.as_ref()).unwrap_or_default();
        Certificate::parse(leaf)
            .map_err(|error| bad(&self.file, "holds no X.509 certificate", error))
    }

    fn refuse(&self, error: rustls::Error) -> Error {
        bad(&self.file, "and its key cannot be used", error)
    }
}

/// The certificates of those whom to trust.
pub fn authorities(
    bundle: &Path,
    files: &Files,
    unusable: Unusable,
) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bundle, files)? {
        match roots.add(certificate) {
            Err(error) if unusable == Unusable::Refuse => {
                return Err(bad(bundle, "holds a certificate that cannot be used", error));
            }
            _ => {}
        }
    }
    if roots.is_empty() {
        let text = format!("file {bundle:?} holds no certificate that can be used");
        return Err(Error::new(Kind::Config, text).with_hint("give another CA bundle"));
    }
    Ok(Arc::new(roots))
}

/// Who may connect: whoever shows a certificate that one of `roots` signed.
pub fn client_verifier(
    policy: &TlsPolicy,
    roots: Arc<RootCertStore>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    WebPkiClientVerifier::builder_with_provider(roots, policy.provider.clone())
        .build()
        .map_err(impossible)
}

/// What [`client`] asks of a server, for connections that are already open.
pub fn server_verifier(
    policy: &TlsPolicy,
    roots: Arc<RootCertStore>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let builder = WebPkiServerVerifier::builder_with_provider(roots, policy.provider.clone());
    Ok(builder.build().map_err(impossible)?)
}

/// For those who connect; without a pair no certificate is shown.
pub fn client(
    policy: &TlsPolicy,
    roots: Arc<RootCertStore>,
    pair: Option<&KeyPair>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(policy.provider.clone())
        .with_protocol_versions(policy.versions)
        .map_err(impossible)?
        .with_root_certificates(roots);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => builder
            .with_client_auth_cert(pair.chain.clone(), pair.key.clone_key())
            .map_err(|error| pair.refuse(error))?,
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![policy.protocol.into()];
    Ok(config)
}

/// For those who are connected to; `clients` says who may.
pub fn server(
    policy: &TlsPolicy,
    clients: Arc<dyn ClientCertVerifier>,
    pair: &KeyPair,
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(policy.provider.clone())
        .with_protocol_versions(policy.versions)
        .map_err(impossible)?
        .with_client_cert_verifier(clients)
        .with_single_cert(pair.chain.clone(), pair.key.clone_key())
        .map_err(|error| pair.refuse(error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![policy.protocol.into()];
    Ok(config)
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

/// The versions and algorithms are ours, not the user's.
fn impossible(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Kind::Bug, "TLS cannot be set up").with_source(error)
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::{default_provider, kx_group};

    use super::*;

    #[test]
    fn a_fips_build_speaks_approved_tls_alone_and_another_says_that_it_is_none() {
        let is_fips = cfg!(feature = "fips");
        assert_eq!(aws_lc_rs::try_fips_mode().is_ok(), is_fips);
        assert_eq!(crate::VERSION.ends_with("-fips"), is_fips);
        let client_of = |provider: CryptoProvider| {
            let (provider, versions) = (Arc::new(provider), rustls::DEFAULT_VERSIONS);
            let policy = TlsPolicy { provider, versions, protocol: "h2" };
            client(&policy, Arc::new(RootCertStore::empty()), None).unwrap()
        };
        assert_eq!(client_of(default_provider()).fips(), is_fips);
        let other = CryptoProvider { kx_groups: vec![kx_group::X25519], ..default_provider() };
        assert!(!client_of(other).fips(), "this group is not approved");
    }
}
