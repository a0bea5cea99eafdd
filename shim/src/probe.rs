//! A probe of one endpoint: its Status is ok, and behind it is the KEK that wrote.

use std::sync::Arc;
use std::time::Duration;

use sidekey_core::config::{KeyNumber, KeyRole};
use sidekey_core::{Error, KeyId, Kind};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::{CallFailure, Client, Report};
use crate::link::{Checked, Link};
use crate::memory::Memory;

/// A foreign plugin's Status may say little: so often it must read its canary all the same.
const EXTERNAL_CHECK: Duration = Duration::from_secs(3600);
/// For a plugin whose Status is an error because it may not encrypt, this is the only proof.
const READER_CHECK: Duration = Duration::from_secs(300);

/// What a probe is to find out.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) key: KeyNumber,
    pub(crate) role: KeyRole,
    /// Somebody else's plugin.
    pub(crate) external: bool,
    /// What it must be able to read, if anything is known.
    pub(crate) memory: Option<Memory>,
    pub(crate) timeout: Duration,
}

/// What a probe has found.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// All is well, and this is the key_id under which it writes.
    Good(KeyId),
    /// It is a read key's, and its Status is this error. Whether it has read all the same, or there
    /// is nothing that it could be asked to read.
    Fair(bool, Arc<Error>),
    /// It is of no use now.
    Failed(Arc<CallFailure>),
}

impl Link {
    /// Probes the endpoint, in the background; joins the probe under way if there is one.
    pub(crate) fn probe(self: &Arc<Self>, plan: &Plan) -> watch::Receiver<Option<Found>> {
        let mut slot = self.probing.lock();
        if let Some(running) = &*slot
            && running.has_changed().is_ok()
            && running.borrow().is_none()
        {
            return running.clone();
        }
        let (tell, told) = watch::channel(None);
        let (link, plan) = (self.clone(), plan.clone());
        tokio::spawn(async move {
            let found = link.probe_once(&plan).await;
            link.set_failing(found.is_err());
            tell.send_replace(Some(found.unwrap_or_else(|failure| Found::Failed(failure.into()))));
        });
        *slot = Some(told.clone());
        told
    }

    async fn probe_once(self: &Arc<Self>, plan: &Plan) -> Result<Found, CallFailure> {
        // A little less than whoever waits for it has, so that the reason arrives.
        let deadline = Instant::now() + plan.timeout.mul_f32(0.99);
        let mut client = self.client(deadline).await?;
        let status = client.status(deadline).await;
        if let Err(CallFailure::Unanswered(error)) = &status
            && error.kind() == Kind::Timeout
        {
            // Whoever holds this connection open does not answer: make a new one next time.
            self.hang_up().await;
        }
        match status {
            Ok(report) => {
                let reported = Some(&report.key_id);
                let again = plan.external.then_some(EXTERNAL_CHECK);
                let checked =
                    client.check(plan.key, plan.memory.as_ref(), reported, again, deadline).await;
                checked.map_err(CallFailure::of_data_call)?;
                Ok(self.good(&client, report, plan.external))
            }
            Err(CallFailure::Answered(error)) if plan.role == KeyRole::Read => {
                let again = Some(READER_CHECK);
                client.check(plan.key, plan.memory.as_ref(), None, again, deadline).await?;
                Ok(Found::Fair(plan.memory.is_some(), Arc::new(error)))
            }
            // A process that has not been well on this connection may have just been started: it
            // has not coasted, and waits for its own first proof.
            Err(CallFailure::Answered(error))
                if error.kind().is_transient() && self.known().good != client.number =>
            {
                Err(CallFailure::Unanswered(error))
            }
            Err(failure) => Err(failure),
        }
    }

    fn good(&self, client: &Client, report: Report, external: bool) -> Found {
        let now = Instant::now();
        // What a foreign plugin calls a proof is not known.
        let age = if external { Duration::ZERO } else { report.age };
        let mut known = self.known();
        known.good = client.number;
        known.proof = known.proof.max(now.checked_sub(age));
        known.reported = Some(report.key_id.clone());
        Found::Good(report.key_id)
    }
}

impl Client {
    /// Has the plugin read `memory`, unless this very process has done so at this key_id, and not
    /// longer than `again` ago.
    pub(crate) async fn check(
        &mut self,
        key: KeyNumber,
        memory: Option<&Memory>,
        key_id: Option<&KeyId>,
        again: Option<Duration>,
        deadline: Instant,
    ) -> Result<(), CallFailure> {
        let done = self.link.known().checked.as_ref().is_some_and(|checked| {
            checked.number == self.number
                && (checked.read || memory.is_none())
                && checked.key_id.as_ref() == key_id
                && again.is_none_or(|again| checked.at.elapsed() < again)
        });
        if done {
            return Ok(());
        }
        if let Some(memory) = memory {
            memory.check(key, self, deadline).await?;
        }
        let mut known = self.link.known();
        known.has_read |= memory.is_some_and(|memory| !memory.fresh);
        known.checked = Some(Checked {
            number: self.number,
            key_id: key_id.cloned(),
            read: memory.is_some(),
            at: Instant::now(),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
