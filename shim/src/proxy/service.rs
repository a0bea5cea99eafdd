//! The thin layer between a client's connection and the plugin.

use std::sync::Arc;

use sidekey_core::client::Connection;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementService;
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use sidekey_core::{
    Error, KeyId, Kind, PROOF_AGE, Sealed, check_decrypt, check_encrypt, check_sealed, deadline,
};
use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};

use super::Shared;
use super::config::Operation;
use super::plugin::Failure;
use crate::call::UNREACHED;

/// A plugin's text is cut here: it travels in a header.
const MAX_TEXT: usize = 1000;

/// What one client sees.
pub(super) struct Service {
    pub(super) shared: Arc<Shared>,
    /// The names in the client's certificate; `None` for plaintext, where anybody may do all.
    pub(super) names: Option<Vec<String>>,
}

/// One of the three operations.
trait Exchange: Clone + Send + Sync + 'static {
    const OPERATION: Operation;
    type Answer: Send;

    fn check(&self) -> Result<(), Error>;
    fn check_answer(answer: &Self::Answer) -> Result<(), Error>;
    fn uid(&self) -> &str;
    fn send(
        client: KeyManagementServiceClient<Connection>,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

impl Service {
    async fn forward<E: Exchange>(
        &self,
        request: Request<E>,
    ) -> Result<Response<E::Answer>, Status> {
        let began = Instant::now();
        let limit = deadline(request.metadata(), began);
        let message = request.into_inner();
        let admitted = self.permit(E::OPERATION).and_then(|()| message.check());
        // What has not been checked is not for the log.
        let uid = if admitted.is_ok() { message.uid() } else { "" };
        let result = match &admitted {
            Ok(()) => self.ask(&message, limit).await,
            Err(error) => Err(Status::from(error)),
        };
        let (took, operation) = (began.elapsed(), E::OPERATION);
        let code = result.as_ref().err().map_or(Code::Ok, Status::code);
        self.shared.metrics.answered(operation, code, took);
        match &result {
            Ok(_) => tracing::debug!(uid, ?operation, ?took, "request served"),
            Err(status) => {
                if let Some(suppressed) = self.shared.failures_logged.pass() {
                    tracing::warn!(
                        uid, client = ?self.names, ?operation, ?took, ?code,
                        error = status.message(), suppressed, "request failed"
                    );
                }
            }
        }
        result
    }

    /// The list as it is now decides, not as it was when the connection was made.
    fn permit(&self, operation: Operation) -> Result<(), Error> {
        let Some(names) = &self.names else { return Ok(()) };
        if self.shared.clients.load().permit(names, operation) {
            return Ok(());
        }
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let text =
            format!("no name in the client's certificate ({names}) may {} here", operation.label());
        Err(Error::new(Kind::Denied, text).with_hint("see clients in the proxy's configuration"))
    }

    async fn ask<E: Exchange>(
        &self,
        message: &E,
        limit: Instant,
    ) -> Result<Response<E::Answer>, Status> {
        let plugin = self.shared.plugin.load_full();
        let result = plugin
            .call(limit, |client| {
                let mut request = Request::new(message.clone());
                request.set_timeout(limit.saturating_duration_since(Instant::now()));
                E::send(client, request)
            })
            .await;
        match result {
            Ok(answer) => {
                let age = proof_age(answer.metadata());
                let answer = answer.into_inner();
                E::check_answer(&answer).map_err(|error| {
                    let text = format!("the plugin breaks the protocol: {}", error.report());
                    Status::from(&Error::new(Kind::Bug, text))
                })?;
                let mut response = Response::new(answer);
                if let Some(age) = age {
                    response.metadata_mut().insert(PROOF_AGE, age.into());
                }
                Ok(response)
            }
            Err(Failure::Answer(status)) => Err(Status::new(status.code(), cut(status.message()))),
            Err(Failure::Way(reason, error)) => {
                self.shared.metrics.socket_error(reason);
                // Not an answer of the plugin: the shim may ask another endpoint.
                let mut status = Status::from(&error);
                status.metadata_mut().insert(UNREACHED, MetadataValue::from_static("1"));
                Err(status)
            }
        }
    }
}

/// How old the plugin's own proof of its key is, if it says so.
fn proof_age(metadata: &MetadataMap) -> Option<u64> {
    metadata.get(PROOF_AGE)?.to_str().ok()?.parse().ok()
}

/// Cuts a text that would not fit into a header.
fn cut(text: &str) -> &str {
    let end = (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

impl Exchange for StatusRequest {
    const OPERATION: Operation = Operation::Status;
    type Answer = StatusResponse;

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// A sick plugin may well have no key_id: what it says is for the client to judge.
    fn check_answer(_: &StatusResponse) -> Result<(), Error> {
        Ok(())
    }

    fn uid(&self) -> &str {
        ""
    }

    async fn send(
        mut client: KeyManagementServiceClient<Connection>,
        request: Request<Self>,
    ) -> Result<Response<StatusResponse>, Status> {
        client.status(request).await
    }
}

impl Exchange for EncryptRequest {
    const OPERATION: Operation = Operation::Encrypt;
    type Answer = EncryptResponse;

    fn check(&self) -> Result<(), Error> {
        check_encrypt(self)
    }

    fn check_answer(answer: &EncryptResponse) -> Result<(), Error> {
        check_sealed(&Sealed {
            key_id: KeyId::new(&answer.key_id)?,
            ciphertext: answer.ciphertext.clone(),
            annotations: answer.annotations.clone(),
        })
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    async fn send(
        mut client: KeyManagementServiceClient<Connection>,
        request: Request<Self>,
    ) -> Result<Response<EncryptResponse>, Status> {
        client.encrypt(request).await
    }
}

impl Exchange for DecryptRequest {
    const OPERATION: Operation = Operation::Decrypt;
    type Answer = DecryptResponse;

    fn check(&self) -> Result<(), Error> {
        check_decrypt(self.clone()).map(drop)
    }

    fn check_answer(_: &DecryptResponse) -> Result<(), Error> {
        Ok(())
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    async fn send(
        mut client: KeyManagementServiceClient<Connection>,
        request: Request<Self>,
    ) -> Result<Response<DecryptResponse>, Status> {
        client.decrypt(request).await
    }
}

#[tonic::async_trait]
impl KeyManagementService for Service {
    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        self.forward(request).await
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        self.forward(request).await
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        self.forward(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_a_character_border() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(""), "");
        let long = "ä".repeat(MAX_TEXT);
        assert_eq!(cut(&long).len(), MAX_TEXT);
        assert_eq!(cut(&format!("x{long}")).len(), MAX_TEXT - 1);
    }
}
