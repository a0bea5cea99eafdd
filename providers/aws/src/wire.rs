//! The calls to KMS as they go over the wire: JSON 1.1, signed, answered or refused.
//!
//! The SDK finds credentials, endpoints and roles; the calls themselves are made here. In the
//! SDK each of them passes through some fifty layers that ours has no use for (its retries,
//! timeouts, caches and telemetry are the runtime's business here), which cost several times the
//! call itself, and their pages would be most of this process's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_smithy_runtime_api::client::result::ConnectorError;
use http::{HeaderValue, Uri};
use serde::Deserialize;
use sidekey_core::{Error, Kind, Secret};

use crate::config::Settings;
use crate::http::Http;
use crate::http::connect::Origin;
use crate::http::connection::Reply;
use crate::sign::{Signer, stamp};

/// Not signed: they say nothing about the request.
const AGENT: &str = concat!("user-agent: sidekey-aws/", env!("CARGO_PKG_VERSION"), "\r\n");
/// A clock that is off by more than this makes AWS refuse; so much is no accident.
const MAX_SKEW: i64 = 240;

/// An endpoint of KMS.
pub(crate) struct Wire {
    http: Arc<Http>,
    origin: Origin,
    host: String,
    /// On whose behalf the key is used, as account and ARN: key policies may ask for it, so that
    /// AWS is no confused deputy.
    source: Option<(String, String)>,
    signer: Signer,
    /// How many seconds our clock is behind that of KMS, where that matters.
    pub(crate) skew: AtomicI64,
}

/// Why there is no answer.
pub(crate) enum Refusal {
    /// KMS said no; `clock` if it did for the time that we told it, and we have set that right.
    Said { status: u16, code: Option<String>, message: Option<String>, clock: bool },
    /// Nobody said anything.
    Silent(ConnectorError),
}

/// The body of a refusal, in either spelling.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Complaint {
    #[serde(rename = "__type", alias = "code")]
    code: Option<String>,
    #[serde(alias = "Message")]
    message: Option<String>,
}

impl Wire {
    /// An endpoint at `url`, in `region`.
    pub(crate) fn new(
        http: Arc<Http>,
        url: &str,
        region: &str,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let bad = || {
            Error::new(Kind::Config, format!("{url} cannot be an endpoint of KMS"))
                .with_hint("write https://host[:port], without a path")
        };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let origin = Origin::of(&uri).filter(|_| uri.path() == "/" && uri.query().is_none());
        let origin = origin.ok_or_else(bad)?;
        let host = origin.host_header();
        let source = settings.source_account().map(str::to_owned).zip(settings.source_arn.clone());
        let sound = |text: &str| HeaderValue::from_str(text).is_ok();
        if !sound(&host) || source.as_ref().is_some_and(|(_, arn)| !sound(arn)) {
            return Err(bad());
        }
        let (signer, skew) = (Signer::new(region), AtomicI64::new(0));
        Ok(Self { http, origin, host, source, signer, skew })
    }

    /// Makes a call.
    pub(crate) async fn call(
        &self,
        target: &'static str,
        body: Secret,
        credentials: &Credentials,
    ) -> Result<Secret, Refusal> {
        let request = self.request(target, &body, credentials);
        let reply = self.http.exchange(&self.origin, &request, None).await;
        let reply = reply.map_err(Refusal::Silent)?;
        if (200..300).contains(&reply.status) {
            return Ok(reply.body);
        }
        Err(self.refused(&reply))
    }

    /// The request as it is sent: what is signed, in the order of signing, and the rest.
    fn request(&self, target: &str, body: &Secret, credentials: &Credentials) -> Secret {
        let stamp = stamp(self.now());
        let mut signed = [("", ""); 7];
        let mut count = 0;
        let mut add = |name, value| {
            signed[count] = (name, value);
            count += 1;
        };
        add("content-type", "application/x-amz-json-1.1");
        add("host", self.host.as_str());
        add("x-amz-date", stamp.as_str());
        if let Some(token) = credentials.session_token() {
            add("x-amz-security-token", token);
        }
        if let Some((account, arn)) = &self.source {
            add("x-amz-source-account", account);
            add("x-amz-source-arn", arn);
        }
        add("x-amz-target", target);
        let signed = &signed[..count];
        let authorization = self.signer.sign(signed, body.expose(), credentials, &stamp);
        let names: usize = signed.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let length = body.expose().len();
        let mut text = Vec::with_capacity(256 + names + authorization.len() + length);
        text.extend_from_slice(b"POST / HTTP/1.1\r\n");
        for (name, value) in signed {
            for part in [name, ": ", value, "\r\n"] {
                text.extend_from_slice(part.as_bytes());
            }
        }
        let length = length.to_string();
        for part in ["authorization: ", &authorization, "\r\ncontent-length: ", &length, "\r\n"] {
            text.extend_from_slice(part.as_bytes());
        }
        text.extend_from_slice(AGENT.as_bytes());
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(body.expose());
        Secret::new(text)
    }

    fn refused(&self, reply: &Reply) -> Refusal {
        let (status, body) = (reply.status, reply.body.expose());
        let complaint = serde_json::from_slice(body).unwrap_or_else(|_| from_xml(body));
        let told = || reply.header("x-amzn-errortype").map(str::to_owned);
        let code = complaint.code.or_else(told).map(|code| plain(&code));
        let clock = self.mind_clock(code.as_deref(), reply.header("date"));
        Refusal::Said { status, code, message: complaint.message, clock }
    }

    /// Where KMS refuses us for the time that we told it, its own is taken from then on; until
    /// this machine's clock is set, and KMS refuses that.
    fn mind_clock(&self, code: Option<&str>, date: Option<&str>) -> bool {
        let of_time = matches!(
            code,
            Some("InvalidSignatureException" | "RequestTimeTooSkewed" | "RequestExpired")
        );
        let date = date.filter(|_| of_time).and_then(|date| {
            use aws_smithy_types::date_time::{DateTime, Format};
            DateTime::from_str(date, Format::HttpDate).ok()
        });
        let Some(theirs) = date.map(|date| date.secs()) else { return false };
        let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let behind = theirs - ours.as_secs().cast_signed();
        if (behind - self.skew.load(Ordering::Relaxed)).abs() <= MAX_SKEW {
            return false;
        }
        let behind = if behind.abs() > MAX_SKEW { behind } else { 0 };
        tracing::warn!(
            seconds = behind,
            hint = "set this machine's clock, if it is off",
            "the time told to KMS was off: its own is used, as far as the clock differs from it"
        );
        self.skew.store(behind, Ordering::Relaxed);
        true
    }

    fn now(&self) -> SystemTime {
        let (now, skew) = (SystemTime::now(), self.skew.load(Ordering::Relaxed));
        let by = Duration::from_secs(skew.unsigned_abs());
        if skew < 0 { now - by } else { now + by }
    }
}

impl Refusal {
    /// The code, if KMS gave one.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Said { code, .. } => code.as_deref(),
            Self::Silent(_) => None,
        }
    }

    /// Whether the same call may be taken now, because it tells another time.
    pub(crate) fn is_of_clock(&self) -> bool {
        matches!(self, Self::Said { clock: true, .. })
    }
}

/// `com.amazonaws.kms#DisabledException:http://…` is `DisabledException`.
fn plain(code: &str) -> String {
    let code = code.rsplit_once('#').map_or(code, |(_, code)| code);
    code.split_once(':').map_or(code, |(code, _)| code).to_owned()
}

/// What stands before KMS (a policy's denial, an old endpoint) may answer in XML.
fn from_xml(body: &[u8]) -> Complaint {
    let text = String::from_utf8_lossy(body);
    let within = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    Complaint { code: within("Code"), message: within("Message") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_however_they_are_written() {
        assert_eq!(plain("DisabledException"), "DisabledException");
        assert_eq!(plain("com.amazonaws.kms#DisabledException"), "DisabledException");
        assert_eq!(plain("AccessDenied:http://internal.amazon.com/coral/"), "AccessDenied");
        let xml = from_xml(b"<E><Error><Code>AccessDenied</Code><Message>no</Message></Error></E>");
        assert_eq!(xml.code.as_deref(), Some("AccessDenied"));
        assert_eq!(xml.message.as_deref(), Some("no"));
        assert!(from_xml(b"\xff<Code>").code.is_none());
    }
}
