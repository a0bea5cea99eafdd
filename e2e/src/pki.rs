//! The certificates and keys that the replicas of a control plane share.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

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

    /// A certificate and key for either end of mutual TLS, with these DNS names
    /// and IP addresses in it, written to `dir` under `file`.
    pub fn peer(&self, dir: &Path, file: &str, names: &[&str]) -> Result<CertificateFiles> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.sign_peer(dir, file, CertificateParams::new(names)?)
    }

    /// The same, ended with the year 2020.
    pub fn expired_peer(&self, dir: &Path, file: &str, name: &str) -> Result<CertificateFiles> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 12, 31);
        self.sign_peer(dir, file, params)
    }

    fn sign_peer(
        &self,
        dir: &Path,
        file: &str,
        mut params: CertificateParams,
    ) -> Result<CertificateFiles> {
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, file);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(CertificateFiles {
            certificate: write(dir, &format!("{file}.crt"), &certificate.pem())?,
            key: write(dir, &format!("{file}.key"), &key.serialize_pem())?,
        })
    }

    /// Its certificate, written to `dir`.
    pub fn file(&self, dir: &Path) -> Result<PathBuf> {
        write(dir, "ca.crt", &self.pem())
    }

    /// A TLS client that trusts this authority and no other.
    pub fn connector(&self) -> Result<TlsConnector> {
        Ok(TlsConnector::from(Arc::new(self.trusting()?.with_no_client_auth())))
    }

    /// The same, with a certificate to show.
    pub fn connector_with(&self, files: &CertificateFiles) -> Result<TlsConnector> {
        let chain = CertificateDer::pem_file_iter(&files.certificate)?.collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&files.key)?;
        let config = self.trusting()?.with_client_auth_cert(chain, key)?;
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// A TLS server with this certificate, to which clients may show certificates of this authority.
    pub(crate) fn acceptor_of_clients(&self, files: &CertificateFiles) -> Result<TlsAcceptor> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .allow_unauthenticated()
            .build()?;
        let chain = CertificateDer::pem_file_iter(&files.certificate)?.collect::<Result<_, _>>()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(&files.key)?)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    fn trusting(&self) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        Ok(ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots))
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
