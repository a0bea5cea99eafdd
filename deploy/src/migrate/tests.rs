//! What a real server does not do at will, on a fake one; the rest is proven on a real one, in
//! e2e.

mod fake;

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use fake::{Fake, Whim, secrets};

/// Names in the order of etcd: `-` and `.` come before `/`.
fn keys(count: usize) -> Vec<String> {
    let namespaces = ["a-b", "a.c", "a", "b"];
    (0..count).map(|n| format!("{}/s-{n:03}", namespaces[n * namespaces.len() / count])).collect()
}

struct Silent;

impl Observer for Silent {
    fn begin(&mut self, _total: u64) {}
    fn resource(&mut self, _resource: &Resource, _done: u64) {}
    fn advance(&mut self, _more: u64) {}
    fn note(&mut self, _text: &str) {}
}

fn plan(checkpoint: Option<&Path>) -> Plan {
    let run = Run { cluster: "c".into(), target: "key-2".into() };
    Plan {
        resolved: secrets(true),
        options: Options::default(),
        checkpoint: checkpoint.map(|path| (path.to_owned(), run)),
        stop: Stop::never(),
    }
}

async fn migrate(fake: &Fake, plan: &Plan) -> ResourceOutcome {
    let outcome = run(&fake.client(), plan, &mut Silent).await.unwrap();
    outcome.resources.into_iter().next().unwrap()
}

fn each_rewritten_once(fake: &Fake) {
    let world = fake.lock();
    let wanted = world.objects.keys().map(|key| (key.clone(), 1)).collect();
    assert_eq!(world.rewritten, wanted);
}

#[tokio::test(start_paused = true)]
async fn an_expired_list_goes_on_where_the_server_says() {
    let fake = Fake::with(keys(40));
    let expire = Some(Whim::Expire { with_token: true });
    fake.lock().lists = [None, expire, None, expire].into();
    let done = migrate(&fake, &plan(None)).await;
    assert_eq!((done.counts.objects, done.counts.rewritten), (40, 40));
    each_rewritten_once(&fake);
}

#[tokio::test(start_paused = true)]
async fn an_expired_list_without_a_place_begins_again_behind_the_last_name() {
    let fake = Fake::with(keys(40));
    let expire = Some(Whim::Expire { with_token: false });
    fake.lock().lists = [None, expire, None, None, None, expire].into();
    let done = migrate(&fake, &plan(None)).await;
    assert_eq!((done.counts.objects, done.counts.rewritten), (40, 40));
    each_rewritten_once(&fake);
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_left_alone_for_as_long_as_it_says_and_then_asked_more_gently() {
    let fake = Fake::with(keys(200));
    fake.lock().page = Some(100);
    let mut writes = vec![None; 100];
    writes.push(Some(Whim::Refuse(429, Some(7))));
    fake.lock().writes = writes.into();
    let done = migrate(&fake, &plan(None)).await;
    assert_eq!((done.counts.rewritten, done.counts.failed), (200, 0));
    let world = fake.lock();
    assert!(world.most > 8, "{} at a time", world.most);
    let gaps: Vec<usize> = (1..world.times.len())
        .filter(|&at| world.times[at] - world.times[at - 1] >= Duration::from_secs(7))
        .collect();
    assert_eq!(gaps.len(), 1, "one rest of 7 s");
    // All that come together after the rest are the first ones that may.
    let together = |at: usize| {
        world.times[at..]
            .iter()
            .take_while(|time| **time - world.times[at] < Duration::from_millis(5))
            .count()
    };
    assert!(together(gaps[0]) <= 16 / 2 + 1, "{} at once after the rest", together(gaps[0]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_always_too_busy_is_given_up_and_the_checkpoint_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.json");
    let fake = Fake::with(keys(200));
    let mut writes = vec![None; 150];
    writes.extend([Some(Whim::Refuse(429, Some(1))); 5000]);
    fake.lock().writes = writes.into();
    let error = run(&fake.client(), &plan(Some(&path)), &mut Silent).await.unwrap_err();
    assert!(error.report().contains("too busy"), "{}", error.report());
    fake.lock().writes.clear();
    let done = migrate(&fake, &plan(Some(&path))).await;
    assert_eq!(done.counts.objects, 200, "counts of both runs fit together");
    assert!(fake.lock().rewritten.values().filter(|times| **times > 1).count() < 20);
    assert_eq!(fake.lock().rewritten.len(), 200);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_rate_is_written_in_a_second() {
    let fake = Fake::with(keys(100));
    let mut plan = plan(None);
    plan.options.rate = NonZeroU32::new(10);
    let begun = Instant::now();
    migrate(&fake, &plan).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(9900), "100 objects took {took:?}");
    assert!(took < Duration::from_secs(12), "100 objects took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_patched_is_put_back_as_it_is_in_spite_of_conflicts() {
    let fake = Fake::with(keys(3));
    fake.lock().writes = [Some(Whim::Refuse(409, None)), None, None].into();
    let mut plan = plan(None);
    plan.resolved = secrets(false);
    let done = migrate(&fake, &plan).await;
    assert_eq!((done.counts.rewritten, done.counts.failed), (3, 0));
    let world = fake.lock();
    assert_eq!(world.put.len(), 4, "one of them twice");
    assert!(world.put.iter().all(|put| put.contains("\"data\":\"a")), "{:?}", world.put);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_no_patch_after_all_gets_the_whole_object() {
    let fake = Fake::with(keys(1));
    fake.lock().writes = [Some(Whim::Refuse(415, None))].into();
    let done = migrate(&fake, &plan(None)).await;
    assert_eq!(done.counts.rewritten, 1);
    assert_eq!(fake.lock().put.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_killed_anywhere_and_taken_up_again_leaves_nothing_out() {
    for killed_after in (1..400).step_by(23) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        let fake = Fake::with(keys(300));
        let mut runs = 0;
        let done = loop {
            runs += 1;
            let plan = plan(Some(&path));
            // Time stands for work here: the future is dropped as a process is killed.
            let limit = Duration::from_millis(killed_after * 5 * runs);
            if let Ok(done) = tokio::time::timeout(limit, migrate(&fake, &plan)).await {
                break done;
            }
        };
        assert_eq!(done.state, State::Done);
        assert_eq!(done.counts.objects, 300, "killed after {killed_after}");
        assert_eq!(fake.lock().rewritten.len(), 300, "killed after {killed_after}");
        assert!(!path.exists(), "what is done needs no checkpoint");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.json");
    let fake = Fake::with(keys(300));
    let (stopper, stop) = Stop::pair();
    let first = Plan { stop, ..plan(Some(&path)) };
    let client = fake.client();
    let mut silent = Silent;
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        stopper.stop();
    };
    let (outcome, ()) = tokio::join!(run(&client, &first, &mut silent), stopping);
    let outcome = outcome.unwrap();
    assert!(outcome.interrupted && !outcome.is_complete());
    assert_eq!(outcome.checkpoint.as_deref(), Some(path.as_path()));
    let before = outcome.resources[0].counts.objects;
    assert!(before > 0 && before < 300, "{before}");
    let done = migrate(&fake, &plan(Some(&path))).await;
    assert_eq!(done.counts.objects, 300);
    each_rewritten_once(&fake);
}

#[tokio::test(start_paused = true)]
async fn what_has_failed_is_named_and_tried_again_by_the_next_run_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.json");
    let fake = Fake::with(keys(30));
    let mut writes = vec![None; 20];
    writes.push(Some(Whim::Refuse(422, None)));
    fake.lock().writes = writes.into();
    let done = migrate(&fake, &plan(Some(&path))).await;
    assert_eq!((done.counts.rewritten, done.counts.failed), (29, 1));
    assert_eq!(done.failures.len(), 1);
    assert_eq!(done.failures[0].reason, "refused with 422");
    assert!(!done.is_complete());
    let again = migrate(&fake, &plan(Some(&path))).await;
    assert_eq!((again.counts.rewritten, again.counts.failed), (30, 0));
    assert!(again.is_complete() && again.failures.is_empty());
    each_rewritten_once(&fake);
}

#[tokio::test(start_paused = true)]
async fn a_list_out_of_order_is_begun_anew_rather_than_cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.json");
    let fake = Fake::with(keys(300));
    fake.lock().shuffled = true;
    let killed = Duration::from_secs(1);
    fake.lock().writes = vec![Some(Whim::Refuse(503, Some(1))); 400].into();
    let _ = tokio::time::timeout(killed, migrate(&fake, &plan(Some(&path)))).await;
    fake.lock().writes.clear();
    let done = migrate(&fake, &plan(Some(&path))).await;
    assert_eq!(done.counts.objects, 300);
    assert_eq!(fake.lock().rewritten.len(), 300);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_is_no_failure() {
    let fake = Fake::with(keys(10));
    fake.lock().writes = [Some(Whim::Refuse(404, None))].into();
    let done = migrate(&fake, &plan(None)).await;
    assert_eq!((done.counts.rewritten, done.counts.deleted), (9, 1));
    assert!(done.is_complete());
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_the_server_that_stays_is_the_objects_failure() {
    let fake = Fake::with(keys(1));
    fake.lock().writes = vec![Some(Whim::Refuse(500, None)); 100].into();
    let done = migrate(&fake, &plan(None)).await;
    assert_eq!(done.counts.failed, 1);
    assert_eq!(done.failures[0].object, "a-b/s-000");
    assert_eq!(done.failures[0].reason, "refused with 500");
    assert!(fake.lock().times.len() > 1, "it was tried again");
}
