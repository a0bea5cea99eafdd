//! Which crate may depend on which, and which may not be here at all.

use std::collections::{BTreeMap, BTreeSet};

use crate::assert_none;
use crate::layout::LIBRARIES;
use crate::metadata::{Metadata, Package};

/// A crate in two versions costs size and build time, so it needs a reason.
struct Duplicate {
    name: &'static str,
    /// The older ones, which `.deny.toml` lets pass too.
    old: &'static [&'static str],
    new: &'static str,
    reason: &'static str,
}

const DUPLICATES: &[Duplicate] = &[
    Duplicate {
        name: "base64",
        old: &["0.22"],
        new: "0.23",
        reason: "tonic still has the old one; rcgen's pem has the new one",
    },
    Duplicate {
        name: "foldhash",
        old: &["0.1"],
        new: "0.2",
        reason: "the hashbrown of petgraph, in the build script that compiles the .proto, has the old one",
    },
    Duplicate {
        name: "getrandom",
        old: &["0.3"],
        new: "0.4",
        reason: "ahash, in kube's runtime and so in the operator alone, still has the old one",
    },
    Duplicate {
        name: "hashbrown",
        old: &["0.15", "0.16"],
        new: "0.17",
        reason: "petgraph, in the build script that compiles the .proto, and kube's runtime lag behind",
    },
    Duplicate {
        name: "syn",
        old: &["2"],
        new: "3",
        reason: "procedural macros are moving over; neither version is in any binary",
    },
    Duplicate {
        name: "synstructure",
        old: &["0.13"],
        new: "0.14",
        reason: "a procedural macro below p12-keystore lags behind; neither version is in any binary",
    },
    Duplicate {
        name: "unicode-width",
        old: &["0.1"],
        new: "0.2",
        reason: "protox, in the build script that compiles the .proto, still has the old one",
    },
];

/// One TLS stack: rustls on aws-lc-rs. A second one means a second set of advisories,
/// and two crypto providers in one process make rustls panic at run time.
const BANNED: &[(&str, &str)] = &[
    ("openssl", "use rustls with aws-lc-rs"),
    ("openssl-sys", "use rustls with aws-lc-rs"),
    ("native-tls", "use rustls with aws-lc-rs"),
    ("ring", "turn on the aws-lc-rs feature of the crate that brings it in"),
    ("rustls-ring", "use rustls with aws-lc-rs"),
    ("serde_yaml", "it is no longer maintained"),
];

/// What no crate but a provider may bring in: the runtime stays free of any vendor.
const CLOUD_SDKS: &[&str] = &[
    "aws-config",
    "aws-sdk-",
    "aws-smithy-",
    "azure_",
    "google-cloud-",
    "vaultrs",
    "cryptoki",
    "kmip-",
];

impl Duplicate {
    /// Whether these are just the versions that there is a reason for.
    fn covers(&self, found: &BTreeSet<&str>) -> bool {
        let has = |wanted: &str| {
            let belongs = |rest: &str| rest.starts_with('.');
            found.iter().any(|version| version.strip_prefix(wanted).is_some_and(belongs))
        };
        found.len() == self.old.len() + 1 && has(self.new) && self.old.iter().all(|old| has(old))
    }
}

/// `providers/<name>`, without what providers are made of and tested with.
fn is_provider(metadata: &Metadata, package: &Package) -> bool {
    let folder = metadata.folder(package);
    let is_one = |name: &str| name == "example" || !LIBRARIES.contains(&name);
    folder.strip_prefix("providers/").is_some_and(is_one)
}

#[test]
fn only_tests_depend_on_a_provider() {
    let metadata = Metadata::load();
    let mut wrong = Vec::new();
    for member in metadata.members() {
        for dependency in metadata.member_dependencies(member, false) {
            if is_provider(metadata, dependency) {
                wrong.push(format!("{} depends on {}", member.name, dependency.name));
            }
        }
    }
    assert_none("a provider is a binary, not a library for others", &wrong);
}

#[test]
fn only_core_depends_on_proto() {
    let metadata = Metadata::load();
    let wrong: Vec<String> = metadata
        .members()
        .filter(|member| member.name != "sidekey-core")
        .filter(|member| {
            metadata.member_dependencies(member, true).iter().any(|d| d.name == "sidekey-proto")
        })
        .map(|member| format!("{} depends on sidekey-proto", member.name))
        .collect();
    assert_none("use sidekey_core::proto, so that one version of the messages exists", &wrong);
}

#[test]
fn dependencies_point_one_way() {
    let metadata = Metadata::load();
    let mut wrong = Vec::new();
    for member in metadata.members() {
        let folder = metadata.folder(member);
        let allowed: &[&str] = match folder.as_str() {
            "proto" => &[],
            "providers/core" => &["sidekey-proto"],
            "providers/rest" => &["sidekey-core"],
            "providers/kmip" | "providers/okms" => {
                &["sidekey-core", "sidekey-rest", "sidekey-ttlv"]
            }
            folder if folder.starts_with("providers/") => &["sidekey-core", "sidekey-rest"],
            "e2e" => &["sidekey-core", "sidekey-verify"],
            _ => &["sidekey-core"],
        };
        for dependency in metadata.member_dependencies(member, false) {
            if !allowed.contains(&dependency.name.as_str()) {
                wrong
                    .push(format!("{folder} depends on {}, allowed: {allowed:?}", dependency.name));
            }
        }
    }
    assert_none(
        "proto <- core <- {rest, shim}, rest <- ttlv <- {kmip, okms}, rest <- other providers, and nothing back",
        &wrong,
    );
}

#[test]
fn no_crate_but_a_provider_contains_a_cloud_sdk() {
    let metadata = Metadata::load();
    let mut wrong = Vec::new();
    // The traits that an SDK's transport implements are an optional feature of `rest`, which `ttlv`
    // is built on.
    let has_rest = |member: &&Package| {
        ["providers/rest", "providers/ttlv"].contains(&metadata.folder(member).as_str())
    };
    let others = metadata.members().filter(|member| !is_provider(metadata, member));
    for member in others.filter(|member| !has_rest(member)) {
        for name in metadata.closure(member) {
            if CLOUD_SDKS.iter().any(|sdk| name.starts_with(sdk)) {
                wrong.push(format!("{} brings in {name}", member.name));
            }
        }
    }
    assert_none("a vendor's SDK belongs into that vendor's provider", &wrong);
}

#[test]
fn banned_crates_are_absent() {
    let metadata = Metadata::load();
    let wrong: Vec<String> = metadata
        .built()
        .filter_map(|package| {
            let (_, advice) = BANNED.iter().find(|(name, _)| *name == package.name)?;
            Some(format!("{} {}: {advice}", package.name, package.version))
        })
        .collect();
    assert_none("banned crates", &wrong);
}

#[test]
fn no_crate_comes_in_two_versions_without_a_reason() {
    let metadata = Metadata::load();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in metadata.built() {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    versions.retain(|_, found| found.len() > 1);
    let mut wrong = Vec::new();
    for (name, found) in &versions {
        let excuse = DUPLICATES.iter().find(|duplicate| duplicate.name == *name);
        if !excuse.is_some_and(|excuse| excuse.covers(found)) {
            wrong.push(format!("{name} in versions {found:?}: update, or write down a reason"));
        }
    }
    for Duplicate { name, reason, .. } in DUPLICATES {
        assert!(reason.len() > 20, "the reason for two versions of {name} says nothing");
        if !versions.contains_key(name) {
            wrong.push(format!("{name} has one version now: take its reason out of DUPLICATES"));
        }
    }
    assert_none("duplicate versions", &wrong);
}

#[test]
fn cargo_deny_is_configured_with_the_same_exceptions_and_bans() {
    let config = std::fs::read_to_string(crate::layout::root().join(".deny.toml")).unwrap();
    let listed = |prefix: &str| config.matches(prefix).count();
    let mut wrong = Vec::new();
    let skipped: Vec<String> = DUPLICATES
        .iter()
        .flat_map(|Duplicate { name, old, .. }| old.iter().map(move |old| format!("{name}@{old}")))
        .collect();
    for one in &skipped {
        if listed(&format!("{{ crate = \"{one}\", reason = ")) != 1 {
            wrong.push(format!(".deny.toml does not skip {one}, with a reason"));
        }
    }
    for (name, _) in BANNED {
        if listed(&format!("{{ crate = \"{name}\", reason = ")) != 1 {
            wrong.push(format!(".deny.toml does not ban {name}, with a reason"));
        }
    }
    if listed("{ crate = ") != skipped.len() + BANNED.len() {
        wrong.push(".deny.toml has exceptions or bans that this test does not know".to_owned());
    }
    assert_none(".deny.toml and this test agree", &wrong);
}

#[test]
fn every_member_has_the_workspace_lints_and_edition_2024() {
    let metadata = Metadata::load();
    let mut wrong = Vec::new();
    for member in metadata.members() {
        let manifest = std::fs::read_to_string(&member.manifest_path).unwrap();
        if !inherits_lints(&manifest) {
            wrong.push(format!("{}: add [lints] workspace = true", member.manifest_path.display()));
        }
        if member.edition != "2024" {
            wrong.push(format!("{}: edition {}, not 2024", member.name, member.edition));
        }
        if member.license.as_deref() != Some("Apache-2.0") {
            wrong.push(format!("{}: license is not Apache-2.0", member.name));
        }
        if member.publish.as_ref().is_none_or(|registries| !registries.is_empty()) {
            wrong.push(format!("{}: add publish.workspace = true", member.name));
        }
    }
    assert_none("every crate follows the workspace", &wrong);
}

/// Whether a manifest says `workspace = true` in its section `[lints]`.
fn inherits_lints(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let entry: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        matches!(
            (section, entry.as_str()),
            ("[lints]", "workspace=true") | ("", "lints.workspace=true")
        )
    })
}

#[test]
fn the_lint_rule_reads_manifests_rightly() {
    assert!(inherits_lints("[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n"));
    assert!(!inherits_lints("[package]\nname = \"x\"\n[dependencies]\nworkspace = true\n"));
    assert!(!inherits_lints("[lints]\n[dependencies]\nx = { workspace = true }\n"));
}

#[test]
fn what_makes_the_fips_modules_bindings_has_one_syn() {
    // bindgen takes syn 2 and 3 alike, but hands what it parsed to prettyplease. A merge of lock
    // files can give them one each; nothing else that every run builds would show it.
    let lock = std::fs::read_to_string(crate::layout::root().join("Cargo.lock")).unwrap();
    let syn = |name: &str| {
        let section = lock
            .split("[[package]]")
            .find(|section| section.lines().any(|line| line == format!("name = \"{name}\"")));
        let lines = section.expect("a locked package").lines().map(str::trim);
        lines.filter(|line| line.starts_with("\"syn")).collect::<Vec<_>>()
    };
    assert_eq!(syn("bindgen"), syn("prettyplease"), "see bindgen's dependencies in Cargo.lock");
}
