//! What the checks share: connections, test data and the verdict on hostile calls.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::checks::restart::Restarted;
use crate::checks::rotation::Rotated;
use crate::launch::answers_again;
use crate::raw::RawConnection;
use crate::session::{Fault, Session, Wrapped};
use crate::{Options, Plugin, random};

/// Plaintexts of kube-apiserver are seeds or keys of this size, always.
pub(crate) const SEED: usize = 32;

/// How many hostile calls are under way at once: enough to be quick with a remote KMS,
/// few enough to tell them from a storm.
pub(crate) const WIDTH: usize = 16;

/// One run over one plugin.
pub(crate) struct Trial {
    pub(crate) plugin: Plugin,
    pub(crate) options: Options,
    /// The one restart that the restart checks look at.
    pub(crate) restarted: OnceCell<Result<Restarted, String>>,
    /// The one rotation that the rotation checks look at.
    pub(crate) rotated: OnceCell<Result<Rotated, Stop>>,
    restarts: AtomicU32,
}

/// Why a check did not pass.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// The promise is broken.
    Broken(String),
    /// The promise could not be judged.
    NotRun(String),
}

/// How the plugin met a forged Decrypt.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// It gave the plaintext that belongs to the true ciphertext.
    Right,
    /// It refused.
    Refused,
}

impl Trial {
    pub(crate) fn new(plugin: Plugin, options: Options) -> Self {
        Self {
            plugin,
            options,
            restarted: OnceCell::new(),
            rotated: OnceCell::new(),
            restarts: AtomicU32::new(0),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Session, Fault> {
        Session::open(&self.plugin.endpoint, self.options.deadline).await
    }

    pub(crate) async fn connect_raw(&self) -> Result<RawConnection, Stop> {
        let opened = RawConnection::open(&self.plugin.endpoint, self.options.deadline).await;
        opened.map_err(Stop::Broken)
    }

    /// A connection, a new plaintext and what the plugin made of it.
    pub(crate) async fn wrapped(&self) -> Result<(Session, Vec<u8>, Wrapped), Stop> {
        let session = self.connect().await?;
        let plaintext = random::bytes(SEED);
        let wrapped = session.encrypt(&plaintext).await?;
        Ok((session, plaintext, wrapped))
    }

    /// Fails unless a new connection can wrap and unwrap.
    pub(crate) async fn works(&self) -> Result<(), Stop> {
        let (session, plaintext, wrapped) = self.wrapped().await?;
        unwraps(&session, &wrapped, &plaintext).await
    }

    /// Fails unless the plugin still answers on this connection and on a new one.
    ///
    /// What Status says is not looked at here: other checks do that.
    pub(crate) async fn lives(&self, session: &Session, after: &str) -> Result<(), Stop> {
        if let Err(fault) = session.status().await {
            return Err(broken(format!("after {after} the connection is lost: {fault}")));
        }
        match self.connect().await {
            Ok(fresh) => fresh.status().await.map(drop),
            Err(fault) => Err(fault),
        }
        .map_err(|fault| broken(format!("after {after} the plugin no longer answers: {fault}")))
    }

    /// Whether a new connection gets an answer to Status at all.
    pub(crate) async fn answers(&self) -> bool {
        match self.connect().await {
            Ok(session) => session.status().await.is_ok(),
            Err(_) => false,
        }
    }

    /// Kills and restarts the plugin and waits for it; `healthy` says whether it ever was.
    pub(crate) async fn restart(&self, healthy: bool) -> Result<(), String> {
        let Some(hook) = &self.plugin.restart else {
            return Err("there is no restart hook".to_owned());
        };
        self.restarts.fetch_add(1, Ordering::Relaxed);
        hook.call().await.map_err(|error| format!("the restart hook failed: {error}"))?;
        answers_again(&self.plugin.endpoint, healthy, self.options.restart_deadline).await
    }

    /// How often the suite has restarted the plugin: connections do not outlive that.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Relaxed)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Broken(fault.to_string())
    }
}

/// The promise is broken, and this is how.
pub(crate) fn broken(how: impl Into<String>) -> Stop {
    Stop::Broken(how.into())
}

/// Fails unless Decrypt gives back just this plaintext.
pub(crate) async fn unwraps(
    session: &Session,
    wrapped: &Wrapped,
    plaintext: &[u8],
) -> Result<(), Stop> {
    let got = session.decrypt(wrapped).await?;
    if got == plaintext {
        return Ok(());
    }
    let (got, want) = (got.len(), plaintext.len());
    Err(broken(format!("Decrypt gave {got} other bytes instead of the {want} encrypted ones")))
}

/// Sends a forged Decrypt. Another plaintext than the true one, or silence, breaks the promise.
pub(crate) async fn forge(
    session: &Session,
    forged: &Wrapped,
    plaintext: &[u8],
    what: &str,
) -> Result<Reply, Stop> {
    match session.decrypt(forged).await {
        Ok(got) if got == plaintext => Ok(Reply::Right),
        Ok(got) => Err(broken(format!("{what}: Decrypt succeeded with {} wrong bytes", got.len()))),
        Err(fault @ Fault::Silent { .. }) => Err(broken(format!("{what}: {fault}"))),
        Err(fault) if fault.code().is_some() => Ok(Reply::Refused),
        // The stream may have been reset: a refusal too, if the connection has survived it.
        Err(fault) => match session.status().await {
            Ok(_) => Ok(Reply::Refused),
            Err(_) => Err(broken(format!("{what}: the connection is lost: {fault}"))),
        },
    }
}

/// As [`forge`], and the true plaintext breaks the promise too.
pub(crate) async fn refuses(
    session: &Session,
    forged: &Wrapped,
    plaintext: &[u8],
    what: &str,
) -> Result<(), Stop> {
    match forge(session, forged, plaintext, what).await? {
        Reply::Refused => Ok(()),
        Reply::Right => Err(broken(format!("{what}: Decrypt succeeded, an error is due"))),
    }
}

/// Carries out `call` for each item, `width` at a time, and keeps the order.
pub(crate) async fn each<I, R, F>(
    items: impl IntoIterator<Item = I>,
    width: usize,
    call: impl Fn(I) -> F,
) -> Vec<R>
where
    F: Future<Output = R> + Send + 'static,
    R: Send + 'static,
{
    let mut results = Vec::new();
    let mut running = JoinSet::new();
    let mut take = |ended: Option<Result<(usize, R), tokio::task::JoinError>>| match ended {
        Some(Ok(result)) => results.push(result),
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Some(Err(_)) | None => {}
    };
    for (index, item) in items.into_iter().enumerate() {
        if running.len() == width {
            take(running.join_next().await);
        }
        let work = call(item);
        running.spawn(async move { (index, work.await) });
    }
    while !running.is_empty() {
        take(running.join_next().await);
    }
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A pause between two looks at a condition that must come true before a deadline.
pub(crate) const POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn each_keeps_the_order_and_the_width() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let squares = each(0..50_u64, 7, |n| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                n * n
            }
        });
        assert_eq!(squares.await, (0..50).map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), 7);
    }
}
