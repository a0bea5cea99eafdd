//! Requests that no generated client would send.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{Method, Request, Response, StatusCode};
use sidekey_core::Endpoint;
use tokio::time::timeout;

/// One HTTP/2 connection without gRPC on it.
pub(crate) struct RawConnection {
    requests: SendRequest<Bytes>,
    deadline: Duration,
}

/// How a raw request ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RawAnswer {
    /// A response that a gRPC client takes for a success, and its body.
    Success(Bytes),
    /// An error status, a stream reset or no gRPC at all.
    Error,
    /// Nothing within the deadline.
    Silence,
}

impl RawConnection {
    pub(crate) async fn open(endpoint: &Endpoint, deadline: Duration) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot open {endpoint}: {error}");
        let stream = endpoint.connect().await.map_err(|error| failed(&error))?;
        let handshake = timeout(deadline, h2::client::handshake(stream)).await;
        let (requests, connection) =
            handshake.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        // Ends with the last handle; its errors are seen by the requests themselves.
        tokio::spawn(connection);
        Ok(Self { requests, deadline })
    }

    /// Posts `body` as it is, without the gRPC framing.
    pub(crate) async fn post(&self, path: &str, body: Bytes) -> RawAnswer {
        let ended = timeout(self.deadline, async {
            let (response, mut stream) = self.begin(path).await?;
            stream.send_data(body, true)?;
            judge(response.await?).await
        });
        match ended.await {
            Ok(Ok(Some(body))) => RawAnswer::Success(body),
            Ok(Ok(None) | Err(_)) => RawAnswer::Error,
            Err(_) => RawAnswer::Silence,
        }
    }

    /// Begins a call, sends a part of it and cancels it, as a caller does whose client went away.
    pub(crate) async fn abandon(&self, path: &str, part: Bytes) -> Result<(), h2::Error> {
        let (_response, mut stream) = self.begin(path).await?;
        stream.send_data(part, false)?;
        // Let the connection write what it has before the reset overtakes it.
        tokio::task::yield_now().await;
        stream.send_reset(Reason::CANCEL);
        Ok(())
    }

    async fn begin(&self, path: &str) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("http://localhost{path}").parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert("content-type", http::HeaderValue::from_static("application/grpc"));
        headers.insert("te", http::HeaderValue::from_static("trailers"));
        headers.insert("grpc-timeout", http::HeaderValue::from_static("3S"));
        self.requests.clone().ready().await?.send_request(request, false)
    }
}

/// A gRPC message of its true length.
pub(crate) fn whole(message: &[u8]) -> Bytes {
    framed(message.len().try_into().unwrap_or(u32::MAX), message)
}

/// A gRPC message: not compressed, and as long as `announced` says.
pub(crate) fn framed(announced: u32, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(announced);
    frame.put_slice(message);
    frame.freeze()
}

/// The body, if a gRPC client would take the response for a success.
async fn judge(response: Response<h2::RecvStream>) -> Result<Option<Bytes>, h2::Error> {
    let (head, mut body) = response.into_parts();
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        received.put(data);
    }
    let trailers = body.trailers().await?;
    let code = trailers
        .as_ref()
        .and_then(|trailers| trailers.get("grpc-status"))
        .or_else(|| head.headers.get("grpc-status"));
    let success = head.status == StatusCode::OK && code.is_some_and(|code| code.as_bytes() == b"0");
    Ok(success.then(|| received.freeze()))
}
