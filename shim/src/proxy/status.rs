//! What the admin endpoints show.

use std::time::SystemTime;

use serde_json::{Value, json};
use sidekey_core::{Source, VERSION, time};

use super::Shared;

impl Source for Shared {
    /// It listens as soon as it exists, and does not wait for the plugin: a client that asks too
    /// early gets an answer that says so.
    fn pending(&self) -> Vec<String> {
        self.connections().awaited().into_iter().collect()
    }

    fn sick(&self) -> Vec<String> {
        let mut list = Vec::new();
        let plugin = self.plugin.load();
        if !plugin.connected() {
            let why = plugin.trouble().map(|trouble| trouble.error);
            let why = why.unwrap_or_else(|| "the connection is lost".to_owned());
            list.push(format!("plugin {}: {why}", plugin.endpoint()));
        }
        let expiry = self.identity.as_ref().and_then(|identity| identity.expiry());
        if let Some(expired) = expiry.filter(|expiry| *expiry <= SystemTime::now()) {
            list.push(format!("our certificate expired at {}", time(expired)));
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
                "expires": identity.expiry().map(time),
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
            "connections": self.connections().count(),
            "config": self.config.status(),
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
