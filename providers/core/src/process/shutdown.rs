//! The end of a process whose clients are told to end at the same moment.
//!
//! kubelet tells all ordinary containers of a pod at once. kube-apiserver then serves on for its
//! `--shutdown-delay-duration` (70 s at HyperShift) and finishes what it was asked, and all that
//! time it needs its plugins: without them it cannot read what another replica has written
//! meanwhile. So a process that may *linger* serves on after SIGTERM, in full and for new
//! connections too, until nobody has been connected for a moment. It ends at once where nobody
//! is, as a native sidecar does, which is told after the main containers are gone.
//!
//! It lingers only where it is told to, because it cannot know better. A plugin in a pod of its
//! own is told to end while shim or kube-apiserver stay, and its successor may be waiting for it:
//! there to linger would put off every update for as long as the limit allows. Neither signal nor
//! socket tell the two apart.
//!
//! **Every open connection counts**, whatever it has asked so far: kube-apiserver on a connection
//! that is young has asked for Status alone, just as a monitor has, and may Decrypt next. Probes
//! come and go in an instant, and whatever else stays connected is not waited for beyond the
//! limit.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::Connections;
use crate::process::{Order, Signals};

/// Nobody must have been connected for this long: a client that lost its connection makes the
/// next one at once.
const QUIET: Duration = Duration::from_secs(1);

/// Waits for the order to end, and after it for the clients.
#[derive(Debug)]
pub struct Ending {
    connections: Connections,
    deadline: Option<Instant>,
}

/// Waits until nobody has been connected for a moment.
async fn gone(connections: &Connections) {
    let mut open = connections.counted();
    // Errors mean that the sender is gone, which is here.
    while open.wait_for(|open| *open == 0).await.is_ok() {
        if timeout(QUIET, open.wait_for(|open| *open > 0)).await.is_err() {
            return;
        }
    }
}

impl Ending {
    /// Of a process with these clients.
    pub fn new(connections: Connections) -> Self {
        Self { connections, deadline: None }
    }

    /// Waits until the process is to end: it was told to, and then, where `limit` is not zero and
    /// the order is SIGTERM, its clients have left or the limit is over. Says whether open requests
    /// may end: not if it was told twice. May be dropped and called again.
    pub async fn wait(&mut self, signals: &mut Signals, limit: Duration) -> bool {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => {
                let order = signals.next().await;
                let connections = self.connections.count();
                // A person at a keyboard does not wait for clients.
                if order == Order::Interrupt || limit.is_zero() || connections == 0 {
                    return true;
                }
                tracing::info!(connections, ?limit, "ending: serving on until clients have left");
                self.connections.wait_for();
                *self.deadline.insert(Instant::now() + limit)
            }
        };
        tokio::select! {
            () = gone(&self.connections) => tracing::info!("no client is connected any longer"),
            () = sleep_until(deadline) => {
                let connections = self.connections.count();
                tracing::warn!(connections, ?limit, "clients have not left within the limit");
            }
            _ = signals.next() => {
                tracing::warn!("second signal: stopping at once");
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_back_at_once_is_still_there() {
        let connections = Connections::default();
        let first = connections.enter();
        let waiting = tokio::spawn({
            let connections = connections.clone();
            async move { gone(&connections).await }
        });
        tokio::time::sleep(QUIET).await;
        drop(first);
        tokio::time::sleep(QUIET / 2).await;
        let second = connections.enter();
        tokio::time::sleep(QUIET * 10).await;
        assert!(!waiting.is_finished(), "gone while {} are open", connections.count());
        drop(second);
        tokio::time::sleep(QUIET / 2).await;
        assert!(!waiting.is_finished(), "gone without a moment of quiet");
        waiting.await.unwrap_or_default();
        assert_eq!(connections.count(), 0);
    }
}
