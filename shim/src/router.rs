//! Sends a request to the key that it belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sidekey_core::config::KeyNumber;
use sidekey_core::kms::{Kms, RequestError, StatusReport};
use sidekey_core::{Call, Error, Kind, Sealed, Secret};
use tokio::time::Instant;

use crate::cache;
use crate::state::ShimState;

/// The keys, as they are seen on one listener.
pub(crate) struct Router {
    pub(crate) shared: Arc<ShimState>,
    /// The key of what was written without the shim; 0 for none. A reload may change it.
    pub(crate) legacy: Arc<AtomicU64>,
}

impl Kms for Router {
    async fn status(&self, _: Instant) -> Result<StatusReport, RequestError> {
        Ok(StatusReport::healthy(&self.shared.announced()?, None))
    }

    async fn encrypt(&self, plaintext: Secret, call: &Call<'_>) -> Result<Sealed, RequestError> {
        Ok(self.shared.table().writer.encrypt(&plaintext, call).await?)
    }

    async fn decrypt(&self, sealed: Sealed, call: &Call<'_>) -> Result<Secret, RequestError> {
        let legacy = match self.legacy.load(Ordering::SeqCst) {
            0 => None,
            id => Some(KeyNumber(id)),
        };
        let route = self.shared.table().route(sealed.key_id, legacy)?;
        let sealed = Sealed { key_id: route.key_id, ..sealed };
        // Two keys may know the same key_id: what is shared is a key's, not the shim's.
        let request = Arc::new(cache::CacheKey { key: route.key.id, sealed });
        if let Some(secret) = self.shared.cached(&request) {
            return Ok(secret);
        }
        let start = |request: Arc<cache::CacheKey>| {
            let (key, uid, deadline) = (route.key.clone(), call.uid.to_owned(), call.deadline);
            async move {
                let call = Call { uid: &uid, deadline };
                // A plugin answers a little before its time is up.
                let late = deadline - deadline.saturating_duration_since(Instant::now()) / 10;
                let answer = key.decrypt(&request.sealed, &call).await.map_err(Arc::new);
                (answer, Instant::now() >= late)
            }
        };
        // What a plugin answered goes to everybody; whoever had more time than the first asks again.
        let short = |(answer, late): &(Result<Secret, Arc<Error>>, bool)| *late && answer.is_err();
        let landed = self.shared.flights.join_until(call.deadline, &request, start, short).await;
        let landed =
            landed.ok_or_else(|| Error::new(Kind::Timeout, "the key did not answer in time"))?;
        if landed.shared {
            self.shared.metrics.shared.inc();
        }
        let plaintext = landed.answer.0?;
        self.shared.keep(&request, &plaintext);
        Ok(plaintext)
    }
}
