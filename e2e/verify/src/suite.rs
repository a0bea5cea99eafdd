//! The tests there are, as the built executables tell.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::schedule::Takes;

/// How many tests of one executable run at once where it is run as a whole.
const THREADS: usize = 2;

/// The same for control planes that the operator manages: they mostly wait.
const MANAGED_THREADS: usize = 5;

/// Where tests begin that only `--all` runs.
const FULL: &str = "full::";

/// The module whose modules are groups: the tests of one share a process, and what it started.
const SHARED: &str = "shared::";

/// The module that is a group itself: its tests share a node and the operator on it.
const MANAGED: &str = "managed::";

/// A test executable that cargo has built.
#[derive(Clone, Debug)]
pub(crate) struct Executable {
    /// The crate it belongs to.
    pub(crate) package: String,
    /// `lib`, or the kind and name of its target.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// The directory in which it runs.
    pub(crate) folder: PathBuf,
    /// Whether its tests start real servers, and say in their paths what they take.
    pub(crate) is_end_to_end: bool,
    /// Whether its tests need what is prepared before the first test.
    pub(crate) needs_servers: bool,
}

/// What is run as one process: an end-to-end test, or an executable of other tests.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) takes: Takes,
    pub(crate) is_end_to_end: bool,
    pub(crate) needs_servers: bool,
    executable: PathBuf,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl Executable {
    /// The tests in it whose names are chosen; those of `--all` alone only if asked for.
    pub(crate) fn tests(&self, all: bool, chosen: impl Fn(&str) -> bool) -> Result<Vec<Test>> {
        if !self.is_end_to_end {
            return Ok(Some(self.whole())
                .filter(|whole| chosen(&whole.name))
                .into_iter()
                .collect());
        }
        let listed = Command::new(&self.path)
            .args(["--list", "--format", "terse"])
            .current_dir(&self.folder)
            .output()
            .with_context(|| format!("cannot run {}", self.path.display()))?;
        ensure!(listed.status.success(), "{} --list failed", self.path.display());
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for name in names.filter(|name| all || !name.starts_with(FULL)) {
            if chosen(&format!("{} {name}", self.target)) {
                groups.entry(group(name)).or_default().push(name.to_owned());
            }
        }
        Ok(groups.into_iter().map(|(group, names)| self.process(group, names)).collect())
    }

    /// Tests in a process of their own: what they start, and how starved they were, is theirs.
    fn process(&self, group: &str, names: Vec<String>) -> Test {
        let takes = Takes::of(group);
        let most = if takes == Takes::Managed { MANAGED_THREADS } else { THREADS };
        let threads = names.len().min(most);
        let least = if threads > 1 { Takes::Threads } else { Takes::Light };
        let mut arguments = vec!["--exact".to_owned(), format!("--test-threads={threads}")];
        arguments.extend(names);
        Test {
            name: format!("{} {group}", self.target),
            takes: takes.max(least),
            is_end_to_end: true,
            needs_servers: true,
            executable: self.path.clone(),
            folder: self.folder.clone(),
            arguments,
        }
    }

    fn whole(&self) -> Test {
        Test {
            name: format!("{} {}", self.package, self.target),
            takes: Takes::Threads,
            is_end_to_end: false,
            needs_servers: self.needs_servers,
            executable: self.path.clone(),
            folder: self.folder.clone(),
            arguments: vec![format!("--test-threads={THREADS}")],
        }
    }
}

impl Test {
    /// One of its tests in a process of its own.
    pub(crate) fn alone(&self, name: &str) -> Self {
        let arguments = ["--exact", "--test-threads=1", name].map(str::to_owned).to_vec();
        Self { arguments, ..self.clone() }
    }

    /// Whether several tests share its process.
    pub(crate) fn is_group(&self) -> bool {
        !self.arguments.iter().any(|argument| argument == "--test-threads=1")
    }

    /// Its process, as `cargo test` would start it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.args(&self.arguments);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        // What a test says of its failure is enough; frames would push it out of what is shown.
        command.env("RUST_BACKTRACE", "0");
        command
    }
}

/// What a test runs with: alone, or in the group that its path names.
fn group(name: &str) -> &str {
    if let Some(at) = name.find(MANAGED) {
        return &name[..at + MANAGED.len() - 2];
    }
    let Some(at) = name.find(SHARED) else { return name };
    let begin = at + SHARED.len();
    name[begin..].find("::").map_or(name, |length| &name[..begin + length])
}

/// Names a target as its kind and name, or `lib`.
pub(crate) fn target_name(kind: &str, name: &str, package: &str) -> String {
    match kind {
        "test" => name.to_owned(),
        "bin" if name == package => "bin".to_owned(),
        "bin" | "bench" | "example" => format!("{kind} {name}"),
        _ => "lib".to_owned(),
    }
}

/// Tests that no end-to-end test is: they need no more than the build.
pub(crate) fn is_end_to_end(folder: &Path, root: &Path, kind: &str, target: &str) -> bool {
    // The policy looks at files and at cargo's answers alone.
    folder == root.join("e2e") && kind == "test" && target != "policy"
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn executable(script: &str, is_end_to_end: bool) -> (Executable, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it-1");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let folder = dir.path().to_owned();
        let (package, target) = ("sidekey-e2e".to_owned(), "it".to_owned());
        let needs_servers = is_end_to_end;
        (Executable { package, target, path, folder, is_end_to_end, needs_servers }, dir)
    }

    #[test]
    fn end_to_end_tests_are_single_and_those_of_all_are_left_out() {
        let script = "echo 'plane::a::b: test'; echo 'full::machine::c: test'; echo; echo 2 tests";
        let (it, _dir) = executable(script, true);
        let some = it.tests(false, |_| true).unwrap();
        assert_eq!(some.len(), 1);
        assert_eq!((some[0].name.as_str(), some[0].takes), ("it plane::a::b", Takes::Plane));
        assert_eq!(some[0].arguments, ["--exact", "--test-threads=1", "plane::a::b"]);
        assert_eq!(it.tests(true, |_| true).unwrap()[0].takes, Takes::Machine);
        assert!(it.tests(true, |name| name.contains("elsewhere")).unwrap().is_empty());
    }

    #[test]
    fn tests_of_a_group_share_a_process_and_can_be_chosen_alone() {
        let script = "for t in x y; do echo \"light::shared::g::$t: test\"; done";
        let (it, _dir) = executable(script, true);
        let group = it.tests(false, |_| true).unwrap().remove(0);
        assert_eq!((group.name.as_str(), group.takes), ("it light::shared::g", Takes::Threads));
        assert_eq!(group.arguments[1], "--test-threads=2");
        assert_eq!(group.arguments[2..], ["light::shared::g::x", "light::shared::g::y"]);
        assert_eq!(super::group("full::managed::a::b"), "full::managed");
        let one = it.tests(false, |name| name.ends_with("::y")).unwrap().remove(0);
        assert_eq!(one.arguments[1..], ["--test-threads=1", "light::shared::g::y"]);
    }

    #[test]
    fn other_tests_run_as_one_with_a_known_number_of_threads() {
        let (it, _dir) = executable("exit 1", false);
        let tests = it.tests(false, |_| true).unwrap();
        assert_eq!(tests[0].arguments, ["--test-threads=2"]);
        assert_eq!(tests[0].takes, Takes::Threads);
    }

    #[test]
    fn an_executable_that_cannot_tell_its_tests_is_an_error() {
        let (it, _dir) = executable("exit 1", true);
        assert!(it.tests(false, |_| true).is_err());
    }
}
