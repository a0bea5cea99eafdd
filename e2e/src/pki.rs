//! The certificates and keys that the replicas of a control plane share.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A certificate authority of one test, trusted by nobody else.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate and key for a server on 127.0.0.1, written to `dir`.
    pub fn server(&self, dir: &Path, name: &str) -> Result<CertificateFiles> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), name.to_owned()])?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(CertificateFiles {
            certificate: write(dir, &format!("{name}.crt"), &certificate.pem())?,
            key: write(dir, &format!("{name}.key"), &key.serialize_pem())?,
        })
    }

    /// A TLS client that trusts this authority and no other.
    pub fn connector(&self) -> Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The key pair with which kube-apiservers sign service-account tokens.
#[derive(Clone, Debug)]
pub struct ServiceAccountKeys {
    /// For `--service-account-signing-key-file`.
    pub private: PathBuf,
    /// For `--service-account-key-file`.
    pub public: PathBuf,
}

impl ServiceAccountKeys {
    /// A new pair in `dir`.
    pub fn create(dir: &Path) -> Result<Self> {
        let key = KeyPair::generate()?;
        Ok(Self {
            private: write(dir, "service-account.key", &key.serialize_pem())?,
            public: write(dir, "service-account.pub", &key.public_key_pem())?,
        })
    }
}

pub(crate) fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
