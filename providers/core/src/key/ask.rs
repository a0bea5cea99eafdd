//! What a request may need of the key's task, and how it waits for it.

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Key;
use crate::key::proof::within;
use crate::{Error, Kind};

/// What a request may need of the task.
pub(crate) enum TaskRequest {
    /// Read the files again: what is in them may be newer than what is in use.
    Reread(oneshot::Sender<()>),
    /// Prove that the key encrypts: a read key does so only when somebody asks for it.
    Encrypts(oneshot::Sender<Result<(), Error>>),
}

impl Key {
    /// Has the task read the key's files at once, and waits until it has.
    pub(super) async fn reread(&self, deadline: Instant) {
        let (done, answer) = oneshot::channel();
        let asking = async {
            if self.requests.send(TaskRequest::Reread(done)).await.is_ok() {
                // The task is gone when the key is: there is nothing to wait for then.
                let _ = answer.await;
            }
        };
        // Who has no time left is answered with what is known.
        let _ = timeout_at(deadline, asking).await;
    }

    /// Has the task prove at once that the key encrypts.
    pub(super) async fn prove_encrypt(&self, deadline: Instant) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let asking = async {
            // The task is gone when the key is.
            let gone = || Error::new(Kind::Unavailable, format!("key {} was removed", self.id));
            self.requests.send(TaskRequest::Encrypts(done)).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        within(deadline, asking).await
    }
}
