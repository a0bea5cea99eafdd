//! Whom to trust, and the certificate that we show: from files, by core's rules.
//!
//! There is no switch that verifies less. Without a bundle in the settings that of the system counts,
//! which `SSL_CERT_FILE` may name, and which our images hold; without any the public roots that are
//! built in.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::tls::{self, KeyPair, TlsPolicy, Unusable};
use sidekey_core::{Error, Files, Kind};

use crate::files::check_absolute;

/// Where distributions keep the certificates that the system trusts.
const SYSTEM_BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/cacert.pem",
];

/// A certificate with its key, in files that may be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate and those between it and its CA.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// `credentials` of a KMS that knows its clients by their certificates.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shown {
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// How servers are trusted; cheap to clone.
#[derive(Clone)]
pub struct Trust {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: Option<ServerName<'static>>,
    pub(crate) setting: &'static str,
    /// The end of the certificate that we show, if we show one.
    pub expiry: Option<SystemTime>,
}

impl Trust {
    /// Trusts the certificates of `bundle`, or the public ones without it. `setting` is where the
    /// user names the bundle, for hints.
    pub fn new(
        bundle: Option<&Path>,
        unusable: Unusable,
        pair: Option<&Pair>,
        files: &Files,
        setting: &'static str,
    ) -> Result<Self, Error> {
        let roots = match bundle {
            None => Arc::new(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }),
            Some(bundle) => tls::authorities(bundle, files, unusable)?,
        };
        let policy = TlsPolicy {
            provider: Arc::new(aws_lc_rs::default_provider()),
            versions: rustls::DEFAULT_VERSIONS,
            protocol: "http/1.1",
        };
        let pair = pair.map(|pair| KeyPair::read(&pair.cert, &pair.key, files)).transpose()?;
        let config = Arc::new(tls::client(&policy, roots, pair.as_ref())?);
        let expiry = pair.and_then(|pair| Some(pair.leaf().ok()?.not_after));
        Ok(Self { config, name: None, setting, expiry })
    }

    /// Trusts the bundle of the settings, or the system's: see [`bundle`].
    pub fn of_settings(
        set: Option<&Path>,
        files: &Files,
        setting: &'static str,
    ) -> Result<Self, Error> {
        let bundle = bundle(set);
        let skips = bundle.as_deref().map_or(Unusable::Refuse, unusable);
        Self::new(bundle.as_deref(), skips, None, files, setting)
    }

    /// Says what every server's certificate is for, where that is not its host.
    pub fn with_name(mut self, name: &str) -> Result<Self, Error> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            Error::new(Kind::Config, format!("{name:?} is not the name of a server in TLS"))
        })?;
        self.name = Some(name);
        Ok(self)
    }

    /// For those who speak no protocol that TLS has a name for.
    pub(crate) fn without_protocol(&self) -> Self {
        let mut trust = self.clone();
        Arc::make_mut(&mut trust.config).alpn_protocols.clear();
        trust
    }
}

impl Shown {
    /// Reports what is missing or depends on where the process was started; `ca` is
    /// `settings.caFile`.
    pub fn check(&self, ca: Option<&Path>, problems: &mut Problems) {
        let Self { cert_file, key_file } = self;
        problems.require("credentials.certFile", cert_file);
        problems.require("credentials.keyFile", key_file);
        let paths = [
            ("settings.caFile", ca),
            ("credentials.certFile", cert_file.as_deref()),
            ("credentials.keyFile", key_file.as_deref()),
        ];
        check_absolute(&paths, problems);
    }

    /// Everything that [`trust`](Self::trust) is made of.
    pub fn files(&self, ca: Option<&Path>) -> Vec<PathBuf> {
        let Self { cert_file, key_file } = self.clone();
        [bundle(ca), cert_file, key_file].into_iter().flatten().collect()
    }

    /// Trusts the bundle of the settings, or the system's, and shows the certificate.
    pub fn trust(&self, ca: Option<&Path>, files: &Files) -> Result<Trust, Error> {
        let Self { cert_file, key_file } = self.clone();
        let pair = cert_file.zip(key_file).map(|(cert, key)| Pair { cert, key });
        let bundle = bundle(ca);
        let skips = bundle.as_deref().map_or(Unusable::Refuse, unusable);
        Trust::new(bundle.as_deref(), skips, pair.as_ref(), files, "settings.caFile")
    }
}

/// Whether a certificate can be for it: a DNS name or an IP address.
pub fn is_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// The bundle to trust: the one of the settings, or the system's.
pub fn bundle(set: Option<&Path>) -> Option<PathBuf> {
    set.map(Path::to_owned).or_else(system_bundle)
}

/// The bundle of the system, if there is one; images without a distribution name theirs.
fn system_bundle() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.or_else(|| SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()))
}

/// What to do with certificates that rustls cannot use: bundles of distributions hold some.
pub fn unusable(bundle: &Path) -> Unusable {
    let of_system = SYSTEM_BUNDLES.iter().any(|system| Path::new(system) == bundle);
    if of_system { Unusable::Skip } else { Unusable::Refuse }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fips_build_asks_for_approved_tls_alone() {
        let files = Files::read([]).unwrap();
        let trust = Trust::new(None, Unusable::Refuse, None, &files, "caBundle").unwrap();
        assert_eq!(trust.config.fips(), cfg!(feature = "fips"));
    }

    #[test]
    fn a_bundle_without_certificates_and_a_name_that_is_none_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        for text in ["x", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"] {
            std::fs::write(&path, text).unwrap();
            let files = Files::read([path.as_path()]).unwrap();
            for unusable in [Unusable::Skip, Unusable::Refuse] {
                let error = Trust::new(Some(&path), unusable, None, &files, "caBundle").err();
                assert_eq!(error.map(|error| error.kind()), Some(Kind::Config), "{text:?}");
            }
        }
        let files = Files::read([]).unwrap();
        let trust = Trust::new(None, Unusable::Refuse, None, &files, "caBundle").unwrap();
        assert!(trust.clone().with_name("vault.example").is_ok());
        assert!(trust.with_name("no name").is_err());
    }
}
