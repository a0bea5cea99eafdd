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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::process::{Order, Signals};

/// Nobody must have been connected for this long: a client that lost its connection makes the
/// next one at once.
const QUIET: Duration = Duration::from_secs(1);

/// The open connections of a process, all its sockets together.
#[derive(Clone, Debug, Default)]
pub struct Clients(Arc<Book>);

#[derive(Debug, Default)]
struct Book {
    open: watch::Sender<usize>,
    awaited: AtomicBool,
}

/// One open connection; it has ended when this is dropped.
#[derive(Debug)]
pub struct Guest(Arc<Book>);

/// Waits for the order to end, and after it for the clients.
#[derive(Debug)]
pub struct Ending {
    clients: Clients,
    deadline: Option<Instant>,
}

/// How to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// Close the sockets, and let open requests end.
    Drain,
    /// Wait for nothing more: it was asked twice.
    AtOnce,
}

impl Clients {
    /// Takes a connection in.
    pub fn enter(&self) -> Guest {
        self.0.open.send_modify(|open| *open += 1);
        Guest(self.0.clone())
    }

    /// How many connections are open.
    pub fn count(&self) -> usize {
        *self.0.open.borrow()
    }

    /// For `/readyz`: that the process is ending, and for whom it waits.
    pub fn awaited(&self) -> Option<String> {
        let ending = self.0.awaited.load(Ordering::Relaxed);
        ending.then(|| format!("ending: serving on for {} open connections", self.count()))
    }

    /// Waits until nobody has been connected for a moment.
    async fn gone(&self) {
        let mut open = self.0.open.subscribe();
        // Errors mean that the sender is gone, which is here.
        while open.wait_for(|open| *open == 0).await.is_ok() {
            if timeout(QUIET, open.wait_for(|open| *open > 0)).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

impl Ending {
    /// Of a process with these clients.
    pub fn new(clients: Clients) -> Self {
        Self { clients, deadline: None }
    }

    /// Waits until the process is to end: it was told to, and then, where `limit` is not zero and
    /// the order is SIGTERM, its clients have left or the limit is over. May be dropped and called
    /// again.
    pub async fn wait(&mut self, signals: &mut Signals, limit: Duration) -> Farewell {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => {
                let order = signals.next().await;
                let connections = self.clients.count();
                // A person at a keyboard does not wait for clients.
                if order == Order::Interrupt || limit.is_zero() || connections == 0 {
                    return Farewell::Drain;
                }
                tracing::info!(connections, ?limit, "ending: serving on until clients have left");
                self.clients.0.awaited.store(true, Ordering::Relaxed);
                *self.deadline.insert(Instant::now() + limit)
            }
        };
        tokio::select! {
            () = self.clients.gone() => tracing::info!("no client is connected any longer"),
            () = sleep_until(deadline) => {
                let connections = self.clients.count();
                tracing::warn!(connections, ?limit, "clients have not left within the limit");
            }
            _ = signals.next() => {
                tracing::warn!("second signal: stopping at once");
                return Farewell::AtOnce;
            }
        }
        Farewell::Drain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_back_at_once_is_still_there() {
        let clients = Clients::default();
        let first = clients.enter();
        let waiting = tokio::spawn({
            let clients = clients.clone();
            async move { clients.gone().await }
        });
        tokio::time::sleep(QUIET).await;
        drop(first);
        tokio::time::sleep(QUIET / 2).await;
        let second = clients.enter();
        tokio::time::sleep(QUIET * 10).await;
        assert!(!waiting.is_finished(), "gone while {} are open", clients.count());
        drop(second);
        tokio::time::sleep(QUIET / 2).await;
        assert!(!waiting.is_finished(), "gone without a moment of quiet");
        waiting.await.unwrap_or_default();
        assert_eq!(clients.count(), 0);
    }
}
