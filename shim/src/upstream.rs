//! All ways to one key. Calls go to the first way that works; they are repeated on the next one,
//! or after a moment, as long as the caller waits: a provider that restarts is felt as latency.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, StatusRequest, StatusResponse};
use sidekey_core::{Call, Error, KeyId, Kind, Sealed, check_sealed};
use tokio::time::Instant;
use tonic::{Code, Request, Status};

use crate::link::{Client, Link};
use crate::metrics::{ForwardError, Metrics};

/// The wait before a broken way is tried again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// A key whose probes have failed for this long does not merely restart.
const RESTART: Duration = Duration::from_secs(5);
/// From then on it gets this long, so that callers are not kept waiting for it.
const DOWN_PATIENCE: Duration = Duration::from_secs(1);

/// A key as others provide it.
pub(crate) struct Upstream {
    links: Vec<Link>,
    /// The way that worked last.
    preferred: AtomicUsize,
    /// Since when probes fail.
    down: Mutex<Option<Instant>>,
    metrics: std::sync::Arc<Metrics>,
}

impl Upstream {
    pub(crate) fn new(links: Vec<Link>, metrics: std::sync::Arc<Metrics>) -> Self {
        Self { links, preferred: AtomicUsize::new(0), down: Mutex::default(), metrics }
    }

    /// What probes have found.
    pub(crate) fn set_down(&self, down: bool) {
        let mut since = self.since();
        *since = down.then(|| since.unwrap_or_else(Instant::now));
    }

    /// Whether probes succeed.
    pub(crate) fn is_up(&self) -> bool {
        self.since().is_none()
    }

    /// Asks each way in turn for its Status, until one is healthy and, if a key_id is `wanted`,
    /// reports that one: calls will prefer it.
    pub(crate) async fn status(
        &self,
        wanted: Option<&KeyId>,
        call: &Call<'_>,
    ) -> Result<KeyId, Error> {
        let mut failure: Option<Error> = None;
        let mut other: Option<(usize, KeyId)> = None;
        for offset in 0..self.links.len() {
            let index = (self.preferred.load(Ordering::Relaxed) + offset) % self.links.len();
            match self.status_of(index, call).await {
                Ok(key_id) if wanted.is_none_or(|wanted| *wanted == key_id) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(key_id);
                }
                Ok(key_id) => {
                    other.get_or_insert((index, key_id));
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        match (other, failure) {
            (Some((index, key_id)), _) => {
                self.preferred.store(index, Ordering::Relaxed);
                Ok(key_id)
            }
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(Error::new(Kind::Bug, "the key has no endpoint")),
        }
    }

    /// Wraps. Only the way that reported the announced key_id is asked: another replica of the
    /// provider may be at another version.
    pub(crate) async fn encrypt(
        &self,
        plaintext: &Bytes,
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let index = self.preferred.load(Ordering::Relaxed);
        let request = || EncryptRequest { plaintext: plaintext.clone(), uid: call.uid.to_owned() };
        let answer = self
            .patiently(call, index..=index, |mut client, deadline| {
                let request = timed(request(), deadline);
                async move { client.0.encrypt(request).await }
            })
            .await?;
        let sealed = Sealed {
            key_id: KeyId::new(&answer.key_id)?,
            ciphertext: answer.ciphertext,
            annotations: answer.annotations,
        };
        check_sealed(&sealed)?;
        Ok(sealed)
    }

    /// Unwraps, by any way.
    pub(crate) async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Bytes, Error> {
        let first = self.preferred.load(Ordering::Relaxed);
        let request = || DecryptRequest {
            ciphertext: sealed.ciphertext.clone(),
            uid: call.uid.to_owned(),
            key_id: sealed.key_id.as_str().to_owned(),
            annotations: sealed.annotations.clone(),
        };
        let answer = self
            .patiently(call, first..=first + self.links.len() - 1, |mut client, deadline| {
                let request = timed(request(), deadline);
                async move { client.0.decrypt(request).await }
            })
            .await?;
        Ok(answer.plaintext)
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn status_of(&self, index: usize, call: &Call<'_>) -> Result<KeyId, Error> {
        let link = &self.links[index];
        let mut client = link.client(call.deadline).await.inspect_err(|_| {
            self.metrics.forward_error(ForwardError::Connection);
        })?;
        let asking = client.0.status(timed(StatusRequest {}, call.deadline));
        let answer = match tokio::time::timeout_at(call.deadline, asking).await {
            Ok(answer) => answer.map_err(|status| refused(link, &status))?.into_inner(),
            Err(_) => {
                // Whoever holds this connection open does not answer: make a new one next time.
                link.hang_up().await;
                self.metrics.forward_error(ForwardError::Timeout);
                let text = format!("{} does not answer", link.address());
                return Err(Error::new(Kind::Timeout, text)
                    .with_hint("look at the provider: it takes connections but hangs"));
            }
        };
        healthy(link, answer)
    }

    /// Tries the ways in `range` (counted on over the end) until one answers, the caller's time
    /// is up, or the answer is final.
    async fn patiently<T, F>(
        &self,
        call: &Call<'_>,
        range: std::ops::RangeInclusive<usize>,
        attempt: impl Fn(Client, Instant) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let down = self.since().is_some_and(|since| since.elapsed() >= RESTART);
        let deadline =
            if down { call.deadline.min(Instant::now() + DOWN_PATIENCE) } else { call.deadline };
        let mut pause = FIRST_PAUSE;
        loop {
            let mut last = None;
            for index in range.clone() {
                let index = index % self.links.len();
                match self.once(index, deadline, &attempt).await {
                    Ok(answer) => {
                        if self.links.len() > 1 && range.end() > range.start() {
                            self.preferred.store(index, Ordering::Relaxed);
                        }
                        return Ok(answer);
                    }
                    Err(error) if error.kind() == Kind::Unavailable => last = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let last = last.unwrap_or_else(|| Error::new(Kind::Bug, "the key has no endpoint"));
            let wake = Instant::now() + sidekey_core::jitter(pause);
            if down || wake + FIRST_PAUSE > deadline {
                return Err(last);
            }
            tokio::time::sleep_until(wake).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn once<T, F>(
        &self,
        index: usize,
        deadline: Instant,
        attempt: &impl Fn(Client, Instant) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let link = &self.links[index];
        let client = link.client(deadline).await.inspect_err(|_| {
            self.metrics.forward_error(ForwardError::Connection);
        })?;
        match tokio::time::timeout_at(deadline, attempt(client, deadline)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => {
                self.metrics.plugin_error(status.code());
                Err(refused(link, &status))
            }
            Err(_) => {
                self.metrics.forward_error(ForwardError::Timeout);
                Err(Error::new(Kind::Timeout, format!("{} did not answer in time", link.address())))
            }
        }
    }
}

fn healthy(link: &Link, answer: StatusResponse) -> Result<KeyId, Error> {
    if answer.healthz != "ok" {
        let shown: String = answer.healthz.chars().take(200).collect();
        return Err(Error::new(
            Kind::Unavailable,
            format!("{}: healthz is {shown:?}", link.address()),
        ));
    }
    if !matches!(answer.version.as_str(), "v2" | "v2beta1") {
        let text = format!("{} speaks version {:?}, not v2", link.address(), answer.version);
        return Err(Error::new(Kind::Config, text));
    }
    KeyId::new(&answer.key_id)
}

/// Gives the plugin a little less time than we have, so that its reason arrives.
fn timed<T>(message: T, deadline: Instant) -> Request<T> {
    let mut request = Request::new(message);
    let left = deadline.saturating_duration_since(Instant::now());
    request.set_timeout(left - (left / 20).min(Duration::from_millis(50)));
    request
}

/// A plugin's answer as an error of ours; its code is kept.
fn refused(link: &Link, status: &Status) -> Error {
    let kind = match status.code() {
        Code::InvalidArgument | Code::OutOfRange => Kind::Invalid,
        Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
        Code::FailedPrecondition | Code::NotFound => Kind::KeyState,
        Code::ResourceExhausted => Kind::Throttled,
        Code::DeadlineExceeded => Kind::Timeout,
        Code::DataLoss => Kind::Corrupt,
        Code::Unavailable | Code::Cancelled => Kind::Unavailable,
        // A connection that breaks under a request shows as Unknown, with the break as source.
        _ if std::error::Error::source(status).is_some() => Kind::Unavailable,
        _ => Kind::Bug,
    };
    let text: String = status.message().chars().take(600).collect();
    Error::new(kind, format!("{}: {text}", link.address()))
}
