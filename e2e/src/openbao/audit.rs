//! What a server has been asked, by its own audit log.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

/// The audit log of one server.
#[derive(Clone, Debug)]
pub struct Audit {
    path: PathBuf,
}

/// One answered request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `read`, `update`, `create`, `list` or `delete`.
    pub operation: String,
    /// The path without `v1/` and namespace.
    pub path: String,
    /// The namespace, empty for the root.
    pub namespace: String,
    /// Why it failed; empty if it did not.
    pub error: String,
}

impl Audit {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Everything that was answered, in order.
    pub fn all(&self) -> Result<Vec<Asked>> {
        let text = std::fs::read_to_string(&self.path)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        // The last line may still be being written.
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(entries.filter(|entry| entry["type"] == "response").map(|entry| asked(&entry)).collect())
    }

    /// How often this path was asked for, with whatever success.
    pub fn count(&self, path: &str) -> Result<usize> {
        Ok(self.all()?.iter().filter(|asked| asked.path == path).count())
    }

    /// How often anything below this path was asked for.
    pub fn count_below(&self, prefix: &str) -> Result<usize> {
        Ok(self.all()?.iter().filter(|asked| asked.path.starts_with(prefix)).count())
    }
}

fn asked(entry: &Value) -> Asked {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let request = &entry["request"];
    Asked {
        operation: text(&request["operation"]),
        path: text(&request["path"]),
        namespace: text(&request["namespace"]["path"]).trim_matches('/').to_owned(),
        error: text(&entry["error"]),
    }
}
