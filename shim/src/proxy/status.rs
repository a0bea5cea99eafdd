//! What the admin endpoints show.

use std::sync::PoisonError;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Value, json};
use sidekey_core::{Source, VERSION, time};

use super::Shared;

/// The configuration in use, and why a newer one is not.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ConfigStatus {
    source: String,
    revision: Option<String>,
    loaded: String,
    refused: Option<Refused>,
}

#[derive(Clone, Debug, Serialize)]
struct Refused {
    at: String,
    error: String,
}

impl ConfigStatus {
    pub(super) fn new(source: &str, revision: Option<&str>) -> Self {
        Self {
            source: source.to_owned(),
            revision: revision.map(str::to_owned),
            loaded: time(SystemTime::now()),
            refused: None,
        }
    }
}

impl Shared {
    /// Notes how an attempt to take over a changed configuration ended.
    pub(super) fn note(&self, result: &Result<(), String>, revision: Option<&str>) {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) => *config = ConfigStatus::new(&config.source, revision),
            Err(error) => {
                let at = time(SystemTime::now());
                config.refused = Some(Refused { at, error: error.clone() });
            }
        }
    }
}

impl Source for Shared {
    /// It listens as soon as it exists, and does not wait for the plugin: a client that asks too
    /// early gets an answer that says so.
    fn pending(&self) -> Vec<String> {
        self.connected.awaited().into_iter().collect()
    }

    fn sick(&self) -> Vec<String> {
        let mut list = Vec::new();
        let plugin = self.plugin.load();
        if !plugin.connected() {
            let why = plugin.trouble().map(|trouble| trouble.error);
            let why = why.unwrap_or_else(|| "the connection is lost".to_owned());
            list.push(format!("plugin {}: {why}", plugin.endpoint()));
        }
        if let Some(identity) = &self.identity
            && identity.expiry() <= SystemTime::now()
        {
            list.push(format!("our certificate expired at {}", time(identity.expiry())));
        }
        list
    }

    fn status(&self) -> Value {
        let plugin = self.plugin.load();
        let trouble = plugin.trouble().filter(|_| !plugin.connected());
        let certificate = self.identity.as_ref().map(|identity| {
            let (succeeded, failed) = identity.reloads();
            json!({
                "names": identity.names(),
                "expires": time(identity.expiry()),
                "reloads": {"success": succeeded, "failure": failed},
                "refused": identity.last_error(),
            })
        });
        let clients = self.identity.as_ref().map(|_| {
            let clients = self.clients.load();
            clients
                .iter()
                .map(|(san, allow)| json!({"san": san, "allow": allow}))
                .collect::<Value>()
        });
        json!({
            "proxy": "sidekey-proxy",
            "version": VERSION,
            "started": time(self.started),
            "listen": self.address.to_string(),
            "plaintext": self.identity.is_none(),
            "connections": self.metrics.connections.get(),
            "config": *self.config.lock().unwrap_or_else(PoisonError::into_inner),
            "plugin": {
                "endpoint": plugin.endpoint().to_string(),
                "connected": plugin.connected(),
                "since": trouble.as_ref().map(|trouble| time(trouble.since)),
                "error": trouble.map(|trouble| trouble.error),
            },
            "certificate": certificate,
            "clients": clients,
        })
    }

    fn metrics(&self) -> String {
        self.metrics.text(self.plugin.load().connected(), self.identity.as_deref())
    }
}
