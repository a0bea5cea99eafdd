//! One resource after the other, many objects at a time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::api::{Api, Lost};
use super::checkpoint::{Checkpoint, Mark};
use super::outcome::{Outcome, ResourceOutcome, State};
use super::pages::{Item, Page, Pages, Unlisted, count as count_objects};
use super::resources::Resource;
use super::rewrite::{Fate, rewrite};
use super::{Observer, Plan, Stop, rights};
use crate::Error;

/// Between two writes of the checkpoint: each waits for the disk.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// How long requests under way may take when we are told to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Objects that may be done before one that is not: one slow object must not cost memory.
const LONGEST_LEAD: usize = 10_000;

/// Counts what there is to do.
pub(super) async fn count(api: &Api, plan: &Plan) -> Result<Outcome, Error> {
    let mut outcome = Outcome { skipped: plan.resolved.skipped.clone(), ..Outcome::default() };
    outcome.target = plan.checkpoint.as_ref().map(|(_, run)| run.target.clone());
    for resource in &plan.resolved.resources {
        let mut mark = Mark { state: State::Counted, ..Mark::default() };
        let reason = match count_objects(api, resource).await {
            Ok(objects) => {
                mark.counts.objects = objects;
                rights::missing(api, resource).await.map_err(|lost| gone(lost, resource))?
            }
            Err(Unlisted::Refused(why)) => Some(why),
            Err(Unlisted::Lost(lost)) => return Err(gone(lost, resource)),
        };
        outcome.resources.push(told(resource, mark, reason));
    }
    Ok(outcome)
}

/// Rewrites everything.
pub(super) async fn run(
    api: &Api,
    plan: &Plan,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let begun = Instant::now();
    let mut outcome = Outcome { skipped: plan.resolved.skipped.clone(), ..Outcome::default() };
    let mut checkpoint = match &plan.checkpoint {
        Some((path, run)) => Some(Checkpoint::open(path, run)?),
        None => None,
    };
    outcome.target = plan.checkpoint.as_ref().map(|(_, run)| run.target.clone());
    let mut total = 0;
    for resource in &plan.resolved.resources {
        // Whatever is wrong with it is told when its turn comes.
        total += count_objects(api, resource).await.unwrap_or(0);
    }
    observer.begin(total);
    for resource in &plan.resolved.resources {
        let mark = checkpoint.as_ref().map(|c| c.mark(&resource.id())).unwrap_or_default();
        let mut worker = Worker::new(api, resource, mark.resumed(), checkpoint.as_mut());
        let reason = worker.work(&mut plan.stop.clone(), observer).await?;
        outcome.resources.push(told(resource, worker.mark, reason));
    }
    outcome.interrupted = plan.stop.is_told();
    if let Some(checkpoint) = checkpoint {
        if outcome.resources.iter().all(ResourceOutcome::is_complete) {
            checkpoint.forget(outcome.resources.iter().map(|done| done.resource.clone()))?;
        } else {
            outcome.checkpoint = Some(checkpoint.path().to_owned());
        }
    }
    outcome.seconds = begun.elapsed().as_secs_f64();
    Ok(outcome)
}

pub(super) fn told(resource: &Resource, mark: Mark, reason: Option<String>) -> ResourceOutcome {
    let Mark { state, counts, failures, .. } = mark;
    ResourceOutcome { resource: resource.id(), state, counts, failures, reason }
}

fn gone(lost: Lost, resource: &Resource) -> Error {
    lost.into_error(&format!("cannot go on with {}", resource.id()))
}

/// Hands out page after page until there is no more, or no more is wanted.
async fn list(
    api: &Api,
    resource: &Resource,
    after: Option<String>,
    pages: mpsc::Sender<Result<Page, Unlisted>>,
) -> Infallible {
    let mut list = Pages::new(api, resource, after);
    while let Some(page) = list.next().await.transpose() {
        let last = page.is_err();
        if pages.send(page).await.is_err() || last {
            break;
        }
    }
    drop(pages);
    std::future::pending().await
}

/// Works through one resource.
struct Worker<'a> {
    api: &'a Api,
    resource: &'a Resource,
    mark: Mark,
    checkpoint: Option<&'a mut Checkpoint>,
    saved: Instant,
    /// Objects that are under way, or done before one that is; in order.
    lead: VecDeque<(String, Option<Fate>)>,
    /// The number of the first of them.
    first: u64,
    /// Whether names come in order, so that a position says something.
    ordered: bool,
}

impl<'a> Worker<'a> {
    fn new(
        api: &'a Api,
        resource: &'a Resource,
        mark: Mark,
        checkpoint: Option<&'a mut Checkpoint>,
    ) -> Self {
        let (saved, lead) = (Instant::now(), VecDeque::new());
        Self { api, resource, mark, checkpoint, saved, lead, first: 0, ordered: true }
    }

    /// Gives the reason if the resource as a whole could not be finished.
    async fn work(
        &mut self,
        stop: &mut Stop,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>, Error> {
        observer.resource(self.resource, self.mark.counts.objects);
        if stop.is_told() || (self.mark.state == State::Done && self.mark.failures.is_empty()) {
            return Ok(None);
        }
        let resource = self.resource;
        let missing = rights::missing(self.api, resource).await;
        if let Some(why) = missing.map_err(|lost| gone(lost, resource))? {
            return Ok(Some(why));
        }
        self.try_failed_again(stop).await?;
        if self.mark.state == State::Done {
            self.save(true)?;
            return Ok(None);
        }
        self.mark.state = State::Partial;
        let reason = self.flow(stop, observer).await;
        self.save(true)?;
        reason
    }

    /// What an earlier run could not do.
    async fn try_failed_again(&mut self, stop: &Stop) -> Result<(), Error> {
        for failure in std::mem::take(&mut self.mark.failures) {
            if stop.is_told() {
                self.mark.failures.push(failure);
                continue;
            }
            let item = Item::at(&failure.object, self.resource.namespaced);
            let fate = rewrite(self.api, self.resource, &item).await;
            let fate = fate.map_err(|lost| gone(lost, self.resource))?;
            self.mark.counts.failed -= 1;
            self.mark.counts.objects -= 1;
            self.count(failure.object, fate);
        }
        Ok(())
    }

    /// Lists and rewrites at the same time: a page is read while the one before is worked on.
    async fn flow(
        &mut self,
        stop: &mut Stop,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>, Error> {
        let (sender, pages) = mpsc::channel(1);
        let lister = list(self.api, self.resource, self.mark.position.clone(), sender);
        tokio::select! {
            reason = self.consume(pages, stop, observer) => reason,
            never = lister => match never {},
        }
    }

    async fn consume(
        &mut self,
        mut pages: mpsc::Receiver<Result<Page, Unlisted>>,
        stop: &mut Stop,
        observer: &mut dyn Observer,
    ) -> Result<Option<String>, Error> {
        let (api, resource) = (self.api, self.resource);
        let mut ready: VecDeque<Item> = VecDeque::new();
        let mut under_way = FuturesUnordered::new();
        let mut listing = true;
        loop {
            while under_way.len() < api.limit() && self.lead.len() < LONGEST_LEAD {
                let Some(item) = ready.pop_front() else { break };
                let number = self.begin(&item);
                under_way.push(async move {
                    let fate = rewrite(api, resource, &item).await;
                    (number, fate)
                });
            }
            if !listing && ready.is_empty() && under_way.is_empty() {
                self.mark.state = State::Done;
                return Ok(None);
            }
            tokio::select! {
                biased;
                () = stop.told() => break,
                Some((number, fate)) = under_way.next() => {
                    self.end(number, fate.map_err(|lost| gone(lost, resource))?);
                    observer.advance(1);
                    self.save(false)?;
                }
                page = pages.recv(), if listing && ready.is_empty() => match page {
                    None => listing = false,
                    Some(Ok(page)) => {
                        self.ordered &= page.ordered;
                        ready.extend(page.items);
                    }
                    Some(Err(Unlisted::Refused(why))) => return Ok(Some(format!("cannot list them: {why}"))),
                    Some(Err(Unlisted::Lost(lost))) => return Err(gone(lost, resource)),
                },
            }
        }
        self.take_last_answers(under_way).await;
        Ok(None)
    }

    /// Who has no answer by the end of this is not counted, and done again next time.
    async fn take_last_answers(
        &mut self,
        mut under_way: impl Stream<Item = (u64, Result<Fate, Lost>)> + Unpin,
    ) {
        let last = async {
            while let Some((number, fate)) = under_way.next().await {
                if let Ok(fate) = fate {
                    self.end(number, fate);
                }
            }
        };
        let _ = timeout(LAST_ANSWERS, last).await;
    }

    fn begin(&mut self, item: &Item) -> u64 {
        self.lead.push_back((item.position(), None));
        self.first + self.lead.len() as u64 - 1
    }

    /// An object counts once all before it do: so position and counts always fit together.
    fn end(&mut self, number: u64, fate: Fate) {
        let index = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some((_, ended)) = self.lead.get_mut(index) {
            *ended = Some(fate);
        }
        while self.lead.front().is_some_and(|(_, ended)| ended.is_some()) {
            let Some((position, Some(fate))) = self.lead.pop_front() else { break };
            self.first += 1;
            self.mark.position = Some(position.clone()).filter(|_| self.ordered);
            self.count(position, fate);
        }
    }

    fn count(&mut self, object: String, fate: Fate) {
        self.mark.counts.add(&fate);
        if let Fate::Failed(reason) = fate {
            self.mark.fail(object, reason);
        }
    }

    fn save(&mut self, at_once: bool) -> Result<(), Error> {
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        if at_once || self.saved.elapsed() >= SAVE_EVERY {
            checkpoint.set(&self.resource.id(), &self.mark)?;
            self.saved = Instant::now();
        }
        Ok(())
    }
}
