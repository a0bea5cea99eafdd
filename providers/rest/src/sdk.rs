//! The transport of the AWS SDK: the same pool, proxy, trust and clock as for everybody else.

use std::fmt;
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
use crate::http::{Http, Request};

/// For calls that bring no time of their own: their callers have one.
const LONGEST: Duration = Duration::from_secs(60);

/// The client with the time that one kind of call asks for.
struct Timed {
    http: Http,
    limit: Duration,
}

impl HttpClient for Http {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let limit = settings.read_timeout();
        let limit = limit.map(|read| read + settings.connect_timeout().unwrap_or_default());
        SharedHttpConnector::new(Timed { http: self.clone(), limit: limit.unwrap_or(LONGEST) })
    }
}

impl HttpConnector for Timed {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (http, deadline) = (self.http.clone(), Instant::now() + self.limit);
        HttpConnectorFuture::new(async move {
            let (address, request) = translated(request)?;
            let answer =
                http.ask(&address, request, deadline).await.map_err(|error| {
                    match error.kind() {
                        Kind::Timeout => ConnectorError::timeout(error.into()),
                        Kind::Config => ConnectorError::user(error.into()),
                        _ => ConnectorError::io(error.into()),
                    }
                })?;
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
        let text = format!("{uri} is no http or https URL");
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

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timed")
    }
}
