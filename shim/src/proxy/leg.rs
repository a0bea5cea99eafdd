//! The plugin, as one client may use it.

use std::sync::Arc;
use std::time::SystemTime;

use sidekey_core::client::Connection;
use sidekey_core::kms::{Kms, Operation, RequestError, StatusReport};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{EncryptRequest, StatusRequest};
use sidekey_core::{Call, Error, Kind, Sealed, Secret};
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use super::Shared;
use super::plugin::PluginFailure;

/// For so many seconds at most others join a Status that is being asked for.
const JOINED: u64 = 2;

/// The way of one client's requests to the plugin.
pub(super) struct PluginLeg {
    pub(super) shared: Arc<Shared>,
    /// The names in the client's certificate; `None` for plaintext, where anybody may do all.
    pub(super) names: Option<Vec<String>>,
}

impl Shared {
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
        let plugin = self.plugin.load_full();
        plugin.call(deadline, asking).await.map_err(|failure| match failure {
            PluginFailure::Answer(status) => RequestError::Passed(status),
            PluginFailure::Way(reason, error) => {
                self.metrics.socket_error(reason);
                RequestError::Unreached(Arc::new(error))
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

    /// A sick plugin may well have no key_id: what it says is for the client to judge. However many
    /// ask at once, the plugin is asked once: for some Status costs a call of their KMS.
    async fn status(&self, deadline: Instant) -> Result<StatusReport, RequestError> {
        let start = |_| {
            let shared = self.shared.clone();
            async move {
                let asking =
                    shared.ask(StatusRequest {}, deadline, |mut client, request| async move {
                        client.status(request).await
                    });
                asking.await.map(StatusReport::passed_on)
            }
        };
        // Whoever has more time than the first had asks again.
        let short = |answer: &Result<_, RequestError>| match answer {
            Err(RequestError::Passed(status)) => status.code() == Code::DeadlineExceeded,
            Err(RequestError::Unreached(error)) => error.kind() == Kind::Timeout,
            _ => false,
        };
        // A plugin that hangs, or was replaced since, must not keep those who come later.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let plugin = Arc::as_ptr(&self.shared.plugin.load()) as usize;
        let moment = Arc::new((plugin, now.as_secs() / JOINED));
        let flights = &self.shared.status_flights;
        match flights.join_until(deadline, &moment, start, short).await {
            Some(landed) => landed.answer,
            None => Err(RequestError::Unreached(Arc::new(self.shared.plugin.load().out_of_time()))),
        }
    }

    async fn encrypt(&self, plaintext: Secret, call: &Call<'_>) -> Result<Sealed, RequestError> {
        let request = EncryptRequest { plaintext: plaintext.to_bytes(), uid: call.uid.to_owned() };
        let asking = self.shared.ask(request, call.deadline, |mut client, request| async move {
            client.encrypt(request).await
        });
        let sealed = Sealed::try_from(asking.await?.into_inner());
        Ok(sealed.map_err(|error| {
            let text = format!("the plugin breaks the protocol: {}", error.report());
            Error::new(Kind::Bug, text)
        })?)
    }

    async fn decrypt(&self, sealed: Sealed, call: &Call<'_>) -> Result<Secret, RequestError> {
        let asking = self.shared.ask(
            sealed.request(call.uid),
            call.deadline,
            |mut client, request| async move { client.decrypt(request).await },
        );
        Ok(Secret::received(asking.await?.into_inner().plaintext))
    }
}
