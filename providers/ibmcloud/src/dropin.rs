//! The environment of HyperShift's IBM Cloud sidecar, which describes its keys by variables alone.
//!
//! `KP_DATA_JSON` has every version of the control plane's key. The highest encrypts, the others are
//! read on the same socket. What that plugin itself has stored cannot be read: its form is not
//! published.

pub(crate) mod given;
pub(crate) mod older;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, NoCommand, Output, Secret, complain};
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use, names_a_file, place};

use crate::IbmCloud;

/// Where HyperShift mounts the token of the pod's service account.
const POD_TOKEN: &str = "/etc/pod-identity-token/pod-identity-token";
const LISTEN: &str = "/tmp/keyprotectprovider.sock";
/// The time that HyperShift gives its pods to end, 135 s, less the time to drain: its sidecars are
/// ordinary containers, and are told to end at the same moment as kube-apiserver.
const LINGER: &str = "125s";

/// The variables of the replaced plugin.
pub struct Replaced;

/// Keys, described by them.
type Flags = kit::Flags<Replaced>;

const fn flag(name: &'static str, value: &'static str, help: &'static str, use_: Use) -> Flag {
    Flag { name, aliases: &[], value, help, use_ }
}

#[rustfmt::skip]
impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("kp-data-json", "JSON", "Root keys by version, as KP_DATA_JSON has them; the highest encrypts", Use::Named),
        flag("api-key", "KEY", "API key itself (API_KEY); a file is safer", Use::Named),
        flag("api-key-file", "FILE", "File that holds the API key", Use::Text("credentials.apiKeyFile")),
        flag("pod-token-file", "FILE", "Token of the pod's service account [default: /etc/pod-identity-token/pod-identity-token]", Use::Named),
        flag("iam-profile-id", "ID", "Trusted profile that the pod's token is exchanged for (IAM_PROFILE_ID)", Use::Text("credentials.profileId")),
        flag("iam-profile-name", "NAME", "The same by its name (IAM_PROFILE_NAME)", Use::Text("credentials.profileName")),
        flag("iam-token-url", "URL", "Where IAM gives out tokens (IAM_TOKEN_URL)", Use::Text("settings.tokenUrl")),
        flag("unix-socket-path", "PATH", "Socket to serve (UNIX_SOCKET_PATH) [default: /tmp/keyprotectprovider.sock]", Use::Named),
        flag("healthz-port", "[IP]:PORT", "Address of probes (HEALTHZ_PORT)", Use::Named),
        flag("healthz-path", "PATH", "Path that is ok while the key works (HEALTHZ_PATH) [default: /healthz]; below it is /liveness", Use::Named),
        // Its own name would take that of every provider.
        flag("kp-log-level", "LEVEL", "", Use::Named),
        // The address of a key names its region.
        flag("region", "REGION", "", Use::Ignored),
        // Callers say how long they wait.
        flag("kp-timeout", "SECONDS", "", Use::Ignored),
    ];
    const VARIABLES: &'static [(&'static str, &'static str)] = &[("kp-data-json", "KP_DATA_JSON")];
    const COMMON: &'static [(&'static str, &'static str)] = &[
        ("api-key", "API_KEY"),
        ("pod-token-file", "POD_TOKEN_FILE"),
        ("iam-profile-id", "IAM_PROFILE_ID"),
        ("iam-profile-name", "IAM_PROFILE_NAME"),
        ("iam-token-url", "IAM_TOKEN_URL"),
        ("unix-socket-path", "UNIX_SOCKET_PATH"),
        ("healthz-port", "HEALTHZ_PORT"),
        ("healthz-path", "HEALTHZ_PATH"),
        ("kp-log-level", "LOG_LEVEL"),
    ];
}

/// One version of a control plane's key, as HyperShift writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(rename = "crkID")]
    key: String,
    #[serde(rename = "instanceID")]
    instance: String,
    #[serde(rename = "correlationID", default)]
    correlation: String,
    url: String,
    #[serde(default)]
    service_to_service: bool,
}

impl CommandLine for IbmCloud {
    const ABOUT: &'static str =
        "KMS v2 provider for IBM Key Protect, in HyperShift's IBM Cloud pods too";
    const EXAMPLES: &'static str = "Examples:
  sidekey-ibmcloud --config ibmcloud.yaml
  sidekey-ibmcloud check --config ibmcloud.yaml --connect
  KP_DATA_JSON='{\"1\":{\"crkID\":\"…\",\"instanceID\":\"…\",\"url\":\"https://us-south.kms.cloud.ibm.com\"}}' API_KEY=… UNIX_SOCKET_PATH=/tmp/keyprotectprovider.sock HEALTHZ_PORT=:8081 sidekey-ibmcloud

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(flags) = flags.with(&variable, names_a_file(std::env::args())) else {
            return Ok(None);
        };
        let (key, secret) = describe(&flags)?;
        if let Some(secret) = secret {
            complain(
                "warning: an API key in the environment can be read by others on this machine, and does not change without a restart: put it into a file",
            );
            given::keep(secret);
        }
        Ok(Some(json!([key])))
    }

    fn process(flags: &Flags) -> Value {
        let variable = |name: &str| std::env::var(name).ok();
        flags.with(&variable, false).map_or_else(|| json!({}), |flags| process(&flags))
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}

/// The key that the variables describe, and the API key among them.
fn describe(flags: &Flags) -> Result<(Value, Option<Secret>), Error> {
    let listed = listed(flags.get("kp-data-json").unwrap_or_default())?;
    let mut newest_first = listed.iter().rev();
    let Some((_, write)) = newest_first.next() else {
        return Err(bad("KP_DATA_JSON names no key"));
    };
    let pods = write.service_to_service;
    if listed.values().any(|key| key.service_to_service != pods) {
        return Err(bad(
            "KP_DATA_JSON: serviceToService is not the same for all keys: one login is used for them",
        ));
    }
    let kek = |key: &Listed| json!({"instance": key.instance, "key": key.key});
    let mut document = json!({
        "id": "1", "type": "ibmcloud",
        "listen": flags.get("unix-socket-path").unwrap_or(LISTEN),
        "kek": kek(write),
        "settings": {"address": address(write)},
    });
    let correlated = |mut settings: Value, key: &Listed| {
        if !key.correlation.is_empty() {
            settings["correlationId"] = key.correlation.as_str().into();
        }
        settings
    };
    document["settings"] = correlated(document["settings"].take(), write);
    let older = newest_first.map(|(_, key)| {
        let mut older = kek(key);
        older["address"] = address(key).into();
        correlated(older, key)
    });
    place(&mut document, "settings.olderKeks", older.collect());
    flags.fill(&mut document)?;
    let secret = credentials(flags, pods, &mut document)?;
    Ok((document, secret))
}

/// By version.
fn listed(text: &str) -> Result<BTreeMap<u32, Listed>, Error> {
    let listed: BTreeMap<String, Listed> = serde_json::from_str(text)
        .map_err(|error| bad(&format!("KP_DATA_JSON cannot be read: {error}")))?;
    let numbered = listed.into_iter().map(|(version, key)| {
        let text = format!("KP_DATA_JSON: {version:?} is no version of a key");
        // Two spellings of one number would be two keys, of which one is lost.
        let number = version.parse().ok().filter(|number: &u32| number.to_string() == version);
        Ok((number.ok_or_else(|| bad(&text))?, key))
    });
    numbered.collect()
}

fn address(key: &Listed) -> &str {
    key.url.trim_end_matches('/')
}

fn credentials(flags: &Flags, pods: bool, document: &mut Value) -> Result<Option<Secret>, Error> {
    let key = flags.get("api-key");
    let profile = flags.get("iam-profile-id").or_else(|| flags.get("iam-profile-name"));
    match (pods, flags.get("api-key-file"), key, profile) {
        (true, _, _, None) => Err(bad("serviceToService: the pod's token is exchanged for one of a trusted profile, and nothing says which").with_hint("set IAM_PROFILE_ID or IAM_PROFILE_NAME")),
        (true, ..) => {
            let file = flags.get("pod-token-file").unwrap_or(POD_TOKEN);
            place(document, "credentials.tokenFile", file.into());
            Ok(None)
        }
        (false, Some(_), ..) => Ok(None),
        (false, None, Some(key), _) => {
            place(document, "credentials.given", true.into());
            Ok(Some(Secret::new(key.trim().as_bytes().to_vec())))
        }
        (false, None, None, _) => Err(bad("API_KEY is missing")
            .with_hint("or name a file that holds the key: --api-key-file")),
    }
}

/// What the variables say of the process.
fn process(flags: &Flags) -> Value {
    let mut document = json!({"linger": LINGER});
    if let Some(address) = flags.get("healthz-port") {
        let healthz = flags.get("healthz-path").unwrap_or("/healthz");
        let healthz = healthz.trim_end_matches('/');
        document["health"] = json!([{
            "address": address, "healthz": healthz, "livez": format!("{healthz}/liveness"),
        }]);
    }
    let level = flags.get("kp-log-level").map(str::to_ascii_lowercase);
    let level = level.map(|level| if level == "warning" { "warn".to_owned() } else { level });
    let known = ["error", "warn", "info", "debug", "trace"];
    if let Some(level) = level.filter(|level| known.contains(&level.as_str())) {
        document["log"] = json!({"level": level});
    }
    document
}

fn bad(text: &str) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests;
