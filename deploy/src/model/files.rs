//! Reading the files that land beside a configuration, and where their content comes from.

use std::path::PathBuf;

use serde_json::Value;
use sidekey_core::config::Problems;

use super::raw::{RawFile, RawObjectKey};
use super::{FileRef, FileSource, ObjectKey, names};

pub(super) fn files(
    path: &str,
    raw: Option<&Vec<Option<RawFile>>>,
    problems: &mut Problems,
) -> Vec<FileRef> {
    let mut files: Vec<FileRef> = Vec::new();
    for (index, file) in raw.into_iter().flatten().enumerate() {
        let Some(file) = file else { continue };
        problems.within(&format!("{path}[{index}]"), |problems| {
            let name = problems.require("name", &file.name).cloned().unwrap_or_default();
            if file.name.is_some() && !is_file_name(&name) {
                problems
                    .add("name", "is no file name: letters, digits, - _ and . but not .. first");
            }
            if name == names::CONFIG_FILE || files.iter().any(|other| other.name == name) {
                problems.add("name", &format!("{name:?} is the name of another file there"));
            }
            let RawFile { secret, config_map, file, .. } = file;
            if let Some(source) = source(secret, config_map, file, problems) {
                files.push(FileRef { name, source });
            }
        });
    }
    files
}

pub(super) fn source(
    secret: &Option<RawObjectKey>,
    config_map: &Option<RawObjectKey>,
    file: &Option<PathBuf>,
    problems: &mut Problems,
) -> Option<FileSource> {
    let mut object = |path: &str, raw: &RawObjectKey| {
        problems.within(path, |problems| {
            let name = problems.require("name", &raw.name).cloned();
            let key = problems.require("key", &raw.key).cloned();
            Some(ObjectKey { name: name?, key: key? })
        })
    };
    match (secret, config_map, file) {
        (Some(raw), None, None) => object("secret", raw).map(FileSource::Secret),
        (None, Some(raw), None) => object("configMap", raw).map(FileSource::ConfigMap),
        (None, None, Some(path)) => Some(FileSource::File(path.clone())),
        _ => {
            problems.add("", "needs exactly one of secret, configMap and file");
            None
        }
    }
}

/// What a section names under `/etc/sidekey` must be among the files that land there.
pub(super) fn check_paths(path: &str, section: &Value, files: &[FileRef], problems: &mut Problems) {
    match section {
        Value::Object(map) => {
            for (name, value) in map {
                check_paths(&format!("{path}.{name}"), value, files, problems);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                check_paths(&format!("{path}[{index}]"), value, files, problems);
            }
        }
        Value::String(text) => {
            let name = text.strip_prefix(names::MOUNT).and_then(|rest| rest.strip_prefix('/'));
            if let Some(name) = name.filter(|name| files.iter().all(|file| file.name != *name)) {
                problems.add(path, &format!("{name:?} is not among the files that land there"));
            }
        }
        _ => {}
    }
}

/// What may be a key of a Secret's data, and so a file in its volume.
fn is_file_name(text: &str) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=253).contains(&text.len())
        && text.bytes().all(sound)
        && !text.starts_with("..")
        && text != "."
}
