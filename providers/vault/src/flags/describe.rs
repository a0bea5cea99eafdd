//! From flags to the configuration that they mean.

use serde_json::{Value, json};
use sidekey_core::{Error, Kind};

use super::Flags;
use super::credentials::credentials;
use crate::given::Given;

/// Where the replaced plugins listen if they are not told where.
const KUBE_KMS_SOCKET: &str = "unix:///tmp/vault-kube-kms.socket";
const KUBERNETES_KMS_SOCKET: &str = "unix:///opt/kms/vaultkms.socket";
/// Where vault-kubernetes-kms answers probes if it is not told where. (vault-kube-kms has such
/// ports too. OpenShift runs several of them on one host without naming these ports, and they
/// collide: here they are opened on request alone.)
const KUBERNETES_KMS_PORT: &str = "8080";

impl Flags {
    /// Whether these are the flags of vault-kube-kms, which OpenShift's sidecar is, and not of
    /// vault-kubernetes-kms.
    fn is_kube_kms(&self) -> bool {
        let its_own = [
            &self.listen_address,
            &self.vault_key_path,
            &self.approle_secret_id_path,
            &self.auth_mount,
        ];
        self.socket.is_none() && its_own.iter().any(|flag| flag.is_some())
    }
}

/// The key that the flags describe, and the secrets among them.
pub(super) fn describe(flags: &Flags) -> Result<(Value, Given), Error> {
    refuse(flags)?;
    let mut given = Given::default();
    let default = if flags.is_kube_kms() { KUBE_KMS_SOCKET } else { KUBERNETES_KMS_SOCKET };
    let listen = flags.listen_address.as_deref().or(flags.socket.as_deref()).unwrap_or(default);
    let addresses: Vec<&str> = flags.vault_address.iter().flat_map(|all| all.split(',')).collect();
    if addresses.is_empty() {
        return Err(usage("-vault-address is missing"));
    }
    let mut settings = json!({"addresses": addresses});
    put(&mut settings, "authNamespace", flags.vault_auth_namespace.as_deref());
    put(&mut settings, "connectTimeout", flags.vault_connection_timeout.as_deref());
    let bundle = flags.tls_ca_file.as_ref().or(flags.vault_ca_cert.as_ref());
    let mut tls = json!({});
    put(&mut tls, "caFile", path(bundle)?.as_deref());
    put(&mut tls, "serverName", flags.tls_sni.as_deref());
    settings["tls"] = tls;
    let key = json!({
        "id": "1",
        "type": "vault",
        "listen": listen,
        "kek": kek(flags),
        "settings": settings,
        "credentials": credentials(flags, &mut given)?,
    });
    Ok((key, given))
}

/// What the flags say of the process.
pub(super) fn process(flags: &Flags) -> Value {
    let mut health = Vec::new();
    let default = (!flags.is_kube_kms()).then_some(KUBERNETES_KMS_PORT);
    if let Some(port) = flags.health_port.as_deref().or(default).and_then(port) {
        health.push(match flags.is_kube_kms() {
            true => json!({"address": format!(":{port}"), "livez": "/healthz", "healthz": "/readyz"}),
            false => {
                json!({"address": format!(":{port}"), "livez": "/live", "healthz": "/health", "metrics": "/metrics"})
            }
        });
    }
    if let Some(port) = flags.metrics_port.as_deref().and_then(port) {
        health.push(json!({"address": format!("127.0.0.1:{port}"), "metrics": "/metrics"}));
    }
    let mut document = json!({"health": health});
    if let Some(level) = level(flags) {
        document["log"] = json!({"level": level});
    }
    document
}

fn level(flags: &Flags) -> Option<&str> {
    if is_true(flags.debug.as_deref()) {
        return Some("debug");
    }
    flags.zap_log_level.as_deref().map(|level| match level {
        "panic" => "error",
        "4" => "warn",
        "5" => "debug",
        "6" => "trace",
        other if other.parse::<u32>().is_ok() => "debug",
        other => other,
    })
}

/// Says no to what would be less safe or would not work.
fn refuse(flags: &Flags) -> Result<(), Error> {
    if is_true(flags.tls_skip_verify.as_deref()) {
        return Err(usage("servers are always verified: give their CA with -tls-ca-file"));
    }
    if is_true(flags.disable_v2.as_deref()) {
        return Err(usage("only KMS v2 is served: -disable-v2 leaves nothing"));
    }
    match flags.jwt_token_source.as_deref() {
        None | Some("file") => Ok(()),
        Some(_) => Err(usage("-jwt-token-source must be file: spiffe-helper can write one")),
    }
}

fn kek(flags: &Flags) -> Value {
    let mut kek = json!({});
    put(&mut kek, "namespace", flags.vault_namespace.as_deref());
    match &flags.vault_key_path {
        Some(path) => {
            put(&mut kek, "keyPath", Some(path));
            // Both ways at once are a mistake, which is reported with all others.
            put(&mut kek, "key", flags.transit_key.as_deref());
            put(&mut kek, "mount", flags.transit_mount.as_deref());
        }
        None => {
            put(&mut kek, "mount", Some(flags.transit_mount.as_deref().unwrap_or("transit")));
            put(&mut kek, "key", Some(flags.transit_key.as_deref().unwrap_or("kms")));
        }
    }
    kek
}

pub(super) fn put(object: &mut Value, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}

/// Go programs take paths relative to where they were started.
pub(super) fn path(path: Option<&String>) -> Result<Option<String>, Error> {
    let Some(path) = path else { return Ok(None) };
    let full = std::path::absolute(path)
        .map_err(|error| usage(&format!("{path:?} is no path")).with_source(error))?;
    Ok(Some(full.to_string_lossy().into_owned()))
}

/// A port, or none where it is turned off.
fn port(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(':');
    (text != "0" && !text.starts_with('-')).then_some(text)
}

fn is_true(flag: Option<&str>) -> bool {
    flag.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "t" | "true"))
}

pub(super) fn usage(text: &str) -> Error {
    Error::new(Kind::Invalid, text)
}
