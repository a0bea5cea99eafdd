//! What users get: every binary is one file that runs in an empty image.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use sidekey_e2e::bench::Binary;
use sidekey_e2e::binaries;

/// Every binary of the workspace but the developer programs beside this test.
fn products() -> BTreeSet<String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let products = packages.filter(|package| package["name"] != env!("CARGO_PKG_NAME"));
    products
        .flat_map(|package| package["targets"].as_array().unwrap())
        .filter(|target| target["kind"][0] == "bin")
        .map(|target| target["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_binary_is_static_and_stripped() {
    let products = products();
    for name in ["sidekey-local", "sidekey-shim"] {
        assert!(products.contains(name), "{products:?}");
    }
    for name in products {
        let binary = Binary::read(&binaries::path(&name).unwrap()).unwrap();
        assert!(binary.is_static, "{name} needs a loader or a shared library");
        assert!(binary.is_stripped, "{name} carries its symbols");
    }
}

#[test]
fn every_binary_tells_its_version_and_its_usage() {
    for name in products() {
        let path = binaries::path(&name).unwrap();
        let version = Command::new(&path).arg("--version").output().unwrap();
        assert_eq!(version.status.code(), Some(0), "{name} --version");
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "{name} --version says {text}");
        let help = Command::new(&path).arg("--help").output().unwrap();
        assert_eq!(help.status.code(), Some(0), "{name} --help");
        let text = String::from_utf8_lossy(&help.stdout).to_lowercase();
        assert!(text.contains("example"), "{name} --help gives no example:\n{text}");
        let wrong = Command::new(&path).arg("--no-such-flag").output().unwrap();
        assert_eq!(wrong.status.code(), Some(64), "{name} --no-such-flag");
    }
}
