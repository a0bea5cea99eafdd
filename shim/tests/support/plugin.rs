//! A KMS v2 plugin that can be told to misbehave.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidekey_core::proto::v2::key_management_service_server::KeyManagementService;
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use sidekey_core::server::{Stopper, serve_kms, stopper};
use sidekey_core::{Clients, Endpoint, Listener, SocketOptions};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Response, Status};

pub const KEY_ID: &str = "test/1";

/// How the plugin behaves, and what it saw.
#[derive(Default)]
pub struct Manners {
    /// Answers everything with this.
    pub fault: Mutex<Option<(Code, String)>>,
    /// Encrypt answers with so many bytes.
    pub bloat: AtomicU64,
    /// Decrypt waits for a permit where there is a gate.
    pub gate: Mutex<Option<Arc<Semaphore>>>,
    /// Requests seen, Status aside.
    pub seen: AtomicU64,
    /// The last `grpc-timeout`.
    pub timeout: Mutex<Option<String>>,
}

/// A running plugin.
pub struct Plugin {
    pub path: PathBuf,
    pub manners: Arc<Manners>,
    stopper: Stopper,
    server: JoinHandle<()>,
}

struct Service(Arc<Manners>);

impl Plugin {
    pub async fn start(path: &Path) -> Self {
        Self::with(path, Arc::default()).await
    }

    pub async fn with(path: &Path, manners: Arc<Manners>) -> Self {
        let endpoint = Endpoint::Path(path.to_owned());
        let options = SocketOptions { mode: 0o600, group: None, allowed_uids: Vec::new() };
        let (listener, _) = Listener::bind(&endpoint, &options).await.unwrap();
        let (stopper, stop) = stopper();
        let service = Service(manners.clone());
        let server = tokio::spawn(serve_kms(
            listener,
            service,
            stop,
            Duration::ZERO,
            Clients::default(),
            |_| {},
        ));
        Self { path: path.to_owned(), manners, stopper, server }
    }

    /// Ends at once, open connections and requests included.
    pub async fn kill(self) -> Arc<Manners> {
        self.stopper.stop();
        self.server.await.unwrap();
        self.manners
    }

    pub fn seen(&self) -> u64 {
        self.manners.seen.load(Ordering::SeqCst)
    }
}

impl Service {
    fn fault<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let timeout = request.metadata().get("grpc-timeout");
        let timeout = timeout.map(|value| value.to_str().unwrap().to_owned());
        *self.0.timeout.lock().unwrap() = timeout;
        match &*self.0.fault.lock().unwrap() {
            Some((code, text)) => Err(Status::new(*code, text.clone())),
            None => Ok(()),
        }
    }
}

/// Not encryption, but something that only this plugin undoes.
fn twist(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().map(|byte| byte ^ 0x5a).collect()
}

#[tonic::async_trait]
impl KeyManagementService for Service {
    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        self.fault(&request)?;
        let (version, healthz, key_id) = ("v2".into(), "ok".into(), KEY_ID.into());
        Ok(Response::new(StatusResponse { version, healthz, key_id }))
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        self.0.seen.fetch_add(1, Ordering::SeqCst);
        self.fault(&request)?;
        let mut ciphertext = twist(&request.into_inner().plaintext);
        let bloat = self.0.bloat.load(Ordering::SeqCst);
        ciphertext.resize(ciphertext.len().max(usize::try_from(bloat).unwrap()), 0);
        let annotations = [("a.example".to_owned(), vec![7].into())].into();
        let ciphertext = ciphertext.into();
        Ok(Response::new(EncryptResponse { ciphertext, key_id: KEY_ID.into(), annotations }))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        self.0.seen.fetch_add(1, Ordering::SeqCst);
        self.fault(&request)?;
        let gate = self.0.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        let plaintext = twist(&request.into_inner().ciphertext).into();
        Ok(Response::new(DecryptResponse { plaintext }))
    }
}
