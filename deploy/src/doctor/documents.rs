//! The configuration files on this host, and what their own programs say of them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use super::{Area, Findings, Options};
use crate::model::names;
use crate::preflight::find_binary;

/// Where kube-apiserver's files are, in the directory of configurations.
const KUBE_APISERVER: &str = "kube-apiserver";
/// What is no part.
const HISTORY: &str = "revisions";

/// One process's configuration.
pub(super) struct Document {
    /// `shim`, `proxy`, `kube-apiserver` or a vendor.
    pub(super) part: String,
    pub(super) path: PathBuf,
    /// With the paths of files as they are on this host.
    pub(super) value: Value,
}

impl Document {
    pub(super) fn is_encryption(&self) -> bool {
        self.part == KUBE_APISERVER
    }

    pub(super) fn is_shim(&self) -> bool {
        self.part == "shim"
    }

    /// The revision of the head.
    pub(super) fn revision(&self) -> Option<String> {
        match &self.value["revision"] {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// Every text in it that `wanted` takes, with its path.
    pub(super) fn texts(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        collect(&self.value, &mut |text| {
            if wanted(text) {
                found.push(text.to_owned());
            }
        });
        found.sort();
        found.dedup();
        found
    }
}

fn collect(value: &Value, take: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => take(text),
        Value::Array(items) => items.iter().for_each(|item| collect(item, take)),
        Value::Object(map) => map.values().for_each(|item| collect(item, take)),
        _ => {}
    }
}

/// Reads all of them; what cannot be read is a finding.
pub(super) fn read(options: &Options, findings: &mut Findings) -> Vec<Document> {
    let mut found = Vec::new();
    let given = options.encryption_config.clone();
    match std::fs::read_dir(&options.config_dir) {
        Ok(entries) => {
            let mut parts: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            parts.sort();
            for directory in parts.into_iter().filter(|path| path.is_dir()) {
                let part = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if part == HISTORY || part.starts_with('.') {
                    continue;
                }
                let encryption = part == KUBE_APISERVER;
                if encryption && given.is_some() {
                    continue;
                }
                let file = if encryption { names::ENCRYPTION_FILE } else { names::CONFIG_FILE };
                found.extend(load(part, directory.join(file), findings));
            }
        }
        Err(error) if given.is_none() => findings.problem(
            Area::Configuration,
            options.config_dir.display(),
            format!("cannot be read: {error}"),
            "run it on a control-plane node, as root, or say where with --config-dir",
        ),
        Err(_) => {}
    }
    found.extend(given.and_then(|path| load(KUBE_APISERVER, path, findings)));
    found
}

fn load(part: &str, path: PathBuf, findings: &mut Findings) -> Option<Document> {
    match sidekey_core::read_file(&path) {
        Ok(mut value) => {
            if let Some(directory) = path.parent() {
                turn(&mut value, directory);
            }
            Some(Document { part: part.to_owned(), path, value })
        }
        Err(problems) => {
            let text = problems.to_string().replace('\n', "; ");
            let fix = "publish this part again: sidekey publish --to-dir";
            findings.problem(Area::Configuration, path.display(), text, fix);
            None
        }
    }
}

/// In the pod the part's own directory is mounted at `/etc/sidekey`.
fn turn(value: &mut Value, directory: &Path) {
    match value {
        Value::String(text) => {
            let name = text.strip_prefix(names::MOUNT).and_then(|rest| rest.strip_prefix('/'));
            if let Some(here) = name.map(|name| directory.join(name)).filter(|here| here.exists()) {
                *text = here.display().to_string();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| turn(item, directory)),
        Value::Object(map) => map.values_mut().for_each(|item| turn(item, directory)),
        _ => {}
    }
}

/// Has each program judge its own file.
pub(super) async fn judge(documents: &[Document], options: &Options, findings: &mut Findings) {
    for document in documents.iter().filter(|document| !document.is_encryption()) {
        let subject = document.path.display();
        let Ok(binary) = find_binary(&document.part, options.bin_dir.as_deref()) else {
            let text = format!("parses; sidekey-{} is not here to judge it", document.part);
            findings.ok(Area::Configuration, subject, text);
            continue;
        };
        match check(&binary, document, options).await {
            Ok(()) => findings.ok(Area::Configuration, subject, "is sound"),
            Err(text) => {
                let fix = "mend it and publish again; until then the last good one stays in use";
                findings.problem(Area::Configuration, subject, text, fix);
            }
        }
    }
}

async fn check(binary: &Path, document: &Document, options: &Options) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{} cannot be run: {error}", binary.display());
    // A copy: the paths in it are those of this host.
    let mut copy = tempfile::Builder::new();
    let copy = copy.prefix("sidekey-").suffix(".yaml").tempfile().map_err(failed)?;
    std::fs::write(copy.path(), document.value.to_string()).map_err(failed)?;
    let mut command = Command::new(binary);
    command.arg("check").arg("--config").arg(copy.path()).stdin(Stdio::null()).kill_on_drop(true);
    let ran = tokio::time::timeout(options.timeout, command.output()).await;
    let ran = ran.map_err(|_| format!("{} check does not end", binary.display()))?;
    let ran = ran.map_err(failed)?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    let lines = said.lines().filter(|line| !line.starts_with("error: "));
    let lines: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(if lines.is_empty() { said.trim().to_owned() } else { lines.join("; ") })
}
