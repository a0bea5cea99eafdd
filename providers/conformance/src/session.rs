//! One connection to the plugin, used as kube-apiserver uses its own.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use sidekey_core::Endpoint;
use sidekey_core::client::{Connection, connect};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, StatusRequest, StatusResponse};
use tokio::time::timeout;
use tonic::metadata::AsciiMetadataValue;

use crate::random;

/// How much longer than its deadline a call may take before it counts as unanswered.
const GRACE: Duration = Duration::from_millis(500);

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) struct Session {
    client: KeyManagementServiceClient<Connection>,
    deadline: Duration,
}

/// What Encrypt returned: all that is stored in etcd and comes back on Decrypt.
#[derive(Clone, Debug)]
pub(crate) struct Wrapped {
    pub(crate) ciphertext: Bytes,
    pub(crate) key_id: String,
    pub(crate) annotations: BTreeMap<String, Bytes>,
}

/// Why a call brought no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No connection.
    Connect(String),
    /// The plugin, or the connection to it, answered with an error.
    Refused { call: &'static str, status: tonic::Status },
    /// Nothing came back in time.
    Silent { call: &'static str, after: Duration },
}

impl Session {
    /// Connects; the plugin must answer within the deadline.
    pub(crate) async fn open(endpoint: &Endpoint, deadline: Duration) -> Result<Self, Fault> {
        let client = timeout(deadline, connect(endpoint))
            .await
            .map_err(|_| Fault::Silent { call: "connecting", after: deadline })?
            .map_err(|error| Fault::Connect(chain(&error)))?;
        Ok(Self { client, deadline })
    }

    pub(crate) async fn status(&self) -> Result<StatusResponse, Fault> {
        let mut client = self.client.clone();
        let request = self.request(StatusRequest {});
        self.within("Status", client.status(request)).await
    }

    pub(crate) async fn encrypt(&self, plaintext: &[u8]) -> Result<Wrapped, Fault> {
        let plaintext = Bytes::copy_from_slice(plaintext);
        let request = self.request(EncryptRequest { plaintext, uid: random::uid() });
        let mut client = self.client.clone();
        let answer = self.within("Encrypt", client.encrypt(request)).await?;
        Ok(Wrapped {
            ciphertext: answer.ciphertext,
            key_id: answer.key_id,
            annotations: answer.annotations,
        })
    }

    pub(crate) async fn decrypt(&self, wrapped: &Wrapped) -> Result<Bytes, Fault> {
        let mut client = self.client.clone();
        let request = self.request(wrapped.request());
        Ok(self.within("Decrypt", client.decrypt(request)).await?.plaintext)
    }

    /// One of each call with a `grpc-timeout` of the caller's making; how they end is no matter.
    pub(crate) async fn all_within(&self, grpc_timeout: AsciiMetadataValue, wrapped: &Wrapped) {
        let mut status = self.request(StatusRequest {});
        let mut encrypt = self.request(EncryptRequest {
            plaintext: Bytes::from(random::bytes(32)),
            uid: random::uid(),
        });
        let mut decrypt = self.request(wrapped.request());
        status.metadata_mut().insert("grpc-timeout", grpc_timeout.clone());
        encrypt.metadata_mut().insert("grpc-timeout", grpc_timeout.clone());
        decrypt.metadata_mut().insert("grpc-timeout", grpc_timeout);
        let mut client = self.client.clone();
        let _ = self.within("Status", client.status(status)).await;
        let _ = self.within("Encrypt", client.encrypt(encrypt)).await;
        let _ = self.within("Decrypt", client.decrypt(decrypt)).await;
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.deadline);
        request
    }

    async fn within<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Fault> {
        match timeout(self.deadline + GRACE, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Fault::Refused { call, status }),
            Err(_) => Err(Fault::Silent { call, after: self.deadline }),
        }
    }
}

impl Wrapped {
    pub(crate) fn request(&self) -> DecryptRequest {
        DecryptRequest {
            ciphertext: self.ciphertext.clone(),
            uid: random::uid(),
            key_id: self.key_id.clone(),
            annotations: self.annotations.clone(),
        }
    }

    pub(crate) fn with_ciphertext(&self, ciphertext: impl Into<Bytes>) -> Self {
        Self { ciphertext: ciphertext.into(), ..self.clone() }
    }

    pub(crate) fn with_key_id(&self, key_id: impl Into<String>) -> Self {
        Self { key_id: key_id.into(), ..self.clone() }
    }

    pub(crate) fn with_annotations(&self, annotations: BTreeMap<String, Bytes>) -> Self {
        Self { annotations, ..self.clone() }
    }
}

impl Fault {
    /// The gRPC code of the plugin's refusal; nothing where the connection broke.
    pub(crate) fn code(&self) -> Option<tonic::Code> {
        match self {
            Self::Refused { status, .. } if status.source().is_none() => Some(status.code()),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => f.write_str(reason),
            Self::Silent { call, after } => write!(f, "{call} was not answered within {after:?}"),
            Self::Refused { call, status } => {
                let said = status.source().map_or_else(|| status.message().to_owned(), chain);
                write!(f, "{call} failed with {:?}: {}", status.code(), shorten(&said))
            }
        }
    }
}

/// An error and all its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

/// One line of bounded length, whatever the plugin wrote.
pub(crate) fn shorten(text: &str) -> String {
    const MOST: usize = 160;
    let mut line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if text.chars().nth(MOST).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plugin_says_fits_one_line() {
        assert_eq!(shorten("bad\nkey"), "bad key");
        assert_eq!(shorten(&"x".repeat(5000)).chars().count(), 161);
    }

    #[test]
    fn a_refusal_has_a_code_and_a_broken_connection_has_none() {
        let refused = Fault::Refused { call: "Decrypt", status: tonic::Status::not_found("no") };
        assert_eq!(refused.code(), Some(tonic::Code::NotFound));
        assert_eq!(refused.to_string(), "Decrypt failed with NotFound: no");
        let mut status = tonic::Status::unknown("");
        status.set_source(std::sync::Arc::new(std::io::Error::other("reset")));
        let broken = Fault::Refused { call: "Decrypt", status };
        assert_eq!(broken.code(), None);
        assert_eq!(broken.to_string(), "Decrypt failed with Unknown: reset");
    }
}
