//! The process: command line, servers, leader election and the controllers.
//!
//! Every operator answers probes, the webhook and the page from one cache of SecretEncryptions.
//! One of them, who holds the lease, also acts. Who loses the lease ends at once: nothing that it
//! began can go on beside its successor's work.

mod args;
mod controller;
#[cfg(test)]
pub(crate) mod fake;
mod follow;
mod fronts;
mod probes;
mod queue;
mod serve;
mod shelf;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use futures_util::FutureExt;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use sidekey_core::process::{Order, Signals, no_core_dumps};
use sidekey_core::server::{Stop, Stopper, stopper};
use sidekey_core::{EXIT_USAGE, telemetry};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub(crate) use serve::{Answer, Server, Site, text, typed};
pub(crate) use shelf::{Name, Shelf};

use super::context::Context;
use super::lease::{Candidate, Cluster, Term};
use super::metrics::{Kind, Metrics};
use super::page::Page;
use super::quiet::Quiet;
use super::webhook::{Certificate, Keeper, Webhook};
use super::{api, policy, reconcile};
use crate::{Error, Exit};
use args::Args;
use controller::{Controller, Look};
use probes::Probes;

/// Time for passes that run to end, after the order to stop. kubelet gives 30 s for everything.
const DRAIN: Duration = Duration::from_secs(15);
/// Time to serve on after that order: whoever routes requests here hears of it a moment later.
const LINGER: Duration = Duration::from_secs(3);
/// Time to give the lease back.
const RELEASE: Duration = Duration::from_secs(5);

/// What the whole process shares.
struct Process {
    context: Arc<Context>,
    encryptions: Shelf,
    concurrency: usize,
    identity: String,
    probes: Arc<Probes>,
    leads: watch::Sender<bool>,
}

/// How it ended.
enum End {
    /// As it was told.
    Told,
    /// It was told twice.
    AtOnce,
}

/// The whole of `main`.
pub fn main() -> ExitCode {
    no_core_dumps();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing more can be done if the terminal is gone.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    telemetry::start(args.log());
    // An error means that there is one already: nobody else installs any.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            return Exit::Failure.into();
        }
    };
    let result = runtime.block_on(operate(&args));
    // Who has lost the lease, or was told twice, must not wait for anything that still runs.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = error.advice().unwrap_or_default();
            tracing::error!(error = %error.report(), hint, "cannot go on");
            error.exit().into()
        }
    }
}

async fn operate(args: &Args) -> Result<(), Error> {
    let mut signals = Signals::new()
        .map_err(|error| Error::failed("cannot listen for signals").because(error))?;
    let options = args.options()?;
    tracing::info!(version = crate::VERSION, namespace = options.namespace, "starting");
    let client = args.access.client().await?;
    let identity = identity();
    let reporter =
        Reporter { controller: "sidekey-operator".to_owned(), instance: Some(identity.clone()) };
    let context = Arc::new(Context {
        client: client.clone(),
        recorder: Recorder::new(client.clone(), reporter),
        metrics: Metrics::default(),
        options,
        quiet: Quiet::default(),
    });
    let certificate = Certificate::default();
    let encryptions = Shelf::whole();
    let probes = Arc::new(Probes::new(encryptions.clone(), certificate.clone()));
    let leads = watch::Sender::new(false);
    let concurrency = args.concurrency();
    let process = Process { context, encryptions, concurrency, identity, probes, leads };
    let (servers, stop_servers) = process.serve(args, &certificate).await?;

    let keeper = Keeper::new(&client, &process.context.options.namespace, certificate);
    let mut beside = JoinSet::new();
    beside.spawn(process.follow());
    beside.spawn(keeper.run(process.leads.subscribe()).map(|()| Ok(())));
    let end = tokio::select! {
        end = process.live(&mut signals) => end?,
        error = first_error(beside) => return Err(error),
    };
    if let End::Told = end {
        stop_servers.stop();
        tokio::select! {
            _ = servers.join_all() => {}
            _ = signals.next() => tracing::warn!("second signal: stopping at once"),
        }
    }
    Ok(())
}

/// Waits for what should never end to fail.
async fn first_error(mut tasks: JoinSet<Result<(), Error>>) -> Error {
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Err(error)) = ended {
            return error;
        }
    }
    Error::failed("a part of the operator has ended")
}

impl Process {
    /// Starts whatever others ask.
    async fn serve(
        &self,
        args: &Args,
        certificate: &Certificate,
    ) -> Result<(JoinSet<()>, Stopper), Error> {
        let (stopper, stop) = stopper();
        let mut servers = JoinSet::new();
        let mut start = |server: Server, site: Arc<dyn Site>, stop: Stop| {
            servers.spawn(server.serve(site, stop));
        };
        let context = &self.context;
        let probes = Server::bind("probe", args.probe_listen, None).await?;
        start(probes, self.probes.clone(), stop.clone());
        let webhook = Webhook::new(self.encryptions.clone(), context.options.clone());
        let tls = certificate.server();
        let server = Server::bind("webhook", args.webhook_listen, Some(tls.clone())).await?;
        start(server, Arc::new(webhook), stop.clone());
        let page = Page::new(&context.client, self.encryptions.clone(), context.metrics.clone());
        let server = Server::bind("page", args.page_listen, Some(tls)).await?;
        start(server, Arc::new(page), stop);
        Ok((servers, stopper))
    }

    /// Follows the SecretEncryptions. Without their kind there is nothing to do.
    fn follow(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let (client, shelf) = (self.context.client.clone(), self.encryptions.clone());
        async move {
            let resource = api::secret_encryption();
            if follow::ask_until_answered(&client, &resource).await {
                follow::follow(client, &resource, &shelf).await;
            }
            Err(Error::failed("the cluster does not know SecretEncryptions")
                .hint("install them: kubectl apply -k deploy/kustomize"))
        }
    }

    /// Waits for the lease, acts while it holds, and ends in good order when told to.
    async fn live(&self, signals: &mut Signals) -> Result<End, Error> {
        let context = &self.context;
        let ledger = Cluster::new(context.client.clone(), &context.options.namespace);
        let mut candidate = Candidate::new(ledger, self.identity.clone(), Term::default());
        let since = tokio::select! {
            since = candidate.acquire() => since,
            order = signals.next() => return Ok(self.linger(order, signals).await),
        };
        tracing::info!(identity = self.identity, "this operator leads");
        context.metrics.leading(true);
        self.leads.send_replace(true);
        let (stopper, stop) = stopper();
        let mut controllers = self.control(&stop);
        let (order, drained) = {
            let mut keep = std::pin::pin!(candidate.keep(since));
            let order = tokio::select! {
                lost = &mut keep => return Err(lost),
                order = signals.next() => order,
            };
            tracing::info!("ending: passes that run are waited for");
            self.probes.end();
            stopper.stop();
            let all = async { while controllers.join_next().await.is_some() {} };
            let drained = tokio::select! {
                lost = &mut keep => return Err(lost),
                over = timeout(DRAIN, all) => over.is_ok(),
                _ = signals.next() => {
                    tracing::warn!("second signal: stopping at once");
                    return Ok(End::AtOnce);
                }
            };
            (order, drained)
        };
        self.release(candidate, drained).await;
        Ok(self.linger(order, signals).await)
    }

    /// Gives the lease back, unless something of this operator may still be under way.
    async fn release(&self, candidate: Candidate<Cluster>, drained: bool) {
        self.leads.send_replace(false);
        self.context.metrics.leading(false);
        if !drained {
            tracing::warn!("a pass did not end in time: the lease is left to expire");
            return;
        }
        match timeout(RELEASE, candidate.release()).await {
            Ok(Ok(())) => tracing::info!("lease given back"),
            Ok(Err(error)) => tracing::warn!(error = %error.report(), "cannot give the lease back"),
            Err(_) => tracing::warn!("no answer to the return of the lease"),
        }
    }

    /// Answers others for a moment longer. A person at a keyboard does not wait for that.
    async fn linger(&self, order: Order, signals: &mut Signals) -> End {
        self.probes.end();
        if order == Order::Interrupt {
            return End::Told;
        }
        tokio::select! {
            () = sleep(LINGER) => End::Told,
            _ = signals.next() => End::AtOnce,
        }
    }

    /// Starts the controllers.
    fn control(&self, stop: &Stop) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let mut ended = stop.clone();
        let context = self.context.clone();
        let look: Look = Arc::new(move |object| {
            let context = context.clone();
            async move { reconcile::reconcile(&object, &context).await }.boxed()
        });
        let core = self.controller(Kind::SecretEncryption, self.encryptions.clone(), look);
        let changes = self.encryptions.changes();
        let (nobody, others) = unbounded_channel();
        tasks.spawn(async move {
            core.run(changes, others, async move { ended.stopped().await }).await;
            drop(nobody);
        });
        let (context, shelf) = (self.context.clone(), self.encryptions.clone());
        let mut ended = stop.clone();
        tasks.spawn(async move {
            policy::orphans::sweep_until(async move { ended.stopped().await }, &context, &shelf)
                .await;
        });
        for front in fronts::all(self) {
            tasks.spawn(front.run(stop.clone()));
        }
        tasks
    }

    fn controller(&self, kind: Kind, shelf: Shelf, look: Look) -> Controller {
        let metrics = self.context.metrics.clone();
        Controller::new(kind, shelf, look, self.concurrency, metrics)
    }

    fn client(&self) -> Client {
        self.context.client.clone()
    }
}

/// Where the servers listen if nobody says so.
#[cfg(test)]
pub(crate) fn default_addresses() -> [(&'static str, &'static str); 3] {
    args::ADDRESSES
}

/// A name that no other process has, this pod's next one included.
fn identity() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let host = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    };
    let mut random = [0_u8; 8];
    // The pod's name and the time alone would nearly do.
    let _ = aws_lc_rs::rand::fill(&mut random);
    format!("{}_{}", pod.unwrap_or_else(host), sidekey_core::hex(&random))
}
