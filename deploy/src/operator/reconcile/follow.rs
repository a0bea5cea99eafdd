//! What the write key does by itself, at its vendor.

use std::time::Duration;

use sidekey_core::config::parse_duration;

use super::super::reason;
use super::canary::Renewal;
use super::outlook::pace;
use super::report::{Subject, age, now};
use super::retire::PAUSE;
use super::writes::Writes;
use super::{Halt, Pass, Published};
use crate::fleet::Observation;
use crate::operator::jobs::{MigrateTask, Task};
use crate::operator::status::Moved;

impl Pass<'_> {
    /// Rewrites what is stored after the key_id has moved at the vendor, or after something has come
    /// back that was retired; how long to wait for that.
    pub(super) async fn follow(
        &mut self,
        wanted: &Writes,
        published: &Published,
        seen: &Observation,
    ) -> Result<Option<Duration>, Halt> {
        if wanted.key().is_none() {
            self.report.now.moved = None;
            return Ok(None);
        }
        // Between two versions replicas may differ: what counts is what all announce.
        let Ok(announced) = seen.announced() else {
            return Ok(Some(self.ctx.options.poll.min(PAUSE)));
        };
        if self.report.now.encrypted_under.as_ref() == Some(&announced) {
            self.report.now.moved = None;
            // Whoever reads that all is done may retire the old version.
            match self.renew_canary(wanted, published, &announced).await? {
                Renewal::Waits(wait) => return Ok(Some(wait)),
                Renewal::Failed => {}
                Renewal::Done => {
                    let text = format!("everything stored is under {announced}");
                    self.report.set(Subject::UpToDate, Some(true), "ReEncryptionCompleted", text);
                }
            }
            return Ok(None);
        }
        let moved = self.moved(&announced);
        let text = format!("the key_id is {announced} since {}", moved.since);
        let convergence = parse_duration(&self.wanted.spec.convergence).unwrap_or_default();
        if age(&moved.since).is_none_or(|age| age < convergence) {
            self.report.set(Subject::UpToDate, Some(false), reason::CONVERGENCE, text);
            return Ok(Some(PAUSE.min(convergence)));
        }
        let mut gate = self.gate(published, Some(announced.clone())).await?;
        gate.config_hash = None;
        let target = format!("{announced} since {}", moved.since);
        let task = Task::Migrate(MigrateTask { gate, target });
        match self.job(&task, Subject::UpToDate, "ReEncryptionFailed").await? {
            Ok(_) => {
                self.report.now.encrypted_under = Some(announced);
                self.report.now.moved = None;
                self.report.event(false, "ReEncryptionCompleted", text);
            }
            Err(progress) => {
                let text = progress.map_or_else(|| text.clone(), |how| format!("{text}: {how}"));
                if self.report.said(Subject::UpToDate) != Some("ReEncryptionFailed") {
                    self.report.set(Subject::UpToDate, Some(false), reason::RE_ENCRYPTION, text);
                }
            }
        }
        Ok(Some(pace(age(&moved.since))))
    }

    /// Since when this key_id is announced and not everything is under it.
    fn moved(&mut self, announced: &str) -> Moved {
        let known = self.report.now.moved.clone().filter(|moved| moved.key_id_hash == announced);
        let moved = known.unwrap_or_else(|| {
            if self.report.now.encrypted_under.is_some() {
                let text = format!("the key_id is now {announced}");
                self.report.event(false, "RemoteRotation", text);
            }
            Moved { key_id_hash: announced.to_owned(), since: now() }
        });
        self.report.now.moved = Some(moved.clone());
        moved
    }
}
