//! What `cargo metadata` says about the workspace, reduced to what the rules ask.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde::Deserialize;

/// The workspace and everything that it is built from.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    workspace_members: Vec<String>,
    workspace_root: PathBuf,
    resolve: Resolve,
}

/// One crate, ours or not.
#[derive(Deserialize)]
pub(crate) struct Package {
    id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) edition: String,
    pub(crate) rust_version: Option<String>,
    pub(crate) publish: Option<Vec<String>>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
}

/// What a crate builds.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) test: bool,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<NodeDep>,
}

#[derive(Deserialize)]
struct NodeDep {
    pkg: String,
    dep_kinds: Vec<DepKind>,
}

#[derive(Deserialize)]
struct DepKind {
    kind: Option<String>,
}

impl Metadata {
    /// Asked for the platform that the sidecars run on: what only other systems would
    /// compile is never part of them.
    pub(crate) fn load() -> &'static Self {
        static METADATA: OnceLock<Metadata> = OnceLock::new();
        METADATA.get_or_init(Self::ask_cargo)
    }

    fn ask_cargo() -> Self {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let json = cargo(&["metadata", "--format-version", "1", "--filter-platform", &platform]);
        serde_json::from_str(&json).expect("cargo metadata prints its documented JSON")
    }

    /// Our own crates.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Folder of one of our crates, relative to the top: `providers/local`.
    pub(crate) fn folder(&self, member: &Package) -> String {
        let folder = member.manifest_path.parent().expect("a manifest lies in a folder");
        folder
            .strip_prefix(&self.workspace_root)
            .expect("a member lies inside")
            .display()
            .to_string()
    }

    /// Our own crates that `package` depends on. Dev-dependencies only if asked for.
    pub(crate) fn member_dependencies(&self, package: &Package, dev: bool) -> Vec<&Package> {
        let targets = self.direct(&package.id, dev);
        self.members().filter(|member| targets.contains(member.id.as_str())).collect()
    }

    /// Everything that ends up in a build of `package`, itself left out.
    pub(crate) fn closure(&self, package: &Package) -> BTreeSet<&str> {
        let names: BTreeMap<&str, &str> =
            self.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
        let mut seen = BTreeSet::new();
        let mut open = vec![package.id.as_str()];
        while let Some(id) = open.pop() {
            open.extend(self.direct(id, false).into_iter().filter(|dep| seen.insert(*dep)));
        }
        seen.iter().map(|id| names[id]).collect()
    }

    /// Crates that are really built. `cargo metadata` also lists what an optional feature
    /// that nobody turned on would bring; `cargo tree` knows the features.
    pub(crate) fn built(&self) -> impl Iterator<Item = &Package> {
        let tree = cargo(&[
            "tree",
            "--workspace",
            "--edges",
            "normal,build,dev",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ]);
        let built: BTreeSet<String> = tree
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some(format!("{} {}", words.next()?, words.next()?.trim_start_matches('v')))
            })
            .collect();
        self.packages
            .iter()
            .filter(move |package| built.contains(&format!("{} {}", package.name, package.version)))
    }

    fn direct(&self, id: &str, dev: bool) -> BTreeSet<&str> {
        let node = self.resolve.nodes.iter().find(|node| node.id == id).expect("a resolved node");
        let wanted = |dep: &&NodeDep| {
            dep.dep_kinds.iter().any(|kind| dev || kind.kind.as_deref() != Some("dev"))
        };
        node.deps.iter().filter(wanted).map(|dep| dep.pkg.as_str()).collect()
    }
}

/// What a cargo command prints, with the committed lock file.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .arg("--locked")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be started");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {} --locked failed:\n{problem}", arguments[0]);
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}
