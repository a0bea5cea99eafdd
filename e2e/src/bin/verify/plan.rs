//! What there is to verify, and what a selection of it needs first.

use crate::workspace::{TestTarget, Workspace};

/// Names of the steps that are not made from a crate.
pub(crate) const FORMAT: &str = "rustfmt";
pub(crate) const LINT: &str = "clippy";
pub(crate) const BUILD_TESTS: &str = "build tests";
pub(crate) const CLUSTER: &str = "build kube-apiserver and etcd";

/// The steps of one run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) format: bool,
    pub(crate) lint: bool,
    /// Crates to be checked alone: a workspace build unifies features and so hides a missing one.
    pub(crate) alone: Vec<String>,
    /// Crates whose binaries are built as they are shipped, each alone.
    pub(crate) release: Vec<String>,
    pub(crate) cluster: bool,
    /// Test executables to run.
    pub(crate) tests: Vec<TestTarget>,
    /// Whether that is a part of them only.
    pub(crate) partial: bool,
}

impl Plan {
    /// Everything, or what has `only` in its name together with what that needs.
    pub(crate) fn new(workspace: &Workspace, only: Option<&str>) -> Self {
        let chosen = |name: &str| only.is_none_or(|part| name.contains(part));
        let products: Vec<&str> = workspace.products().map(|member| member.name.as_str()).collect();
        let tests: Vec<TestTarget> =
            workspace.tests().into_iter().filter(|test| chosen(&test.to_string())).collect();
        let end_to_end = tests.iter().any(TestTarget::is_end_to_end);
        // A product is built alone anyway.
        let others = workspace.members.iter().map(|member| member.name.as_str());
        let alone = others.filter(|name| !products.contains(name));
        Self {
            format: chosen(FORMAT),
            lint: chosen(LINT),
            alone: owned(alone.filter(|name| chosen(&alone_step(name)))),
            release: owned(
                products.iter().copied().filter(|name| end_to_end || chosen(&release_step(name))),
            ),
            cluster: end_to_end || chosen(CLUSTER),
            partial: only.is_some(),
            tests,
        }
    }

    /// Every step's name, in about the order of the run.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.format.then(|| FORMAT.to_owned()));
        names.extend(self.lint.then(|| LINT.to_owned()));
        names.extend(self.alone.iter().map(|name| alone_step(name)));
        names.extend(self.release.iter().map(|name| release_step(name)));
        names.extend((!self.tests.is_empty()).then(|| BUILD_TESTS.to_owned()));
        names.extend(self.cluster.then(|| CLUSTER.to_owned()));
        let (end_to_end, unit): (Vec<&TestTarget>, Vec<&TestTarget>) =
            self.tests.iter().partition(|test| test.is_end_to_end());
        names.extend(unit.iter().chain(&end_to_end).map(ToString::to_string));
        names
    }
}

/// Name of the step that checks a crate alone.
pub(crate) fn alone_step(package: &str) -> String {
    format!("check {package} alone")
}

/// Name of the step that builds a crate as it is shipped.
pub(crate) fn release_step(package: &str) -> String {
    format!("release build {package}")
}

fn owned<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: Option<&str>) -> Vec<String> {
        Plan::new(&Workspace::load().unwrap(), only).names()
    }

    #[test]
    fn a_whole_run_has_every_kind_of_step_and_every_crate() {
        let all = names(None);
        for step in
            [FORMAT, LINT, BUILD_TESTS, CLUSTER, "sidekey-core lib", "sidekey-e2e test policy"]
        {
            assert!(all.iter().any(|name| name == step), "{step} is missing: {all:?}");
        }
        for member in &Workspace::load().unwrap().members {
            let built = [alone_step(&member.name), release_step(&member.name)];
            assert!(
                built.iter().any(|step| all.contains(step)),
                "{} is built by nobody",
                member.name
            );
        }
    }

    #[test]
    fn a_light_test_needs_only_its_own_build() {
        assert_eq!(names(Some("test policy")), [BUILD_TESTS, "sidekey-e2e test policy"]);
    }

    #[test]
    fn an_end_to_end_test_brings_binaries_and_cluster() {
        let chosen = names(Some("sidekey-e2e test up"));
        assert!(chosen.contains(&release_step("sidekey-local")), "{chosen:?}");
        assert!(chosen.iter().any(|name| name == CLUSTER), "{chosen:?}");
    }

    #[test]
    fn a_word_that_nothing_contains_selects_nothing() {
        assert!(names(Some("no such step")).is_empty());
    }
}
