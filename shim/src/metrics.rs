//! What Prometheus sees of the shim, under the names that the shim's enhancement text gave.

use std::sync::Arc;
use std::time::SystemTime;

use sidekey_core::Connections;
use sidekey_core::code_name;
use sidekey_core::kms::Requests;
use sidekey_core::metrics::{Counter, Gauge, Labelled, MetricRegistry, ReloadCounter, seconds};

use crate::state::ShimStatus;

/// Every metric of the shim.
pub(crate) struct ShimMetrics {
    pub(crate) registry: MetricRegistry,
    pub(crate) requests: Arc<Requests>,
    pub(crate) connections: Connections,
    pub(crate) shared: Counter,
    pub(crate) refused: Counter,
    pub(crate) reloads: ReloadCounter,
    /// Requests that did not reach a plugin.
    pub(crate) unconnected: Counter,
    pub(crate) timed_out: Counter,
    plugin_errors: Labelled<Counter>,
    healthy: Labelled<Gauge>,
    key_ids: Labelled<Gauge>,
    canary_unread: Labelled<Gauge>,
    coasting: Labelled<Gauge>,
    revision: Labelled<Gauge>,
    expiry: Gauge,
}

impl Default for ShimMetrics {
    fn default() -> Self {
        let mut registry = MetricRegistry::default();
        let new = &mut registry;
        new.build_info("kms_shim", &[]);
        let forward_errors =
            new.counters("kms_shim_forward_errors", "Requests that did not reach a plugin");
        Self {
            requests: Requests::new(None, new.requests("kms_shim")),
            connections: Connections::of_clients(new, "kms_shim"),
            shared: new.single(
                "kms_shim_shared_decrypts",
                "Decrypt requests answered by an equal one already under way",
            ),
            refused: new.single(
                "kms_shim_refused_connections",
                "Connections of users who are not on the allow-list",
            ),
            reloads: new
                .reloads("kms_shim_reloads", "Attempts to take over a changed configuration"),
            unconnected: forward_errors.with([("reason", "connection".into())]),
            timed_out: forward_errors.with([("reason", "timeout".into())]),
            plugin_errors: new.counters(
                "kms_shim_plugin_errors",
                "Requests that a plugin answered with an error",
            ),
            healthy: new.gauges(
                "kms_shim_plugin_healthy",
                "1 while the key's plugin answers Status with ok",
            ),
            key_ids: new.gauges(
                "kms_shim_key_id_hash_info",
                "Hash of a proven key_id, in the form of kube-apiserver's own metrics",
            ),
            canary_unread: new.gauges(
                "kms_shim_canary_unread",
                "1 while the key has not read anything that was written before",
            ),
            coasting: new.gauges(
                "kms_shim_coasting_since_timestamp_seconds",
                "Since when the key fails while Status is still ok",
            ),
            revision: new.gauges("kms_shim_revision_info", "The revision in use"),
            expiry: new.single(
                "kms_shim_certificate_expiry_timestamp_seconds",
                "When the first of our certificates expires; 0 without certificates",
            ),
            registry,
        }
    }
}

impl ShimMetrics {
    pub(crate) fn plugin_error(&self, code: tonic::Code) {
        self.plugin_errors.with([("code", code_name(code).into())]).inc();
    }

    /// Brings the gauges up to date when they are read.
    pub(crate) fn refresh(&self, status: &ShimStatus) {
        for gauges in
            [&self.revision, &self.healthy, &self.key_ids, &self.canary_unread, &self.coasting]
        {
            gauges.clear();
        }
        let revision = status.revision.as_deref().unwrap_or("none").to_owned();
        self.revision.with([("revision", revision.into())]).set(1);
        for status in &status.keys {
            let key = || ("key", status.id.clone().into());
            let role = || ("role", status.role.into());
            self.canary_unread.with([key()]).set(i64::from(status.canary_unread));
            if let Some(since) = status.coasting {
                self.coasting.with([key()]).set(seconds(since));
            }
            self.healthy.with([key(), role()]).set(i64::from(status.healthy));
            if let Some(hash) = status.key_id_hash.clone() {
                self.key_ids.with([key(), role(), ("key_id_hash", hash.into())]).set(1);
            }
        }
    }

    pub(crate) fn expiry(&self, at: Option<SystemTime>) {
        self.expiry.set(at.map_or(0, seconds));
    }
}
