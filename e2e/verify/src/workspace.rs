//! The workspace as cargo describes it: what there is to build and to test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

/// Where the programs are that no user gets.
const DEVELOPERS: [&str; 2] = ["e2e", "providers/example"];

/// The crate that starts real servers.
const HARNESS: &str = "sidekey-e2e";

/// Our own crates, found and not listed: a new one is verified without an edit here.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    #[serde(rename = "packages")]
    pub(crate) members: Vec<Member>,
    /// The oldest Rust that builds all of it.
    #[serde(skip)]
    pub(crate) rust_version: String,
}

/// One crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    rust_version: Option<String>,
    #[serde(default)]
    metadata: Value,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
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
        let mut workspace: Self = serde_json::from_slice(&output.stdout)
            .context("cargo metadata printed unexpected JSON")?;
        let promised = workspace.members.iter().find_map(|member| member.rust_version.clone());
        workspace.rust_version = promised.context("no crate says which Rust it needs")?;
        Ok(workspace)
    }

    /// Crates with binaries that users get: all but the developer programs and the example.
    pub(crate) fn products(&self) -> impl Iterator<Item = &Member> {
        let developers = DEVELOPERS.map(|folder| self.root.join(folder));
        self.members.iter().filter(move |member| {
            !developers.iter().any(|folder| member.manifest_path.starts_with(folder))
                && member.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "bin"))
        })
    }

    /// The KMS v2 plugins among them.
    pub(crate) fn providers(&self) -> impl Iterator<Item = &Member> {
        let folder = self.root.join("providers");
        let suite = folder.join("conformance");
        self.products()
            .filter(move |member| member.folder().starts_with(&folder) && member.folder() != suite)
    }

    /// Crates without such binaries.
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Member> {
        let products: Vec<&str> = self.products().map(|member| member.name.as_str()).collect();
        self.members.iter().filter(move |member| !products.contains(&member.name.as_str()))
    }

    /// The crate of a manifest.
    pub(crate) fn member(&self, manifest: &Path) -> Option<&Member> {
        self.members.iter().find(|member| member.manifest_path == manifest)
    }
}

impl Member {
    /// Whether its tests start real servers.
    pub(crate) fn needs_servers(&self) -> bool {
        self.dependencies.iter().any(|dependency| dependency.name == HARNESS)
    }

    /// Whether its programs load libraries, and so are built in a directory of their own.
    pub(crate) fn is_dynamic(&self) -> bool {
        sidekey_verify::is_dynamic(&self.metadata)
    }

    /// Where its tests run.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
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

/// The same command, which gives way to all others.
pub(crate) fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_folders_come_from_cargo() {
        let workspace = Workspace::load().unwrap();
        let names: Vec<&str> = workspace.products().map(|member| member.name.as_str()).collect();
        assert!(names.contains(&"sidekey-local"), "{names:?}");
        let providers: Vec<&str> =
            workspace.providers().map(|member| member.name.as_str()).collect();
        assert!(providers.contains(&"sidekey-local"), "{providers:?}");
        assert!(!providers.contains(&"sidekey-conformance"), "{providers:?}");
        let others: Vec<&str> = workspace.libraries().map(|member| member.name.as_str()).collect();
        for name in ["sidekey-e2e", "sidekey-verify", "sidekey-core", "sidekey-example"] {
            assert!(others.contains(&name), "{others:?}");
        }
        assert_eq!(names.len() + others.len(), workspace.members.len());
        let dynamic = workspace.members.iter().filter(|member| member.is_dynamic());
        assert_eq!(dynamic.map(|member| &*member.name).collect::<Vec<_>>(), ["sidekey-pkcs11"]);
        let core = workspace.root.join("providers/core");
        let found = workspace.member(&core.join("Cargo.toml")).unwrap();
        assert_eq!((found.name.as_str(), found.folder()), ("sidekey-core", core.as_path()));
    }
}
