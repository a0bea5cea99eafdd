//! What a key must prove before it is loaded, and at every probe; and the key_id that follows
//! from it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sidekey_core::config::KeyRole;
use sidekey_core::{Call, Canary, Error, KeyId, Kind, Secret};

use super::{Announced, RoutedKey};
use crate::call::CallFailure;
use crate::config::Mode;
use crate::memory::Memory;
use crate::probe::Plan;
use crate::upstream::Round;

impl RoutedKey {
    /// What a key must do before it is loaded, and at every probe. `None` for a read key that
    /// answers and has proven nothing, else how old the proof is.
    pub(crate) async fn prove(
        &self,
        role: KeyRole,
        call: &Call<'_>,
        patience: Duration,
    ) -> Result<Option<Duration>, CallFailure> {
        match role {
            KeyRole::Write => self.prove_writer(call, patience).await.map(Some),
            KeyRole::Read => self.prove_reader(patience).await,
        }
    }

    /// What a key must do before it may write: answer Status, read what the key wrote before, and
    /// wrap and unwrap under a new key_id. Then that is announced.
    async fn prove_writer(
        &self,
        call: &Call<'_>,
        patience: Duration,
    ) -> Result<Duration, CallFailure> {
        let announced = self.announced();
        let announced = announced.as_ref().map(|announced| &announced.inner);
        let wanted = announced.or(self.wanted.as_ref());
        let round = self.upstream.probe(&self.plan(KeyRole::Write), wanted, patience).await?;
        let key_id = self.choose(round, wanted)?;
        if announced != Some(&key_id) {
            let sample = self.round_trip(&key_id, call).await.map_err(CallFailure::of_data_call)?;
            self.announce(&key_id, sample).await.map_err(CallFailure::Answered)?;
        }
        Ok(self.upstream.proof_age(&key_id))
    }

    /// The key_id to write under: the announced one while an endpoint reports it, else a new one.
    fn choose(&self, round: Round, wanted: Option<&KeyId>) -> Result<KeyId, CallFailure> {
        if let (true, Some((_, error))) = (round.good.is_empty(), round.fair) {
            // It was being probed as a read key.
            return Err(CallFailure::Answered(Error::new(error.kind(), error.report())));
        }
        let past = self.past.lock();
        let mut good = round.good.into_iter();
        let found = match wanted {
            Some(wanted) if good.as_slice().contains(wanted) => Some(wanted.clone()),
            _ => good.find(|key_id| !past.contains(key_id)),
        };
        found.ok_or_else(|| {
            let text = format!("key {} has gone back to an older key_id", self.id);
            let error = Error::new(Kind::Unavailable, text);
            CallFailure::Unanswered(error.with_hint("check the provider's replicas"))
        })
    }

    /// What a key must do to read: read what it read before. Without that it must answer.
    async fn prove_reader(&self, patience: Duration) -> Result<Option<Duration>, CallFailure> {
        let round = self.upstream.probe(&self.plan(KeyRole::Read), None, patience).await?;
        if let Some(key_id) = round.good.into_iter().next() {
            let age = self.upstream.proof_age(&key_id);
            self.follow(&key_id);
            *self.reported.lock() = Some(key_id);
            return Ok(Some(age));
        }
        match round.fair {
            Some((false, error)) => {
                if !self.health.was_proven() {
                    self.health.failed(&error);
                }
                Ok(None)
            }
            _ => Ok(Some(Duration::ZERO)),
        }
    }

    pub(super) fn plan(&self, role: KeyRole) -> Plan {
        let memory = match &self.spec.canary {
            Some(canary) => Some(Memory::of_canary(canary, self.memory(), role == KeyRole::Write)),
            None => self.memory(),
        };
        let (external, timeout) = (self.spec.external, self.duty.lock().1.timeout);
        Plan { key: self.id, role, external, memory, timeout }
    }

    /// What was remembered under an older version is replaced when there is something newer,
    /// because old versions may be retired.
    fn follow(&self, key_id: &KeyId) {
        let old = self.memory.lock().as_ref().is_none_or(|memory| memory.sealed.key_id != *key_id);
        self.attentive.store(old, Ordering::Relaxed);
    }

    async fn round_trip(&self, key_id: &KeyId, call: &Call<'_>) -> Result<Memory, CallFailure> {
        let plaintext = Secret::random(32).map_err(CallFailure::Answered)?;
        let before = self.plan(KeyRole::Write).memory;
        let sealed = self.wrap(key_id, &plaintext, call).await?;
        let on_trust = before.is_none_or(|memory| memory.fresh);
        let (sample, canary) = (Canary::new(sealed, &plaintext), self.spec.canary.as_ref());
        Ok(Memory::written(&sample, canary, on_trust))
    }

    /// Announces a key_id once what was written under it is on disk: when the process is killed in
    /// the next moment and the version before has been retired, nothing else proves the KEK.
    pub(super) async fn announce(&self, inner: &KeyId, sample: Memory) -> Result<(), Error> {
        let outer = self.outer(inner)?;
        *self.memory.lock() = Some(sample.clone());
        self.attentive.store(false, Ordering::Relaxed);
        // A key that is being loaded is kept on disk with its configuration.
        if self.is_in_use() && self.mode == Mode::Route {
            self.store.keep(self.id, sample).await;
        }
        self.past.lock().insert(inner.clone());
        tracing::info!(key = %self.id, key_id_hash = outer.hash(), "key_id is proven");
        self.announced.store(Some(Arc::new(Announced { inner: inner.clone(), outer })));
        self.moved.notify_waiters();
        Ok(())
    }
}
