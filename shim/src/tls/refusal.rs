//! Why a handshake failed, in words and as a bounded label.

use std::time::Duration;

use rustls::CertificateError;
use sidekey_core::{Error, Kind};

/// Why a peer was not let in, or did not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It showed no certificate.
    NoCertificate,
    /// Its certificate is not signed by our CA, or not made for this use.
    Untrusted,
    /// Its certificate has expired, or is not valid yet.
    Expired,
    /// Its certificate has another name.
    Name,
    /// It did not speak TLS 1.3, or nothing that we speak.
    Protocol,
    /// It did not like our certificate, or went away.
    Closed,
    /// It was too slow.
    Timeout,
}

/// A failed handshake.
#[derive(Debug)]
pub struct Refusal {
    /// For metrics.
    pub reason: Reason,
    /// For people.
    pub error: Error,
}

sidekey_core::labels! {
    pub Reason: NoCertificate = "no_certificate", Untrusted = "untrusted", Expired = "expired",
    Name = "name", Protocol = "protocol", Closed = "closed", Timeout = "timeout",
}

impl Reason {
    fn of(error: &rustls::Error) -> Self {
        use CertificateError as Bad;
        match error {
            rustls::Error::NoCertificatesPresented => Self::NoCertificate,
            rustls::Error::InvalidCertificate(bad) => match bad {
                Bad::Expired
                | Bad::ExpiredContext { .. }
                | Bad::NotValidYet
                | Bad::NotValidYetContext { .. } => Self::Expired,
                Bad::NotValidForName | Bad::NotValidForNameContext { .. } => Self::Name,
                _ => Self::Untrusted,
            },
            rustls::Error::AlertReceived(_) => Self::Closed,
            _ => Self::Protocol,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::NoCertificate | Self::Untrusted | Self::Expired | Self::Name => Kind::Denied,
            Self::Protocol => Kind::Config,
            Self::Closed | Self::Timeout => Kind::Unavailable,
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::NoCertificate => "give the client a certificate",
            Self::Untrusted => {
                "compare the CA files of both sides, and the usages in the certificate"
            }
            Self::Expired => "issue a new certificate, and compare the clocks of both sides",
            Self::Name => "put the name into the certificate, or use the name that is in it",
            Self::Protocol => "both sides must speak TLS 1.3 and HTTP/2",
            Self::Closed => "the other side's log says why",
            Self::Timeout => "see whether the other side speaks TLS",
        }
    }
}

impl Refusal {
    /// From what tokio-rustls says.
    pub(super) fn by_us(error: std::io::Error, what: &str) -> Self {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let reason = cause.map_or(Reason::Closed, Reason::of);
        let error = Error::new(reason.kind(), format!("no {what}"))
            .with_source(error)
            .with_hint(reason.hint());
        Self { reason, error }
    }

    pub(super) fn timeout(limit: Duration) -> Self {
        let text = format!("no TLS with a client: it took longer than {limit:?}");
        Self { reason: Reason::Timeout, error: Error::new(Kind::Unavailable, text) }
    }

    pub(super) fn unreadable() -> Self {
        let error =
            Error::new(Kind::Denied, "the names in the client's certificate are unreadable");
        Self { reason: Reason::Untrusted, error }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}
