//! Passes over the objects of one kind: bounded in number, one at a time for each object.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::api::DynamicObject;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::queue::Queue;
use super::shelf::{Change, Name, Shelf, What};
use crate::Error;
use crate::operator::metrics::{Kind, Metrics, Pass};

/// Whoever takes longer is stuck. What it began is taken up by the next pass.
const LONGEST_PASS: Duration = Duration::from_secs(300);

/// Looks at an object; gives when to look again.
pub(super) type Look =
    Arc<dyn Fn(Arc<DynamicObject>) -> BoxFuture<'static, Result<Duration, Error>> + Send + Sync>;

/// The passes over the objects of one kind.
pub(super) struct Controller {
    kind: Kind,
    shelf: Shelf,
    look: Look,
    limit: usize,
    metrics: Metrics,
    queue: Queue<Name>,
    waiting: VecDeque<Pass>,
    running: JoinSet<Over>,
}

/// A pass that is over.
struct Over {
    name: Name,
    result: Result<Duration, Error>,
}

impl Controller {
    /// At most `limit` passes run at once.
    pub(super) fn new(
        kind: Kind,
        shelf: Shelf,
        look: Look,
        limit: usize,
        metrics: Metrics,
    ) -> Self {
        let (queue, waiting, running) = (Queue::new(), VecDeque::new(), JoinSet::new());
        Self { kind, shelf, look, limit: limit.max(1), metrics, queue, waiting, running }
    }

    /// Runs until `stop` is over, and then until the passes that run are. `changes` are those of
    /// its objects; `others` names objects for whom something else has changed.
    pub(super) async fn run(
        mut self,
        mut changes: UnboundedReceiver<Change>,
        mut others: UnboundedReceiver<Name>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let next = self.queue.wake(Instant::now());
            self.start();
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(over) = self.running.join_next() => self.settle(over),
                Some(change) = changes.recv() => self.note(change),
                Some(name) = others.recv() => {
                    if self.shelf.find(&name).is_some() {
                        self.queue.now(name);
                    }
                }
                () = due => {}
            }
        }
        self.waiting.clear();
        while self.running.join_next().await.is_some() {}
    }

    fn note(&mut self, Change { name, what }: Change) {
        match what {
            What::Wish => self.queue.now(name),
            // Our own writing, or another's: a pass that waits for something looks by itself.
            What::Status => {}
            What::Gone => self.queue.forget(&name),
        }
    }

    /// Starts as many passes as may run.
    fn start(&mut self) {
        while self.waiting.len() < self.queue.waiting() {
            self.waiting.push_back(self.metrics.waiting(self.kind));
        }
        self.waiting.truncate(self.queue.waiting());
        while self.running.len() < self.limit {
            let Some(name) = self.queue.take() else { break };
            let pass = self.waiting.pop_front();
            let pass = pass.unwrap_or_else(|| self.metrics.waiting(self.kind));
            let Some(object) = self.shelf.find(&name) else {
                self.queue.forget(&name);
                self.queue.done(&name, Some(Duration::ZERO), Instant::now());
                continue;
            };
            self.running.spawn(look(self.look.clone(), object, name, pass));
        }
    }

    fn settle(&mut self, over: Result<Over, tokio::task::JoinError>) {
        // Nobody aborts a pass, and none that panics leaves a process behind.
        let Ok(Over { name, result }) = over else { return };
        let kind = self.kind.label();
        let pause = self.queue.done(&name, result.as_ref().ok().copied(), Instant::now());
        if let Err(error) = result {
            let (hint, pause) = (error.advice().unwrap_or_default(), pause.as_secs_f64());
            tracing::warn!(kind, object = %name, error = %error.report(), hint, pause, "pass failed");
        }
    }
}

async fn look(look: Look, object: Arc<DynamicObject>, name: Name, mut pass: Pass) -> Over {
    pass.start();
    let result = match timeout(LONGEST_PASS, look(object)).await {
        Ok(result) => result,
        Err(_) => Err(Error::failed(format!("the pass over {name} was given up"))
            .because("it took longer than five minutes")),
    };
    pass.end(result.is_ok());
    Over { name, result }
}

#[cfg(test)]
mod tests;
