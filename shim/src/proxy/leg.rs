//! The plugin, as one client may use it.

use std::sync::Arc;

use sidekey_core::client::Connection;
use sidekey_core::kms::{Kms, Operation, RequestError, StatusReport};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{EncryptRequest, StatusRequest};
use sidekey_core::{Call, Error, Kind, Sealed, Secret};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::Shared;
use super::plugin::PluginFailure;

/// The way of one client's requests to the plugin.
pub(super) struct PluginLeg {
    pub(super) shared: Arc<Shared>,
    /// The names in the client's certificate; `None` for plaintext, where anybody may do all.
    pub(super) names: Option<Vec<String>>,
}

impl PluginLeg {
    async fn ask<M, A, F>(
        &self,
        message: M,
        deadline: Instant,
        send: impl Fn(KeyManagementServiceClient<Connection>, Request<M>) -> F,
    ) -> Result<Response<A>, RequestError>
    where
        M: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let asking = |client| {
            let mut request = Request::new(message.clone());
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            send(client, request)
        };
        let plugin = self.shared.plugin.load_full();
        plugin.call(deadline, asking).await.map_err(|failure| match failure {
            PluginFailure::Answer(status) => RequestError::Passed(status),
            PluginFailure::Way(reason, error) => {
                self.shared.metrics.socket_error(reason);
                RequestError::Unreached(error)
            }
        })
    }
}

impl Kms for PluginLeg {
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

    fn caller(&self) -> Option<String> {
        self.names.as_ref().map(|names| names.join(", "))
    }

    /// A sick plugin may well have no key_id: what it says is for the client to judge.
    async fn status(&self, deadline: Instant) -> Result<StatusReport, RequestError> {
        let asking = self.ask(StatusRequest {}, deadline, |mut client, request| async move {
            client.status(request).await
        });
        Ok(StatusReport::passed_on(asking.await?))
    }

    async fn encrypt(&self, plaintext: Secret, call: &Call<'_>) -> Result<Sealed, RequestError> {
        let request = EncryptRequest { plaintext: plaintext.to_bytes(), uid: call.uid.to_owned() };
        let asking = self.ask(request, call.deadline, |mut client, request| async move {
            client.encrypt(request).await
        });
        let sealed = Sealed::try_from(asking.await?.into_inner());
        Ok(sealed.map_err(|error| {
            let text = format!("the plugin breaks the protocol: {}", error.report());
            Error::new(Kind::Bug, text)
        })?)
    }

    async fn decrypt(&self, sealed: Sealed, call: &Call<'_>) -> Result<Secret, RequestError> {
        let asking =
            self.ask(sealed.request(call.uid), call.deadline, |mut client, request| async move {
                client.decrypt(request).await
            });
        Ok(Secret::received(asking.await?.into_inner().plaintext))
    }
}
