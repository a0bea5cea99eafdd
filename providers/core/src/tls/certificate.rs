//! What an X.509 certificate says of its owner: names and validity.
//!
//! It refuses to verify anything: that is rustls' work, and peers' certificates come here only
//! after it. What rustls accepted must be readable, so nothing but the fields that are used is
//! checked: neither the length of a serial number nor names of kinds that nobody asks for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::Any;
use x509_cert::der::{Decode, Encode, Error, ErrorKind};
use x509_cert::ext::pkix::ID_CE_SUBJECT_ALT_NAME;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Time;

/// More than TLS carries.
const MAX_SIZE: usize = 64 * 1024;
/// More names than any certificate of ours has.
const MAX_NAMES: usize = 64;

/// A certificate, as far as it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its subject alternative names of the three kinds that name processes.
    pub names: Vec<SubjectName>,
    /// Not valid before this time.
    pub not_before: SystemTime,
    /// Not valid after this time.
    pub not_after: SystemTime,
}

/// A subject alternative name; other kinds, and what is not of the kind it claims, name nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// A host; may be a wildcard.
    Dns(String),
    /// A SPIFFE ID, for example.
    Uri(String),
    /// An address.
    Ip(IpAddr),
}

impl Certificate {
    /// Reads a certificate in DER.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_SIZE {
            return Err(ErrorKind::Overlength.into());
        }
        let certificate = CertificateInner::<Raw>::from_der(bytes)?;
        let body = certificate.tbs_certificate();
        let mut names = Vec::new();
        let extensions = body.extensions().into_iter().flatten();
        for extension in extensions.filter(|one| one.extn_id == ID_CE_SUBJECT_ALT_NAME) {
            // One by one: a kind that the library does not know must not hide the others.
            let list = Vec::<Any>::from_der(extension.extn_value.as_bytes())?;
            names.extend(list.iter().filter_map(SubjectName::of));
        }
        names.truncate(MAX_NAMES);
        let validity = body.validity();
        let (not_before, not_after) = (time(validity.not_before)?, time(validity.not_after)?);
        Ok(Self { names, not_before, not_after })
    }

    /// Whom it names, each in the form that [`identity`] gives.
    pub fn identities(&self) -> Vec<String> {
        self.names.iter().filter_map(SubjectName::identity).collect()
    }
}

/// The one form of a name, for comparison with [`Certificate::identities`]: DNS names in lower
/// case, IP addresses in their shortest form, URIs as they are. The three cannot be taken for each
/// other. `None` if it is none of these: then no certificate can have it. Wildcards are none
/// either, for an identity says who calls.
pub fn identity(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    uri(text).or_else(|| dns(text))
}

impl SubjectName {
    fn of(name: &Any) -> Option<Self> {
        let printable = |text: &str| {
            let sound = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
            sound.then(|| text.to_owned())
        };
        match GeneralName::from_der(&name.to_der().ok()?).ok()? {
            GeneralName::DnsName(text) => printable(text.as_str()).map(Self::Dns),
            GeneralName::UniformResourceIdentifier(text) => printable(text.as_str()).map(Self::Uri),
            GeneralName::IpAddress(bytes) => address(bytes.as_bytes()).map(Self::Ip),
            _ => None,
        }
    }

    fn identity(&self) -> Option<String> {
        match self {
            Self::Dns(text) => dns(text),
            Self::Uri(text) => uri(text),
            Self::Ip(address) => Some(address.to_string()),
        }
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(text) | Self::Uri(text) => f.write_str(text),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

fn dns(text: &str) -> Option<String> {
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inner)
    };
    let whole = text.len() <= 253 && text.split('.').all(label);
    // `10.0.0.1` as a DNS name would pass for the address.
    (whole && text.parse::<IpAddr>().is_err()).then(|| text.to_ascii_lowercase())
}

fn uri(text: &str) -> Option<String> {
    let printable = text.bytes().all(|b| b.is_ascii_graphic());
    let (scheme, rest) = text.split_once("://")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let sound = !scheme.is_empty() && scheme.bytes().all(plain) && !rest.is_empty();
    (sound && printable && text.len() <= 2048).then(|| text.to_owned())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|v4| Ipv4Addr::from(v4).into());
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|v6| Ipv6Addr::from(v6).into())).ok()
}

fn time(time: Time) -> Result<SystemTime, Error> {
    let since: Duration = time.to_unix_duration();
    SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(|| ErrorKind::DateTime.into())
}

#[cfg(test)]
mod tests;
