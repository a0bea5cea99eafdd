use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sidekey_core::sha256;

use super::*;

/// Gives numbers that live so long, or fails; takes its time. What it has given it renews, if it is
/// told to, for as long as it gives new ones for.
struct Numbers {
    calls: AtomicUsize,
    revoked: AtomicUsize,
    renewed: AtomicUsize,
    renews: AtomicBool,
    life: Mutex<Option<Duration>>,
    fails: Mutex<Option<(Kind, bool)>>,
    takes: Duration,
}

impl Source for Arc<Numbers> {
    type Item = usize;

    async fn fetch(&self, _: Instant) -> Result<Grant<usize>, Error> {
        let item = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(self.takes).await;
        match *self.fails.lock().unwrap() {
            Some((kind, locks)) => {
                let error = Error::new(kind, "no").with_hint("mend it").lasting();
                Err(if locks { error.without_retry() } else { error })
            }
            None => Ok(Grant { item, life: *self.life.lock().unwrap() }),
        }
    }

    async fn renew(&self, held: &Held<usize>, _: Instant) -> Result<Option<Grant<usize>>, Error> {
        self.renewed.fetch_add(1, Ordering::SeqCst);
        let grant = Grant { item: held.item, life: *self.life.lock().unwrap() };
        Ok(self.renews.load(Ordering::SeqCst).then_some(grant))
    }

    async fn revoke(&self, _: &usize) {
        self.revoked.fetch_add(1, Ordering::SeqCst);
    }
}

fn numbers(life: Option<u64>) -> Arc<Numbers> {
    Arc::new(Numbers {
        calls: AtomicUsize::new(0),
        revoked: AtomicUsize::new(0),
        renewed: AtomicUsize::new(0),
        renews: AtomicBool::new(false),
        life: Mutex::new(life.map(Duration::from_secs)),
        fails: Mutex::default(),
        takes: Duration::from_millis(10),
    })
}

impl Numbers {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn renewed(&self) -> usize {
        self.renewed.load(Ordering::SeqCst)
    }

    fn live(&self, seconds: Option<u64>) {
        *self.life.lock().unwrap() = seconds.map(Duration::from_secs);
    }

    fn fail(&self, kind: Option<Kind>) {
        *self.fails.lock().unwrap() = kind.map(|kind| (kind, false));
    }

    /// Refuses in a way that locks an account in the end.
    fn refuse_and_count(&self) {
        *self.fails.lock().unwrap() = Some((Kind::Denied, true));
    }
}

/// After a refusal that locks nothing.
const PAUSE: Duration = Duration::from_secs(60);

fn lease(source: &Arc<Numbers>, credential: &str) -> Lease<Arc<Numbers>> {
    Lease::new(source.clone(), sha256(credential.as_bytes()), PAUSE)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(3)
}

async fn get(lease: &Lease<Arc<Numbers>>) -> Result<usize, Error> {
    lease.get(soon()).await.map(|held| held.item)
}

#[tokio::test(start_paused = true)]
async fn callers_at_the_same_time_share_one_call() {
    let source = numbers(None);
    let lease = lease(&source, "shared");
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let lease = lease.clone();
            tokio::spawn(async move { get(&lease).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 1);
    }
    assert_eq!(source.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_item_is_renewed_in_the_background_before_it_ends() {
    let source = numbers(Some(3600));
    let lease = lease(&source, "background");
    assert_eq!(get(&lease).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(2100)).await;
    assert_eq!(source.calls(), 1, "not before half of its life");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(source.calls(), 2, "nobody had to ask for it");
    assert_eq!(source.renewed(), 1, "the one in use was shown");
    assert_eq!(get(&lease).await.unwrap(), 2);
    let left = lease.expiry().unwrap().duration_since(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(3500), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn while_renewing_fails_the_last_good_one_serves_until_it_ends_and_then_the_reason_is_told() {
    let source = numbers(Some(3600));
    let lease = lease(&source, "last-good");
    get(&lease).await.unwrap();
    source.fail(Some(Kind::Unavailable));
    tokio::time::sleep(Duration::from_secs(3590)).await;
    assert!(source.calls() > 2, "it was tried");
    assert!(source.calls() < 400, "{} times, with pauses", source.calls());
    assert_eq!(get(&lease).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(get(&lease).await.unwrap_err().kind(), Kind::Unavailable);
    source.fail(None);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(get(&lease).await.is_ok(), "it heals by itself");
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_is_not_stormed_while_nothing_is_held() {
    let source = numbers(None);
    source.fail(Some(Kind::Unavailable));
    let lease = lease(&source, "storm");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        assert_eq!(get(&lease).await.unwrap_err().kind(), Kind::Unavailable);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(source.calls() < 30, "{} calls in a minute", source.calls());
}

#[tokio::test(start_paused = true)]
async fn a_refused_credential_is_sent_once_and_then_not_for_a_long_time_by_any_lease() {
    let source = numbers(None);
    source.refuse_and_count();
    let began = Instant::now();
    while began.elapsed() < LOCKOUT - Duration::from_secs(5) {
        // Settings change, and with them the lease.
        let error = get(&lease(&source, "wrong")).await.unwrap_err();
        assert!(error.kind() == Kind::Denied && error.is_lasting());
        let hint = error.hint().unwrap();
        assert!(hint == "mend it" || hint.starts_with("mend it; tried again in "), "{hint}");
        assert!(hint == "mend it" || hint.contains("so that nothing is locked"), "{hint}");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(source.calls(), 1);
    source.fail(None);
    assert!(get(&lease(&source, "right")).await.is_ok(), "another one is tried at once");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(get(&lease(&source, "wrong")).await.is_ok(), "and so is this one in the end");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_locks_nothing_is_tried_again_after_the_sources_own_pause() {
    let source = numbers(None);
    source.fail(Some(Kind::Denied));
    let lease = lease(&source, "harmless");
    get(&lease).await.unwrap_err();
    let began = Instant::now();
    while began.elapsed() < PAUSE - Duration::from_secs(5) {
        let error = get(&lease).await.unwrap_err();
        assert!(!error.report().contains("locked"), "{}", error.report());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(source.calls(), 1);
    source.fail(None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(get(&lease).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_item_that_works_is_renewed_while_its_credential_is_refused() {
    let source = numbers(Some(300));
    source.renews.store(true, Ordering::SeqCst);
    let lease = lease(&source, "good-item");
    let used = lease.get(soon()).await.unwrap();
    source.refuse_and_count();
    assert_eq!(lease.replace(&used, soon()).await.err().unwrap().kind(), Kind::Denied);
    tokio::time::sleep(LOCKOUT - Duration::from_secs(60)).await;
    assert_eq!(get(&lease).await.unwrap(), 1, "it lives on");
    assert!(source.renewed() > 2, "{} times", source.renewed());
    assert_eq!(source.calls(), 2, "a renewal does not show that the credential is good again");
    assert_eq!(lease.replace(&used, soon()).await.err().map(|error| error.kind()), None);
    let held = lease.held().unwrap();
    assert_eq!(lease.replace(&held, soon()).await.err().unwrap().kind(), Kind::Denied);
    assert_eq!(source.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_cut_short_counts_though_no_new_item_can_be_had() {
    let source = numbers(Some(3600));
    source.renews.store(true, Ordering::SeqCst);
    let lease = lease(&source, "cut-short");
    get(&lease).await.unwrap();
    source.live(Some(1500));
    source.fail(Some(Kind::Unavailable));
    tokio::time::sleep(Duration::from_secs(3700)).await;
    assert!(source.calls() > 1, "a new one was asked for");
    assert_eq!(get(&lease).await.unwrap(), 1, "the old one has become older than it was to be");
    source.fail(None);
    tokio::time::sleep(Duration::from_secs(1500)).await;
    assert!(get(&lease).await.unwrap() > 1);
    tokio::time::sleep(GRACE).await;
    assert_eq!(source.revoked.load(Ordering::SeqCst), 1, "what was replaced is given back");
}

#[tokio::test(start_paused = true)]
async fn each_item_is_renewed_in_its_own_time_whatever_the_one_before_it_was() {
    let source = numbers(Some(30 * 86_400));
    let lease = lease(&source, "own-time");
    let mut used = lease.get(soon()).await.unwrap();
    for (count, life) in [(2, Some(60)), (4, None), (5, Some(60))] {
        source.live(life);
        used = lease.replace(&used, soon()).await.unwrap();
        assert_eq!(source.calls(), count);
        tokio::time::sleep(Duration::from_secs(50)).await;
        let renewed = usize::from(life.is_some());
        assert_eq!(source.calls(), count + renewed, "a life of {life:?} s");
        used = lease.held().unwrap_or(used);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_leaves_the_valid_item_in_use_and_is_not_repeated() {
    let source = numbers(Some(1200));
    let lease = lease(&source, "refused-renewal");
    get(&lease).await.unwrap();
    source.refuse_and_count();
    tokio::time::sleep(Duration::from_secs(1190)).await;
    assert_eq!(source.calls(), 2, "once to get it, once to renew it");
    assert_eq!(get(&lease).await.unwrap(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(get(&lease).await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_the_kms_refuses_is_replaced_once_for_all_who_used_it() {
    let source = numbers(None);
    let lease = lease(&source, "replaced");
    let used = lease.get(soon()).await.unwrap();
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let (lease, used) = (lease.clone(), used.clone());
            tokio::spawn(async move { lease.replace(&used, soon()).await.map(|held| held.item) })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 2);
    }
    assert_eq!(source.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dead_item_is_never_given_again_though_there_is_no_other() {
    let source = numbers(None);
    let lease = lease(&source, "discarded");
    let used = lease.get(soon()).await.unwrap();
    source.fail(Some(Kind::Denied));
    lease.discard(&used);
    for _ in 0..5 {
        let error = get(&lease).await.unwrap_err();
        assert!(error.kind() == Kind::Denied && error.is_lasting(), "{}", error.report());
    }
    assert_eq!(source.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_has_no_time_left_does_not_break_off_the_call_of_the_others() {
    let mut source = numbers(None);
    Arc::get_mut(&mut source).unwrap().takes = Duration::from_secs(2);
    let lease = lease(&source, "patience");
    let early = lease.get(Instant::now() + Duration::from_secs(1)).await;
    assert_eq!(early.err().unwrap().kind(), Kind::Timeout);
    assert_eq!(get(&lease).await.unwrap(), 1);
    assert_eq!(source.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_item_is_given_back_once_at_the_end() {
    let source = numbers(Some(3600));
    let held = lease(&source, "closed");
    get(&held).await.unwrap();
    held.close().await;
    held.clone().close().await;
    drop(held);
    tokio::time::sleep(GRACE * 2).await;
    assert_eq!(source.revoked.load(Ordering::SeqCst), 1);
    let dropped = lease(&source, "dropped");
    get(&dropped).await.unwrap();
    drop(dropped);
    tokio::time::sleep(GRACE * 2).await;
    assert_eq!(source.revoked.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn no_refusal_is_forgotten_before_its_time_however_many_there_are() {
    let mut refusals = Refusals(Vec::new());
    let credential = |number: usize| sidekey_core::sha256(&number.to_be_bytes());
    let refusal = Error::new(Kind::Denied, "no such role").without_retry();
    for number in 0..MAX_REFUSED {
        assert!(refusals.of(&credential(number)).is_none(), "it is tried");
        refusals.keep(credential(number), LOCKOUT, &refusal);
    }
    let kinds = |refusals: &Refusals| {
        [0, MAX_REFUSED].map(|number| refusals.of(&credential(number)).map(|error| error.kind()))
    };
    assert_eq!(kinds(&refusals), [Some(Kind::Denied), Some(Kind::Unavailable)]);
    refusals.forget(&credential(1));
    assert_eq!(kinds(&refusals), [Some(Kind::Denied), None], "there is room for it");
    tokio::time::sleep(LOCKOUT).await;
    assert_eq!(kinds(&refusals), [None, None]);
    for number in [1, MAX_REFUSED] {
        refusals.keep(credential(number), LOCKOUT, &refusal);
    }
    assert_eq!(refusals.0.len(), 2, "those whose time is over have made room");
}

#[tokio::test(start_paused = true)]
async fn a_login_that_is_under_way_when_the_process_ends_is_given_back_too() {
    let source = numbers(Some(3600));
    let lease = lease(&source, "ends-meanwhile");
    let waiting = lease.clone();
    let waiting = tokio::spawn(async move { get(&waiting).await });
    while source.calls() == 0 {
        tokio::task::yield_now().await;
    }
    lease.close().await;
    assert_eq!(source.revoked.load(Ordering::SeqCst), 1);
    assert_eq!(waiting.await.unwrap().unwrap(), 1, "who waited for it is told so");
    assert!(lease.held().is_none());
}
