//! The one reconcile core: a pass over a SecretEncryption.
//!
//! ```text
//!            what writes is another          every replica reads      all announce it
//! settled ───────────▶ Preflight ─▶ ReadOnlyDeploy ─▶ WritePromote ─▶ Migrating ─▶ Completed
//!    ▲                     └──────────────┴─ edited back ─▶ Interrupted               │
//!    └── counted twice in etcd: what is not wanted any more goes ◀───────────────────┘
//! ```
//! Where a rotation is stands in the ConfigMap `sidekey-rotation`, as `sidekey rotate` writes it,
//! and never in memory. First enablement, another cipher and the way back into clear are rotations
//! too: kube-apiserver learns to read before it writes.
//!
//! What is published is what is wanted **and** what was published before and may still be needed:
//! keys, ciphers, names and resources stay until etcd itself was counted.

mod back;
mod canary;
mod draft;
mod follow;
mod leftover;
mod numbers;
mod outlook;
mod recall;
mod report;
mod resources;
mod retire;
mod steps;
mod stood;
mod work;
mod writes;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::DynamicObject;
use rustls::ClientConfig;
use serde_json::{Value, json};

use super::context::Context;
use super::pki::{self, Pki};
use super::{fronts, policy, proxy, roll};
use crate::fleet::{Fleet, Observation, Pods, Replica};
use crate::model::{API_VERSION, Injection, KIND, Key, Placement, SecretEncryption, names};
use crate::publish::{self, Live, Target};
use crate::render::{Phase, ResolvedFiles, render};
use crate::rotate::{Kept, State, Store};
use crate::{Error, Exit};
use draft::{Draft, Known, Stand, draft};
use numbers::history;
use report::{Report, Subject, Written};
use stood::Calm;
pub use stood::Stood;
use writes::Writes;

/// The reason of a document that names what is not there.
const MISSING: &str = "ReferenceMissing";

/// After a pass over an object that had changed before it was told of: by then it has been.
const OVERTAKEN: Duration = Duration::from_secs(1);

/// Why a pass does not go on.
enum Halt {
    /// Somebody must change something: a reason in one word, and what is wrong.
    Refused(&'static str, String),
    /// It may be better next time.
    Failed(Error),
}

/// One pass.
struct Pass<'a> {
    ctx: &'a Context,
    report: &'a mut Report,
    target: Target,
    namespace: String,
    /// What the document asks for, with all that the operator adds.
    wanted: SecretEncryption,
    /// What is published.
    live: Live,
    store: Store,
    kept: Kept,
    pki: Option<Pki>,
    /// The document is translated from another object, which cannot say what may go.
    translated: bool,
    /// Names of the document that are retired.
    left_out: Vec<String>,
    /// Nothing is to be done, and all is well.
    calm: Option<Calm>,
}

/// What is published, and where it leads.
struct Published {
    draft: Draft,
    revision: u64,
}

/// What every shim says, who was asked, and how.
#[derive(Default)]
struct Asked {
    seen: Observation,
    replicas: Vec<Replica>,
    tls: Option<Arc<ClientConfig>>,
}

/// One look at a SecretEncryption; gives when to look again. Where nothing was to be done it is a
/// cheap one, until something is another one than it was: see [`stood`].
pub async fn reconcile(object: &DynamicObject, ctx: &Context) -> Result<Duration, Error> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(ctx.options.poll);
    }
    let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
    let memory = &ctx.quiet.planes;
    let versions = match memory.begin(&name) {
        Some((stood, until)) => {
            let (holds, versions) = stood.holds(object, ctx).await;
            if holds {
                memory.keep(&name, stood, Some(until));
                return Ok(ctx.options.poll);
            }
            versions
        }
        None => stood::note(object, ctx).await,
    };
    let (outcome, calm) = whole(object, ctx).await;
    if let Some((versions, calm)) = versions.zip(calm) {
        memory.keep(&name, Stood::new(object, versions, calm), None);
    }
    outcome
}

/// A whole pass; beside its outcome, what it stood on if nothing was to be done, nor written.
async fn whole(object: &DynamicObject, ctx: &Context) -> (Result<Duration, Error>, Option<Calm>) {
    let mut report = Report::of(object);
    let mut calm = None;
    let outcome = match Pass::begin(object, ctx, &mut report).await {
        Ok(mut pass) => {
            let outcome = pass.run().await;
            calm = pass.calm.take();
            outcome
        }
        Err(halt) => Err(halt),
    };
    let outcome = match outcome {
        Ok(next) => Ok(next),
        Err(Halt::Refused(reason, message)) => {
            if reason == MISSING {
                report.set(Subject::Degraded, Some(true), reason, message.clone());
            }
            report.set(Subject::Configured, Some(false), reason, message);
            Ok(ctx.options.poll.min(Duration::from_secs(10)))
        }
        Err(Halt::Failed(error)) => {
            report.set(Subject::Configured, None, "Failed", explained(&error));
            Err(error)
        }
    };
    match report.write(ctx, object).await {
        Ok(Written::Nothing) => (outcome, calm),
        Ok(Written::Status) => (outcome, None),
        Ok(Written::Overtaken) => (Ok(OVERTAKEN), None),
        Err(error) => (Err(error), None),
    }
}

impl From<Error> for Halt {
    /// What is refused, or wrong in a document, stays so until somebody acts.
    fn from(error: Error) -> Self {
        match error.exit() {
            Exit::No => Self::Refused("Refused", explained(&error)),
            Exit::Usage => Self::Refused("InvalidSpec", explained(&error)),
            _ => Self::Failed(error),
        }
    }
}

fn explained(error: &Error) -> String {
    let hint = error.advice().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}{hint}", error.report())
}

impl<'a> Pass<'a> {
    /// Looks at everything that does not depend on how far a rotation is.
    async fn begin(
        object: &DynamicObject,
        ctx: &'a Context,
        report: &'a mut Report,
    ) -> Result<Self, Halt> {
        let mut wanted = read(object)?;
        ctx.options.complete(&mut wanted);
        let left_out = back::forget(&mut wanted, report);
        let namespace = wanted.namespace.clone().unwrap_or_default();
        let client = ctx.client.clone();
        let target = Target::Cluster { client: client.clone(), namespace: namespace.clone() };
        let live = target.live(&wanted.name).await?;
        recall::recall(report, &live, &wanted)?;
        let store = Store::cluster(client.clone(), &namespace);
        let kept = store.load().await?;
        let keys = !wanted.spec.keys.is_empty() || !live.view()?.keys.is_empty();
        let mut pki = None;
        if keys {
            let proxied = wanted.spec.placement == Placement::Proxy;
            pki = Some(pki::ensure(&client, &namespace, &wanted.name, proxied).await?);
            let replicas = pods(ctx, &wanted, &namespace).replicas().await?;
            wanted.spec.shim.extend(Pki::shim_settings(pki::listen(&replicas)));
            wanted.spec.shim_files.extend(Pki::shim_files());
        }
        let translated = object.annotations().contains_key(fronts::ANNOTATION_SOURCE);
        Ok(Self {
            ctx,
            report,
            target,
            namespace,
            wanted,
            live,
            store,
            kept,
            pki,
            translated,
            left_out,
            calm: None,
        })
    }

    async fn run(&mut self) -> Result<Duration, Halt> {
        if self.wanted.spec.placement == Placement::Proxy
            && let Some(why) = proxy::refused(self.ctx, &self.wanted).await?
        {
            return Err(Halt::Refused("PlacementRefused", why));
        }
        self.note_retired()?;
        self.check_numbers()?;
        let wanted = Writes::wanted(&self.wanted);
        let live = Writes::live(&self.live)?;
        let state = self.kept.state.clone();
        self.report.now.history = history(state.as_ref(), &self.report.now.history);
        match state.filter(|state| !state.stage.is_over()) {
            Some(state) if state.to == wanted.turn(&self.wanted) => self.go_on(state).await,
            // What may have been written with must be finished first.
            Some(state) if state.stage.is_promoted() => self.go_on(state).await,
            Some(state) => self.give_up(state).await,
            None if live.as_ref() != Some(&wanted) => {
                let from = live.unwrap_or_else(|| Writes::before(&self.wanted));
                self.start(from, wanted).await
            }
            None => self.settle(wanted).await,
        }
    }

    /// Publishes what is wanted and retained; nothing is written if nothing has changed.
    async fn publish(&mut self, stand: &Stand, drop: BTreeSet<String>) -> Result<Published, Halt> {
        let mut files = ResolvedFiles::default();
        files.from_cluster(&self.wanted, &self.ctx.client, &self.namespace).await?;
        let before = self.report.now.keys.iter().filter(|key| key.retained);
        let retained = before.map(|key| key.id).collect();
        let known = Known { files: &files, retained: &retained };
        let idle = leftover::idle(&self.live, &self.report.now, &self.wanted)?;
        let mut stand = stand.clone();
        stand.leaving.extend(idle.clone());
        let mut made = draft(&self.wanted, &self.live, &stand, known)?;
        self.keep_sockets(&mut made.document).await?;
        self.keep_tokens(&mut made.document)?;
        if made.document.spec.placement == Placement::Proxy && self.may_lead(&made).await? {
            proxy::lead(&mut made.document);
        }
        if let Err(error) = made.files.require(&made.document) {
            return Err(Halt::Refused(MISSING, explained(&error)));
        }
        let rendered = render(&made.document, 0, &made.files, Phase::Settled)?;
        let (mut revision, changed) = self.live.plan(&rendered);
        let options =
            self.allowed(&made.document, &rendered, drop.into_iter().chain(idle).collect())?;
        if changed || options.anew {
            let (document, files) = (&made.document, &made.files);
            let phase = Phase::Settled;
            let done = publish::publish(&self.target, document, files, phase, &options).await?;
            let note = format!("revision {}: {}", done.revision, done.written.join(", "));
            self.report.event(false, "Published", note);
            revision = done.revision;
        }
        self.report.now.revision = Some(revision);
        self.report.now.isolated_sockets = true;
        self.report.now.keys = outlook::keys(&made);
        self.report.now.tokens = outlook::tokens(&made);
        back::note_returned(&made.document, self.report);
        Ok(Published { draft: made, revision })
    }

    /// Sockets that every pod can bind and reach, also those of before.
    async fn keep_sockets(&self, document: &mut SecretEncryption) -> Result<(), Halt> {
        let vendors = self.live.shared_vendors()?;
        let before =
            !vendors.is_empty() && roll::shares_sockets(self.ctx, document, &vendors).await?;
        Ok(self.live.keep_sockets(document, before)?)
    }

    /// Whether shims may be led to the proxies: where they have something else to lose, only once
    /// those are there.
    async fn may_lead(&self, made: &Draft) -> Result<bool, Halt> {
        let view = self.live.view()?;
        let led = |endpoint: &String| endpoint.contains(names::PROVIDERS);
        let mut served = view.keys.values().filter(|key| !key.endpoints.is_empty());
        if view.keys.is_empty() || served.any(|key| key.endpoints.iter().any(led)) {
            return Ok(true);
        }
        Ok(proxy::ensure(self.ctx, &made.document).await?.is_empty())
    }

    /// Sidecars and providers where they should be; gives who is not there yet.
    async fn place(&mut self, published: &Published) -> Result<Vec<String>, Halt> {
        let document = &published.draft.document;
        let mut missing = Vec::new();
        // The webhook gives pods what `status` says is published: that must be so before one is
        // made anew.
        if document.spec.control_plane.injection == Injection::Webhook && self.report.untold() {
            return Ok(vec!["the webhook has not heard of what is published yet".to_owned()]);
        }
        if document.spec.placement == Placement::Proxy {
            missing.extend(proxy::ensure(self.ctx, document).await?);
            if !missing.is_empty() {
                return Ok(missing);
            }
        }
        if document.spec.keys.is_empty() && document.spec.ciphers.is_empty() {
            missing.extend(roll::remove(self.ctx, document).await?);
        } else {
            missing.extend(roll::ensure(self.ctx, document).await?);
        }
        Ok(missing)
    }

    /// What every shim says, who was asked, and how.
    async fn observe(&mut self, published: &Published) -> Result<Asked, Halt> {
        let Some(pki) = &self.pki else { return Ok(Asked::default()) };
        if published.draft.document.spec.keys.is_empty() {
            // Heads of before are there still; shims need not be.
            policy::remove(self.ctx, &self.wanted).await?;
            outlook::tell(&Observation::default(), &published.draft, self.report);
            return Ok(Asked::default());
        }
        // Shims may be reached without it; where they are not, that is said of each of them.
        if let Err(error) = policy::ensure(self.ctx, &self.wanted).await {
            let namespace = &self.namespace;
            tracing::warn!(namespace, ?error, "the NetworkPolicy for the shims cannot be kept");
        }
        let pods = pods(self.ctx, &self.wanted, &self.namespace);
        let tls = pki.client()?;
        let pods = pods.direct(tls.clone(), names::SHIM_NAME, names::SHIM_ADMIN_TLS_PORT);
        let (seen, replicas) = Fleet::new().pods(pods).observe_replicas().await?;
        outlook::tell(&seen, &published.draft, self.report);
        Ok(Asked { seen, replicas, tls: Some(tls) })
    }

    /// What the files of one key hold, for a Job that runs its provider.
    async fn files_of(&self, key: &Key) -> Result<ResolvedFiles, Halt> {
        let mut alone = self.wanted.clone();
        alone.spec.keys = vec![key.clone()];
        let mut files = ResolvedFiles::default();
        files.from_cluster(&alone, &self.ctx.client, &self.namespace).await?;
        match files.require(&alone) {
            Ok(()) => Ok(files),
            Err(error) => Err(Halt::Refused(MISSING, explained(&error))),
        }
    }

    /// What Jobs that ask a KMS in the place of kube-apiserver's pods must have of these.
    async fn host_aliases(&self) -> Result<Value, Halt> {
        Ok(roll::host_aliases(self.ctx, &self.wanted).await?)
    }

    /// Every kube-apiserver, as Jobs reach it.
    async fn servers(&self) -> Result<Vec<String>, Halt> {
        let replicas = pods(self.ctx, &self.wanted, &self.namespace).replicas().await?;
        let port = self.wanted.spec.control_plane.port;
        let mut servers: Vec<String> = replicas
            .iter()
            .filter_map(|replica| replica.ip.as_ref())
            .map(|ip| match ip.contains(':') {
                true => format!("https://[{ip}]:{port}"),
                false => format!("https://{ip}:{port}"),
            })
            .collect();
        servers.sort();
        Ok(servers)
    }

    /// Writes down how far it is.
    async fn save(&mut self, state: &State) -> Result<(), Halt> {
        self.kept = self.store.save(&self.kept, state).await?;
        Ok(())
    }
}

fn pods(ctx: &Context, wanted: &SecretEncryption, namespace: &str) -> Pods {
    let plane = &wanted.spec.control_plane;
    Pods::new(ctx.client.clone(), namespace, plane.selector.clone(), plane.container.clone())
}

/// The document of an object; what is wrong in it is told with all paths.
fn read(object: &DynamicObject) -> Result<SecretEncryption, Halt> {
    let metadata = &object.metadata;
    let document = json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "spec": object.data["spec"],
    });
    SecretEncryption::from_document(&document)
        .map_err(|problems| Halt::Refused("InvalidSpec", problems.to_string()))
}
