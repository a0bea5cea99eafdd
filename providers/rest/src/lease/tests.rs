use std::sync::atomic::AtomicUsize;

use sidekey_core::sha256;

use super::*;

/// Gives numbers that live so long, or fails; takes its time.
struct Numbers {
    calls: AtomicUsize,
    revoked: AtomicUsize,
    renewed: AtomicUsize,
    life: Mutex<Option<Duration>>,
    fails: Mutex<Option<Kind>>,
    takes: Duration,
}

impl Source for Arc<Numbers> {
    type Item = usize;

    async fn fetch(
        &self,
        held: Option<Arc<Held<usize>>>,
        _: Instant,
    ) -> Result<Grant<usize>, Error> {
        let item = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        self.renewed.fetch_add(usize::from(held.is_some()), Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        match *self.fails.lock().unwrap() {
            Some(kind) => Err(Error::new(kind, "no").with_hint("mend it").lasting()),
            None => Ok(Grant { item, life: *self.life.lock().unwrap() }),
        }
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
        life: Mutex::new(life.map(Duration::from_secs)),
        fails: Mutex::default(),
        takes: Duration::from_millis(10),
    })
}

impl Numbers {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn fail(&self, kind: Option<Kind>) {
        *self.fails.lock().unwrap() = kind;
    }
}

fn lease(source: &Arc<Numbers>, credential: &str) -> Lease<Arc<Numbers>> {
    Lease::new(source.clone(), sha256(credential.as_bytes()), LOCKOUT)
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
    assert_eq!(source.renewed.load(Ordering::SeqCst), 1, "the one in use was shown");
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
    source.fail(Some(Kind::Denied));
    let began = Instant::now();
    while began.elapsed() < LOCKOUT - Duration::from_secs(5) {
        // Settings change, and with them the lease.
        let error = get(&lease(&source, "wrong")).await.unwrap_err();
        assert!(error.kind() == Kind::Denied && error.is_lasting());
        assert!(error.hint().unwrap().starts_with("mend it"), "{}", error.report());
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(source.calls(), 1);
    source.fail(None);
    assert!(get(&lease(&source, "right")).await.is_ok(), "another one is tried at once");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(get(&lease(&source, "wrong")).await.is_ok(), "and so is this one in the end");
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_leaves_the_valid_item_in_use_and_is_not_repeated() {
    let source = numbers(Some(1200));
    let lease = lease(&source, "refused-renewal");
    get(&lease).await.unwrap();
    source.fail(Some(Kind::Denied));
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
