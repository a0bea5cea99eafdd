//! From flags to the configuration that they mean.

use serde_json::{Value, json};
use sidekey_core::{Error, Kind};
use sidekey_rest::dropin::place;

use super::Flags;
use super::credentials::credentials;
use super::given::Given;

/// Where the replaced plugins listen if they are not told where.
const KUBE_KMS_SOCKET: &str = "unix:///tmp/vault-kube-kms.socket";
const KUBERNETES_KMS_SOCKET: &str = "unix:///opt/kms/vaultkms.socket";
/// Where vault-kubernetes-kms answers probes if it is not told where. (vault-kube-kms has such
/// ports too. OpenShift runs several of them on one host without naming these ports, and they
/// collide: here they are opened on request alone.)
const KUBERNETES_KMS_PORT: &str = "8080";
/// Flags of vault-kube-kms alone.
const KUBE_KMS: [&str; 4] =
    ["listen-address", "vault-key-path", "approle-secret-id-path", "auth-mount"];

/// Whether these are the flags of vault-kube-kms, which OpenShift's sidecar is, and not of
/// vault-kubernetes-kms.
fn is_kube_kms(flags: &Flags) -> bool {
    flags.get("socket").is_none() && KUBE_KMS.iter().any(|name| flags.get(name).is_some())
}

/// The key that the flags describe, and the secrets among them.
pub(super) fn describe(flags: &Flags) -> Result<(Value, Given), Error> {
    let kube_kms = is_kube_kms(flags);
    let default = if kube_kms { KUBE_KMS_SOCKET } else { KUBERNETES_KMS_SOCKET };
    let listen = either(flags, "listen-address", "socket")?.unwrap_or(default);
    let mut key = json!({"id": "1", "type": "vault", "listen": listen});
    if flags.get("vault-key-path").is_none() {
        key["kek"] = json!({"mount": "transit", "key": "kms"});
    }
    flags.fill(&mut key)?;
    if !matches!(flags.get("jwt-token-source"), None | Some("file")) {
        return Err(usage("-jwt-token-source must be file: spiffe-helper can write one"));
    }
    let addresses: Vec<&str> =
        flags.get("vault-address").iter().flat_map(|all| all.split(',')).collect();
    if addresses.is_empty() {
        return Err(usage("-vault-address is missing"));
    }
    place(&mut key, "settings.addresses", addresses.into());
    if let Some(bundle) = path(either(flags, "tls-ca-file", "vault-ca-cert")?)? {
        place(&mut key, "settings.tls.caFile", bundle.into());
    }
    if flags.is_on("allow-plaintext") {
        place(&mut key, "settings.allowPlaintext", true.into());
    }
    if !kube_kms {
        // That plugin reads nothing else, and the way back to it stays open.
        place(&mut key, "settings.associatedData", false.into());
    }
    let mut given = Given::default();
    key["credentials"] = credentials(flags, &mut given)?;
    Ok((key, given))
}

/// What the flags say of the process.
pub(super) fn process(flags: &Flags) -> Value {
    let (mut health, kube_kms) = (Vec::new(), is_kube_kms(flags));
    let default = (!kube_kms).then_some(KUBERNETES_KMS_PORT);
    if let Some(port) = flags.get("health-port").or(default).and_then(port) {
        health.push(match kube_kms {
            true => json!({"address": format!(":{port}"), "livez": "/healthz", "healthz": "/readyz"}),
            false => {
                json!({"address": format!(":{port}"), "livez": "/live", "healthz": "/health", "metrics": "/metrics"})
            }
        });
    }
    if let Some(port) = flags.get("metrics-port").and_then(port) {
        health.push(json!({"address": format!("127.0.0.1:{port}"), "metrics": "/metrics"}));
    }
    let mut document = json!({"health": health});
    if let Some(level) = level(flags) {
        document["log"] = json!({"level": level});
    }
    document
}

fn level(flags: &Flags) -> Option<&str> {
    if flags.is_on("debug") {
        return Some("debug");
    }
    flags.get("zap-log-level").map(|level| match level {
        "panic" => "error",
        "4" => "warn",
        "5" => "debug",
        "6" => "trace",
        other if other.parse::<u32>().is_ok() => "debug",
        other => other,
    })
}

/// One flag that the two plugins call by different names.
pub(super) fn either<'a>(
    flags: &'a Flags,
    one: &str,
    other: &str,
) -> Result<Option<&'a str>, Error> {
    match (flags.get(one), flags.get(other)) {
        (Some(_), Some(_)) => Err(usage(&format!("-{one} excludes -{other}"))),
        (value, None) | (None, value) => Ok(value),
    }
}

/// Go programs take paths relative to where they were started.
pub(super) fn path(path: Option<&str>) -> Result<Option<String>, Error> {
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

pub(super) fn usage(text: &str) -> Error {
    Error::new(Kind::Invalid, text)
}
