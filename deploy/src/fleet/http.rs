//! HTTP/1.1 over any stream: one request, one answer.

use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Error;

/// Longest answer; a status with a hundred keys has some 50 KiB.
const MAX: usize = 4 * 1024 * 1024;

/// What came back, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// GET of a path.
pub(crate) async fn get<T>(stream: T, host: &str, path: &str) -> Result<Reply, Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |what: &str| Error::failed(format!("{what} GET {path}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed("cannot send").because(error))?;
    // It ends with the answer; a broken one is the request's own error.
    let driver = tokio::spawn(connection);
    let request = Request::get(path).header(HOST, host).header(CONNECTION, "close");
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed("cannot write").because(error))?;
    let answer = sender.send_request(request).await;
    let answer = answer.map_err(|error| failed("no answer to").because(error))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX).collect().await;
    let body = body.map_err(|error| failed("broken answer to").because(error))?.to_bytes();
    driver.abort();
    Ok(Reply { status: head.status, body })
}

/// Reads an answer as JSON.
pub(crate) fn json<T: DeserializeOwned>(reply: &Reply) -> Result<T, Error> {
    if reply.status != StatusCode::OK {
        let text: String = String::from_utf8_lossy(&reply.body).chars().take(200).collect();
        let failed = Error::failed(format!("it answered {}: {}", reply.status, text.trim()));
        return Err(match reply.status {
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                failed.hint("`/status` is answered on loopback, on the admin socket, or with mTLS")
            }
            _ => failed,
        });
    }
    serde_json::from_slice(&reply.body)
        .map_err(|error| Error::failed("the answer is not a status of Sidekey").because(error))
}
