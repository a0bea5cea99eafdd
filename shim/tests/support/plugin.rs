//! A KMS v2 plugin that can be told to misbehave.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidekey_core::kms::PROOF_AGE;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementService;
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use sidekey_core::server::{Stopper, serve_kms, stopper};
use sidekey_core::{Connections, Endpoint, Listener, SocketOptions};
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
    /// Those of them that are not the shim's own.
    pub callers: AtomicU64,
    /// The last `grpc-timeout`.
    pub timeout: Mutex<Option<String>>,
    /// Which KEK it has: what another one wrapped cannot be read. 0 reads everything.
    pub kek: AtomicU64,
    /// The key_id that it reports and writes under, if not [`KEY_ID`].
    pub key_id: Mutex<Option<String>>,
    /// What was wrapped under this key_id cannot be read any more.
    pub retired: Mutex<Option<String>>,
    /// Tries again until half of the time that it was told is over, as our providers do, and
    /// answers then.
    pub tries_again: AtomicBool,
    /// Takes requests and answers none.
    pub hangs: AtomicBool,
    /// May only decrypt: all else is refused.
    pub decrypts_only: AtomicBool,
    /// How old it says its proof is.
    pub proof_age: Mutex<Option<u64>>,
    /// How often it was asked for Status.
    pub asked: AtomicU64,
}

impl Manners {
    pub fn of_kek(kek: u64) -> Arc<Self> {
        Arc::new(Self { kek: AtomicU64::new(kek), ..Self::default() })
    }

    pub fn fails_with(&self, fault: Option<(Code, &str)>) {
        *self.fault.lock().unwrap() = fault.map(|(code, text)| (code, text.to_owned()));
    }

    pub fn moves_to(&self, key_id: &str) {
        *self.key_id.lock().unwrap() = Some(key_id.to_owned());
    }

    fn key_id(&self) -> String {
        self.key_id.lock().unwrap().clone().unwrap_or_else(|| KEY_ID.to_owned())
    }
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
            Connections::default(),
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

    /// Requests seen of callers: what the shim asks for itself comes when it likes.
    pub fn seen_of_callers(&self) -> u64 {
        self.manners.callers.load(Ordering::SeqCst)
    }
}

impl Service {
    fn count(&self, uid: &str) {
        self.0.seen.fetch_add(1, Ordering::SeqCst);
        self.0.callers.fetch_add(u64::from(!uid.starts_with("shim-")), Ordering::SeqCst);
    }

    async fn fault<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let timeout = request.metadata().get("grpc-timeout");
        let timeout = timeout.map(|value| value.to_str().unwrap().to_owned());
        *self.0.timeout.lock().unwrap() = timeout.clone();
        if self.0.tries_again.load(Ordering::SeqCst) {
            let told = timeout.as_deref().and_then(time).expect("no grpc-timeout");
            tokio::time::sleep(told / 2).await;
        }
        match &*self.0.fault.lock().unwrap() {
            Some((code, text)) => Err(Status::new(*code, text.clone())),
            None => Ok(()),
        }
    }
}

impl Service {
    fn may(&self, what: &str) -> Result<(), Status> {
        match self.0.decrypts_only.load(Ordering::SeqCst) {
            true => Err(Status::permission_denied(format!("no right to {what}"))),
            false => Ok(()),
        }
    }
}

/// A `grpc-timeout`.
pub fn time(text: &str) -> Option<Duration> {
    let (value, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let nanoseconds = match unit {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "S" => 1_000_000_000,
        _ => return None,
    };
    Some(Duration::from_nanos(value.parse::<u64>().ok()? * nanoseconds))
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
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        self.fault(&request).await?;
        self.may("status")?;
        let (version, healthz, key_id) = ("v2".into(), "ok".into(), self.0.key_id());
        let mut response = Response::new(StatusResponse { version, healthz, key_id });
        if let Some(age) = *self.0.proof_age.lock().unwrap() {
            response.metadata_mut().insert(PROOF_AGE, age.into());
        }
        Ok(response)
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        self.count(&request.get_ref().uid);
        self.fault(&request).await?;
        self.may("encrypt")?;
        let mut ciphertext = twist(&request.into_inner().plaintext);
        if let Ok(kek @ 1..) = u8::try_from(self.0.kek.load(Ordering::SeqCst)) {
            ciphertext.insert(0, kek);
        }
        let bloat = self.0.bloat.load(Ordering::SeqCst);
        ciphertext.resize(ciphertext.len().max(usize::try_from(bloat).unwrap()), 0);
        let annotations = [("a.example".to_owned(), vec![7].into())].into();
        let ciphertext = ciphertext.into();
        Ok(Response::new(EncryptResponse { ciphertext, key_id: self.0.key_id(), annotations }))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        self.count(&request.get_ref().uid);
        self.fault(&request).await?;
        let gate = self.0.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        let DecryptRequest { mut ciphertext, key_id, .. } = request.into_inner();
        if self.0.retired.lock().unwrap().as_ref() == Some(&key_id) {
            return Err(Status::failed_precondition("this version was retired"));
        }
        if let Ok(kek @ 1..) = u8::try_from(self.0.kek.load(Ordering::SeqCst)) {
            if ciphertext.first() != Some(&kek) {
                return Err(Status::failed_precondition("wrapped with another KEK"));
            }
            let _ = ciphertext.split_to(1);
        }
        let plaintext = twist(&ciphertext).into();
        Ok(Response::new(DecryptResponse { plaintext }))
    }
}
