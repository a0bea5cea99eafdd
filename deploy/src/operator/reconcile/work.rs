//! What Jobs do for a rotation, and what is told of it.

use std::time::Duration;

use super::super::reason::WAITS;
use super::report::Subject;
use super::{Halt, Pass};
use crate::operator::jobs::{self, Found, Task};
use crate::rotate::State;

/// After a Job that may succeed the next time.
const RETRY: Duration = Duration::from_secs(20);

impl Pass<'_> {
    /// Has a Job done; gives what it has found, once it is yes.
    pub(super) async fn work(
        &mut self,
        state: &State,
        task: &Task,
        subject: Subject,
        reason: &str,
    ) -> Result<Option<serde_json::Value>, Halt> {
        match self.job(task, subject, reason).await? {
            Ok(found) => Ok(Some(found)),
            Err(progress) => {
                if self.report.said(Subject::Configured).is_some_and(|said| WAITS.contains(&said)) {
                    self.goes_on(state);
                }
                self.show(state, progress, Vec::new());
                Ok(None)
            }
        }
    }

    /// Has a Job done; gives what it has found, or how far it is.
    pub(super) async fn job(
        &mut self,
        task: &Task,
        subject: Subject,
        reason: &str,
    ) -> Result<Result<serde_json::Value, Option<String>>, Halt> {
        let (client, wanted) = (&self.ctx.client, &self.wanted);
        match jobs::look(client, wanted, task).await? {
            Found::Succeeded(found) => Ok(Ok(found)),
            Found::Running { progress } => Ok(Err(progress)),
            Found::Absent => {
                jobs::start(client, wanted, task).await?;
                Ok(Err(Some(format!("the Job {} begins", task.job_name()))))
            }
            Found::Failed { terminal, reason: why } => {
                let known = self.report.since(subject, reason);
                if known.is_none() {
                    self.ctx.metrics.job_failed(&self.namespace, &wanted.name, task.label());
                }
                if !terminal && known.is_some_and(|known| known >= RETRY) {
                    jobs::start(client, wanted, task).await?;
                }
                let again =
                    if terminal { "change it, and it is tried again" } else { "it is tried again" };
                let text = format!("{why} ({again})");
                if let Task::Preflight(_) = task {
                    self.report.set(Subject::KeyAccessible, Some(false), reason, text.clone());
                }
                self.report.set(subject, Some(false), reason, text);
                Ok(Err(Some(why)))
            }
        }
    }
}
