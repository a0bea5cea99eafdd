//! The front ends: they run where their kinds are there, and cost nothing where they are not.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use kube::api::{ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use sidekey_core::server::Stop;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use super::controller::{Controller, Look};
use super::shelf::{Change, Name, Shelf, What};
use super::{Process, follow};
use crate::operator::context::Context;
use crate::operator::metrics::{Kind, Metrics};
use crate::operator::quiet::Quiet;
use crate::operator::{api, fronts};
use fronts::ANNOTATION_SOURCE;

/// How often it is asked whether a kind that was not there has come.
const ASK: Duration = Duration::from_secs(60);

/// A kind that SecretEncryptions are made from.
pub(super) struct Front {
    kind: Kind,
    resource: ApiResource,
    look: Look,
    client: Client,
    encryptions: Shelf,
    concurrency: usize,
    metrics: Metrics,
    quiet: Quiet,
}

/// All that there are.
pub(super) fn all(process: &Process) -> [Front; 2] {
    let front = |kind, resource, look| Front {
        kind,
        resource,
        look,
        client: process.client(),
        encryptions: process.encryptions.clone(),
        concurrency: process.concurrency,
        metrics: process.context.metrics.clone(),
        quiet: process.context.quiet.clone(),
    };
    let context = process.context.clone();
    let hosted: Look = Arc::new(move |object| {
        let context: Arc<Context> = context.clone();
        async move { fronts::hosted_cluster(&object, &context).await }.boxed()
    });
    let context = process.context.clone();
    let server: Look = Arc::new(move |object| {
        let context: Arc<Context> = context.clone();
        async move { fronts::api_server(&object, &context).await }.boxed()
    });
    [
        front(Kind::HostedCluster, api::hosted_cluster(), hosted),
        front(Kind::ApiServer, api::api_server(), server),
    ]
}

impl Front {
    /// Runs until told to stop.
    pub(super) async fn run(self, mut stop: Stop) {
        loop {
            let mut stopped = stop.clone();
            let served = tokio::select! {
                served = follow::ask_until_answered(&self.client, &self.resource) => served,
                () = stopped.stopped() => return,
            };
            if served {
                self.serve(&stop).await;
            }
            tokio::select! {
                () = sleep(sidekey_core::jitter(ASK)) => {}
                () = stop.stopped() => return,
            }
        }
    }

    /// As long as the kind is there and nobody says stop.
    async fn serve(&self, stop: &Stop) {
        tracing::info!(kind = self.kind.label(), "looking after these too");
        let shelf = Shelf::text();
        let (ask, others) = unbounded_channel();
        let told = Told { ask, quiet: self.quiet.clone() };
        let controller = Controller::new(
            self.kind,
            shelf.clone(),
            self.look.clone(),
            self.concurrency,
            self.metrics.clone(),
        );
        let mut stopped = stop.clone();
        let changes = shelf.changes();
        let ended = async {
            tokio::select! {
                () = follow::follow(self.client.clone(), &self.resource, &shelf) => {}
                () = pass_on(self.encryptions.changes(), &self.encryptions, self.kind, &told) => {}
                () = stopped.stopped() => {}
            }
        };
        controller.run(changes, others, ended).await;
    }
}

/// Who is told of a SecretEncryption that has changed.
struct Told {
    ask: UnboundedSender<Name>,
    quiet: Quiet,
}

/// Asks for a pass over what a SecretEncryption was made from, when that has changed: whoever
/// wrote the one reads there what has become of it.
async fn pass_on(
    mut changes: UnboundedReceiver<Change>,
    encryptions: &Shelf,
    kind: Kind,
    told: &Told,
) {
    while let Some(change) = changes.recv().await {
        match concerned(encryptions.find(&change.name).as_deref(), change.what, kind) {
            Concerned::One(origin) => {
                told.quiet.forget_front(&format!("{} {origin}", kind.label()));
                // The receiver is gone only when nobody needs it any more.
                let _ = told.ask.send(origin);
            }
            Concerned::Anybody => told.quiet.forget_fronts(),
            Concerned::Nobody => {}
        }
    }
    std::future::pending().await
}

/// Whom of a kind a change of a SecretEncryption concerns.
#[derive(Debug, PartialEq, Eq)]
enum Concerned {
    One(Name),
    /// It does not say any more what it was made from, if it was.
    Anybody,
    Nobody,
}

fn concerned(object: Option<&DynamicObject>, what: What, kind: Kind) -> Concerned {
    let says = object.is_some_and(|object| object.annotations().contains_key(ANNOTATION_SOURCE));
    match object.and_then(|object| origin(object, kind)) {
        Some(origin) => Concerned::One(origin),
        None if says || what == What::Status => Concerned::Nobody,
        None => Concerned::Anybody,
    }
}

/// What a SecretEncryption was made from, if that is of this kind.
fn origin(object: &DynamicObject, kind: Kind) -> Option<Name> {
    let source = object.annotations().get(ANNOTATION_SOURCE)?;
    let (of, name) = source.split_once(' ')?;
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let name = Name { namespace: namespace.to_owned(), name: name.to_owned() };
    (of == kind.label()).then_some(name)
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn object(source: &str, revision: u64) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "a", "namespace": "clusters-a", "annotations": {ANNOTATION_SOURCE: source}},
            "status": {"revision": revision},
        }))
        .unwrap()
    }

    #[test]
    fn what_it_was_made_from_is_read_from_its_annotation() {
        let of = |source: &str, kind| origin(&object(source, 1), kind).map(|name| name.to_string());
        let hosted = "HostedCluster clusters/a";
        assert_eq!(of(hosted, Kind::HostedCluster).as_deref(), Some("clusters/a"));
        assert_eq!(of(hosted, Kind::ApiServer), None);
        assert_eq!(of("APIServer cluster", Kind::ApiServer).as_deref(), Some("cluster"));
        assert_eq!(of("", Kind::HostedCluster), None);
    }

    #[test]
    fn one_that_is_gone_or_says_its_source_no_more_may_be_anybodys() {
        let hosted = object("HostedCluster clusters/a", 1);
        let mut own = hosted.clone();
        own.metadata.annotations = None;
        let of = |object: Option<&DynamicObject>, what| {
            [Kind::HostedCluster, Kind::ApiServer].map(|kind| concerned(object, what, kind))
        };
        let name = Name { namespace: "clusters".into(), name: "a".into() };
        for what in [What::Wish, What::Status] {
            let expected = [Concerned::One(name.clone()), Concerned::Nobody];
            assert_eq!(of(Some(&hosted), what), expected);
        }
        assert_eq!(of(Some(&own), What::Wish), [Concerned::Anybody, Concerned::Anybody]);
        assert_eq!(of(Some(&own), What::Status), [Concerned::Nobody, Concerned::Nobody]);
        assert_eq!(of(None, What::Gone), [Concerned::Anybody, Concerned::Anybody]);
    }

    #[tokio::test]
    async fn a_status_that_changes_is_passed_on_to_where_it_is_mirrored() {
        let shelf = Shelf::whole();
        let (ask, mut asked) = unbounded_channel();
        let changes = shelf.changes();
        let told = Told { ask, quiet: Quiet::default() };
        let passing = pass_on(changes, &shelf, Kind::HostedCluster, &told);
        shelf.take(Event::Apply(object("HostedCluster clusters/a", 1)));
        shelf.take(Event::Apply(object("HostedCluster clusters/a", 2)));
        let both = async { (asked.recv().await.unwrap(), asked.recv().await.unwrap()) };
        tokio::select! {
            () = passing => unreachable!(),
            (first, second) = both => {
                assert_eq!(first.to_string(), "clusters/a");
                assert_eq!(second, first);
            }
        }
    }
}
