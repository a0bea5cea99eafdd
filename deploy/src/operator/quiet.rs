//! What is remembered of objects where nothing is to be done, so that the next look is a cheap one.
//!
//! A whole pass reads everything that it decides on, which is some twenty requests. Where one has
//! ended with nothing to do, the next polls only ask whether anything that it stood on is another
//! one since: by the versions of objects, metadata alone, in as few requests as possible. Whatever
//! is different, whatever cannot be told and whatever has not been looked at as a whole for some
//! minutes has a whole pass.
//!
//! **Nothing is ever done from memory.** What is remembered decides only whether a whole pass is
//! needed; every step, and above all each that lets something go, stands on what the pass that
//! takes it has read itself.
//!
//! **Nothing is missed in between.** Versions are noted *before* a pass reads what it decides on,
//! or with that very read. So a change during the pass differs from what was noted, also if the
//! pass has not seen it. [`Memory::begin`] takes out what is known, and [`Memory::keep`] is
//! without effect if [`Memory::forget`] came in between.
//!
//! It is all lost with the process, and then everybody has a whole pass.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidekey_core::{hex, sha256};
use tokio::time::Instant;

use super::{fronts, reconcile};

/// Everybody has a whole pass so often, and at most twice as often, whatever the cheap looks say.
const WHOLE: Duration = Duration::from_secs(600);

/// What is remembered of everybody; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Quiet {
    /// Of control planes, by `namespace/name` of their SecretEncryption.
    pub(super) planes: Memory<reconcile::Stood>,
    /// Of foreign objects, as they are called in messages.
    pub(super) fronts: Memory<fronts::Stood>,
    /// What was said of foreign objects in the log.
    pub(super) told: Memory<String>,
    /// Namespaces in which a NetworkPolicy of ours stands.
    policies: Arc<Mutex<HashSet<String>>>,
}

/// What is remembered, by name. What belongs to something that is gone goes by itself.
#[derive(Debug)]
pub(super) struct Memory<T> {
    state: Arc<Mutex<State<T>>>,
}

#[derive(Debug)]
struct State<T> {
    known: HashMap<String, Slot<T>>,
    /// When what is out of date is thrown away next.
    tidy: Option<Instant>,
}

#[derive(Debug)]
enum Slot<T> {
    /// A pass is under way, since then.
    Begun(Instant),
    /// Nothing was to be done, until then.
    Known(T, Instant),
}

impl Quiet {
    /// Whether a NetworkPolicy of ours stands in a namespace, as far as is known.
    pub(super) fn has_policy(&self, namespace: &str) -> bool {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    /// Notes whether one does.
    pub(super) fn set_policy(&self, namespace: &str, stands: bool) {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        match stands {
            true => drop(policies.insert(namespace.to_owned())),
            false => drop(policies.remove(namespace)),
        }
    }

    /// What the translation of a foreign object has become has changed.
    pub(super) fn forget_front(&self, title: &str) {
        self.fronts.forget(title);
    }

    /// The same where nobody knows of whom.
    pub(super) fn forget_fronts(&self) {
        self.fronts.state().known.clear();
    }
}

impl<T> Clone for Memory<T> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { state: Arc::new(Mutex::new(State { known: HashMap::new(), tidy: None })) }
    }
}

impl<T> Memory<T> {
    /// A pass begins: takes out what is known, with the time until when that holds.
    pub(super) fn begin(&self, name: &str) -> Option<(T, Instant)> {
        let now = Instant::now();
        let before = self.state().known.insert(name.to_owned(), Slot::Begun(now));
        match before {
            Some(Slot::Known(known, until)) if until > now => Some((known, until)),
            _ => None,
        }
    }

    /// The pass has found nothing to do. It is not kept if it was [forgotten](Self::forget)
    /// since the pass began. Without a time it is a whole pass that has ended just now.
    pub(super) fn keep(&self, name: &str, known: T, until: Option<Instant>) {
        let now = Instant::now();
        let mut state = self.state();
        if let Some(slot @ Slot::Begun(_)) = state.known.get_mut(name) {
            *slot = Slot::Known(known, until.unwrap_or_else(|| now + spread(WHOLE)));
        }
        if state.tidy.is_none_or(|tidy| tidy <= now) {
            state.tidy = Some(now + WHOLE);
            state.known.retain(|_, slot| match slot {
                Slot::Begun(since) => *since + WHOLE > now,
                Slot::Known(_, until) => *until > now,
            });
        }
    }

    /// What is known does not hold any more, nor what a pass under way may find.
    pub(super) fn forget(&self, name: &str) {
        self.state().known.remove(name);
    }

    /// Every critical section leaves the value whole.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory<String> {
    /// Whether this was not the last that was said of it; from now on it is.
    pub(super) fn is_news(&self, name: &str, text: &str) -> bool {
        let digest = hex(&sha256(text.as_bytes()));
        let known = self.begin(name).is_some_and(|(known, _)| known == digest);
        self.keep(name, digest, None);
        !known
    }
}

/// Somewhere between the half and the whole of it: who began together does not stay so.
fn spread(whole: Duration) -> Duration {
    // The hasher's keys are random.
    let parts = u32::try_from(RandomState::new().build_hasher().finish() % 1001);
    whole / 2 + whole / 2 * parts.unwrap_or_default() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(memory: &Memory<u8>, name: &str) -> Option<u8> {
        memory.begin(name).map(|(known, _)| known)
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_given_once_and_holds_until_a_whole_pass_is_due() {
        let memory = Memory::default();
        assert_eq!(known(&memory, "a"), None);
        memory.keep("a", 1, None);
        let (one, until) = memory.begin("a").unwrap();
        assert_eq!(one, 1);
        assert_eq!(known(&memory, "a"), None, "whoever took it has not put it back");
        memory.keep("a", 2, Some(until));
        tokio::time::advance(WHOLE / 2 - Duration::from_secs(1)).await;
        let (two, same) = memory.begin("a").unwrap();
        assert_eq!((two, same), (2, until), "cheap looks do not put the whole pass off");
        memory.keep("a", 2, Some(same));
        tokio::time::advance(WHOLE / 2 + Duration::from_secs(1)).await;
        assert_eq!(known(&memory, "a"), None, "a whole pass is due");
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_during_a_pass_is_not_kept() {
        let memory = Memory::default();
        memory.begin("a");
        memory.forget("a");
        memory.keep("a", 1, None);
        assert_eq!(known(&memory, "a"), None);
        memory.keep("a", 2, None);
        memory.forget("a");
        assert_eq!(known(&memory, "a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_is_not_remembered_for_long() {
        let memory = Memory::default();
        for name in ["a", "b", "c"] {
            memory.begin(name);
            memory.keep(name, 1, None);
        }
        memory.begin("never kept");
        tokio::time::advance(WHOLE * 2).await;
        memory.begin("d");
        memory.keep("d", 1, None);
        assert_eq!(memory.state().known.len(), 1, "of those that no pass came to, too");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_once_and_something_else_at_once() {
        let told = Memory::default();
        assert!(told.is_news("a", "no namespace"));
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_secs(60)).await;
            assert!(!told.is_news("a", "no namespace"));
        }
        assert!(told.is_news("a", "no Secret") && told.is_news("b", "no Secret"));
        assert!(told.is_news("a", "no namespace"));
        told.forget("a");
        assert!(told.is_news("a", "no namespace"));
    }

    #[test]
    fn whole_passes_are_spread_out() {
        let all: Vec<Duration> = (0..200).map(|_| spread(WHOLE)).collect();
        assert!(all.iter().all(|one| *one >= WHOLE / 2 && *one <= WHOLE));
        let early = all.iter().filter(|one| **one < WHOLE * 3 / 4).count();
        assert!((20..180).contains(&early), "{early}");
    }
}
