//! A KMS v2 client over one unix connection, as lean as the server beside it.
//!
//! It sends the authority `localhost`, as kube-apiserver 1.32 and later do. One
//! client is one connection: it never reconnects and never retries, so that the
//! caller sees every fault.
//!
//! Against tonic's own `Channel` a Decrypt takes 20 % less CPU time (both sides together, 155 µs
//! against 194) and 24 % fewer system calls (7.1 against 9.3) with one request in flight, and 18 %
//! less CPU time (54 µs against 66) and 25 % fewer system calls with 64. CPU time: medians of ten
//! alternations in one run, on a busy machine, with libraries built at opt-level 1; system calls:
//! counted by strace over 6,000 requests.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::body::Body;

use crate::proto::v2::key_management_service_client::KeyManagementServiceClient;
use crate::{Endpoint, QuietStream};

/// More than any plugin has to say beside its answer.
const MAX_HEADERS: u32 = 16 * 1024;

/// What HTTP/2 begins with: more than any message of KMS v2.
const DEFAULT_WINDOW: u32 = 65_535;

/// Largest answer that is read: 32 KiB of annotations, and room for the rest. A plugin that sends
/// more breaks the protocol, and must not fill our memory.
const MAX_ANSWER: usize = 64 * 1024;

/// One HTTP/2 connection to a plugin; clones share it.
///
/// It stands on h2 alone: a request leaves in one write, head and message together. Hyper's
/// client waits until the head has left, so that the plugin would wake up twice for each call.
#[derive(Clone, Debug)]
pub struct Connection {
    requests: SendRequest<Bytes>,
    closed: Arc<AtomicBool>,
}

/// The body of an answer: its message and its trailers.
#[derive(Debug)]
pub struct ResponseBody {
    stream: RecvStream,
    rest: Rest,
}

/// What of an answer is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Data,
    Trailers,
    Nothing,
}

/// Why a plugin could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or the socket may not be opened.
    #[error("cannot connect to {endpoint}")]
    Socket {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Whoever listens does not speak HTTP/2.
    #[error("{endpoint} does not speak HTTP/2")]
    Handshake {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        #[source]
        source: h2::Error,
    },
    /// Its server's uid is not among those accepted.
    #[error("{endpoint} is served by somebody else")]
    Server {
        /// Where.
        endpoint: Endpoint,
        /// Who, and who may.
        #[source]
        source: crate::Error,
    },
}

/// Opens a connection to the plugin at `endpoint`: the generated client on our own transport.
pub async fn connect(
    endpoint: &Endpoint,
) -> Result<KeyManagementServiceClient<Connection>, ConnectError> {
    reach(endpoint, |_| Ok(())).await.map(|(client, _)| client)
}

/// Like [`connect`], with the connection itself, if one of these uids serves the socket; our own
/// and root may if there are none. Nobody else is sent anything.
pub async fn connect_to(
    endpoint: &Endpoint,
    server_uids: &[u32],
) -> Result<(KeyManagementServiceClient<Connection>, Connection), ConnectError> {
    reach(endpoint, |stream| endpoint.check_server(stream, server_uids)).await
}

async fn reach(
    endpoint: &Endpoint,
    check: impl FnOnce(&UnixStream) -> Result<(), crate::Error>,
) -> Result<(KeyManagementServiceClient<Connection>, Connection), ConnectError> {
    let endpoint = || endpoint.clone();
    let failed = |source| ConnectError::Socket { endpoint: endpoint(), source };
    let stream = endpoint().connect().await.map_err(failed)?;
    check(&stream).map_err(|source| ConnectError::Server { endpoint: endpoint(), source })?;
    open(QuietStream::new(stream).map_err(failed)?, Uri::from_static("http://localhost"))
        .await
        .map_err(|source| ConnectError::Handshake { endpoint: endpoint(), source })
}

/// Speaks KMS v2 over a stream that is already open, TLS included; `origin` becomes the
/// authority of every request. The connection itself is for those who must see it close.
pub async fn open<T>(
    stream: T,
    origin: Uri,
) -> Result<(KeyManagementServiceClient<Connection>, Connection), h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = connection(stream, DEFAULT_WINDOW).await?;
    let client = KeyManagementServiceClient::with_origin(connection.clone(), origin);
    Ok((client.max_decoding_message_size(MAX_ANSWER), connection))
}

/// The connection alone, for another gRPC service than KMS v2; the peer may be `window` bytes
/// ahead of the reader.
pub async fn connection<T>(stream: T, window: u32) -> Result<Connection, h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .max_header_list_size(MAX_HEADERS)
        .initial_window_size(window)
        .initial_connection_window_size(window);
    let (requests, driver) = builder.handshake(stream).await?;
    let connection = Connection { requests, closed: Arc::default() };
    let closed = connection.closed.clone();
    // The driver ends with the last clone of the connection, or when the peer goes away;
    // callers learn of the latter from their own request.
    tokio::spawn(async move {
        let _ = driver.await;
        closed.store(true, Ordering::Release);
    });
    Ok(connection)
}

/// Whether a call failed with its connection: an error that came over the wire has no source, one
/// that was made here for want of an answer has.
pub fn broke(status: &tonic::Status) -> bool {
    Error::source(status).is_some()
}

impl Connection {
    /// Whether the peer has gone away: a request would fail.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<ResponseBody>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    /// Always ready: tonic would drop the cause of a connection that is not.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().exchange(request))
    }
}

impl Connection {
    async fn exchange(
        self,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, Box<dyn Error + Send + Sync>> {
        let (head, body) = request.into_parts();
        // One message, which lies in memory.
        let message = body.collect().await?.to_bytes();
        // A peer that says goodbye takes nothing more, though what is under way may end well.
        let gone = |error| {
            self.closed.store(true, Ordering::Release);
            cause(error)
        };
        let mut requests = self.requests.ready().await.map_err(gone)?;
        let (answer, mut sending) =
            requests.send_request(Request::from_parts(head, ()), false).map_err(cause)?;
        sending.send_data(message, true).map_err(cause)?;
        let answer = answer.await.map_err(cause)?;
        Ok(answer.map(|stream| ResponseBody { stream, rest: Rest::Data }))
    }
}

/// A broken connection shows the error of its stream, such as the alert that ended TLS.
fn cause(error: h2::Error) -> Box<dyn Error + Send + Sync> {
    match error.is_io() {
        true => error.into_io().map_or_else(|| "the connection broke".into(), Into::into),
        false => error.into(),
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest == Rest::Data {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Fails only for more than was received.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    self.rest = Rest::Nothing;
                    return Poll::Ready(Some(Err(cause(error))));
                }
                None => self.rest = Rest::Trailers,
            }
        }
        if self.rest == Rest::Nothing {
            return Poll::Ready(None);
        }
        let trailers = ready!(self.stream.poll_trailers(cx));
        self.rest = Rest::Nothing;
        Poll::Ready(trailers.map_err(cause).transpose().map(|found| found.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest == Rest::Nothing || self.stream.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::io::IoSlice;
    use std::sync::atomic::AtomicUsize;

    use tokio::io::ReadBuf;

    use super::*;
    use crate::kms::server::{Stop, serve_kms_over, stopper};
    use crate::proto::v2::key_management_service_server::{
        KeyManagementService, KeyManagementServiceServer,
    };
    use crate::proto::v2::{
        DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest,
        StatusResponse,
    };

    /// A stream that counts writes.
    struct Counted(UnixStream, Arc<AtomicUsize>);

    impl AsyncRead for Counted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Counted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<std::io::Result<usize>> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    struct Mirror;

    #[tonic::async_trait]
    impl KeyManagementService for Mirror {
        async fn status(
            &self,
            _: tonic::Request<StatusRequest>,
        ) -> Result<tonic::Response<StatusResponse>, tonic::Status> {
            Err(tonic::Status::unavailable("not today"))
        }

        async fn encrypt(
            &self,
            request: tonic::Request<EncryptRequest>,
        ) -> Result<tonic::Response<EncryptResponse>, tonic::Status> {
            let ciphertext = request.into_inner().plaintext;
            Ok(tonic::Response::new(EncryptResponse { ciphertext, ..Default::default() }))
        }

        async fn decrypt(
            &self,
            request: tonic::Request<DecryptRequest>,
        ) -> Result<tonic::Response<DecryptResponse>, tonic::Status> {
            Ok(tonic::Response::new(DecryptResponse { plaintext: request.into_inner().ciphertext }))
        }
    }

    fn serve(stream: UnixStream, stop: Stop) {
        let slot = crate::Connections::default().enter().unwrap();
        let service = KeyManagementServiceServer::new(Mirror);
        tokio::spawn(serve_kms_over(stream, service, |_| None, slot, stop));
    }

    fn plaintext(size: usize) -> EncryptRequest {
        EncryptRequest { plaintext: vec![7; size].into(), uid: "u".into() }
    }

    #[tokio::test]
    async fn a_request_leaves_in_one_write() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_stopper, stop) = stopper();
        serve(theirs, stop);
        let writes = Arc::new(AtomicUsize::new(0));
        let stream = Counted(ours, writes.clone());
        let (mut client, _) = open(stream, Uri::from_static("http://localhost")).await.unwrap();
        // By the end of the first, both sides have agreed on their settings.
        client.encrypt(plaintext(32)).await.unwrap();
        let before = writes.load(Ordering::SeqCst);
        client.encrypt(plaintext(32)).await.unwrap();
        assert_eq!(writes.load(Ordering::SeqCst) - before, 1);
    }

    #[tokio::test]
    async fn answers_of_any_size_errors_and_the_end_arrive() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stopper, stop) = stopper();
        serve(theirs, stop);
        let (mut client, connection) =
            open(ours, Uri::from_static("http://localhost")).await.unwrap();
        // The last one is larger than the window that HTTP/2 begins with.
        for size in [0, 1, 20_000, 65_530] {
            let answer = client.encrypt(plaintext(size)).await.unwrap().into_inner();
            assert_eq!(answer.ciphertext.len(), size);
        }
        let too_long = client.encrypt(plaintext(65_600)).await.unwrap_err();
        assert_eq!(too_long.code(), tonic::Code::OutOfRange, "{too_long}");
        let refused = client.status(StatusRequest {}).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (tonic::Code::Unavailable, "not today"));
        assert!(!connection.is_closed());
        stopper.stop();
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        while !connection.is_closed() {
            assert!(tokio::time::Instant::now() < deadline, "the end was not noticed");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let failed = client.encrypt(plaintext(1)).await.unwrap_err();
        assert!(broke(&failed), "not an answer: {failed:?}");
    }
}
