//! The workspace as cargo describes it: what there is to build and to test.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The test that has the machine for itself.
const CROWD: &str = "operator_fleet";

/// How the names of tests with pods on a node begin.
const LONG: [&str; 4] = ["operator_", "hosted_", "standalone", "cli_inject"];

/// Our own crates, found and not listed: a new one is verified without an edit here.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    #[serde(rename = "packages")]
    pub(crate) members: Vec<Member>,
}

/// One crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    test: bool,
}

/// A test executable: which target of which crate it is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestTarget {
    pub(crate) package: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl Workspace {
    /// Asks cargo, without looking at dependencies.
    pub(crate) fn load() -> Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .context("cannot start cargo")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo metadata failed: {}", problem.trim());
        serde_json::from_slice(&output.stdout).context("cargo metadata printed unexpected JSON")
    }

    /// Crates with binaries that users get: all but the developer programs beside this one.
    pub(crate) fn products(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| {
            member.name != env!("CARGO_PKG_NAME")
                && member.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "bin"))
        })
    }

    /// Every test executable that `cargo test` would make.
    pub(crate) fn tests(&self) -> Vec<TestTarget> {
        let mut found = Vec::new();
        for member in &self.members {
            for target in member.targets.iter().filter(|target| target.test) {
                found.push(TestTarget::new(&member.name, &target.kind, &target.name));
            }
        }
        found.sort_by_key(|target| target.to_string());
        found
    }

    /// Where a crate's tests run.
    pub(crate) fn folder(&self, package: &str) -> &Path {
        let member = self.members.iter().find(|member| member.name == package);
        member.and_then(|member| member.manifest_path.parent()).unwrap_or(&self.root)
    }
}

impl TestTarget {
    /// From what cargo's messages say of a target.
    pub(crate) fn new(package: &str, kinds: &[String], name: &str) -> Self {
        let kind = kinds.first().map_or("lib", String::as_str);
        Self { package: package.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
    }

    /// Whether it starts real servers: it then needs release binaries and a cluster's.
    pub(crate) fn is_end_to_end(&self) -> bool {
        // The policy looks at files and at cargo's answers alone.
        self.package == env!("CARGO_PKG_NAME") && self.kind == "test" && self.name != "policy"
    }

    /// Tests with pods on a node take longest: begun last, one of them would run on alone.
    pub(crate) fn is_long(&self) -> bool {
        self.is_end_to_end() && LONG.iter().any(|start| self.name.starts_with(start))
    }

    /// A thousand control planes leave nothing of the machine for others.
    pub(crate) fn is_crowd(&self) -> bool {
        self.is_end_to_end() && self.name == CROWD
    }

    /// The argument with which cargo builds this target and no other.
    pub(crate) fn selector(&self) -> Vec<String> {
        match self.kind.as_str() {
            "test" | "bin" | "bench" | "example" => {
                vec![format!("--{}", self.kind), self.name.clone()]
            }
            _ => vec!["--lib".to_owned()],
        }
    }
}

impl fmt::Display for TestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.as_str() {
            "test" | "bin" | "bench" | "example" => {
                write!(f, "{} {} {}", self.package, self.kind, self.name)
            }
            _ => write!(f, "{} lib", self.package),
        }
    }
}

/// The cargo that runs us, without the variables that it sets for the program it runs:
/// they would differ from those of a plain build and make build scripts run again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            command.env_remove(&name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_tests_and_folders_come_from_cargo() {
        let workspace = Workspace::load().unwrap();
        let names: Vec<&str> = workspace.products().map(|member| member.name.as_str()).collect();
        assert!(names.contains(&"sidekey-local"), "{names:?}");
        assert!(!names.contains(&"sidekey-e2e"), "{names:?}");
        let tests = workspace.tests();
        let policy = tests.iter().find(|target| target.name == "policy").unwrap();
        assert_eq!(policy.to_string(), "sidekey-e2e test policy");
        assert!(!policy.is_end_to_end());
        assert_eq!(tests.iter().filter(|test| test.is_crowd()).count(), 1);
        for start in LONG {
            assert!(tests.iter().any(|test| test.is_long() && test.name.starts_with(start)));
        }
        assert_eq!(workspace.folder("sidekey-core"), workspace.root.join("providers/core"));
    }
}
