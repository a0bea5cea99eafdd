//! What kube-apiserver sees on one listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use sidekey_core::config::KeyNumber;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementService;
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use sidekey_core::{
    Call, Error, Kind, Sealed, Secret, check_encrypt, check_sealed, check_uid, deadline, shown_uid,
};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::cache;
use crate::metrics::Operation;
use crate::state::Shared;

/// Constant for the life of a kube-apiserver, whatever the providers report.
const VERSION: &str = "v2";

/// KMS v2 on one listener.
pub(crate) struct ShimService {
    pub(crate) shared: Arc<Shared>,
    /// The key of what was written without the shim; 0 for none. A reload may change it.
    pub(crate) legacy: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl KeyManagementService for ShimService {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let began = Instant::now();
        let result = self.shared.announced();
        self.shared.metrics.served(Operation::Status, began.elapsed(), result.as_ref().err());
        let key_id = result.map_err(|error| Status::from(&error))?.as_str().to_owned();
        Ok(Response::new(StatusResponse { version: VERSION.into(), healthz: "ok".into(), key_id }))
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let began = Instant::now();
        let deadline = deadline(request.metadata(), began);
        self.shared.pulse.keep();
        let request = request.into_inner();
        let result = match check_encrypt(&request) {
            Ok(()) => {
                let table = self.shared.table();
                let call = Call { uid: &request.uid, deadline };
                table.writer.encrypt(&request.plaintext, &call).await
            }
            Err(error) => Err(error),
        };
        self.finish(Operation::Encrypt, began, &request.uid, result.as_ref().err());
        let sealed = result.map_err(|error| Status::from(&error))?;
        Ok(Response::new(EncryptResponse {
            ciphertext: sealed.ciphertext,
            key_id: sealed.key_id.as_str().to_owned(),
            annotations: sealed.annotations,
        }))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        let began = Instant::now();
        let deadline = deadline(request.metadata(), began);
        self.shared.pulse.keep();
        let request = request.into_inner();
        let uid = request.uid.clone();
        let result = self.unwrap(request, deadline).await;
        let failure = result.as_ref().err().map(|error| &**error);
        self.finish(Operation::Decrypt, began, &uid, failure);
        let plaintext = result.map_err(|error| Status::from(&*error))?;
        Ok(Response::new(DecryptResponse { plaintext }))
    }
}

impl ShimService {
    async fn unwrap(
        &self,
        request: DecryptRequest,
        deadline: Instant,
    ) -> Result<Bytes, Arc<Error>> {
        let DecryptRequest { ciphertext, uid, key_id, annotations } = request;
        check_uid(&uid).map_err(Arc::new)?;
        let legacy = match self.legacy.load(Ordering::SeqCst) {
            0 => None,
            id => Some(KeyNumber(id)),
        };
        let route = self.shared.table().route(&key_id, legacy).map_err(Arc::new)?;
        let sealed = Sealed { key_id: route.key_id, ciphertext, annotations };
        check_sealed(&sealed).map_err(Arc::new)?;
        // Two keys may know the same key_id: what is shared is a key's, not the shim's.
        let request = Arc::new(cache::Request { key: route.key.id, sealed });
        if let Some(secret) = self.shared.cached(&request) {
            return Ok(Bytes::copy_from_slice(secret.expose()));
        }
        let mut again = true;
        loop {
            let (key, uid) = (route.key.clone(), uid.clone());
            let flight = self.shared.flights.join(&request, move |request| async move {
                let call = Call { uid: &uid, deadline };
                key.decrypt(&request.sealed, &call).await.map_err(Arc::new)
            });
            let landed = tokio::time::timeout_at(deadline, flight).await.map_err(|_| {
                Arc::new(Error::new(Kind::Timeout, "the key did not answer in time"))
            })?;
            if landed.shared {
                self.shared.metrics.shared();
                // The one we joined had less time than we have.
                let short = matches!(&landed.answer, Err(error) if error.kind() == Kind::Timeout);
                if short && std::mem::take(&mut again) && Instant::now() < deadline {
                    continue;
                }
            }
            if let Ok(plaintext) = &landed.answer {
                self.shared.keep(&request, || Secret::new(plaintext.to_vec()));
            }
            return landed.answer;
        }
    }

    fn finish(&self, operation: Operation, began: Instant, uid: &str, failure: Option<&Error>) {
        let (took, uid) = (began.elapsed(), shown_uid(uid));
        self.shared.metrics.served(operation, took, failure);
        match failure {
            None => tracing::debug!(uid, operation = operation.label(), ?took, "request served"),
            Some(error) => {
                let Some(suppressed) = self.shared.failures_logged.pass() else { return };
                tracing::warn!(
                    uid, operation = operation.label(), ?took, kind = %error.kind(),
                    error = %error.report(), suppressed, "request failed"
                );
            }
        }
    }
}
