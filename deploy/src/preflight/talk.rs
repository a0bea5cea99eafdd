//! The trial itself: what kube-apiserver and the shim would ask of the plugin, in that order.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use sidekey_core::config::Problems;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, StatusRequest};
use sidekey_core::{Canary, Endpoint, KeyId, Sealed, Secret, check_sealed, client};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::{KeyReport, Outcome, Step};
use crate::model::Role;

/// For one key, unless told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(300);
/// How often Status must give the same key_id.
const LOOKS: usize = 3;

/// What may be the matter with a canary besides the KEK.
const RETIRED: &str = " (if the version that wrapped it was retired, give the key a canary of a newer one: sidekey-<type> canary)";

/// One trial.
pub(super) struct Talk<'a> {
    endpoint: &'a Endpoint,
    role: Role,
    canary: Option<&'a Value>,
    deadline: Instant,
}

/// Why a step failed.
struct Failed {
    result: Outcome,
    detail: String,
}

impl<'a> Talk<'a> {
    pub(super) fn new(
        endpoint: &'a Endpoint,
        role: Role,
        canary: Option<&'a Value>,
        deadline: Instant,
    ) -> Self {
        Self { endpoint, role, canary, deadline }
    }

    /// Tries everything; a step that needs the one before it is left out if that failed.
    pub(super) async fn run(&self, report: &mut KeyReport) {
        let announced = self.again(async || self.status().await).await;
        let announced = self
            .note(report, "status", announced, |key_id| format!("ok, key_id {}", key_id.hash()));
        report.key_id_hash = announced.as_ref().map(KeyId::hash);
        let mut sample = None;
        if announced.is_some() {
            let sealed = self.again(async || self.encrypt().await).await;
            sample = self.note(report, "encrypt", sealed, |_| "32 random bytes wrapped".to_owned());
        }
        if let Some((sealed, plaintext)) = &sample {
            let back = self.again(async || self.decrypt(sealed, plaintext).await).await;
            self.note(report, "decrypt", back, |()| "unwrapped to the same".to_owned());
            let stable = self.again(async || self.stable(&sealed.key_id).await).await;
            self.note(report, "key_id", stable, |()| {
                format!("the same in {LOOKS} calls of Status and in Encrypt")
            });
        }
        self.read_canary(report, sample).await;
    }

    async fn read_canary(&self, report: &mut KeyReport, sample: Option<(Sealed, Secret)>) {
        let Some(document) = self.canary else {
            if let Some((sealed, plaintext)) = sample {
                report.canary = Some(Canary::new(sealed, &plaintext).document());
                report.steps.push(Step {
                    check: "canary",
                    result: Outcome::Warning,
                    detail: "it has none: put the one below into the file".to_owned(),
                });
            }
            return;
        };
        let read = match canary_of(document) {
            Ok(canary) => self
                .again(async || self.unwrap_canary(&canary).await)
                .await
                .map(|()| canary.sealed.key_id)
                .map_err(|failed| Failed {
                    detail: format!("{}{RETIRED}", failed.detail),
                    ..failed
                }),
            Err(failed) => Err(failed),
        };
        let mut text = "it is the very KEK: the canary reads".to_owned();
        if let (Ok(wrapped), Some((sealed, plaintext))) = (&read, sample)
            && *wrapped != sealed.key_id
        {
            report.canary = Some(Canary::new(sealed, &plaintext).document());
            text.push_str("; it is an older version's: put the one below in its place");
        }
        report.steps.push(step("canary", read.map(|_| text)));
    }

    /// Adds a step. What only a writer needs is a warning for a reader that has a canary.
    fn note<T>(
        &self,
        report: &mut KeyReport,
        check: &'static str,
        result: Result<T, Failed>,
        said: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let (value, mut step) = match result {
            Ok(value) => {
                let detail = said(&value);
                (Some(value), step(check, Ok(detail)))
            }
            Err(failed) => (None, step(check, Err(failed))),
        };
        let needed = self.role == Role::Write || self.canary.is_none();
        if !needed && step.result != Outcome::Ok {
            step.result = Outcome::Warning;
        }
        report.steps.push(step);
        value
    }

    /// Tries until it succeeds, cannot succeed, or the time is up.
    async fn again<T>(&self, attempt: impl AsyncFn() -> Result<T, Failed>) -> Result<T, Failed> {
        let mut last = None;
        loop {
            match timeout_at(self.deadline, attempt()).await {
                Ok(Err(failed)) if failed.result == Outcome::Transient => last = Some(failed),
                Ok(other) => return other,
                Err(_) => return Err(last.unwrap_or_else(no_answer)),
            }
            if Instant::now() + PAUSE >= self.deadline {
                return Err(last.unwrap_or_else(no_answer));
            }
            sleep(PAUSE).await;
        }
    }

    async fn connect(&self) -> Result<KeyManagementServiceClient<client::Connection>, Failed> {
        client::connect(self.endpoint).await.map_err(|error| match error {
            client::ConnectError::Socket { source, .. } => {
                transient(format!("nobody listens on {}: {source}", self.endpoint))
            }
            client::ConnectError::Handshake { .. } | client::ConnectError::Server { .. } => {
                terminal(error.to_string())
            }
        })
    }

    async fn status(&self) -> Result<KeyId, Failed> {
        let answer = self.connect().await?.status(StatusRequest {}).await.map_err(refused)?;
        let answer = answer.into_inner();
        if answer.version != "v2" && answer.version != "v2beta1" {
            return Err(terminal(format!("it speaks {:?}, not KMS v2", answer.version)));
        }
        if answer.healthz != "ok" {
            return Err(transient(format!("healthz is {:?}", answer.healthz)));
        }
        KeyId::new(&answer.key_id).map_err(|error| terminal(error.report()))
    }

    async fn encrypt(&self) -> Result<(Sealed, Secret), Failed> {
        let announced = self.status().await?;
        let plaintext = Secret::random(32).map_err(|error| terminal(error.report()))?;
        let request = EncryptRequest {
            plaintext: Bytes::copy_from_slice(plaintext.expose()),
            uid: "preflight".into(),
        };
        let answer = self.connect().await?.encrypt(request).await.map_err(refused)?.into_inner();
        let key_id = KeyId::new(&answer.key_id).map_err(|error| terminal(error.report()))?;
        if key_id != announced {
            // A rotation may have come between the two.
            let text = "Encrypt uses another key_id than Status announces";
            return Err(transient(text.to_owned()));
        }
        let (ciphertext, annotations) = (answer.ciphertext, answer.annotations);
        let clear = ciphertext.windows(32).any(|part| part == plaintext.expose());
        if clear {
            return Err(terminal("the ciphertext holds the plaintext: it does not encrypt".into()));
        }
        let sealed = Sealed { key_id, ciphertext, annotations };
        check_sealed(&sealed).map_err(|error| terminal(error.report()))?;
        Ok((sealed, plaintext))
    }

    async fn decrypt(&self, sealed: &Sealed, plaintext: &Secret) -> Result<(), Failed> {
        if self.unwrap(sealed).await? == *plaintext {
            return Ok(());
        }
        Err(terminal("it unwraps to something else than what was wrapped".to_owned()))
    }

    async fn stable(&self, key_id: &KeyId) -> Result<(), Failed> {
        for _ in 0..LOOKS {
            let now = self.status().await?;
            if now != *key_id {
                let text = format!("it moved to {} within seconds", now.hash());
                return Err(terminal(text));
            }
        }
        Ok(())
    }

    async fn unwrap_canary(&self, canary: &Canary) -> Result<(), Failed> {
        let plaintext = self.unwrap(&canary.sealed).await?;
        canary.verify(&plaintext).map_err(|error| terminal(error.report()))
    }

    async fn unwrap(&self, sealed: &Sealed) -> Result<Secret, Failed> {
        let request = DecryptRequest {
            ciphertext: sealed.ciphertext.clone(),
            uid: "preflight".into(),
            key_id: sealed.key_id.as_str().to_owned(),
            annotations: sealed.annotations.clone(),
        };
        let answer = self.connect().await?.decrypt(request).await.map_err(refused)?;
        Ok(Secret::new(answer.into_inner().plaintext.to_vec()))
    }
}

fn canary_of(document: &Value) -> Result<Canary, Failed> {
    let mut problems = Problems::default();
    let canary = Canary::parse(document, &mut problems);
    let text = |problems: Problems| problems.to_string().replace('\n', "; ");
    problems.into_result(canary).map_err(|problems| terminal(text(problems)))
}

fn step(check: &'static str, result: Result<String, Failed>) -> Step {
    match result {
        Ok(detail) => Step { check, result: Outcome::Ok, detail },
        Err(Failed { result, detail }) => Step { check, result, detail },
    }
}

fn terminal(detail: String) -> Failed {
    Failed { result: Outcome::Terminal, detail }
}

fn transient(detail: String) -> Failed {
    Failed { result: Outcome::Transient, detail }
}

fn no_answer() -> Failed {
    transient("no answer in time".to_owned())
}

/// By the code alone. What a plugin of others cannot name (`Unknown`, `Internal`) may pass, and
/// is no proof of anything either.
fn refused(status: Status) -> Failed {
    let detail = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => terminal(detail),
        _ => transient(detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_tell_what_passes_from_what_stays() {
        for code in
            [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded, Code::Unknown]
        {
            assert_eq!(refused(Status::new(code, "x")).result, Outcome::Transient, "{code:?}");
        }
        for code in [
            Code::InvalidArgument,
            Code::PermissionDenied,
            Code::FailedPrecondition,
            Code::Unauthenticated,
            Code::DataLoss,
            Code::Unimplemented,
        ] {
            assert_eq!(refused(Status::new(code, "x")).result, Outcome::Terminal, "{code:?}");
        }
    }
}
