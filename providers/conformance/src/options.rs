//! How strictly, how patiently and what to judge.

use std::time::Duration;

use crate::check::{Check, checks};

/// How a run goes about it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which checks to run.
    pub selection: Selection,
    /// How long one call may take: kube-apiserver's `timeout`, 3 s unless configured.
    pub deadline: Duration,
    /// How long the slowest 1 % of Status calls may take.
    pub status_bound: Duration,
    /// How long the plugin may take from a restart to a healthy Status.
    pub restart_deadline: Duration,
    /// How long it may take to notice that the KMS has rotated the key.
    pub rotation_deadline: Duration,
}

/// A choice among the checks; all of them by default.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    only: Vec<String>,
    skip: Vec<String>,
}

/// A name that is neither a check nor a group of checks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a check nor a group of checks: --list shows them")]
pub struct UnknownCheck(pub String);

impl Default for Options {
    fn default() -> Self {
        Self {
            selection: Selection::default(),
            deadline: Duration::from_secs(3),
            status_bound: Duration::from_secs(1),
            restart_deadline: Duration::from_secs(30),
            rotation_deadline: Duration::from_secs(120),
        }
    }
}

impl Selection {
    /// Chooses by id (`status.version`) or group (`status`); an empty `only` means all.
    pub fn new(only: Vec<String>, skip: Vec<String>) -> Result<Self, UnknownCheck> {
        let known = |name: &String| checks().any(|check| names(name, check));
        match only.iter().chain(&skip).find(|name| !known(name)) {
            Some(name) => Err(UnknownCheck(name.clone())),
            None => Ok(Self { only, skip }),
        }
    }

    /// Whether the check is to run.
    pub fn includes(&self, check: &Check) -> bool {
        let listed = |list: &[String]| list.iter().any(|name| names(name, check));
        (self.only.is_empty() || listed(&self.only)) && !listed(&self.skip)
    }
}

fn names(name: &str, check: &Check) -> bool {
    name == check.id || name == check.group()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(only: &[&str], skip: &[&str]) -> Vec<&'static str> {
        let owned = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let selection = Selection::new(owned(only), owned(skip)).unwrap();
        checks().filter(|check| selection.includes(check)).map(|check| check.id).collect()
    }

    #[test]
    fn nothing_said_means_all() {
        assert_eq!(chosen(&[], &[]).len(), checks().count());
    }

    #[test]
    fn only_and_skip_take_ids_and_groups() {
        assert_eq!(chosen(&["status.version"], &[]), ["status.version"]);
        assert!(chosen(&["restart"], &[]).iter().all(|id| id.starts_with("restart.")));
        assert!(!chosen(&["restart"], &["restart.key-id"]).contains(&"restart.key-id"));
        assert!(chosen(&[], &["rotation"]).iter().all(|id| !id.starts_with("rotation.")));
    }

    #[test]
    fn unknown_names_are_refused() {
        let refused = Selection::new(vec!["status".into()], vec!["status.versoin".into()]);
        assert_eq!(refused.unwrap_err(), UnknownCheck("status.versoin".into()));
    }
}
