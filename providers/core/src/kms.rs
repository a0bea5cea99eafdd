//! A KMS as this process sees it: three operations, whoever carries them out.
//!
//! A provider's key, the shim's router and the proxy's way to its plugin implement [`Kms`];
//! [`KmsService`] is the only thing that speaks gRPC to callers. It does for all three what belongs
//! to a request and not to a key: deadline, permission, limits, log, metrics and metadata.

pub mod client;
pub(crate) mod key_id;
pub(crate) mod limits;
pub mod server;
pub(crate) mod single_flight;
pub(crate) mod stream;

mod service;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

pub use service::{KmsService, Requests};

use crate::proto::v2::StatusResponse;
use crate::{Call, Error, KeyId, Kind, Sealed, Secret};

/// The metadata of a Status response in which a provider says how old its last proof is, in
/// milliseconds.
pub const PROOF_AGE: &str = "sidekey-proof-age-ms";
/// The metadata of an error that a socket proxy made itself: the plugin has not answered.
pub const UNREACHED: &str = "sidekey-unreached";

/// Must be the same for the life of a kube-apiserver.
const VERSION: &str = "v2";

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Does the key work, and under which key_id?
    Status,
    /// Wrap.
    Encrypt,
    /// Unwrap.
    Decrypt,
}

/// Carries out the requests of callers, which are within the limits of the protocol.
pub trait Kms: Send + Sync + 'static {
    /// Whether whoever is connected may ask for this.
    fn permit(&self, _: Operation) -> Result<(), Error> {
        Ok(())
    }

    /// Who is connected, for the log.
    fn caller(&self) -> Option<String> {
        None
    }

    /// Whether the key works, and under which key_id.
    fn status(
        &self,
        deadline: Instant,
    ) -> impl Future<Output = Result<StatusReport, RequestError>> + Send;

    /// Wraps.
    fn encrypt(
        &self,
        plaintext: Secret,
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Sealed, RequestError>> + Send;

    /// Unwraps; the key_id is as the caller gave it.
    fn decrypt(
        &self,
        sealed: Sealed,
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Secret, RequestError>> + Send;
}

/// What Status answers.
#[derive(Clone, Debug)]
pub struct StatusReport {
    /// To the caller.
    pub response: StatusResponse,
    /// How long ago the key was proven, where that is known.
    pub proof_age: Option<Duration>,
}

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub enum RequestError {
    /// This process says so.
    Own(Arc<Error>),
    /// A plugin behind this process says so: its code and text are passed on.
    Passed(tonic::Status),
    /// A plugin behind this process was not reached, or not heard: it has not answered.
    Unreached(Arc<Error>),
}

crate::labels! { pub Operation: Status = "status", Encrypt = "encrypt", Decrypt = "decrypt" }

impl Operation {
    /// By the path of a request.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        match path.strip_prefix("/v2.KeyManagementService/")? {
            "Status" => Some(Self::Status),
            "Encrypt" => Some(Self::Encrypt),
            "Decrypt" => Some(Self::Decrypt),
            _ => None,
        }
    }
}

impl StatusReport {
    /// All is well.
    pub fn healthy(key_id: &KeyId, proof_age: Option<Duration>) -> Self {
        let key_id = key_id.as_str().to_owned();
        let response = StatusResponse { version: VERSION.into(), healthz: "ok".into(), key_id };
        Self { response, proof_age }
    }

    /// What another plugin has answered.
    pub fn passed_on(answer: tonic::Response<StatusResponse>) -> Self {
        let age = answer.metadata().get(PROOF_AGE).and_then(|value| value.to_str().ok());
        let proof_age = age.and_then(|text| text.parse().ok()).map(Duration::from_millis);
        Self { response: answer.into_inner(), proof_age }
    }

    /// The key_id under which all is well, or what is wrong.
    pub fn key_id(&self) -> Result<KeyId, Error> {
        let StatusResponse { version, healthz, key_id } = &self.response;
        if healthz != "ok" {
            let shown: String = healthz.chars().take(200).collect();
            return Err(Error::new(Kind::Unavailable, format!("healthz is {shown:?}")));
        }
        if !matches!(version.as_str(), VERSION | "v2beta1") {
            return Err(Error::new(Kind::Config, format!("it speaks version {version:?}, not v2")));
        }
        KeyId::new(key_id)
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        Self::Own(Arc::new(error))
    }
}

impl From<Arc<Error>> for RequestError {
    fn from(error: Arc<Error>) -> Self {
        Self::Own(error)
    }
}
