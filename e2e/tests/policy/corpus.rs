//! What was stored once stays in `providers/conformance/corpus`, and somebody reads it.

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest::{SHA256, digest};

use crate::assert_none;
use crate::conformance::CORPUS;
use crate::layout::{files, providers, root};

const FOLDER: &str = "providers/conformance/corpus/";
/// Tells each file of a folder, as `sha256sum` does.
const SUMS: &str = "SHA256SUMS";
/// Who reads a folder that is no provider's.
const READERS: [(&str, &str); 1] = [("shim", "e2e/tests/it/light/shim_conformance.rs")];

/// The files below each folder of the corpus.
fn folders() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files() {
        let Some((folder, rest)) = file.strip_prefix(FOLDER).and_then(|path| path.split_once('/'))
        else {
            continue;
        };
        found.entry(folder.to_owned()).or_default().insert(rest.to_owned());
    }
    found
}

#[test]
fn every_provider_has_data_in_the_corpus_and_no_folder_is_without_a_reader() {
    let folders = folders();
    let mut wrong = Vec::new();
    for name in providers().iter().map(String::as_str).chain(READERS.map(|(name, _)| name)) {
        let stored = folders.get(name).into_iter().flatten();
        if stored.filter(|file| file.contains('/') && !file.ends_with("/key.json")).count() == 0 {
            wrong.push(format!("{FOLDER}{name} has no entry: see providers/conformance/README.md"));
        }
    }
    for folder in folders.keys() {
        let reader = READERS.iter().find(|(name, _)| name == folder);
        let read = match reader {
            Some((_, reader)) => {
                let text = std::fs::read_to_string(root().join(reader)).unwrap();
                text.contains(&format!("    {CORPUS}({folder:?}, start).await;\n}}\n"))
            }
            // Their tests are looked at where those of the suite are.
            None => providers().contains(folder),
        };
        if !read {
            wrong.push(format!("nobody reads {FOLDER}{folder}"));
        }
    }
    assert_none("what was stored once is read for ever", &wrong);
}

#[test]
fn nothing_in_the_corpus_is_changed_or_lost() {
    let mut wrong = Vec::new();
    for (folder, mut files) in folders() {
        let read = |file: &str| std::fs::read(root().join(FOLDER).join(&folder).join(file));
        let sums = read(SUMS).unwrap_or_default();
        files.remove(SUMS);
        for line in String::from_utf8_lossy(&sums).lines() {
            let (sum, file) = line.split_once("  ").unwrap_or((line, ""));
            let bytes = read(file).unwrap_or_default();
            let hash = digest(&SHA256, &bytes);
            let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            if !files.remove(file) || hash != sum {
                wrong.push(format!("{FOLDER}{folder}/{file} is not what was kept: put it back"));
            }
        }
        let add = format!("(cd {FOLDER}{folder} && sha256sum */*.json >{SUMS})");
        wrong.extend(files.iter().map(|file| format!("{folder}/{file} is new: {add}")));
    }
    assert_none("files of the corpus are only added", &wrong);
}
