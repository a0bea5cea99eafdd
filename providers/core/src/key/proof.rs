//! What a client must do to be believed, whoever asks it to: a key that is served, `check` or
//! `rotate`.

use tokio::time::{Instant, timeout_at};

use crate::key::canary::Canary;
use crate::kms::limits;
use crate::metrics::{BackendCall, BackendCalls};
use crate::provider::backend::Backend;
use crate::{Call, Error, Kind, Sealed, Secret};

/// Has `backend` read a canary or a sample: so it has the KEK that wrote it.
pub(crate) async fn reads(
    backend: &dyn Backend,
    canary: &Canary,
    call: &Call<'_>,
    metrics: Option<&BackendCalls>,
) -> Result<(), Error> {
    let decrypt = || counted(metrics, BackendCall::Decrypt, backend.decrypt(&canary.sealed, call));
    canary.verify(&again_if_mended(decrypt).await?)
}

/// Makes a call that nobody else repeats once more if what stood in its way has been mended.
pub(crate) async fn again_if_mended<T, F: Future<Output = Result<T, Error>>>(
    call: impl Fn() -> F,
) -> Result<T, Error> {
    match call().await {
        Err(error) if error.is_mended() => call().await,
        done => done,
    }
}

/// What the KMS encrypts, once it has decrypted it again, under the version that it really used.
pub(crate) async fn encrypt_verified(
    backend: &dyn Backend,
    encrypting: impl Future<Output = Result<Sealed, Error>>,
    plaintext: &Secret,
    call: &Call<'_>,
    metrics: Option<&BackendCalls>,
) -> Result<Sealed, Error> {
    let mut sealed = counted(metrics, BackendCall::Encrypt, encrypting).await?;
    limits::check_sealed(&sealed)?;
    let verifying = backend.verify(&sealed, call);
    let (back, key_id) = counted(metrics, BackendCall::Decrypt, verifying).await?;
    if back != *plaintext {
        let text = "the KMS unwrapped something else than what it had wrapped";
        return Err(Error::new(Kind::Bug, text)
            .with_hint("nothing was stored; report this to the KMS vendor"));
    }
    sealed.key_id = key_id;
    Ok(sealed)
}

/// One call of the KMS, counted where it is of a key that is served.
pub(crate) async fn counted<T>(
    metrics: Option<&BackendCalls>,
    call: BackendCall,
    calling: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let began = Instant::now();
    let result = calling.await;
    if let Some(metrics) = metrics {
        metrics.called(call, began.elapsed());
    }
    result
}

/// Runs `work` until the caller gives up.
pub(crate) async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout_at(deadline, work).await.unwrap_or_else(|_| Err(timed_out()))
}

pub(crate) fn timed_out() -> Error {
    Error::new(Kind::Timeout, "the KMS did not answer in time")
        .with_hint("check that it can be reached, or give the provider a longer timeout")
}
