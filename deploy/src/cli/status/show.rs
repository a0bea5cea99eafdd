//! A status as tables.

use super::Status;
use crate::fleet::{Observation, ShimReport};
use crate::{Console, Report, Table};

/// So many digits of a hash tell keys apart.
const HASH: usize = "sha256:".len() + 12;

impl Report for Status {
    fn text(&self, console: &Console) -> String {
        let mut parts = Vec::new();
        if let Some(revision) = self.wanted.revision {
            parts.push(format!("published: revision {revision}"));
        }
        parts.extend(tables(&self.seen, console));
        for note in &self.seen.notes {
            parts.push(console.dim(&format!("not found out: {note}")));
        }
        let lists = [
            ("not as it should be:", &self.findings.wrong),
            ("cannot be asked:", &self.findings.silent),
        ];
        for (heading, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            let lines: Vec<String> = list.iter().map(|line| format!("  {line}")).collect();
            parts.push(format!("{}\n{}", console.bad(heading), lines.join("\n")));
        }
        if self.findings.is_empty() {
            parts.push(console.good(&well(&self.seen)));
        }
        parts.join("\n\n")
    }
}

/// What does not change while nothing happens.
pub(super) fn digest(status: &Status) -> String {
    let mut document = serde_json::to_value(status).unwrap_or_default();
    forget_times(&mut document);
    document.to_string()
}

fn forget_times(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            for name in ["lastSuccess", "lastError", "at"] {
                map.remove(name);
            }
            map.values_mut().for_each(forget_times);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(forget_times),
        _ => {}
    }
}

fn well(seen: &Observation) -> String {
    let count = |count: usize, what: &str| {
        (count > 0).then(|| format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
    };
    let asked = [
        count(seen.shims.len(), "shim"),
        count(seen.servers.len(), "kube-apiserver"),
        count(seen.providers.len(), "provider"),
    ];
    format!("all well: {}", asked.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn tables(seen: &Observation, console: &Console) -> Vec<String> {
    let all = [
        shims(seen, console),
        keys(seen, console),
        servers(seen, console),
        providers(seen, console),
    ];
    all.into_iter().filter(|table| !table.is_empty()).map(|table| table.render()).collect()
}

fn shims(seen: &Observation, console: &Console) -> Table {
    let mut table =
        Table::new(["shim", "revision", "writes", "health", "key_id", "loaded", "version"]);
    for shim in &seen.shims {
        let name = named(&shim.name, shim.ending);
        let Some(status) = &shim.status else {
            let none = || "-".to_owned();
            table.row([name, none(), none(), console.bad("no answer"), none(), none(), none()]);
            continue;
        };
        table.row([
            name,
            status.revision.clone().unwrap_or_else(|| "-".to_owned()),
            format!("key {}", status.write_key),
            health(status.healthy, console),
            short(status.key_id_hash.as_deref()),
            refused(shim, console).unwrap_or_else(|| status.config.loaded.clone()),
            status.version.clone(),
        ]);
    }
    table
}

fn refused(shim: &ShimReport, console: &Console) -> Option<String> {
    let refusal = shim.status.as_ref()?.config.refused.as_ref()?;
    Some(console.bad(&format!("refused since {}", refusal.at)))
}

fn keys(seen: &Observation, console: &Console) -> Table {
    let mut table = Table::new([
        "shim",
        "key",
        "role",
        "fingerprint",
        "health",
        "key_id",
        "canary",
        "last success",
    ]);
    for shim in &seen.shims {
        for key in shim.status.iter().flat_map(|status| &status.keys) {
            table.row([
                shim.name.clone(),
                key.id.clone(),
                key.role.clone(),
                key.fingerprint.clone(),
                health(key.healthy, console),
                short(key.key_id_hash.as_deref()),
                if key.canary { "yes" } else { "no" }.to_owned(),
                key.last_success.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    table
}

fn servers(seen: &Observation, console: &Console) -> Table {
    let mut table =
        Table::new(["kube-apiserver", "provider", "key_id", "seen", "written", "checks", "config"]);
    for server in &seen.servers {
        let name = named(&server.name, server.ending);
        let none = || "-".to_owned();
        let Some(status) = &server.status else {
            let row = [name, none(), none(), none(), none(), console.bad("no answer"), none()];
            table.row(row);
            continue;
        };
        let checks = status.kms_healthy.map_or_else(none, |good| health(good, console));
        let config = short(status.config_hash.as_deref());
        if status.announced.is_empty() {
            table.row([name, none(), none(), none(), none(), checks, config]);
            continue;
        }
        for (provider, announced) in &status.announced {
            let written = status.written.get(provider).map(|written| written.key_id_hash.as_str());
            table.row([
                name.clone(),
                provider.clone(),
                short(Some(&announced.key_id_hash)),
                announced.at.clone(),
                short(written),
                checks.clone(),
                config.clone(),
            ]);
        }
    }
    table
}

fn providers(seen: &Observation, console: &Console) -> Table {
    let mut table = Table::new([
        "provider",
        "type",
        "revision",
        "key",
        "health",
        "key_id",
        "credentials expire",
    ]);
    for provider in &seen.providers {
        let none = || "-".to_owned();
        let name = provider.name.clone();
        let Some(status) = &provider.status else {
            let row = [name, none(), none(), none(), console.bad("no answer"), none(), none()];
            table.row(row);
            continue;
        };
        for key in &status.keys {
            table.row([
                name.clone(),
                status.provider.clone(),
                status.config.revision.clone().unwrap_or_else(none),
                key.id.clone(),
                health(key.healthy, console),
                short(key.key_id_hash.as_deref()),
                key.credentials_expire.clone().unwrap_or_else(none),
            ]);
        }
    }
    table
}

fn named(name: &str, ending: bool) -> String {
    if ending { format!("{name} (ending)") } else { name.to_owned() }
}

fn health(good: bool, console: &Console) -> String {
    if good { console.good("ok") } else { console.bad("bad") }
}

fn short(hash: Option<&str>) -> String {
    match hash {
        Some(hash) if hash.len() > HASH && hash.is_ascii() => format!("{}…", &hash[..HASH]),
        Some(hash) => hash.to_owned(),
        None => "-".to_owned(),
    }
}
