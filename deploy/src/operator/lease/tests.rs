use std::sync::{Arc, Mutex};

use super::*;

/// A Lease in memory, with versions as the API server has them, that can be cut off.
#[derive(Clone, Default)]
struct Memory {
    lease: Arc<Mutex<Option<Lease>>>,
    cut: Arc<Mutex<Cut>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Cut {
    #[default]
    No,
    Refuses,
    Hangs,
}

impl Memory {
    fn candidate(&self, name: &str) -> Candidate<Self> {
        Candidate::new(self.clone(), name.to_owned(), Term::default())
    }

    /// A view of the same Lease that can be cut off by itself.
    fn apart(&self) -> Self {
        Self { lease: self.lease.clone(), cut: Arc::default() }
    }

    fn cut(&self, cut: Cut) {
        *self.cut.lock().unwrap() = cut;
    }

    fn change(&self, change: impl FnOnce(&mut LeaseSpec)) {
        let mut lease = self.lease.lock().unwrap();
        let lease = lease.as_mut().unwrap();
        change(lease.spec.as_mut().unwrap());
        bump(lease);
    }

    fn holder(&self) -> Option<String> {
        self.lease.lock().unwrap().as_ref()?.spec.as_ref()?.holder_identity.clone()
    }

    async fn way(&self) -> Result<(), Error> {
        let cut = *self.cut.lock().unwrap();
        match cut {
            Cut::No => Ok(()),
            Cut::Refuses => Err(Error::failed("connection refused")),
            Cut::Hangs => std::future::pending().await,
        }
    }
}

fn bump(lease: &mut Lease) {
    let version = lease.metadata.resource_version.as_deref().map_or(0, |v| v.parse().unwrap());
    lease.metadata.resource_version = Some(format!("{}", version + 1_u64));
}

impl Ledger for Memory {
    async fn read(&self) -> Result<Option<Lease>, Error> {
        self.way().await?;
        Ok(self.lease.lock().unwrap().clone())
    }

    async fn write(&self, lease: &Lease) -> Result<Option<Lease>, Error> {
        self.way().await?;
        let mut kept = self.lease.lock().unwrap();
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if kept.as_ref().and_then(version) != version(lease) {
            return Ok(None);
        }
        let mut lease = lease.clone();
        bump(&mut lease);
        *kept = Some(lease.clone());
        Ok(Some(lease))
    }
}

const DURATION: Duration = Duration::from_secs(15);

#[tokio::test(start_paused = true)]
async fn while_one_renews_no_other_leads() {
    let memory = Memory::default();
    let (mut first, mut second) = (memory.candidate("first"), memory.candidate("second"));
    let since = first.acquire().await;
    let hour = Duration::from_secs(3600);
    tokio::select! {
        error = first.keep(since) => panic!("{}", error.report()),
        _ = second.acquire() => panic!("two lead"),
        () = sleep(hour) => {}
    }
    assert_eq!(memory.holder().as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn of_a_dead_one_the_lease_is_taken_after_its_time_by_the_own_clock() {
    // Whatever the clocks of others say.
    for renewed in ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"] {
        let memory = Memory::default();
        memory.candidate("first").acquire().await;
        memory.change(|spec| spec.renew_time = Some(MicroTime(renewed.parse().unwrap())));
        let begun = Instant::now();
        memory.candidate("second").acquire().await;
        let waited = begun.elapsed();
        assert!(waited >= DURATION, "{waited:?}");
        assert!(waited < DURATION + Duration::from_secs(3), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_promise_of_who_holds_it_counts_and_not_the_own() {
    let memory = Memory::default();
    memory.candidate("first").acquire().await;
    memory.change(|spec| spec.lease_duration_seconds = Some(60));
    let begun = Instant::now();
    memory.candidate("second").acquire().await;
    assert!(begun.elapsed() >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_gives_up_before_another_can_lead() {
    for cut in [Cut::Refuses, Cut::Hangs] {
        let memory = Memory::default();
        let mut first = memory.candidate("first");
        let since = first.acquire().await;
        let mut second = memory.apart().candidate("second");
        memory.cut(cut);
        let (lost, taken) = tokio::join!(
            async {
                let error = first.keep(since).await;
                assert!(error.report().contains("lost the lease"), "{}", error.report());
                Instant::now()
            },
            second.acquire(),
        );
        let between = taken.duration_since(lost);
        assert!(between >= DURATION / 4, "only {between:?} between the two");
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_cut_is_survived() {
    let memory = Memory::default();
    let mut first = memory.candidate("first");
    let since = first.acquire().await;
    let trouble = async {
        for _ in 0..20 {
            memory.cut(Cut::Refuses);
            sleep(Duration::from_secs(5)).await;
            memory.cut(Cut::No);
            sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        error = first.keep(since) => panic!("{}", error.report()),
        () = trouble => {}
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_another_name_in_it_gives_up_at_once() {
    let memory = Memory::default();
    let mut first = memory.candidate("first");
    let since = first.acquire().await;
    memory.change(|spec| spec.holder_identity = Some("second".into()));
    let error = first.keep(since).await;
    assert!(error.report().contains("second has it"), "{}", error.report());
    assert!(since.elapsed() <= Term::default().retry() * 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_released_is_taken_at_the_next_attempt() {
    let memory = Memory::default();
    let (mut first, mut second) = (memory.candidate("first"), memory.candidate("second"));
    first.acquire().await;
    let begun = Instant::now();
    tokio::join!(second.acquire(), async {
        sleep(Duration::from_secs(1)).await;
        first.release().await.unwrap();
    });
    assert!(begun.elapsed() <= Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(memory.holder().as_deref(), Some("second"));
}

#[tokio::test(start_paused = true)]
async fn nobody_releases_what_is_not_its_own() {
    let memory = Memory::default();
    let mut first = memory.candidate("first");
    first.acquire().await;
    memory.change(|spec| spec.holder_identity = Some("second".into()));
    first.release().await.unwrap();
    assert_eq!(memory.holder().as_deref(), Some("second"));
}

#[tokio::test(start_paused = true)]
async fn of_many_that_race_one_leads() {
    let memory = Memory::default();
    let mut racing = tokio::task::JoinSet::new();
    for name in 0..16 {
        let mut candidate = memory.candidate(&format!("c{name}"));
        racing.spawn(async move {
            let since = candidate.acquire().await;
            candidate.keep(since).await
        });
    }
    let won = tokio::time::timeout(Duration::from_secs(600), racing.join_next()).await;
    assert!(won.is_err(), "whoever leads keeps on: {won:?}");
    let transitions = memory.lease.lock().unwrap().as_ref().unwrap().spec.clone().unwrap();
    assert_eq!(transitions.lease_transitions, Some(0));
}
