use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use kube::runtime::watcher::Event;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;

const POLL: Duration = Duration::from_secs(30);

/// What passes do, and what is seen of them.
#[derive(Default)]
struct Seen {
    /// Key of the spec and time of each pass, by object.
    passes: Mutex<BTreeMap<String, Vec<(u64, Instant)>>>,
    running: AtomicUsize,
    most: AtomicUsize,
    fail: Mutex<Vec<String>>,
}

struct Running {
    shelf: Shelf,
    seen: Arc<Seen>,
    metrics: Metrics,
    others: UnboundedSender<Name>,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl Seen {
    async fn pass(&self, object: Arc<DynamicObject>, took: Duration) -> Result<Duration, Error> {
        let name = object.metadata.name.clone().unwrap();
        let key = object.data["spec"]["key"].as_u64().unwrap();
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        self.passes.lock().unwrap().entry(name.clone()).or_default().push((key, Instant::now()));
        sleep(took).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        if self.fail.lock().unwrap().contains(&name) {
            return Err(Error::failed("no").hint("wait"));
        }
        Ok(POLL)
    }

    fn of(&self, name: &str) -> Vec<(u64, Instant)> {
        self.passes.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

impl Running {
    fn start(limit: usize, took: Duration) -> Self {
        let (shelf, seen, metrics) =
            (Shelf::whole(), Arc::new(Seen::default()), Metrics::default());
        let look: Look = {
            let seen = seen.clone();
            Arc::new(move |object| {
                let seen = seen.clone();
                async move { seen.pass(object, took).await }.boxed()
            })
        };
        let kind = Kind::HostedCluster;
        let controller = Controller::new(kind, shelf.clone(), look, limit, metrics.clone());
        let (others, receiver) = unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let stopped = stopped.map(drop);
        let task = tokio::spawn(controller.run(shelf.changes(), receiver, stopped));
        Self { shelf, seen, metrics, others, stop: Some(stop), task }
    }

    fn apply(&self, name: &str, key: u64, status: u64) {
        self.shelf.take(Event::Apply(object(name, key, status)));
    }
}

fn object(name: &str, key: u64, status: u64) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "X", "metadata": {"name": name},
        "spec": {"key": key}, "status": {"n": status},
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_object_has_its_passes_and_no_more_run_at_once_than_may() {
    let running = Running::start(4, Duration::from_millis(100));
    for index in 0..1000 {
        running.apply(&format!("c{index}"), 1, 1);
    }
    sleep(Duration::from_millis(9950)).await;
    let text = running.metrics.text(&[]);
    assert!(text.contains("sidekey_operator_queue{kind=\"HostedCluster\"} 600"), "{text}");
    sleep(Duration::from_secs(16)).await;
    assert_eq!(running.seen.passes.lock().unwrap().len(), 1000);
    assert_eq!(running.seen.most.load(Ordering::SeqCst), 4);
    let text = running.metrics.text(&[]);
    assert!(text.contains("{kind=\"HostedCluster\",result=\"success\"} 1000"), "{text}");
    sleep(POLL * 2).await;
    assert!(running.seen.of("c7").len() >= 2, "it is looked at again");
}

#[tokio::test(start_paused = true)]
async fn a_change_meanwhile_gives_one_more_pass_with_the_newest_and_never_two_at_once() {
    let running = Running::start(4, Duration::from_secs(1));
    running.apply("a", 1, 1);
    sleep(Duration::from_millis(500)).await;
    for key in 2..6 {
        running.apply("a", key, 1);
    }
    sleep(Duration::from_secs(5)).await;
    let keys: Vec<u64> = running.seen.of("a").iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [1, 5]);
    assert_eq!(running.seen.most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_written_in_a_pass_does_not_bring_the_next_one() {
    let running = Running::start(4, Duration::ZERO);
    running.seen.fail.lock().unwrap().push("a".into());
    running.apply("a", 1, 1);
    sleep(Duration::from_millis(10)).await;
    for status in 2..100 {
        running.apply("a", 1, status);
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(running.seen.of("a").len(), 1, "the pause after a failure holds");
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_later_each_time_and_at_once_when_it_was_changed() {
    let running = Running::start(4, Duration::ZERO);
    running.seen.fail.lock().unwrap().push("a".into());
    running.apply("a", 1, 1);
    running.apply("b", 1, 1);
    sleep(Duration::from_secs(600)).await;
    let passes = running.seen.of("a");
    let pauses: Vec<Duration> = passes.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    assert!(pauses[0] < Duration::from_secs(1) && pauses[3] > pauses[1] * 2, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause < Duration::from_secs(67)), "{pauses:?}");
    assert!(running.seen.of("b").len() >= 18, "others are not held up");
    running.seen.fail.lock().unwrap().clear();
    let before = passes.len();
    running.apply("a", 2, 1);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(running.seen.of("a").len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_not_looked_at_and_others_may_ask_for_what_is_there() {
    let running = Running::start(4, Duration::ZERO);
    running.apply("a", 1, 1);
    sleep(Duration::from_secs(1)).await;
    let name = |name: &str| Name { namespace: String::new(), name: name.into() };
    running.others.send(name("a")).unwrap();
    running.others.send(name("nobody")).unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(running.seen.of("a").len(), 2);
    running.shelf.take(Event::Delete(object("a", 1, 1)));
    sleep(POLL * 4).await;
    assert_eq!(running.seen.of("a").len(), 2);
    assert!(running.seen.of("nobody").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_stuck_is_given_up_and_counts_as_failed() {
    let running = Running::start(1, Duration::from_secs(86_400));
    running.apply("a", 1, 1);
    sleep(LONGEST_PASS + Duration::from_secs(2)).await;
    let text = running.metrics.text(&[]);
    assert!(text.contains("{kind=\"HostedCluster\",result=\"error\"} 1"), "{text}");
    assert_eq!(running.seen.of("a").len(), 2, "and taken up again");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_no_pass_begins_and_those_that_run_are_waited_for() {
    let mut running = Running::start(2, Duration::from_secs(5));
    for name in ["a", "b", "c", "d"] {
        running.apply(name, 1, 1);
    }
    sleep(Duration::from_secs(1)).await;
    running.stop.take().unwrap().send(()).unwrap();
    let begun = Instant::now();
    running.task.await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(4));
    assert_eq!(running.seen.passes.lock().unwrap().len(), 2);
    let text = running.metrics.text(&[]);
    assert!(text.contains("sidekey_operator_queue{kind=\"HostedCluster\"} 0"), "{text}");
}
