//! Which object is looked at next, and when.
//!
//! An object has one place in it: whoever asks for it many times gets one pass, and never two at
//! once. What fails is tried again, later each time; what somebody has changed is tried at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause: what heals is noticed within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Objects by the time of their next pass.
#[derive(Debug)]
pub(super) struct Queue<K> {
    entries: HashMap<K, Entry>,
    /// When who is due; the number keeps the order of those that are due at one time.
    timers: BTreeMap<(Instant, u64), K>,
    ready: VecDeque<K>,
    counter: u64,
}

#[derive(Debug, Default)]
struct Entry {
    failures: u32,
    place: Place,
    /// It was asked for while it was being looked at.
    again: bool,
    /// It is to be forgotten once nobody looks at it.
    gone: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Nowhere,
    Timer((Instant, u64)),
    Ready,
    Running,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    pub(super) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            timers: BTreeMap::new(),
            ready: VecDeque::new(),
            counter: 0,
        }
    }

    /// It is to be looked at now: right after the pass that runs, if one does.
    pub(super) fn now(&mut self, key: K) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.gone = false;
        match entry.place {
            Place::Running => entry.again = true,
            Place::Ready => {}
            Place::Timer(at) => {
                self.timers.remove(&at);
                entry.place = Place::Ready;
                self.ready.push_back(key);
            }
            Place::Nowhere => {
                entry.place = Place::Ready;
                self.ready.push_back(key);
            }
        }
    }

    /// It is gone.
    pub(super) fn forget(&mut self, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        match entry.place {
            Place::Running => entry.gone = true,
            Place::Timer(at) => {
                self.timers.remove(&at);
                self.entries.remove(key);
            }
            Place::Ready => {
                self.ready.retain(|other| other != key);
                self.entries.remove(key);
            }
            Place::Nowhere => drop(self.entries.remove(key)),
        }
    }

    /// Moves those whose time has come to those that wait for their turn; gives when the next
    /// one's time comes.
    pub(super) fn wake(&mut self, now: Instant) -> Option<Instant> {
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > now {
                return Some(first.key().0);
            }
            let key = first.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.place = Place::Ready;
                self.ready.push_back(key);
            }
        }
        None
    }

    /// How many wait for their turn.
    pub(super) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Whoever's turn it is. It is not given again until it is [`done`](Self::done).
    pub(super) fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.place, entry.again) = (Place::Running, false);
        }
        Some(key)
    }

    /// Its pass is over: it asks for the next one, or it has failed. Gives the pause until then.
    pub(super) fn done(&mut self, key: &K, next: Option<Duration>, now: Instant) -> Duration {
        let Some(entry) = self.entries.get_mut(key) else { return Duration::ZERO };
        if entry.gone {
            self.entries.remove(key);
            return Duration::ZERO;
        }
        let pause = match next {
            Some(pause) => {
                entry.failures = 0;
                sidekey_core::jitter(pause)
            }
            None => {
                entry.failures += 1;
                backoff(entry.failures)
            }
        };
        if std::mem::take(&mut entry.again) {
            entry.place = Place::Ready;
            self.ready.push_back(key.clone());
            return Duration::ZERO;
        }
        self.counter += 1;
        let at = (now + pause, self.counter);
        entry.place = Place::Timer(at);
        self.timers.insert(at, key.clone());
        pause
    }
}

/// The pause after so many failures in a row, in the mean.
fn backoff(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    sidekey_core::jitter(FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(30);

    fn queue(keys: &[u32]) -> Queue<u32> {
        let mut queue = Queue::new();
        keys.iter().for_each(|key| queue.now(*key));
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_asked_for_many_times_has_one_turn_and_turns_come_in_order() {
        let mut queue = queue(&[1, 2, 1, 1, 3, 2]);
        let order: Vec<u32> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(order, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_has_two_turns_at_once_and_a_change_meanwhile_is_not_lost() {
        let mut queue = queue(&[1]);
        assert_eq!(queue.take(), Some(1));
        queue.now(1);
        assert_eq!(queue.take(), None, "it is being looked at");
        queue.done(&1, Some(POLL), Instant::now());
        assert_eq!(queue.take(), Some(1), "it has changed since");
        queue.done(&1, Some(POLL), Instant::now());
        assert_eq!(queue.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_comes_again_after_the_time_it_asks_for() {
        let mut queue = queue(&[1]);
        let begun = Instant::now();
        queue.take();
        let pause = queue.done(&1, Some(POLL), begun);
        assert!(pause >= POLL * 9 / 10 && pause <= POLL * 11 / 10, "{pause:?}");
        assert_eq!(queue.wake(begun + pause - Duration::from_millis(1)), Some(begun + pause));
        assert_eq!(queue.take(), None);
        assert_eq!(queue.wake(begun + pause), None);
        assert_eq!(queue.take(), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_double_the_pause_up_to_a_limit_and_success_begins_anew() {
        let mut queue = queue(&[1]);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            assert_eq!(queue.take(), Some(1));
            let pause = queue.done(&1, None, Instant::now());
            pauses.push(pause);
            queue.wake(Instant::now() + pause);
        }
        for (index, pause) in pauses.iter().enumerate() {
            let mean = FIRST_PAUSE.saturating_mul(1 << index.min(16)).min(LONGEST_PAUSE);
            assert!(*pause >= mean * 9 / 10 && *pause <= mean * 11 / 10, "{index}: {pause:?}");
        }
        queue.take();
        let pause = queue.done(&1, Some(POLL), Instant::now());
        queue.wake(Instant::now() + pause);
        queue.take();
        assert!(queue.done(&1, None, Instant::now()) <= FIRST_PAUSE * 11 / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_does_not_wait_for_a_pause_to_end() {
        let mut queue = queue(&[1]);
        queue.take();
        queue.done(&1, None, Instant::now());
        assert_eq!(queue.take(), None);
        queue.now(1);
        assert_eq!(queue.take(), Some(1));
        queue.done(&1, Some(POLL), Instant::now());
        assert_eq!(queue.timers.len(), 1, "the place before is given up");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_leaves_nothing_behind() {
        let mut queue = queue(&[1, 2, 3]);
        queue.take();
        queue.take();
        queue.done(&1, Some(POLL), Instant::now());
        for key in [1, 2, 3] {
            queue.forget(&key);
        }
        queue.done(&2, Some(POLL), Instant::now());
        assert!(queue.entries.is_empty() && queue.timers.is_empty() && queue.ready.is_empty());
        assert_eq!(queue.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_made_anew_during_its_last_pass_is_looked_at_again() {
        let mut queue = queue(&[1]);
        queue.take();
        queue.forget(&1);
        queue.now(1);
        queue.done(&1, Some(POLL), Instant::now());
        assert_eq!(queue.take(), Some(1));
    }
}
