//! The thin layer between the wire and a key.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::health::PROOF_AGE;
use crate::key::Key;
use crate::limits::{self, shown_uid};
use crate::metrics::Operation;
use crate::proto::v2::key_management_service_server::KeyManagementService;
use crate::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use crate::{Call, Error};

/// Must be the same for the life of a kube-apiserver.
const VERSION: &str = "v2";
/// For callers who name no time: well above what a KMS needs, well below what a probe waits.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// No caller is waited for longer.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// KMS v2 on one key.
pub(crate) struct KeyService(pub(crate) Arc<Key>);

#[tonic::async_trait]
impl KeyManagementService for KeyService {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let began = Instant::now();
        let result = self.0.status();
        let failure = result.as_ref().err().map(Error::kind);
        self.0.metrics.served(Operation::Status, began.elapsed(), failure);
        self.0.metrics.healthy(failure.is_none());
        let key_id = result.map_err(|error| Status::from(&error))?.as_str().to_owned();
        let status = StatusResponse { version: VERSION.into(), healthz: "ok".into(), key_id };
        let mut response = Response::new(status);
        if let Some(age) = self.0.health.proof_age() {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            response.metadata_mut().insert(PROOF_AGE, age.into());
        }
        Ok(response)
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let began = Instant::now();
        let deadline = deadline(request.metadata(), began);
        self.0.pulse.keep();
        let request = request.into_inner();
        let result = match limits::check_encrypt(&request) {
            Ok(()) => {
                let call = Call { uid: &request.uid, deadline };
                self.0.encrypt(request.plaintext.clone(), &call).await
            }
            Err(error) => Err(error),
        };
        let failure = result.as_ref().err();
        self.finish(Operation::Encrypt, began, &request.uid, failure);
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
        self.0.pulse.keep();
        let request = request.into_inner();
        let uid = request.uid.clone();
        let result = match limits::check_decrypt(request) {
            Ok(sealed) => self.0.decrypt(sealed, &Call { uid: &uid, deadline }).await,
            Err(error) => Err(Arc::new(error)),
        };
        let failure = result.as_ref().err().map(|error| &**error);
        self.finish(Operation::Decrypt, began, &uid, failure);
        let secret = result.map_err(|error| Status::from(&*error))?;
        let plaintext = bytes::Bytes::copy_from_slice(secret.expose());
        Ok(Response::new(DecryptResponse { plaintext }))
    }
}

impl KeyService {
    fn finish(&self, operation: Operation, began: Instant, uid: &str, failure: Option<&Error>) {
        let took = began.elapsed();
        self.0.metrics.served(operation, took, failure.map(Error::kind));
        let (key, uid) = (self.0.id, shown_uid(uid));
        match failure {
            None => tracing::debug!(%key, uid, ?operation, ?took, "request served"),
            Some(error) => {
                let Some(suppressed) = self.0.failures_logged.pass() else { return };
                tracing::warn!(
                    %key, uid, ?operation, ?took, kind = %error.kind(), error = %error.report(),
                    suppressed, "request failed"
                );
            }
        }
    }
}

/// When to answer a caller at the latest: a little before it gives up, so that it gets our
/// reason and not its own timeout.
pub fn deadline(metadata: &MetadataMap, now: Instant) -> Instant {
    let asked = metadata.get("grpc-timeout").and_then(|value| timeout(value.as_bytes()));
    let limit = asked.unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT);
    now + limit - (limit / 20).min(Duration::from_millis(100))
}

/// `grpc-timeout`: up to eight digits and a unit.
fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(timeout(b"3S"), Some(Duration::from_secs(3)));
        assert_eq!(timeout(b"2999m"), Some(Duration::from_millis(2999)));
        assert_eq!(timeout(b"1n"), Some(Duration::from_nanos(1)));
        assert_eq!(timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in [&b""[..], b"S", b"3", b"3s", b"123456789S", b"-1S", b"1.5S"] {
            assert_eq!(timeout(bad), None);
        }
    }

    proptest! {
        #[test]
        fn no_header_panics(value in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut metadata = MetadataMap::new();
            if let Ok(value) = tonic::metadata::MetadataValue::try_from(&value[..]) {
                metadata.insert("grpc-timeout", value);
            }
            let now = Instant::now();
            prop_assert!(deadline(&metadata, now) <= now + MAX_TIMEOUT);
        }
    }
}
