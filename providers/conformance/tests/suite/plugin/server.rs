//! The socket, the connections and the lives of the plugin.

use std::convert::Infallible;
use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use sidekey_conformance::{Hook, Plugin};
use sidekey_core::Endpoint;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementServiceServer;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tonic::body::Body;
use tower_service::Service as _;

use super::life::{Connection, Life};
use super::service::Service;
use super::{Defect, Store};

/// How long a slow Status takes: longer than the bound and shorter than the deadline.
pub(crate) const SLOW: Duration = Duration::from_millis(2500);

/// Largest message that is read: far more than the protocol needs.
const MESSAGE_MAX: usize = 5 << 18;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A plugin in this process with a socket and a key file of its own.
pub(crate) struct TestPlugin {
    dir: TempDir,
    defect: Option<Defect>,
    calls: Arc<AtomicU64>,
    lives: AtomicUsize,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl TestPlugin {
    pub(crate) fn start(defect: Option<Defect>) -> Arc<Self> {
        let plugin = Arc::new(Self {
            dir: tempfile::tempdir().unwrap(),
            defect,
            calls: Arc::default(),
            lives: AtomicUsize::new(0),
            running: Mutex::default(),
        });
        plugin.live();
        plugin
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::Path(self.dir.path().join("kms.sock"))
    }

    fn store(&self) -> Store {
        Store::open(self.dir.path().join("keys"))
    }

    /// Begins a life, unless the defect does not let it.
    fn live(&self) {
        let socket = self.dir.path().join("kms.sock");
        if socket.exists() && self.defect == Some(Defect::StaleSocket) {
            return;
        }
        let generation = self.lives.fetch_add(1, SeqCst);
        let calls = Arc::clone(&self.calls);
        let life = Life::new(self.store(), self.defect, generation, calls);
        let listener = bind(&socket, self.defect);
        *self.running.lock().unwrap() = Some(tokio::spawn(accept(listener, Arc::new(life))));
    }

    /// Ends a life at once, and leaves its socket behind.
    async fn kill(&self) {
        let running = self.running.lock().unwrap().take();
        if let Some(running) = running {
            running.abort();
            let _ = running.await;
        }
    }

    /// The plugin with nothing known but its socket.
    pub(crate) fn bare(&self) -> Plugin {
        Plugin::new(self.endpoint())
    }

    /// The plugin with all hooks.
    pub(crate) fn hooked(self: &Arc<Self>) -> Plugin {
        let (restarted, rotated, calls) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        self.bare()
            .with_restart(Hook::new(move || {
                let plugin = Arc::clone(&restarted);
                async move {
                    plugin.kill().await;
                    plugin.live();
                    Ok::<_, Infallible>(())
                }
            }))
            .with_rotate(Hook::new(move || {
                rotated.store().rotate();
                std::future::ready(Ok::<_, Infallible>(()))
            }))
            .with_backend_calls(move || {
                std::future::ready(Ok::<_, Infallible>(calls.calls.load(SeqCst)))
            })
    }
}

impl Drop for TestPlugin {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().unwrap().take() {
            running.abort();
        }
    }
}

/// Serves soundly for ever, on whatever socket.
pub(crate) async fn serve(listener: UnixListener, store: Store) {
    let life = Life::new(store, None, 0, Arc::default());
    accept(listener, Arc::new(life)).await;
}

/// Takes the place of a socket that a former life has left.
pub(crate) fn bind(socket: &Path, defect: Option<Defect>) -> UnixListener {
    if socket.exists() {
        std::fs::remove_file(socket).unwrap();
    }
    let listener = UnixListener::bind(socket).unwrap();
    let mode = if defect == Some(Defect::OpenSocket) { 0o666 } else { 0o660 };
    std::fs::set_permissions(socket, PermissionsExt::from_mode(mode)).unwrap();
    listener
}

/// Takes connections until the end of this life.
async fn accept(listener: UnixListener, life: Arc<Life>) {
    let mut connections = JoinSet::new();
    let frames = Arc::new(tokio::sync::Mutex::new(()));
    loop {
        let mut stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            () = life.crash.notified() => return,
        };
        let mut head = Vec::new();
        if life.has(Defect::WaitsForTheSilent) {
            let _ = (&mut stream).take(1).read_to_end(&mut head).await;
        }
        let (life, frames) = (Arc::clone(&life), Arc::clone(&frames));
        connections.spawn(async move {
            match life.defect {
                Some(
                    Defect::WaitsForTheFrame | Defect::GarbageCrash | Defect::LosesConnections,
                ) => wary(stream, life, &frames).await,
                _ => speak(after(head, stream), life).await,
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Looks at the first bytes by itself before it speaks HTTP/2.
async fn wary(mut stream: UnixStream, life: Arc<Life>, frames: &tokio::sync::Mutex<()>) {
    let mut head = vec![0; PREFACE.len()];
    match stream.read_exact(&mut head[..3]).await {
        Ok(_) if head.starts_with(b"PRI") => {}
        Ok(_) if life.has(Defect::GarbageCrash) => life.crash().await,
        _ => return lose(&life).await,
    }
    if stream.read_exact(&mut head[3..]).await.is_err() {
        return lose(&life).await;
    }
    if life.has(Defect::WaitsForTheFrame) {
        let _guard = frames.lock().await;
        let mut frame = vec![0; 9];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        frame.resize(9 + length, 0);
        if stream.read_exact(&mut frame[9..]).await.is_err() {
            return;
        }
        head.extend(frame);
    }
    speak(after(head, stream), life).await;
}

/// The stream with what was read of it put back.
fn after(head: Vec<u8>, stream: UnixStream) -> impl AsyncRead + AsyncWrite + Unpin {
    let (read, write) = stream.into_split();
    tokio::io::join(Cursor::new(head).chain(read), write)
}

async fn lose(life: &Life) {
    if life.has(Defect::LosesConnections) && life.lost.fetch_add(1, SeqCst) >= 24 {
        life.crash().await;
    }
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin>(stream: S, life: Arc<Life>) {
    let connection = Connection::new();
    let service = Service { life, connection: Arc::clone(&connection) };
    let handler = service_fn(move |request| handle(service.clone(), request));
    let serving = http2::Builder::new(TokioExecutor::new());
    let _ = serving.serve_connection(TokioIo::new(stream), handler).await;
    connection.closed.send_replace(true);
}

async fn handle(
    service: Service,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let life = Arc::clone(&service.life);
    let (head, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) if life.has(Defect::CancelCrash) => life.crash().await,
        Err(error) => return Err(error),
    };
    let path = head.uri.path();
    let timeout = head.headers.get("grpc-timeout").map(|value| value.as_bytes());
    let ours = path.starts_with("/v2.KeyManagementService/");
    let pretends = match life.defect {
        Some(Defect::BrokenProtobuf) => ours && !decodes(path, &body),
        Some(Defect::AnyMethod) => path.ends_with("/Conformance"),
        Some(Defect::AnyService) => !ours,
        Some(Defect::TinyDeadlineCrash) if timeout == Some(b"1n") => life.crash().await,
        _ => false,
    };
    if pretends {
        let mut success = Response::new(Body::empty());
        success.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        success.headers_mut().insert("grpc-status", "0".parse().unwrap());
        return Ok(success);
    }
    if life.has(Defect::ManyAnnotationsHang) && (MESSAGE_MAX..2 << 20).contains(&body.len()) {
        std::future::pending::<()>().await;
    }
    let oversize = life.has(Defect::Oversize) && body.len() > 4 << 20;
    let limit = if oversize { body.len() } else { MESSAGE_MAX };
    let mut server = KeyManagementServiceServer::new(service).max_decoding_message_size(limit);
    let answered = server.call(Request::from_parts(head, Full::new(body))).await;
    Ok(answered.unwrap_or_else(|never| match never {}))
}

fn decodes(path: &str, body: &Bytes) -> bool {
    let Some((head, message)) = body.split_at_checked(5) else { return true };
    let announced = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if announced != message.len() || announced > MESSAGE_MAX {
        return true;
    }
    if path.ends_with("/Encrypt") {
        EncryptRequest::decode(message).is_ok()
    } else if path.ends_with("/Decrypt") {
        DecryptRequest::decode(message).is_ok()
    } else {
        true
    }
}
