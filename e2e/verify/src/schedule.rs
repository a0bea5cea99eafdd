//! What runs at the same time: never more than the machine bears.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Poll;

/// What a test takes. The first of these words in its module path says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    /// A few processes.
    Light,
    /// One kube-apiserver with its etcd.
    Plane,
    /// Two of them, with sidecars.
    Planes,
    /// A test executable that runs two tests at once.
    Threads,
    /// A node with a control plane in pods.
    Hosted,
    /// A node with the operator and some control planes that it manages.
    Managed,
    /// Everything.
    Machine,
}

impl Takes {
    /// As the path of a test says it; whoever says nothing gets the machine alone.
    pub(crate) fn of(path: &str) -> Self {
        let known = |word: &str| match word {
            "light" => Some(Self::Light),
            "plane" => Some(Self::Plane),
            "planes" => Some(Self::Planes),
            "hosted" => Some(Self::Hosted),
            "managed" => Some(Self::Managed),
            "machine" => Some(Self::Machine),
            _ => None,
        };
        path.split("::").find_map(known).unwrap_or(Self::Machine)
    }

    /// In units of a control plane; a core bears five, since most of the time they wait.
    fn weight(self, capacity: usize) -> usize {
        let weight = match self {
            Self::Light | Self::Plane => 1,
            Self::Planes | Self::Threads => 2,
            Self::Hosted => 3,
            Self::Managed => 5,
            Self::Machine => capacity,
        };
        weight.min(capacity)
    }
}

/// One thing to run.
pub(crate) struct Job<'a> {
    pub(crate) takes: Takes,
    /// Whether it begins before others that take as much.
    pub(crate) is_long: bool,
    /// Whether what it needs is there; asked again whenever another one has ended.
    pub(crate) may_begin: Box<dyn Fn() -> bool + 'a>,
    pub(crate) work: Pin<Box<dyn Future<Output = ()> + 'a>>,
}

impl std::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("takes", &self.takes).finish_non_exhaustive()
    }
}

/// Runs everything, the heaviest first, what takes the machine last: begun last, a long one
/// would run on alone. What does not fit yet lets lighter ones pass.
pub(crate) async fn run(mut jobs: Vec<Job<'_>>, capacity: usize) {
    jobs.sort_by_key(|job| (job.takes == Takes::Machine, Reverse(job.takes), !job.is_long));
    let waiting = RefCell::new(VecDeque::from(jobs));
    let free = Cell::new(capacity);
    let mut running: Vec<Job<'_>> = Vec::new();
    std::future::poll_fn(|context| {
        loop {
            while let Some(job) = next(&waiting, free.get(), capacity) {
                free.set(free.get() - job.takes.weight(capacity));
                running.push(job);
            }
            let before = running.len();
            running.retain_mut(|job| {
                let pending = job.work.as_mut().poll(context).is_pending();
                if !pending {
                    free.set(free.get() + job.takes.weight(capacity));
                }
                pending
            });
            if running.is_empty() && waiting.borrow().is_empty() {
                return Poll::Ready(());
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// The first that fits. What takes the machine waits until nothing else is left.
fn next<'a>(waiting: &RefCell<VecDeque<Job<'a>>>, free: usize, capacity: usize) -> Option<Job<'a>> {
    let mut waiting = waiting.borrow_mut();
    let fits = |job: &Job<'_>| job.takes.weight(capacity) <= free && (job.may_begin)();
    let index = waiting.iter().position(fits)?;
    waiting.remove(index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_path_says_what_a_test_takes() {
        assert_eq!(Takes::of("planes::rotation::a_test"), Takes::Planes);
        assert_eq!(Takes::of("full::hosted::cluster::two_clusters"), Takes::Hosted);
        assert_eq!(Takes::of("somewhere::a_test"), Takes::Machine);
    }

    fn job<'a>(takes: Takes, work: Pin<Box<dyn Future<Output = ()> + 'a>>) -> Job<'a> {
        Job { takes, is_long: false, may_begin: Box::new(|| true), work }
    }

    /// Runs jobs that each last a moment; tells the highest weight that ran at once, and the
    /// order in which they began.
    fn observe(kinds: &[Takes], capacity: usize) -> (usize, Vec<Takes>) {
        let (load, peak, order) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()));
        let jobs = kinds.iter().map(|takes| {
            let (load, peak, order) = (&load, &peak, &order);
            let takes = *takes;
            let work = Box::pin(async move {
                load.set(load.get() + takes.weight(capacity));
                peak.set(peak.get().max(load.get()));
                order.borrow_mut().push(takes);
                tokio::time::sleep(Duration::from_secs(1)).await;
                load.set(load.get() - takes.weight(capacity));
            });
            job(takes, work)
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let jobs: Vec<Job<'_>> = jobs.collect();
        runtime.block_on(async {
            tokio::time::pause();
            run(jobs, capacity).await;
        });
        (peak.get(), order.into_inner())
    }

    #[test]
    fn never_more_runs_than_fits_and_everything_runs() {
        use Takes::{Hosted, Light, Machine, Managed, Plane, Planes};
        let kinds = [Light, Machine, Plane, Managed, Planes, Hosted, Machine, Planes, Plane];
        for capacity in [1, 2, 6, 12] {
            let (peak, order) = observe(&kinds, capacity);
            assert!(peak <= capacity, "{peak} of {capacity}");
            assert_eq!(order.len(), kinds.len());
            assert_eq!(order[kinds.len() - 2..], [Machine, Machine], "{order:?}");
        }
    }

    #[test]
    fn what_is_prepared_keeps_only_those_waiting_that_need_it() {
        let (ready, order) = (Cell::new(false), RefCell::new(Vec::new()));
        let (ready, order) = (&ready, &order);
        let sleep = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let named = |name: &'static str, takes| {
            let work = Box::pin(async move {
                order.borrow_mut().push(name);
                sleep(1).await;
            });
            job(takes, work)
        };
        let mut needy = named("needy", Takes::Managed);
        needy.may_begin = Box::new(|| ready.get());
        let prepare = Box::pin(async {
            sleep(10).await;
            ready.set(true);
        });
        let jobs = vec![needy, named("other", Takes::Light), job(Takes::Managed, prepare)];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::pause();
            run(jobs, 10).await;
        });
        assert_eq!(*order.borrow(), ["other", "needy"]);
    }

    #[test]
    fn lighter_ones_pass_what_does_not_fit_yet() {
        use Takes::{Hosted, Managed, Plane};
        let (peak, order) = observe(&[Plane, Hosted, Managed, Hosted, Plane], 6);
        assert_eq!(peak, 6);
        assert_eq!(order[..2], [Managed, Plane], "{order:?}");
    }
}
