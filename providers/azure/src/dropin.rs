//! The command line of `sidekey-azure`: that of Azure/kubernetes-kms and of OpenShift's fork, which
//! have the same flags.

pub(crate) mod azure_json;
pub(crate) mod format;
pub(crate) mod identity_file;
pub(crate) mod pkcs12;

use std::path::PathBuf;

use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Files, Kind, NoCommand, Output, complain};
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use};

use crate::{Azure, Config};
use azure_json::AzureJson;

/// Where the replaced plugins listen unless told otherwise.
const LISTEN: &str = "unix:///opt/azurekms.socket";
/// HyperShift's sockets. Its sidecars are ordinary containers in the pod of kube-apiserver, and are
/// told to end at the same moment; its image is the fork.
const HYPERSHIFT: [&str; 2] = ["azurekmsactive.socket", "azurekmsbackup.socket"];
/// The time that HyperShift gives its pods to end, 135 s, less the time to drain.
const LINGER: &str = "125s";
const REQUIRED: [&str; 3] = ["keyvault-name", "key-name", "key-version"];

/// The flags of the replaced plugins.
pub struct Replaced;

type Flags = kit::Flags<Replaced>;

const fn flag(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, aliases: &[], value, help, use_: Use::Named }
}

const fn ignored(name: &'static str, value: &'static str) -> Flag {
    Flag { name, aliases: &[], value, help: "", use_: Use::Ignored }
}

#[rustfmt::skip]
impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("keyvault-name", "NAME", "Name of the vault or Managed HSM"),
        flag("key-name", "NAME", "Name of the key"),
        flag("key-version", "VERSION", "Version of the key"),
        flag("managed-hsm", "", "It is a Managed HSM"),
        flag("listen-addr", "SOCKET", "Socket to serve [default: unix:///opt/azurekms.socket]"),
        flag("config-file-path", "FILE", "Cloud and credentials [default: /etc/kubernetes/azure.json]"),
        flag("format", "FORMAT", "How wrapped keys are stored: text, as Azure/kubernetes-kms reads them, or binary, as OpenShift's fork does since 4.19 [default: binary on HyperShift's sockets, else text]"),
        flag("healthz-port", "PORT", "Port of /healthz, plain, on all addresses [default: 8787]"),
        flag("healthz-path", "PATH", "Path that is ok while the key works [default: /healthz]"),
        flag("metrics-addr", "PORT", "Port of /metrics, plain, on all addresses [default: 8095]"),
        flag("proxy-mode", "", "Ask a proxy in clear, in the place of vault and login endpoint"),
        flag("proxy-address", "HOST", "Host of that proxy"),
        flag("proxy-port", "PORT", "Port of that proxy [default: 7788]"),
        ignored("healthz-timeout", "TIME"),
        ignored("metrics-backend", "NAME"),
        ignored("log-format-json", ""),
        ignored("configFilePath", "FILE"),
        ignored("v", "LEVEL"),
    ];
}

impl CommandLine for Azure {
    const ABOUT: &'static str =
        "KMS v2 provider for Azure Key Vault and Managed HSM, a drop-in for Azure/kubernetes-kms";
    const EXAMPLES: &'static str = "Examples:
  sidekey-azure --config azure.yaml
  sidekey-azure check --config azure.yaml --connect
  sidekey-azure --keyvault-name=my-vault --key-name=etcd --key-version=0123456789abcdef0123456789abcdef --listen-addr=unix:///opt/azurekms.socket
  sidekey-azure --keyvault-name=my-hsm --managed-hsm --key-name=etcd --key-version=0123456789abcdef0123456789abcdef --format=binary

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let Some(first) = flags.first() else { return Ok(None) };
        let [vault, key, version] = REQUIRED.map(|name| trimmed(flags, name));
        let missing =
            REQUIRED.iter().zip([&vault, &key, &version]).find(|(_, value)| value.is_empty());
        if let Some((missing, _)) = missing {
            return Err(bad(format!("--{first} needs --{missing}")));
        }
        if !(3..=24).contains(&vault.len()) {
            return Err(bad(format!(
                "--keyvault-name {vault:?} is no name of a vault: 3 to 24 characters"
            )));
        }
        let mut settings = json!({"format": format(flags)?});
        if let Some(gateway) = gateway(flags)? {
            settings["gateway"] = gateway.into();
            // Whoever asks for this mode has seen it, and the replaced plugins know no other.
            settings["allowPlaintext"] = true.into();
        }
        let azure_json = flags.get("config-file-path").unwrap_or("/etc/kubernetes/azure.json");
        Ok(Some(json!([{
            "id": "1", "type": "azure", "listen": listen(flags)?,
            "kek": {"vault": vault, "managedHsm": flags.is_on("managed-hsm"), "key": key, "version": version},
            "settings": settings, "credentials": {"azureJsonFile": azure_json},
        }])))
    }

    fn process(flags: &Flags) -> Value {
        let port = |name, default: &str| {
            let given = flags.get(name);
            (format!(":{}", given.unwrap_or(default).trim_start_matches(':')), given.is_none())
        };
        let (healthz, no_healthz) = port("healthz-port", "8787");
        let (metrics, no_metrics) = port("metrics-addr", "8095");
        let path = flags.get("healthz-path").unwrap_or("/healthz");
        let mut document = json!({"health": [
            {"address": healthz, "healthz": path, "optional": no_healthz},
            {"address": metrics, "metrics": "/metrics", "optional": no_metrics},
        ]});
        if of_hypershift(flags) {
            document["linger"] = LINGER.into();
        }
        document
    }

    fn prepare(flags: &Flags) -> Result<(), Error> {
        if let Some(gateway) = gateway(flags)? {
            complain(&format!(
                "warning: keys and credentials go to {gateway} in plain text, as --proxy-mode asks"
            ));
        }
        Ok(())
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}

/// Files that `azure.json` names.
pub(crate) fn named_files(config: &Config, files: &Files) -> Vec<PathBuf> {
    let path = config.credentials.azure_json_file.as_deref();
    let read = path.and_then(|path| AzureJson::read(path, files).ok());
    read.map(|read| read.named_files()).unwrap_or_default()
}

/// As the replaced plugins take off what templates leave around a value.
fn trimmed(flags: &Flags, name: &str) -> String {
    flags.get(name).unwrap_or_default().trim().trim_matches('"').trim().to_owned()
}

fn listen(flags: &Flags) -> Result<String, Error> {
    let listen = flags.get("listen-addr").unwrap_or(LISTEN);
    let scheme = listen.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("unix://"));
    scheme
        .map(|_| format!("unix://{}", &listen[7..]))
        .ok_or_else(|| bad(format!("--listen-addr {listen:?} does not begin with unix://")))
}

fn of_hypershift(flags: &Flags) -> bool {
    let socket = flags.get("listen-addr").and_then(|listen| listen.rsplit('/').next());
    socket.is_some_and(|name| HYPERSHIFT.contains(&name))
}

fn format(flags: &Flags) -> Result<&str, Error> {
    match flags.get("format") {
        None => Ok(if of_hypershift(flags) { "binary" } else { "text" }),
        Some(format @ ("text" | "binary")) => Ok(format),
        Some(other) => Err(bad(format!("--format {other:?} is neither text nor binary"))),
    }
}

/// What is asked in the place of vault and login endpoint.
fn gateway(flags: &Flags) -> Result<Option<String>, Error> {
    if !flags.is_on("proxy-mode") {
        return Ok(None);
    }
    let host = flags
        .get("proxy-address")
        .ok_or_else(|| bad("--proxy-mode needs --proxy-address".to_owned()))?;
    Ok(Some(format!("http://{host}:{}", flags.get("proxy-port").unwrap_or("7788"))))
}

fn bad(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests;
