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
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::Full;
use serde::Deserialize;
use sidekey_core::{Error, Kind, Secret};

use crate::config::Settings;
use crate::http::connect::Origin;
use crate::http::{Http, Wiped};
use crate::sign::Signer;

const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const SOURCE_ARN: HeaderName = HeaderName::from_static("x-amz-source-arn");
const SOURCE_ACCOUNT: HeaderName = HeaderName::from_static("x-amz-source-account");
/// A clock that is off by more than this makes AWS refuse; so much is no accident.
const MAX_SKEW: i64 = 240;

/// An endpoint of KMS.
pub(crate) struct Wire {
    http: Arc<Http>,
    origin: Origin,
    /// What every request carries.
    headers: HeaderMap,
    signer: Signer,
    /// How many seconds our clock is behind that of KMS, where that matters.
    skew: AtomicI64,
}

/// Why there is no answer.
pub(crate) enum Refusal {
    /// KMS said no.
    Said { status: u16, code: Option<String>, message: Option<String> },
    /// Nobody said anything.
    Silent(ConnectorError),
    /// It could not even be asked.
    Unsaid(Error),
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
        let value = |text: &str| HeaderValue::from_str(text).map_err(|_| bad());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, value(&origin.host_header())?);
        let json = HeaderValue::from_static("application/x-amz-json-1.1");
        headers.insert(header::CONTENT_TYPE, json);
        // On whose behalf the key is used: key policies may ask for it, so that AWS is no
        // confused deputy.
        if let (Some(arn), Some(account)) = (&settings.source_arn, settings.source_account()) {
            headers.insert(SOURCE_ARN, value(arn)?);
            headers.insert(SOURCE_ACCOUNT, value(account)?);
        }
        let (signer, skew) = (Signer::new(region), AtomicI64::new(0));
        Ok(Self { http, origin, headers, signer, skew })
    }

    /// Makes a call.
    pub(crate) async fn call(
        &self,
        target: &'static str,
        body: Secret,
        credentials: &Credentials,
    ) -> Result<Bytes, Refusal> {
        let request = self.request(target, body, credentials).map_err(|error| {
            let what = "a request to KMS cannot be written with these credentials";
            Refusal::Unsaid(Error::new(Kind::Config, what).with_source(error))
        })?;
        let answer = self.http.exchange(&self.origin, request, None).await;
        let answer = answer.map_err(Refusal::Silent)?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        Err(self.refused(&answer))
    }

    fn request(
        &self,
        target: &'static str,
        body: Secret,
        credentials: &Credentials,
    ) -> Result<Request<Full<Bytes>>, header::InvalidHeaderValue> {
        let mut headers = self.headers.clone();
        headers.insert(TARGET, HeaderValue::from_static(target));
        self.signer.sign(&mut headers, body.expose(), credentials, self.now())?;
        // Not signed: it says nothing about the request.
        let agent = HeaderValue::from_static(concat!("sidekey-aws/", env!("CARGO_PKG_VERSION")));
        headers.insert(header::USER_AGENT, agent);
        let mut request = Request::new(Full::new(Bytes::from_owner(Wiped(body))));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn refused(&self, answer: &Response<Bytes>) -> Refusal {
        let (status, body) = (answer.status().as_u16(), answer.body());
        let told = answer.headers().get("x-amzn-errortype").and_then(|value| value.to_str().ok());
        let complaint = serde_json::from_slice(body).unwrap_or_else(|_| from_xml(body));
        let code = complaint.code.or_else(|| told.map(str::to_owned)).map(|code| plain(&code));
        self.mind_clock(code.as_deref(), answer.headers());
        Refusal::Said { status, code, message: complaint.message }
    }

    /// Where KMS refuses us for the time that we told it, its own is taken from then on.
    fn mind_clock(&self, code: Option<&str>, headers: &HeaderMap) {
        let of_time = matches!(
            code,
            Some("InvalidSignatureException" | "RequestTimeTooSkewed" | "RequestExpired")
        );
        let date = headers.get(header::DATE).and_then(|date| date.to_str().ok());
        let date = date.filter(|_| of_time).and_then(|date| {
            use aws_smithy_types::date_time::{DateTime, Format};
            DateTime::from_str(date, Format::HttpDate).ok()
        });
        let Some(theirs) = date.map(|date| date.secs()) else { return };
        let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let behind = theirs - ours.as_secs().cast_signed();
        if behind.abs() > MAX_SKEW {
            tracing::warn!(
                seconds = behind,
                hint = "set this machine's clock",
                "the clock differs from that of KMS, whose time is used"
            );
            self.skew.store(behind, Ordering::Relaxed);
        }
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
            Self::Silent(_) | Self::Unsaid(_) => None,
        }
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
