//! TLS files: readable, matching, trusted, not expired, and not about to be.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use serde_json::Value;
use sidekey_core::certificate::{Certificate, SubjectName};

use super::documents::Document;
use super::{Area, Findings, Options};

const RENEW: &str = "renew it and publish; the sidecars take it over by themselves";

/// Names that fields of certificates, authorities and keys have.
const CERTS: [&str; 3] = ["cert", "certFile", "clientCertFile"];
const CAS: [&str; 2] = ["ca", "caFile"];
const KEYS: [&str; 3] = ["key", "keyFile", "clientKeyFile"];

pub(super) fn examine(documents: &[Document], options: &Options, findings: &mut Findings) {
    for document in documents.iter().filter(|document| !document.is_encryption()) {
        walk(&document.value, options, findings);
    }
}

/// Every object that names a certificate or an authority.
fn walk(value: &Value, options: &Options, findings: &mut Findings) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, options, findings)),
        Value::Object(map) => {
            let named = |fields: &[&str]| {
                let mut found = fields.iter().filter_map(|field| map.get(*field)?.as_str());
                found.find(|text| text.starts_with('/')).map(Path::new)
            };
            let (cert, ca, key) = (named(&CERTS), named(&CAS), named(&KEYS));
            for path in [cert, ca].into_iter().flatten() {
                life(path, options, findings);
            }
            if let (Some(cert), Some(key)) = (cert, key) {
                pair(cert, key, findings);
            }
            if let (Some(cert), Some(ca)) = (cert, ca) {
                chain(cert, ca, findings);
            }
            map.values().for_each(|item| walk(item, options, findings));
        }
        _ => {}
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match list {
        Ok(list) if list.is_empty() => Err("holds no certificate".to_owned()),
        Ok(list) => Ok(list),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// When each certificate of a file begins and ends.
fn life(path: &Path, options: &Options, findings: &mut Findings) {
    let subject = path.display();
    let list = match certificates(path) {
        Ok(list) => list,
        Err(text) => return findings.problem(Area::Certificate, subject, text, RENEW),
    };
    for certificate in list {
        let leaf = match Certificate::parse(&certificate) {
            Ok(leaf) => leaf,
            Err(error) => {
                let text = format!("holds no X.509 certificate: {error}");
                findings.problem(Area::Certificate, subject.to_string(), text, RENEW);
                continue;
            }
        };
        let names: Vec<_> = leaf.names.iter().map(SubjectName::to_string).collect();
        let names = if names.is_empty() { "no names".to_owned() } else { names.join(" ") };
        let (now, ends) = (SystemTime::now(), sidekey_core::time(leaf.not_after));
        let left = leaf.not_after.duration_since(now).ok();
        let subject = subject.to_string();
        match left {
            _ if leaf.not_before > now => {
                let text = format!("begins at {} only", sidekey_core::time(leaf.not_before));
                findings.problem(Area::Certificate, subject, text, "check this host's clock");
            }
            None => {
                let text = format!("has expired at {ends} ({names})");
                findings.problem(Area::Certificate, subject, text, RENEW);
            }
            Some(left) if left < options.expiry => {
                let text = format!("expires in {}, at {ends} ({names})", days(left));
                findings.warning(Area::Certificate, subject, text, RENEW);
            }
            Some(_) => findings.ok(Area::Certificate, subject, format!("until {ends} ({names})")),
        }
    }
}

fn days(time: Duration) -> String {
    match time.as_secs() / (24 * 3600) {
        0 => humantime::format_duration(Duration::from_secs(time.as_secs())).to_string(),
        days => format!("{days} days"),
    }
}

fn pair(cert: &Path, key: &Path, findings: &mut Findings) {
    let Ok(chain) = certificates(cert) else { return };
    let secret = match PrivateKeyDer::from_pem_file(key) {
        Ok(secret) => secret,
        Err(error) => {
            let text = format!("holds no private key: {error}");
            return findings.problem(Area::Certificate, key.display(), text, RENEW);
        }
    };
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let fits = rustls::sign::CertifiedKey::from_der(chain, secret, &provider);
    if let Err(error) = fits {
        let text = format!("is not the key of {}: {error}", cert.display());
        let fix = "publish certificate and key together, as they were made";
        findings.problem(Area::Certificate, key.display(), text, fix);
    }
}

/// A control plane has one authority: who is not of it will be refused by its peers.
fn chain(cert: &Path, ca: &Path, findings: &mut Findings) {
    let (Ok(chain), Ok(authorities)) = (certificates(cert), certificates(ca)) else { return };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let (Ok(verifier), Some((leaf, between))) = (verifier, chain.split_first()) else { return };
    // Expiry is told elsewhere: here it counts who signed it, while it was good.
    let Ok(parsed) = Certificate::parse(leaf) else { return };
    let since = parsed.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let when = UnixTime::since_unix_epoch(since.saturating_sub(Duration::from_secs(1)));
    if let Err(error) = verifier.verify_client_cert(leaf, between, when) {
        let text = format!("is not accepted by {}: {error}", ca.display());
        let fix = "have it made by that authority, or add the authority that made it";
        findings.warning(Area::Certificate, cert.display(), text, fix);
    }
}
