//! A KMS v2 client as kube-apiserver is one: one connection, the same deadline
//! for each call, nothing retried. Its time is longer than kube-apiserver's,
//! unless a test asks for just that.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use sidekey_core::Endpoint;
use sidekey_core::client::{Connection, connect};
use sidekey_core::kms::StatusReport;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{
    DecryptRequest, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use tonic::{Code, Request, Status};

use crate::wait::BROKEN;

/// What is answered at all is answered in this time, however busy the machine is.
const TIMEOUT: Duration = Duration::from_secs(30);

/// kube-apiserver's own timeout, unless its configuration says otherwise.
const OF_KUBE_APISERVER: Duration = Duration::from_secs(3);

/// What waiting may mend.
const PASSING: [Code; 4] =
    [Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Cancelled];

/// A client of one plugin.
#[derive(Clone, Debug)]
pub struct KmsClient {
    client: KeyManagementServiceClient<Connection>,
    timeout: Duration,
}

impl KmsClient {
    /// Opens the connection.
    pub async fn connect(endpoint: &str) -> Result<Self> {
        let endpoint: Endpoint = endpoint.parse().with_context(|| format!("{endpoint:?}"))?;
        Ok(Self { client: connect(&endpoint).await?, timeout: TIMEOUT })
    }

    /// The same connection with kube-apiserver's own deadline, for calls whose end in time is
    /// promised, and for those that nobody can answer.
    pub fn as_kube_apiserver(&self) -> Self {
        self.within(OF_KUBE_APISERVER)
    }

    /// The same connection with another deadline.
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Asks whether the plugin is well.
    pub async fn status(&self) -> Result<StatusResponse, Status> {
        let mut client = self.client.clone();
        Ok(client.status(self.timed(StatusRequest {})).await?.into_inner())
    }

    /// How old the last proof is that the key works, if the plugin is well and says so.
    pub async fn proof_age(&self) -> Result<Option<Duration>, Status> {
        let answer = self.client.clone().status(self.timed(StatusRequest {})).await?;
        Ok(StatusReport::passed_on(answer).proof_age)
    }

    /// Wraps.
    pub async fn encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, Status> {
        let plaintext = Bytes::copy_from_slice(plaintext);
        let request = EncryptRequest { plaintext, uid: "e2e".to_owned() };
        Ok(self.client.clone().encrypt(self.timed(request)).await?.into_inner())
    }

    /// Unwraps what [`encrypt`](Self::encrypt) answered.
    pub async fn decrypt(&self, sealed: &EncryptResponse) -> Result<Bytes, Status> {
        let EncryptResponse { ciphertext, key_id, annotations } = sealed.clone();
        let request = DecryptRequest { ciphertext, uid: "e2e".to_owned(), key_id, annotations };
        Ok(self.client.clone().decrypt(self.timed(request)).await?.into_inner().plaintext)
    }

    /// Wraps and unwraps; an error if something else comes back.
    pub async fn round_trip(&self, plaintext: &[u8]) -> Result<EncryptResponse> {
        let sealed = self.encrypt(plaintext).await?;
        self.reads(&sealed, plaintext).await?;
        Ok(sealed)
    }

    /// Unwraps; an error if something else comes back.
    pub async fn reads(&self, sealed: &EncryptResponse, plaintext: &[u8]) -> Result<()> {
        let answered = match self.decrypt(sealed).await {
            // A machine without time is answered so, but never with another refusal.
            Err(error) if !PASSING.contains(&error.code()) => {
                return Err(error).context(format!("{BROKEN}it cannot be unwrapped"));
            }
            answered => answered?,
        };
        ensure!(answered == plaintext, "{BROKEN}something else came back");
        Ok(())
    }

    fn timed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }
}
