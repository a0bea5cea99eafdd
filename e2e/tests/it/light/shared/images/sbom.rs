//! The bills of materials: the crates of each binary, all of them and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::built::{Built, all, json};

/// name and version of the crates that a document lists.
fn listed(document: &Value) -> BTreeSet<String> {
    let components = document["components"].as_array().unwrap().iter();
    let crates = components.filter(|component| component["type"] != "file");
    crates.map(|one| format!("{} {}", text(one, "name"), text(one, "version"))).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn cargo(arguments: &[&str]) -> String {
    let ran = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .arg("--locked")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// The package that has a binary of that name, and every package by name and version.
fn metadata() -> (BTreeMap<String, String>, BTreeMap<String, Value>) {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1"])).unwrap();
    let (mut owners, mut packages) = (BTreeMap::new(), BTreeMap::new());
    for package in metadata["packages"].as_array().unwrap() {
        let name = text(package, "name");
        for target in package["targets"].as_array().unwrap() {
            if target["kind"][0] == "bin" {
                owners.insert(text(target, "name").to_owned(), name.to_owned());
            }
        }
        packages.insert(format!("{name} {}", text(package, "version")), package.clone());
    }
    (owners, packages)
}

fn document(image: &Built) -> Value {
    json(Path::new(text(&image.said, "sbom")))
}

#[tokio::test]
async fn it_lists_exactly_the_crates_that_are_linked_with_licence_and_checksum() {
    let (owners, packages) = metadata();
    let lock = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
    for image in all().await {
        let document = document(image);
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let tree = cargo(&[
            "tree",
            "--package",
            &owners[&image.name],
            "--target",
            &target,
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ]);
        let linked: BTreeSet<String> = tree
            .lines()
            .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ").replace(" v", " "))
            .collect();
        assert_eq!(listed(&document), linked, "{}", image.name);
        for component in document["components"].as_array().unwrap() {
            if component["type"] == "file" {
                continue;
            }
            let (name, version) = (text(component, "name"), text(component, "version"));
            let package = &packages[&format!("{name} {version}")];
            let licence = text(package, "license").replace(" / ", "/").replace('/', " OR ");
            assert_eq!(component["licenses"][0]["expression"], licence, "{name}");
            if package["source"].is_null() {
                assert_eq!(component["purl"], Value::Null, "{name} is in no registry");
                continue;
            }
            let escaped = version.replace('+', "%2B");
            assert_eq!(component["purl"], format!("pkg:cargo/{name}@{escaped}"));
            let hash = text(&component["hashes"][0], "content");
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            let locked = lock.split("[[package]]\n").find(|text| text.starts_with(&entry)).unwrap();
            assert!(locked.contains(&format!("\nchecksum = \"{hash}\"\n")), "{name}");
        }
    }
}

#[tokio::test]
async fn it_has_the_shape_of_cyclonedx_and_belongs_to_its_image() {
    for image in all().await {
        let document = document(image);
        assert_eq!(document["bomFormat"], "CycloneDX");
        assert_eq!(document["specVersion"], "1.5");
        assert_eq!(document["version"], 1);
        assert!(text(&document, "serialNumber").starts_with("urn:uuid:"));
        let own = &document["metadata"]["component"];
        assert_eq!(own["type"], "container");
        assert_eq!(own["name"], image.name.as_str());
        let digest = format!("sha256:{}", text(&own["hashes"][0], "content"));
        assert_eq!(image.said["digest"], digest);

        let components = document["components"].as_array().unwrap();
        let mut known: BTreeSet<&str> = components.iter().map(|one| text(one, "bom-ref")).collect();
        assert_eq!(known.len(), components.len(), "a bom-ref stands twice");
        assert!(known.insert(text(own, "bom-ref")));
        let edges = document["dependencies"].as_array().unwrap();
        let described: BTreeSet<&str> = edges.iter().map(|edge| text(edge, "ref")).collect();
        assert_eq!(described, known);
        // All can be reached from the image.
        let mut reached = BTreeSet::from([text(own, "bom-ref")]);
        for _ in 0..edges.len() {
            for edge in
                edges.iter().filter(|edge| reached.contains(text(edge, "ref"))).collect::<Vec<_>>()
            {
                reached
                    .extend(edge["dependsOn"].as_array().unwrap().iter().filter_map(Value::as_str));
            }
        }
        assert_eq!(reached, known, "{}", image.name);
    }
}
