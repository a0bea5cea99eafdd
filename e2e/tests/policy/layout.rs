//! What lies where: the top level, and what a provider's folder must hold.

use std::path::Path;
use std::process::Command;

use crate::assert_none;

/// All that may lie at the top, dotfiles aside.
const TOP: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "deploy",
    "e2e",
    "images",
    "proto",
    "providers",
    "shim",
];

/// The top of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("e2e lies in the repository")
}

/// Files of the repository, relative to its top: those that git knows or would take.
pub(crate) fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is installed: the policy looks at the files that git knows");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let names = listing.split('\0').filter(|name| !name.is_empty());
    // A file that was removed but not yet committed is still listed.
    let files: Vec<String> =
        names.filter(|name| root().join(name).is_file()).map(str::to_owned).collect();
    assert!(files.iter().any(|name| name == "Cargo.toml"), "git lists no files");
    files
}

/// Folders under `providers/` that hold what providers are made of, tested with and explained by.
pub(crate) const LIBRARIES: [&str; 5] = ["core", "rest", "ttlv", "conformance", "example"];

/// Names of the folders under `providers/` that hold a provider.
pub(crate) fn providers() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("providers")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !LIBRARIES.contains(&name.as_str()))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no provider found");
    names
}

#[test]
fn nothing_new_lies_at_the_top() {
    let mut wrong: Vec<String> = files()
        .iter()
        .filter_map(|file| file.split('/').next())
        .filter(|top| !top.starts_with('.') && !TOP.contains(top))
        .map(|top| format!("{top} does not belong at the top"))
        .collect();
    wrong.dedup();
    assert_none("the layout is fixed", &wrong);
}

#[test]
fn every_folder_of_the_top_says_what_it_is_for() {
    let wrong: Vec<String> = ["deploy", "images", "shim"]
        .iter()
        .filter(|folder| !root().join(folder).join("README.md").is_file())
        .map(|folder| format!("{folder}/README.md is missing"))
        .collect();
    assert_none("a newcomer can find the way", &wrong);
}

#[test]
fn every_provider_has_a_readme() {
    let wrong: Vec<String> = providers()
        .iter()
        .filter(|name| !root().join("providers").join(name).join("README.md").is_file())
        .map(|name| format!("providers/{name}/README.md is missing"))
        .collect();
    assert_none("every provider explains itself", &wrong);
}

#[test]
fn every_provider_says_when_the_way_back_to_what_it_replaces_closes() {
    let says = |name: &&String| {
        let path = root().join("providers").join(name).join("README.md");
        std::fs::read_to_string(path).unwrap_or_default().to_lowercase().contains("the way back")
    };
    let names = providers();
    let silent = names.iter().filter(|name| !says(name));
    let wrong: Vec<String> =
        silent.map(|name| format!("providers/{name}/README.md says nothing of it")).collect();
    assert_none("who tries a provider knows until when it can be taken away again", &wrong);
}

#[test]
fn everything_that_users_run_has_an_image() {
    let mut names = providers();
    names.extend(["shim", "proxy", "operator", "sidekey"].map(str::to_owned));
    let wrong: Vec<String> = names
        .iter()
        .filter(|name| !root().join("images").join(name).join("Containerfile").is_file())
        .map(|name| format!("images/{name}/Containerfile is missing"))
        .collect();
    assert_none("what users run is an image", &wrong);
}

/// The modules that say what a test takes, and the files of tests in them.
fn promises() -> Vec<String> {
    let classes = ["light", "plane", "planes", "hosted", "managed", "machine", "shared", "long"];
    let is_one = |file: &&String| {
        let mut parts = file.rsplit('/').skip(1);
        let folder = parts.next().unwrap_or_default();
        file.starts_with("e2e/tests/") && classes.contains(&folder)
    };
    let found: Vec<String> =
        files().iter().filter(is_one).map(|file| file["e2e/".len()..].to_owned()).collect();
    assert!(found.len() > 30, "tests not found: {found:?}");
    found
}

#[test]
fn every_file_of_end_to_end_tests_states_its_promise_in_the_readme() {
    let readme = std::fs::read_to_string(root().join("e2e/README.md")).unwrap();
    let rows: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|path| path.starts_with("tests/"))
        .collect();
    let mut wrong: Vec<String> = rows
        .iter()
        .filter(|path| !root().join("e2e").join(path).exists())
        .map(|path| format!("e2e/README.md tells of {path}, which is not there"))
        .collect();
    for file in promises() {
        let folder = file.replace(".rs", "/");
        if !rows.iter().any(|row| *row == file || *row == folder) {
            wrong.push(format!("e2e/README.md says nothing of {file}"));
        }
    }
    assert_none("promises are where the README says", &wrong);
}
