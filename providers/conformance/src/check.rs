//! What a check is, and the list of all of them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::Serialize;

use crate::checks::{
    abuse, decrypt, encrypt, hostile, mutate, restart, rotation, socket, status, wire,
};
use crate::trial::{Stop, Trial};

/// One promise of a KMS v2 plugin and the code that judges it.
#[derive(Serialize)]
pub struct Check {
    /// The stable name, `group.promise`.
    pub id: &'static str,
    /// What a conforming plugin does, in one line.
    pub promise: &'static str,
    /// What happens to kube-apiserver or its data where the promise is broken.
    pub why: &'static str,
    /// The hooks without which the promise cannot be judged.
    pub needs: &'static [Need],
    /// Judges: the detail of a success, or why not.
    #[serde(skip)]
    #[allow(clippy::type_complexity, reason = "the one place that spells it")]
    pub(crate) judge:
        for<'a> fn(&'a Trial) -> Pin<Box<dyn Future<Output = Result<String, Stop>> + Send + 'a>>,
}

/// A hook of [`Plugin`](crate::Plugin) that a check cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// Kill -9 and start again.
    Restart,
    /// Make the KMS rotate its key.
    Rotate,
    /// Count the calls to the backend.
    BackendCalls,
}

/// All checks, in the order in which they run: harmless first, restart and rotation last.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [
        status::CHECKS,
        encrypt::CHECKS,
        decrypt::CHECKS,
        mutate::CHECKS,
        hostile::CHECKS,
        wire::CHECKS,
        abuse::CHECKS,
        socket::CHECKS,
        restart::CHECKS,
        rotation::CHECKS,
    ]
    .into_iter()
    .flatten()
}

impl Check {
    /// The part of the id before the dot; selects a whole group.
    pub fn group(&self) -> &'static str {
        self.id.split_once('.').map_or(self.id, |(group, _)| group)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Check").field(&self.id).finish()
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restart => "a restart hook (--restart-cmd)",
            Self::Rotate => "a rotate hook (--rotate-cmd)",
            Self::BackendCalls => "a backend call counter (--backend-calls-cmd)",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_of_the_form_group_dot_promise() {
        let mut seen = BTreeSet::new();
        for check in checks() {
            let plain = |part: &str| {
                !part.is_empty() && part.bytes().all(|b| b == b'-' || b.is_ascii_lowercase())
            };
            let (group, promise) = check.id.split_once('.').unwrap();
            assert!(plain(group) && plain(promise), "{} is not group.promise", check.id);
            assert!(seen.insert(check.id), "{} is there twice", check.id);
        }
    }

    #[test]
    fn every_check_says_what_and_why() {
        for check in checks() {
            assert!((10..=75).contains(&check.promise.len()), "{}: {}", check.id, check.promise);
            assert!(check.why.len() >= 40 && check.why.ends_with('.'), "{}", check.id);
            assert!(!check.promise.contains('|') && !check.why.contains('|'), "{}", check.id);
        }
    }
}
