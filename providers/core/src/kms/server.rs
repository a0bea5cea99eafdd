//! Serving on sockets: accept, serve, drain with a deadline.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Frame, Incoming as IncomingBody};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::kms::Operation;
use crate::kms::service::Arrival;
use crate::kms::stream::QuietStream;
use crate::process::admin::Admin;
use crate::proto::v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use crate::socket::connections::{OpenRequest, Slot};
use crate::socket::{Listener, PAUSE, SocketOptions, is_of_peer};
use crate::{Connections, Endpoint, Error, Kind};

/// Concurrent requests on one connection; more of them wait at the caller, as HTTP/2 has it.
const MAX_STREAMS: u32 = 128;
/// Longest request. The limits of the protocol add up to 86 KiB if all of the annotations have the
/// shortest names that there are, and to 35 KiB if they are few.
const MAX_REQUEST: usize = 96 * 1024;
/// What a connection may send before it was read: one request, and a few more.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;
/// All headers of a request: gRPC's own need some hundred bytes.
const MAX_HEADERS: u32 = 8 * 1024;
/// A connection that must make room has this long to finish.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// Admin connections. They are short, and the oldest makes room for the newest: a probe is
/// answered at once, and whoever is silent must not keep probes out.
pub const MAX_ADMIN: usize = 64;
/// Somebody who opens a connection to the admin server has this long to ask.
const ADMIN_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// And this long to keep on asking: whoever reads nothing must not stay for ever.
const ADMIN_LIFETIME: Duration = Duration::from_secs(60);

/// Tells every server of the process, or of one key, to stop.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// The other end of [`Stop`]; dropping it stops too.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// A pair: what waits and what ends the waiting.
pub fn stopper() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

/// Where connections come from.
pub trait Incoming: Send {
    /// One of them.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Who is at its other end.
    type Peer;
    /// The next one. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = (Self::Stream, Self::Peer)> + Send;
}

impl Stopper {
    /// Tells everybody to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits for the order to stop.
    pub async fn stopped(&mut self) {
        // An error means that the sender is gone, which also means stop.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl Incoming for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn next(&mut self) -> (TcpStream, SocketAddr) {
        let mut pause = PAUSE;
        loop {
            match self.accept().await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(pause.delay()).await;
                }
            }
        }
    }
}

/// Takes connections in until told to stop, and gives back those that are open then.
pub async fn accept<I: Incoming, F>(
    incoming: &mut I,
    stop: &mut Stop,
    mut serve: impl FnMut(I::Stream, I::Peer) -> F,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, peer) = incoming.next() => {
                connections.spawn(serve(stream, peer));
            }
            _ = connections.join_next(), if !connections.is_empty() => {}
            () = stop.stopped() => return connections,
        }
    }
}

/// Waits for open connections, but no longer than `drain`.
pub async fn settle(mut connections: JoinSet<()>, drain: Duration) {
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain, all).await.is_err() {
        tracing::warn!(?drain, "open requests were cut off after the drain deadline");
    }
}

/// Serves KMS v2 until told to stop, then lets open requests end within `drain`.
pub async fn serve_kms<S: KeyManagementService>(
    mut listener: Listener,
    service: S,
    mut stop: Stop,
    drain: Duration,
    connections: Connections,
) {
    let service = KeyManagementServiceServer::new(service);
    let order = stop.clone();
    listener.report_to(connections.clone());
    let serving = accept(&mut listener, &mut stop, |stream, _| {
        let (slot, service, stop) = (connections.enter(), service.clone(), order.clone());
        async move {
            let Some(slot) = slot else { return };
            match QuietStream::new(stream) {
                Ok(stream) => serve_kms_over(stream, service, |_| None, slot, stop).await,
                Err(error) => tracing::warn!(%error, "cannot take a connection over"),
            }
        }
    });
    let open = serving.await;
    // First no new connections and no socket that leads nowhere, then the open requests.
    listener.close();
    settle(open, drain).await;
}

/// Serves KMS v2 on one open connection until it ends, must make room or, once told to stop, has no
/// open request. What `refuse` refuses is answered before any of the message has been read.
pub async fn serve_kms_over<T, S>(
    stream: T,
    service: KeyManagementServiceServer<S>,
    refuse: impl Fn(Operation) -> Option<Status> + Send + 'static,
    slot: Slot,
    mut stop: Stop,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: KeyManagementService,
{
    let connections = slot.connections();
    let (of_status, of_others) = connections.limits();
    let (status, others) = (of_status.layer(service.clone()), of_others.layer(service));
    let begin = slot.counter();
    let answering = service_fn(move |request: Request<IncomingBody>| {
        let mut open = begin();
        let arrival = Arrival(Instant::now());
        let operation = Operation::of_path(request.uri().path());
        let refused = operation.and_then(&refuse);
        let mut limited =
            if operation == Some(Operation::Status) { status.clone() } else { others.clone() };
        async move {
            let whole = match refused {
                Some(status) => Err(status),
                None => whole(request, operation, &mut open).await,
            };
            let (answer, mut open) = match whole {
                Err(status) => (status.into_http(), open),
                Ok(mut request) => {
                    request.extensions_mut().insert(arrival);
                    // First, so that nobody who does not read keeps others from their turn.
                    open.unblocked().await;
                    let ready =
                        poll_fn(|cx| Service::<Request<Full<Bytes>>>::poll_ready(&mut limited, cx));
                    let Ok(()) = ready.await;
                    // Work that has begun is finished, though whoever asked may be gone: many calls
                    // that are given up at once look like an attack to the plugin behind us, which
                    // then hangs up on all others. Until its end it keeps its place in the limits.
                    open.work();
                    let working = tokio::spawn(async move {
                        let Ok(answer) = limited.call(request).await;
                        (answer, open)
                    });
                    working.await?
                }
            };
            open.answered();
            // It counts as open until its last byte has been taken.
            let counted = move |frame: Frame<Bytes>| {
                let _open = &open;
                frame
            };
            Ok::<_, JoinError>(answer.map(|body: Body| body.map_frame(counted)))
        }
    });
    let serving = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADERS)
        // Nobody asks for the date.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(slot.watch(stream)), answering);
    let mut serving = std::pin::pin!(serving);
    let serving = async {
        let limit = tokio::select! {
            result = serving.as_mut() => return ended(result),
            _ = slot.ordered() => Some(CLOSE_TIME),
            () = stop.stopped() => None,
        };
        serving.as_mut().graceful_shutdown();
        match limit {
            Some(limit) => ended(timeout(limit, serving).await.unwrap_or(Ok(()))),
            None => ended(serving.await),
        }
    };
    tokio::select! {
        biased;
        () = slot.gone() => {}
        () = serving => {}
    }
}

/// A request with its whole message; of what nobody knows nothing is read.
async fn whole(
    request: Request<IncomingBody>,
    operation: Option<Operation>,
    open: &mut OpenRequest,
) -> Result<Request<Full<Bytes>>, Status> {
    let (head, body) = request.into_parts();
    let message = match operation {
        Some(_) => receive(body, open).await?,
        None => Bytes::new(),
    };
    Ok(Request::from_parts(head, Full::new(message)))
}

/// A whole message: what comes in one piece is passed on as it is.
async fn receive(mut body: IncomingBody, request: &mut OpenRequest) -> Result<Bytes, Status> {
    let mut message = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if message.is_empty() && body.is_end_stream() {
            check_length(&data)?;
            return Ok(data);
        }
        request.hold(data.len()).map_err(|error| Status::from(&error))?;
        // A copy, because what was read with it would be kept along.
        message.extend_from_slice(&data);
        check_length(&message)?;
    }
    Ok(message.freeze())
}

/// By what has come of a message, and by what its beginning says.
fn check_length(message: &[u8]) -> Result<(), Status> {
    let announced = message.get(1..5).map_or(0, |mut length| length.get_u32() as usize);
    let length = announced.max(message.len().saturating_sub(5));
    if length <= MAX_REQUEST {
        return Ok(());
    }
    let text = format!("the request has {length} bytes, at most {MAX_REQUEST} allowed");
    Err(Status::from(&Error::new(Kind::Invalid, text)))
}

fn ended(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Serves the admin endpoints until told to stop.
pub(crate) async fn serve_admin<I: Incoming>(mut incoming: I, admin: Arc<Admin>, mut stop: Stop) {
    let connections = Connections::limited("admin", MAX_ADMIN);
    let serving = accept(&mut incoming, &mut stop, |stream, _| {
        let (slot, admin) = (connections.enter(), admin.clone());
        async move {
            if let Some(slot) = slot {
                serve_http1(stream, admin, slot).await;
            }
        }
    });
    serving.await;
}

pub(crate) async fn serve_http1<T>(stream: T, admin: Arc<Admin>, slot: Slot)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let response = admin.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        result = serving.as_mut() => return ended(result),
        _ = slot.ordered() => return,
        () = tokio::time::sleep(ADMIN_LIFETIME) => serving.as_mut().graceful_shutdown(),
    }
    ended(timeout(ADMIN_HEADER_TIMEOUT, serving).await.unwrap_or(Ok(())));
}

/// Binds, and says so when strangers can come near the socket.
pub async fn bind(endpoint: &Endpoint, options: &SocketOptions) -> Result<Listener, Error> {
    let (listener, warning) = Listener::bind(endpoint, options).await?;
    if let Some(warning) = warning {
        tracing::warn!(socket = %endpoint, warning, "the socket is open to strangers");
    }
    Ok(listener)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::kms::limits::{MAX_ANNOTATIONS, MAX_CIPHERTEXT, check_decrypt};
    use crate::proto::v2::DecryptRequest;

    /// The shortest names that annotations can have.
    fn names() -> impl Iterator<Item = String> {
        let letters = || ('a'..='z').chain('0'..='9');
        let pairs = move || letters().flat_map(move |a| letters().map(move |b| (a, b)));
        let shortest = pairs().map(|(a, b)| format!("{a}.{b}"));
        shortest
            .chain(pairs().flat_map(move |(a, b)| letters().map(move |c| format!("{a}.{b}{c}"))))
    }

    #[test]
    fn the_longest_request_that_the_protocol_allows_is_taken() {
        let mut left = MAX_ANNOTATIONS;
        let fitting = names().take_while(|name| {
            let fits = name.len() <= left;
            left = left.saturating_sub(name.len());
            fits
        });
        let uid = "u".repeat(256);
        let request = DecryptRequest {
            ciphertext: vec![0; MAX_CIPHERTEXT].into(),
            uid: uid.clone(),
            key_id: "k".repeat(crate::MAX_KEY_ID),
            annotations: fitting.map(|name| (name, Bytes::new())).collect(),
        };
        // Go writes empty values too, of two bytes each.
        let length = request.encoded_len() + 2 * request.annotations.len();
        check_decrypt(&uid, request).unwrap();
        assert!((80 * 1024..=MAX_REQUEST).contains(&length), "{length} bytes");
        let announced = u32::try_from(length).unwrap().to_be_bytes();
        check_length(&[&[0], &announced[..]].concat()).unwrap();
        check_length(&[0, 0, 1, 0x80, 1]).unwrap_err();
    }
}
