//! The one gRPC service: what is done for every request, whoever carries it out.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};

use super::{Kms, Operation, PROOF_AGE, RequestError, UNREACHED};
use crate::error::cut;
use crate::kms::limits::{check_decrypt, check_encrypt, shown_uid};
use crate::metrics::RequestMetrics;
use crate::process::telemetry::RateLimit;
use crate::proto::v2::key_management_service_server::KeyManagementService;
use crate::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use crate::{Call, Error, Kind, Secret, code_name};

/// For callers who name no time: well above what a KMS needs, well below what a probe waits.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// No caller is waited for longer.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// KMS v2, as gRPC has it, on any [`Kms`].
pub struct KmsService<K> {
    kms: K,
    requests: Arc<Requests>,
}

/// When a request came, which is before it had its turn: the caller's clock runs meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Arrival(pub(super) Instant);

/// What all requests of one key, or of one process, have in common.
pub struct Requests {
    /// The key, where it is not the request that decides.
    key: Option<u64>,
    metrics: RequestMetrics,
    failures_logged: RateLimit,
}

/// A request under way.
struct Asked<'a> {
    requests: &'a Requests,
    operation: Operation,
    began: Instant,
    deadline: Instant,
}

impl Requests {
    /// Counts in `metrics`; `key` is named in the log.
    pub fn new(key: Option<u64>, metrics: RequestMetrics) -> Arc<Self> {
        let failures_logged = RateLimit::of_requests();
        Arc::new(Self { key, metrics, failures_logged })
    }

    fn begin<T>(&self, operation: Operation, request: &Request<T>) -> Asked<'_> {
        let arrival = request.extensions().get::<Arrival>();
        let began = arrival.map_or_else(Instant::now, |arrival| arrival.0);
        Asked { requests: self, operation, began, deadline: deadline(request.metadata(), began) }
    }
}

impl<K: Kms> KmsService<K> {
    /// Has `kms` carry out what comes.
    pub fn new(kms: K, requests: Arc<Requests>) -> Self {
        Self { kms, requests }
    }

    /// Why whoever is connected may not ask for this, if so: asked before the message is read.
    pub fn refuse(&self, operation: Operation) -> Option<Status> {
        let error = self.kms.permit(operation).err()?;
        let asked = self.requests.begin(operation, &Request::new(()));
        asked.end(&self.kms, "", Err::<(), _>(error.into())).err()
    }
}

#[tonic::async_trait]
impl<K: Kms> KeyManagementService for KmsService<K> {
    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let asked = self.requests.begin(Operation::Status, &request);
        let result = self.kms.status(asked.deadline).await;
        let report = asked.end(&self.kms, "", result)?;
        let mut response = Response::new(report.response);
        if let Some(age) = report.proof_age {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            response.metadata_mut().insert(PROOF_AGE, age.into());
        }
        Ok(response)
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let asked = self.requests.begin(Operation::Encrypt, &request);
        let EncryptRequest { plaintext, uid } = request.into_inner();
        let plaintext = Secret::received(plaintext);
        let result = async {
            check_encrypt(&uid, &plaintext)?;
            self.kms.encrypt(plaintext, &asked.call(&uid)?).await
        };
        let sealed = asked.end(&self.kms, &uid, result.await)?;
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
        let asked = self.requests.begin(Operation::Decrypt, &request);
        let mut request = request.into_inner();
        let uid = std::mem::take(&mut request.uid);
        let result = async {
            let sealed = check_decrypt(&uid, request)?;
            self.kms.decrypt(sealed, &asked.call(&uid)?).await
        };
        let plaintext = asked.end(&self.kms, &uid, result.await)?;
        Ok(Response::new(DecryptResponse { plaintext: plaintext.to_bytes() }))
    }
}

impl Asked<'_> {
    /// What is asked of the KMS, unless the caller's time went by before its turn came.
    fn call<'a>(&self, uid: &'a str) -> Result<Call<'a>, Error> {
        let deadline = self.deadline;
        let late = || Error::new(Kind::Timeout, "the time went by in the wait for a turn");
        (Instant::now() < deadline).then_some(Call { uid, deadline }).ok_or_else(late)
    }

    /// Counts the request and tells the log of it.
    fn end<T>(
        &self,
        kms: &impl Kms,
        uid: &str,
        result: Result<T, RequestError>,
    ) -> Result<T, Status> {
        let (requests, operation, took) = (self.requests, self.operation, self.began.elapsed());
        let key = requests.key;
        let error = match result {
            Ok(answer) => {
                requests.metrics.answered(operation, took, Code::Ok, None);
                // Status is asked for all the time, and says nothing of a request's own.
                if operation != Operation::Status {
                    let (uid, operation) = (shown_uid(uid), operation.label());
                    tracing::debug!(key, uid, operation, ?took, "request served");
                }
                return Ok(answer);
            }
            Err(error) => error,
        };
        let status = error.status();
        requests.metrics.answered(operation, took, status.code(), error.kind());
        let client = kms.caller();
        // Whoever judges a key has told of its failure already, and is asked for Status all the time.
        let told = matches!(error, RequestError::Own(_)) && client.is_none();
        if operation == Operation::Status && told {
            return Err(status);
        }
        if let Some(suppressed) = requests.failures_logged.pass() {
            let (uid, code) = (shown_uid(uid), code_name(status.code()));
            let kind = error.kind().map(Kind::label);
            tracing::warn!(
                key,
                uid,
                client,
                operation = operation.label(),
                ?took,
                code,
                kind,
                error = status.message(),
                suppressed,
                "request failed"
            );
        }
        Err(status)
    }
}

impl RequestError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Own(error) | Self::Unreached(error) => Some(error.kind()),
            Self::Passed(_) => None,
        }
    }

    fn status(&self) -> Status {
        match self {
            Self::Own(error) => Status::from(&**error),
            Self::Passed(status) => Status::new(status.code(), cut(status.message())),
            Self::Unreached(error) => {
                let mut status = Status::from(&**error);
                status.metadata_mut().insert(UNREACHED, MetadataValue::from_static("1"));
                status
            }
        }
    }
}

/// When to answer a caller at the latest: a little before it gives up, so that it gets our
/// reason and not its own timeout.
fn deadline(metadata: &MetadataMap, now: Instant) -> Instant {
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
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;
    use std::future::poll_fn;
    use std::sync::Mutex;

    use http::Uri;
    use proptest::prelude::*;
    use tokio::net::UnixStream;
    use tonic::body::Body;
    use tower::{Layer, Service};

    use super::*;
    use crate::kms::StatusReport;
    use crate::kms::server::{serve_kms_over, stopper};
    use crate::metrics::MetricRegistry;
    use crate::proto::v2::key_management_service_server::KeyManagementServiceServer;
    use crate::socket::connections::MAX_WORK;
    use crate::testing::memory_at;
    use crate::{KeyId, Sealed, client};

    const SIZE: usize = 1024;

    /// Remembers where plaintexts lay, and of which byte each was.
    #[derive(Clone, Default)]
    struct Places(Arc<Mutex<Vec<(usize, u8)>>>);

    impl Places {
        fn see(&self, secret: &Secret) {
            let place = (secret.expose().as_ptr().addr(), secret.expose()[0]);
            self.0.lock().unwrap().push(place);
            assert!(!self.are_wiped());
        }

        fn are_wiped(&self) -> bool {
            self.0.lock().unwrap().iter().all(|(place, byte)| {
                let found = memory_at(std::ptr::without_provenance(*place), SIZE);
                !found.windows(16).any(|window| window.iter().all(|found| found == byte))
            })
        }

        async fn until_wiped(&self) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !self.are_wiped() {
                assert!(Instant::now() < deadline, "a plaintext stays in memory");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.0.lock().unwrap().clear();
        }
    }

    impl Kms for Places {
        async fn status(&self, _: Instant) -> Result<StatusReport, RequestError> {
            Ok(StatusReport::healthy(&KeyId::new("k")?, None))
        }

        async fn encrypt(&self, plaintext: Secret, _: &Call<'_>) -> Result<Sealed, RequestError> {
            self.see(&plaintext);
            let ciphertext = vec![1; 8].into();
            Ok(Sealed { key_id: KeyId::new("k")?, ciphertext, annotations: BTreeMap::new() })
        }

        async fn decrypt(&self, sealed: Sealed, _: &Call<'_>) -> Result<Secret, RequestError> {
            let secret = Secret::new(vec![sealed.ciphertext[0]; SIZE]);
            self.see(&secret);
            Ok(secret)
        }
    }

    #[tokio::test]
    async fn a_plaintext_does_not_outlive_its_request() {
        let places = Places::default();
        let metrics = MetricRegistry::default().requests("test");
        let service = KmsService::new(places.clone(), Requests::new(None, metrics));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_stopper, stop) = stopper();
        let slot = crate::Connections::default().enter().unwrap();
        let service = KeyManagementServiceServer::new(service);
        tokio::spawn(serve_kms_over(theirs, service, |_| None, slot, stop));
        let (mut client, _) =
            client::open(ours, Uri::from_static("http://localhost")).await.unwrap();
        let request = EncryptRequest { plaintext: vec![0x5a; SIZE].into(), uid: "u".into() };
        client.encrypt(request).await.unwrap();
        places.until_wiped().await;

        let (key_id, ciphertext) = ("k".to_owned(), vec![0xa5].into());
        let request = DecryptRequest { key_id, ciphertext, ..Default::default() };
        let answer = client.decrypt(request).await.unwrap().into_inner();
        // The client is in this process: what it received may lie where the answer lay.
        let answer = Secret::received(answer.plaintext);
        places.see(&answer);
        assert_eq!(answer, Secret::new(vec![0xa5; SIZE]));
        drop(answer);
        places.until_wiped().await;
    }

    /// Tells when a Decrypt must be answered.
    #[derive(Clone, Default)]
    struct Deadlines(Arc<Mutex<Option<Instant>>>);

    impl Kms for Deadlines {
        async fn status(&self, _: Instant) -> Result<StatusReport, RequestError> {
            Ok(StatusReport::healthy(&KeyId::new("k")?, None))
        }

        async fn encrypt(&self, _: Secret, _: &Call<'_>) -> Result<Sealed, RequestError> {
            Err(Error::new(Kind::Bug, "nobody encrypts here").into())
        }

        async fn decrypt(&self, _: Sealed, call: &Call<'_>) -> Result<Secret, RequestError> {
            *self.0.lock().unwrap() = Some(call.deadline);
            Ok(Secret::new(vec![1]))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_turn_is_part_of_the_callers_time() {
        let deadlines = Deadlines::default();
        let metrics = MetricRegistry::default().requests("test");
        let service = KmsService::new(deadlines.clone(), Requests::new(None, metrics));
        let service = KeyManagementServiceServer::new(service);
        let connections = crate::Connections::default();
        let slot = connections.enter().unwrap();
        // Everybody else is at work.
        let (_, work) = connections.limits();
        let mut others: Vec<_> = (0..MAX_WORK).map(|_| work.layer(service.clone())).collect();
        for other in &mut others {
            let ready = poll_fn(|cx| Service::<http::Request<Body>>::poll_ready(other, cx));
            let Ok(()) = ready.await;
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (_stopper, stop) = stopper();
        let (arrived, mut arrival) = tokio::sync::mpsc::unbounded_channel();
        let refuse = move |operation| {
            arrived.send(operation).unwrap();
            None
        };
        tokio::spawn(serve_kms_over(theirs, service, refuse, slot, stop));
        let (mut client, _) =
            client::open(ours, Uri::from_static("http://localhost")).await.unwrap();
        let began = Instant::now();
        let (key_id, ciphertext) = ("k".to_owned(), vec![0xa5].into());
        let request = DecryptRequest { key_id, ciphertext, ..Default::default() };
        let asking = tokio::spawn(async move { client.decrypt(request).await });
        arrival.recv().await.unwrap();
        tokio::time::advance(DEFAULT_TIMEOUT / 2).await;
        assert_eq!(*deadlines.0.lock().unwrap(), None, "it has its turn already");
        drop(others);
        asking.await.unwrap().unwrap();
        let deadline = deadlines.0.lock().unwrap().unwrap();
        assert!(deadline <= began + DEFAULT_TIMEOUT, "{:?}", deadline - began);
    }

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
