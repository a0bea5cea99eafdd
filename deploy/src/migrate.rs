//! Brings every stored object under the write key, by writing it again as it is.
//!
//! For: whoever has promoted a new key and wants to let the old one go. Refuses: to touch content
//! (it sends empty patches and never sees a Secret), to forge positions in a list, and to press a
//! busy server. The one invariant: **what the checkpoint calls done is done**: an object counts
//! once kube-apiserver has answered for it, so that a run that is killed at any moment and taken
//! up again has left nothing out.
//!
//! Objects that are created or changed while it runs are under the write key by that; so the
//! write key must be in effect on every kube-apiserver before it begins (see [`gate`]).

mod api;
mod checkpoint;
mod discovery;
mod drive;
pub mod gate;
mod outcome;
mod pages;
mod resources;
mod rewrite;
mod rights;
mod selection;
pub mod svm;
#[cfg(test)]
mod tests;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use kube::{Client, Config};
use tokio::sync::watch;

pub use checkpoint::Run;
pub use outcome::{Counts, Failure, NAMED_FAILURES, Outcome, ResourceOutcome, State};
pub use resources::{Pattern, Resolved, Resource, Skipped};
pub use selection::Selection;

use crate::Error;
use api::Api;

/// How hard to drive the server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most writes at the same time.
    pub concurrency: NonZeroUsize,
    /// Most writes in a second.
    pub rate: Option<NonZeroU32>,
    /// How long a server may be away or too busy.
    pub patience: Duration,
}

/// What is to be rewritten.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The resources, as [`resolve`] gives them.
    pub resolved: Resolved,
    /// How hard to drive the server.
    pub options: Options,
    /// Where it is remembered how far it is, and for which cluster and key; without, a run that
    /// ends early begins anew.
    pub checkpoint: Option<(PathBuf, Run)>,
    /// Ends it early.
    pub stop: Stop,
}

/// Tells a run to end early, in good order.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// The other end of a [`Stop`].
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Who is told how it goes.
pub trait Observer {
    /// It begins; so many objects in all, as far as it is known.
    fn begin(&mut self, total: u64);
    /// Now a resource, of which so many objects were done before.
    fn resource(&mut self, resource: &Resource, done: u64);
    /// So many more are done.
    fn advance(&mut self, more: u64);
    /// Something that a person may want to know.
    fn note(&mut self, text: &str);
}

impl Default for Options {
    fn default() -> Self {
        let concurrency = NonZeroUsize::MIN.saturating_add(15);
        Self { concurrency, rate: None, patience: Duration::from_secs(120) }
    }
}

impl Stop {
    /// One that never comes.
    pub fn never() -> Self {
        Self(watch::channel(false).1)
    }

    /// One that comes when it is told to.
    pub fn pair() -> (Stopper, Self) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Self(receiver))
    }

    fn is_told(&self) -> bool {
        *self.0.borrow()
    }

    async fn told(&mut self) {
        // Whoever could tell may be gone: then nobody will.
        if self.0.wait_for(|told| *told).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Stopper {
    /// Ends the run.
    pub fn stop(&self) {
        let _ = self.0.send(true);
    }
}

/// A client that leaves it to this module when to try again.
pub fn client(mut config: Config) -> Result<Client, Error> {
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    Client::try_from(config)
        .map_err(|error| Error::failed(format!("cannot make a client for {server}")).because(error))
}

/// Asks the server what some patterns mean.
pub async fn resolve(
    client: &Client,
    patterns: &[Pattern],
    options: &Options,
) -> Result<Resolved, Error> {
    discovery::resolve(&Api::new(client, options), patterns).await
}

/// Counts what there is to do, and does nothing.
pub async fn count(client: &Client, plan: &Plan) -> Result<Outcome, Error> {
    drive::count(&Api::new(client, &plan.options), plan).await
}

/// Rewrites everything. An error means that there was no use in going on; what could not be done
/// otherwise is in the outcome.
pub async fn run(
    client: &Client,
    plan: &Plan,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    drive::run(&Api::new(client, &plan.options), plan, observer).await
}
