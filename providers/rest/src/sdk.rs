//! The transport of the AWS SDK: the same pool, proxy, trust and clock as for everybody else.
//!
//! An SDK takes its endpoints also from variables and profiles, which no check of a configuration
//! sees. So this is where plain HTTP to another machine is refused, whoever has named it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http::Uri;
use sidekey_core::{Error, Kind};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::address::Address;
use crate::http::{Answer, Http, Request};

const PLAINTEXT: &str = "write https:// where it is named (a variable as AWS_ENDPOINT_URL, the \
                         profile's endpoint_url, the settings), or set settings.allowPlaintext if \
                         something else protects the way";
/// For calls that bring no time of their own: their callers have one.
const LONGEST: Duration = Duration::from_secs(60);

/// Where instances and containers are handed their credentials: never in TLS, and never further
/// than the machine below this one.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
];

/// A client as an SDK's transport.
#[derive(Clone, Debug)]
pub struct SdkTransport {
    http: Http,
    allow_plaintext: bool,
    once: bool,
}

/// The transport with the time that one kind of call asks for.
#[derive(Debug)]
struct Timed {
    transport: SdkTransport,
    limit: Duration,
}

impl Http {
    /// This client for an SDK; plain HTTP leaves this machine only where that is allowed.
    pub fn for_sdk(&self, allow_plaintext: bool) -> SdkTransport {
        SdkTransport { http: self.clone(), allow_plaintext, once: false }
    }
}

impl SdkTransport {
    /// The same for calls that must not be sent twice: see [`Request::once`].
    #[must_use]
    pub fn once(&self) -> Self {
        Self { once: true, ..self.clone() }
    }

    async fn ask(&self, request: HttpRequest, deadline: Instant) -> Result<Answer, ConnectorError> {
        let (address, request) = translated(request)?;
        let asked = match self.check(&address) {
            Ok(()) => {
                let request = Request { once: self.once, ..request };
                self.http.ask(&address, request, deadline).await
            }
            Err(error) => Err(error),
        };
        asked.map_err(|error| match error.kind() {
            Kind::Timeout => ConnectorError::timeout(error.into()),
            Kind::Config => ConnectorError::user(error.into()),
            _ => ConnectorError::io(error.into()),
        })
    }

    fn check(&self, address: &Address) -> Result<(), Error> {
        let is_metadata = |host: &str| host.parse().is_ok_and(|ip| METADATA.contains(&ip));
        match address {
            Address::Tcp { host, .. }
                if address.is_exposed() && !self.allow_plaintext && !is_metadata(host) =>
            {
                let what = format!("{address} is plain HTTP to another machine");
                Err(Error::new(Kind::Config, what).with_hint(PLAINTEXT))
            }
            _ => Ok(()),
        }
    }
}

impl HttpClient for SdkTransport {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let limit = settings.read_timeout();
        let limit = limit.map(|read| read + settings.connect_timeout().unwrap_or_default());
        let (transport, limit) = (self.clone(), limit.unwrap_or(LONGEST));
        SharedHttpConnector::new(Timed { transport, limit })
    }
}

impl HttpConnector for Timed {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (transport, deadline) = (self.transport.clone(), Instant::now() + self.limit);
        HttpConnectorFuture::new(async move {
            let answer = transport.ask(request, deadline).await?;
            let mut response = http::Response::new(SdkBody::from(answer.body));
            *response.status_mut() = answer.status;
            *response.headers_mut() = answer.headers;
            HttpResponse::try_from(response).map_err(other)
        })
    }
}

fn translated(request: HttpRequest) -> Result<(Address, Request), ConnectorError> {
    let request = request.try_into_http1x().map_err(other)?;
    let (head, body) = request.into_parts();
    let bad = |uri: &Uri| {
        // A URL may hold a password.
        let text =
            format!("{} is not named by an http or https URL", uri.host().unwrap_or("nothing"));
        ConnectorError::user(Error::new(Kind::Config, text).into())
    };
    let address = Address::of(&head.uri).ok_or_else(|| bad(&head.uri))?;
    let body = body.bytes().map(|body| Bytes::from_owner(Zeroizing::new(body.to_vec())));
    let body = body.ok_or_else(|| other("a body that is not in memory"))?;
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let (method, headers) = (head.method, head.headers);
    Ok((address, Request { method, path, headers, body, once: false }))
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectorError {
    ConnectorError::other(error.into(), None)
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

#[cfg(test)]
mod tests {
    use sidekey_core::Files;
    use sidekey_core::tls::Unusable;

    use super::*;
    use crate::testing::{Fake, Reply};
    use crate::{Limits, Proxy, Trust};

    fn transport(allow_plaintext: bool) -> SdkTransport {
        let files = Files::read([]).unwrap();
        let trust = Trust::new(None, Unusable::Refuse, None, &files, "caBundle").unwrap();
        Http::new(&trust, Proxy::default(), Limits::default()).for_sdk(allow_plaintext)
    }

    #[tokio::test]
    async fn plain_http_leaves_this_machine_only_where_that_is_allowed() {
        let (strict, open) = (transport(false), transport(true));
        let check = |transport: &SdkTransport, url: &str| {
            let address = Address::of(&url.parse().unwrap()).unwrap();
            transport.check(&address).map_err(|error| (error.kind(), error.report()))
        };
        let far = ["http://kms.invalid:8080", "http://10.1.2.3", "http://[fd00::1]"];
        for url in far {
            let (kind, text) = check(&strict, url).unwrap_err();
            assert_eq!(kind, Kind::Config);
            assert!(text.contains(url) && text.contains("settings.allowPlaintext"), "{text}");
            assert_eq!(check(&open, url), Ok(()));
        }
        let near = [
            "http://127.0.0.1:4566",
            "http://localhost",
            "http://[::1]",
            "http://169.254.169.254/latest",
            "http://169.254.170.2",
            "http://169.254.170.23",
            "http://[fd00:ec2::254]",
            "http://[fd00:ec2::23]",
            "https://kms.invalid",
        ];
        for url in near {
            assert_eq!(check(&strict, url), Ok(()), "{url}");
        }
    }

    #[tokio::test]
    async fn what_is_refused_is_not_sent_and_shows_the_origin_alone() {
        let fake = Fake::http(|_| Reply::json(200, &serde_json::json!({}))).await;
        let ask = async |url: &str| {
            let request = http::Request::get(url).body(SdkBody::empty()).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            transport(false).ask(request.try_into().unwrap(), deadline).await
        };
        assert!(ask(&fake.url()).await.is_ok());
        let error = ask("http://kms.invalid/secret?token=x").await.err().unwrap();
        assert!(error.is_user(), "{error:?}");
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(error, "http://kms.invalid is plain HTTP to another machine");
    }
}
