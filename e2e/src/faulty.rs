//! Simulated faults: a forwarder between the shim and a real provider that
//! makes it slow, lets it hang or fail, or leads to another key. What it does
//! not spoil is the real provider's answer.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use sidekey_core::client::{Connection, connect};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementService;
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use sidekey_core::server::{Stopper, bind, serve_kms, stopper};
use sidekey_core::{Connections, Endpoint, SocketOptions};
use tonic::{Code, Request, Response, Status, async_trait};

/// What is done to every request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is answered this much later.
    Slow(Duration),
    /// It is taken and never answered.
    Hang,
    /// It is answered with an error.
    Fail(Code, String),
}

/// A running forwarder; its socket goes when it is dropped.
#[derive(Debug)]
pub struct FaultyKms {
    socket: PathBuf,
    plan: Arc<Plan>,
    _stopper: Stopper,
}

#[derive(Debug)]
struct Plan {
    now: Mutex<(Option<Fault>, Endpoint)>,
    calls: AtomicU64,
}

struct Forwarder(Arc<Plan>);

impl FaultyKms {
    /// Listens on `kms.sock` in `dir` and forwards to the plugin's socket.
    pub async fn start(dir: &Path, plugin: &Path) -> Result<Self> {
        let socket = dir.join("kms.sock");
        let listener = bind(&endpoint(&socket)?, &SocketOptions::default()).await?;
        let now = Mutex::new((None, endpoint(plugin)?));
        let plan = Arc::new(Plan { now, calls: AtomicU64::new(0) });
        let (stopper, stop) = stopper();
        let (service, clients) = (Forwarder(plan.clone()), Connections::default());
        let serving = serve_kms(listener, service, stop, Duration::ZERO, clients);
        tokio::spawn(serving);
        Ok(Self { socket, plan, _stopper: stopper })
    }

    /// Its endpoint, as the shim's configuration writes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Spoils every request that comes from now on.
    pub fn inject(&self, fault: Fault) {
        self.plan.now().0 = Some(fault);
    }

    /// Forwards faithfully again.
    pub fn heal(&self) {
        self.plan.now().0 = None;
    }

    /// Leads to another plugin from now on, and so to another key.
    pub fn lead_to(&self, plugin: &Path) -> Result<()> {
        self.plan.now().1 = endpoint(plugin)?;
        Ok(())
    }

    /// How many requests have come.
    pub fn calls(&self) -> u64 {
        self.plan.calls.load(Ordering::Relaxed)
    }
}

impl Plan {
    fn now(&self) -> MutexGuard<'_, (Option<Fault>, Endpoint)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plugin, unless a fault comes first.
    async fn plugin(&self) -> Result<KeyManagementServiceClient<Connection>, Status> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (fault, endpoint) = self.now().clone();
        match fault {
            Some(Fault::Fail(code, text)) => return Err(Status::new(code, text)),
            Some(Fault::Hang) => pending::<()>().await,
            Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
            None => {}
        }
        connect(&endpoint).await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

#[async_trait]
impl KeyManagementService for Forwarder {
    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let answer = self.0.plugin().await?.status(request.into_inner()).await;
        answer.map_err(unbroken)
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let answer = self.0.plugin().await?.encrypt(request.into_inner()).await;
        answer.map_err(unbroken)
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        let answer = self.0.plugin().await?.decrypt(request.into_inner()).await;
        answer.map_err(unbroken)
    }
}

/// A connection that broke under a request is no answer of the plugin's.
fn unbroken(status: Status) -> Status {
    match std::error::Error::source(&status) {
        Some(_) => Status::unavailable("the plugin has gone away"),
        None => status,
    }
}

fn endpoint(socket: &Path) -> Result<Endpoint> {
    let text = format!("unix://{}", socket.display());
    text.parse().with_context(|| format!("{text} is no endpoint"))
}
