//! One call of one plugin, and whether it may be repeated elsewhere when it fails.

use std::sync::Arc;
use std::time::Duration;

use sidekey_core::client::{self, Connection};
use sidekey_core::kms::{StatusReport, UNREACHED};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{EncryptRequest, StatusRequest};
use sidekey_core::{Error, KeyId, Kind, Sealed, Secret};
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use crate::config::Address;
use crate::link::Link;

/// Whoever is given less time than this and lets it pass need not be hung.
const HUNG: Duration = Duration::from_millis(250);

/// Why there is no good answer. What was answered goes back as it is; what was not may be asked
/// of another endpoint.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// The plugin said so.
    Answered(Error),
    /// The plugin was not reached, its connection broke before an answer, or it let its time pass.
    Unanswered(Error),
}

/// A client of one plugin, on one connection.
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    /// Which of the endpoint's connections it is.
    pub(crate) number: u64,
    pub(crate) stub: KeyManagementServiceClient<Connection>,
    /// What the plugin is told, if it is later than we wait: it spreads its attempts over the
    /// caller's whole time, whatever share of that an endpoint has.
    pub(crate) deadline: Option<Instant>,
}

/// A Status that is ok.
pub(crate) struct Report {
    pub(crate) key_id: KeyId,
    /// How old the plugin's own proof is.
    pub(crate) age: Duration,
}

impl CallFailure {
    pub(crate) fn error(&self) -> &Error {
        match self {
            Self::Answered(error) | Self::Unanswered(error) => error,
        }
    }

    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Self {
        match self {
            Self::Answered(error) => Self::Answered(change(error)),
            Self::Unanswered(error) => Self::Unanswered(change(error)),
        }
    }

    /// A data call has not coasted as Status has: what may pass counts as not answered.
    pub(crate) fn of_data_call(self) -> Self {
        match self {
            Self::Answered(error)
                if !error.is_lasting()
                    && (error.kind().is_transient() || error.kind() == Kind::Denied) =>
            {
                Self::Unanswered(error)
            }
            other => other,
        }
    }
}

impl From<CallFailure> for Error {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Answered(error) | CallFailure::Unanswered(error) => error,
        }
    }
}

impl Client {
    pub(crate) async fn status(&mut self, limit: Instant) -> Result<Report, CallFailure> {
        let told = self.deadline.unwrap_or(limit);
        let asking = self.stub.status(timed(StatusRequest {}, told));
        let answer = StatusReport::passed_on(answered(&self.link, limit, told, asking).await?);
        let key_id = answer.key_id().map_err(|error| {
            let text = format!("{}: {}", self.link.address(), error.report());
            CallFailure::Answered(Error::new(error.kind(), text))
        })?;
        Ok(Report { key_id, age: answer.proof_age.unwrap_or_default() })
    }

    pub(crate) async fn encrypt(
        &mut self,
        plaintext: &Secret,
        uid: &str,
        limit: Instant,
    ) -> Result<Sealed, CallFailure> {
        let request = EncryptRequest { plaintext: plaintext.to_bytes(), uid: uid.to_owned() };
        let told = self.deadline.unwrap_or(limit);
        let asking = self.stub.encrypt(timed(request, told));
        let answer = answered(&self.link, limit, told, asking).await?.into_inner();
        answer.try_into().map_err(CallFailure::Answered)
    }

    pub(crate) async fn decrypt(
        &mut self,
        sealed: &Sealed,
        uid: &str,
        limit: Instant,
    ) -> Result<Secret, CallFailure> {
        let told = self.deadline.unwrap_or(limit);
        let asking = self.stub.decrypt(timed(sealed.clone().request(uid), told));
        let answer = answered(&self.link, limit, told, asking).await?.into_inner();
        Ok(Secret::received(answer.plaintext))
    }
}

/// Waits for an answer until `limit`; the plugin was told another time.
async fn answered<T>(
    link: &Link,
    limit: Instant,
    told: Instant,
    asking: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, CallFailure> {
    let began = Instant::now();
    let failure = match tokio::time::timeout_at(limit, asking).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(status)) => refused(link, &status, began, told),
        Err(_) => {
            let text = format!("{} did not answer in time", link.address());
            CallFailure::Unanswered(
                Error::new(Kind::Timeout, text)
                    .with_hint("see whether the provider hangs: it takes connections"),
            )
        }
    };
    if let CallFailure::Unanswered(error) = &failure {
        let slow = error.kind() == Kind::Timeout;
        if slow { &link.metrics.timed_out } else { &link.metrics.unconnected }.inc();
        if !slow || began.elapsed() >= HUNG {
            link.set_failing(true);
        }
    }
    Err(failure)
}

/// A plugin's answer, or the end of its connection, as a failure of ours; the code is kept.
fn refused(link: &Link, status: &Status, began: Instant, told: Instant) -> CallFailure {
    let broke = client::broke(status);
    let kind = match status.code() {
        _ if broke => Kind::Unavailable,
        Code::InvalidArgument | Code::OutOfRange => Kind::Invalid,
        Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
        Code::FailedPrecondition | Code::NotFound => Kind::KeyState,
        Code::ResourceExhausted => Kind::Throttled,
        Code::DeadlineExceeded => Kind::Timeout,
        Code::DataLoss => Kind::Corrupt,
        Code::Unavailable | Code::Cancelled => Kind::Unavailable,
        _ => Kind::Bug,
    };
    let text: String = status.message().chars().take(600).collect();
    let error = Error::new(kind, format!("{}: {text}", link.address()));
    // A plugin that is told how long it has says so a little before its time is up.
    let spent = began.elapsed() * 5 >= told.saturating_duration_since(began) * 4;
    let late = status.code() == Code::DeadlineExceeded && spent;
    // Only a proxy may say so: a plugin that was reached has answered.
    let proxied = matches!(link.address(), Address::Https { .. });
    let unreached = proxied && status.metadata().contains_key(UNREACHED);
    if broke || late || unreached {
        return CallFailure::Unanswered(error);
    }
    link.metrics.plugin_error(status.code());
    CallFailure::Answered(error)
}

/// Tells the plugin how long its caller waits. It is for the plugin to answer in good time, as ours
/// do.
fn timed<T>(message: T, deadline: Instant) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline.saturating_duration_since(Instant::now()));
    request
}
