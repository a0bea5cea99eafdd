//! A certificate authority that follows itself without a moment of distrust.
//!
//! After two thirds of its life a second CA is made and added to what everybody trusts; only when
//! everybody has been given it, and has had [`SPREAD`] to load it, does it sign. The old one is
//! trusted until it expires, so that whatever it signed is good to its end.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use sidekey_core::Secret;
use sidekey_core::certificate::Certificate;

use crate::Error;

/// The certificates that are trusted; the first one's key signs.
pub(crate) const CA_FILE: &str = "ca.crt";
/// The key that signs.
pub(crate) const CA_KEY_FILE: &str = "ca.key";
/// The key of the CA that is to follow; its certificate is the last of the trusted.
pub(crate) const NEXT_KEY_FILE: &str = "next.key";
/// Since when everybody has been given the certificate of that CA.
pub(crate) const NEXT_SINCE_FILE: &str = "next.since";
/// A certificate for a server or a client.
pub(crate) const CERT_FILE: &str = "tls.crt";
/// Its key.
pub(crate) const KEY_FILE: &str = "tls.key";

/// From when a new CA was given to everybody until it signs. kubelet takes a minute or two to swap
/// a Secret; a node that was away takes longer.
pub(crate) const SPREAD: Duration = Duration::from_secs(60 * 60);
/// Clocks differ.
const SKEW: Duration = Duration::from_secs(5 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a CA is good.
pub(crate) const CA_LIFE: Duration = DAY.saturating_mul(730);
/// How long what it signs is good.
pub(crate) const LEAF_LIFE: Duration = DAY.saturating_mul(90);

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be shown by a server.
    Server,
    /// To be shown by a client.
    Client,
    /// By the shim, which is a server to the operator and a client to the proxies.
    Both,
}

/// The CA.
pub(crate) struct Authority {
    current: Signer,
    /// Trusted for what they once signed.
    old: Vec<Anchor>,
    next: Option<Next>,
}

/// A certificate that was signed, and its key.
pub(crate) struct Issued {
    /// PEM.
    pub(crate) cert: String,
    /// PEM.
    pub(crate) key: Secret,
}

struct Signer {
    anchor: Anchor,
    key: KeyPair,
}

struct Next {
    signer: Signer,
    since: Option<SystemTime>,
}

#[derive(Clone)]
struct Anchor {
    pem: String,
    der: CertificateDer<'static>,
    begins: SystemTime,
    expires: SystemTime,
}

impl Authority {
    /// A new one.
    pub(crate) fn create(now: SystemTime) -> Result<Self, Error> {
        Ok(Self { current: Signer::create(now)?, old: Vec::new(), next: None })
    }

    /// As it was kept.
    pub(crate) fn read(files: &BTreeMap<String, Secret>) -> Result<Self, Error> {
        let text = |name: &str| files.get(name).and_then(Secret::as_text);
        let missing = |name: &str| Error::failed(format!("there is no {name} in it"));
        let mut anchors = anchors(text(CA_FILE).ok_or_else(|| missing(CA_FILE))?)?;
        let key = pair(text(CA_KEY_FILE).ok_or_else(|| missing(CA_KEY_FILE))?, CA_KEY_FILE)?;
        let next = match text(NEXT_KEY_FILE) {
            None => None,
            Some(key) => {
                let key = pair(key, NEXT_KEY_FILE)?;
                let anchor = anchors.pop().ok_or_else(|| missing(CA_FILE))?;
                let since = text(NEXT_SINCE_FILE).and_then(|t| humantime::parse_rfc3339(t).ok());
                Some(Next { signer: Signer::of(anchor, key)?, since })
            }
        };
        let mut anchors = anchors.into_iter();
        let anchor = anchors.next().ok_or_else(|| missing(CA_FILE))?;
        Ok(Self { current: Signer::of(anchor, key)?, old: anchors.collect(), next })
    }

    /// As it is to be kept.
    pub(crate) fn files(&self) -> BTreeMap<String, Secret> {
        let secret = |text: String| Secret::new(text.into_bytes());
        let mut files = BTreeMap::from([
            (CA_FILE.to_owned(), secret(self.bundle())),
            (CA_KEY_FILE.to_owned(), secret(self.current.key.serialize_pem())),
        ]);
        if let Some(next) = &self.next {
            files.insert(NEXT_KEY_FILE.to_owned(), secret(next.signer.key.serialize_pem()));
            if let Some(since) = next.since {
                files.insert(NEXT_SINCE_FILE.to_owned(), secret(sidekey_core::time(since)));
            }
        }
        files
    }

    /// Everything that is to be trusted, as PEM.
    pub(crate) fn bundle(&self) -> String {
        self.anchors().map(|anchor| anchor.pem.as_str()).collect()
    }

    /// The certificate of the CA that waits to sign, and whose spread is not known yet.
    pub(crate) fn spreading(&self) -> Option<&str> {
        let next = self.next.as_ref().filter(|next| next.since.is_none())?;
        Some(&next.signer.anchor.pem)
    }

    /// Takes the next step of its life, if it is time; says whether it did. `spread`: everybody
    /// has been given what [`spreading`](Self::spreading) says.
    pub(crate) fn advance(&mut self, now: SystemTime, spread: bool) -> Result<bool, Error> {
        let known = self.old.len();
        self.old.retain(|anchor| anchor.expires > now);
        let mut changed = self.old.len() != known;
        match &mut self.next {
            None if due(self.current.anchor.begins, self.current.anchor.expires, now) => {
                self.next = Some(Next { signer: Signer::create(now)?, since: None });
                changed = true;
            }
            Some(Next { since: since @ None, .. }) if spread => {
                *since = Some(now);
                changed = true;
            }
            _ => {}
        }
        // What has expired protects nobody: there is nothing to wait for.
        let over = self.current.anchor.expires <= now;
        let ready = |next: &Next| {
            next.since.is_some_and(|since| now.duration_since(since).is_ok_and(|d| d >= SPREAD))
        };
        if let Some(next) = self.next.take_if(|next| over || ready(next)) {
            let before = std::mem::replace(&mut self.current, next.signer);
            if !over {
                self.old.push(before.anchor);
            }
            changed = true;
        }
        Ok(changed)
    }

    /// Signs a new certificate.
    pub(crate) fn issue(
        &self,
        names: &[String],
        purpose: Purpose,
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, Error> {
        let failed = |error| Error::failed("cannot make a certificate").because(error);
        let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
        params.distinguished_name = Default::default();
        let title = names.first().map(String::as_str).unwrap_or_default();
        params.distinguished_name.push(DnType::CommonName, title);
        params.not_before = (now - SKEW).into();
        params.not_after = (now + life).min(self.current.anchor.expires).into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purpose.usages();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let (ca, issuer) = (ca_params(&self.current.key), &self.current.key);
        let certificate =
            params.signed_by(&key, &Issuer::from_params(&ca, issuer)).map_err(failed)?;
        let key = Secret::new(key.serialize_pem().into_bytes());
        Ok(Issued { cert: certificate.pem(), key })
    }

    /// Whether a server's certificate is signed by the CA that signs now, carries all of these
    /// names, belongs to the key, and is not yet to be renewed.
    pub(crate) fn vouches(&self, issued: &Issued, names: &[String], now: SystemTime) -> bool {
        let Ok(der) = CertificateDer::from_pem_slice(issued.cert.as_bytes()) else { return false };
        let Ok(leaf) = Certificate::parse(&der) else { return false };
        let (Ok(parsed), Ok(certified)) = (ParsedCertificate::try_from(&der), issued.certified())
        else {
            return false;
        };
        let mut roots = RootCertStore::empty();
        let Ok(since_epoch) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
        let signed = roots.add(self.current.anchor.der.clone()).is_ok()
            && verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &roots,
                &[],
                UnixTime::since_unix_epoch(since_epoch),
                aws_lc_rs::default_provider().signature_verification_algorithms.all,
            )
            .is_ok();
        let named = names.iter().all(|name| {
            ServerName::try_from(name.as_str())
                .is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
        });
        signed
            && named
            && certified.keys_match().is_ok()
            && !due(leaf.not_before, leaf.not_after, now)
    }

    /// What verifies whomever this CA, an old one or the next one has signed.
    pub(crate) fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for anchor in self.anchors() {
            roots
                .add(anchor.der.clone())
                .map_err(|error| Error::failed("cannot trust a CA").because(error))?;
        }
        Ok(roots)
    }

    fn anchors(&self) -> impl Iterator<Item = &Anchor> {
        let next = self.next.iter().map(|next| &next.signer.anchor);
        std::iter::once(&self.current.anchor).chain(&self.old).chain(next)
    }
}

impl Purpose {
    fn usages(self) -> Vec<ExtendedKeyUsagePurpose> {
        let (server, client) =
            (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        match self {
            Self::Server => vec![server],
            Self::Client => vec![client],
            Self::Both => vec![server, client],
        }
    }
}

impl Issued {
    /// As it was kept beside what is trusted.
    pub(crate) fn read(files: &BTreeMap<String, Secret>) -> Option<Self> {
        let cert = files.get(CERT_FILE)?.as_text()?.to_owned();
        Some(Self { cert, key: files.get(KEY_FILE)?.clone() })
    }

    /// The certificate and its key.
    pub(crate) fn parts(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Error> {
        let bad = |error| Error::failed("a certificate or its key is not PEM").because(error);
        let cert = CertificateDer::from_pem_slice(self.cert.as_bytes()).map_err(bad)?;
        Ok((cert, PrivateKeyDer::from_pem_slice(self.key.expose()).map_err(bad)?))
    }

    /// For a server.
    pub(crate) fn certified(&self) -> Result<CertifiedKey, Error> {
        let (cert, key) = self.parts()?;
        CertifiedKey::from_der(vec![cert], key, &aws_lc_rs::default_provider())
            .map_err(|error| Error::failed("cannot use a certificate").because(error))
    }
}

impl Signer {
    fn create(now: SystemTime) -> Result<Self, Error> {
        let failed = |error| Error::failed("cannot make a CA").because(error);
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = ca_params(&key);
        params.not_before = (now - SKEW).into();
        params.not_after = (now + CA_LIFE).into();
        let pem = params.self_signed(&key).map_err(failed)?.pem();
        let anchor = anchors(&pem)?.into_iter().next();
        Self::of(anchor.ok_or_else(|| Error::failed("cannot make a CA"))?, key)
    }

    fn of(anchor: Anchor, key: KeyPair) -> Result<Self, Error> {
        let public = key.public_key_raw();
        if !anchor.der.windows(public.len()).any(|part| part == public) {
            return Err(Error::failed("a key in it is not that of its certificate"));
        }
        Ok(Self { anchor, key })
    }
}

/// What a CA says of itself, but for its time. It follows from its key, so that nothing but the
/// key is needed to sign in its name.
fn ca_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let digest = sidekey_core::hex(&sidekey_core::sha256(key.public_key_raw()));
    let title = format!("Sidekey CA {}", digest.get(..16).unwrap_or_default());
    params.distinguished_name = Default::default();
    params.distinguished_name.push(DnType::CommonName, title);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// Two thirds of a life are over.
fn due(begins: SystemTime, expires: SystemTime, now: SystemTime) -> bool {
    let life = expires.duration_since(begins).unwrap_or_default();
    now >= begins + life / 3 * 2
}

fn pair(text: &str, name: &str) -> Result<KeyPair, Error> {
    KeyPair::from_pem(text)
        .map_err(|error| Error::failed(format!("{name} holds no private key")).because(error))
}

fn anchors(text: &str) -> Result<Vec<Anchor>, Error> {
    const END: &str = "-----END CERTIFICATE-----";
    let mut anchors = Vec::new();
    for part in text.split_inclusive(END).map(str::trim).filter(|part| part.ends_with(END)) {
        let bad = || Error::failed("a certificate in it cannot be read");
        let der = CertificateDer::from_pem_slice(part.as_bytes())
            .map_err(|error| bad().because(error))?;
        let leaf = Certificate::parse(&der).map_err(|error| bad().because(error))?;
        let pem = format!("{part}\n");
        anchors.push(Anchor { pem, der, begins: leaf.not_before, expires: leaf.not_after });
    }
    Ok(anchors)
}

#[cfg(test)]
mod tests;
