//! The command line of `sidekey-gcp`: that of GoogleCloudPlatform/k8s-cloudkms-plugin.

pub(crate) mod data;
pub(crate) mod gce;

use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, NoCommand, Output};
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use, place};

use crate::Gcp;

/// Where the replaced plugin listens unless told otherwise.
const LISTEN: &str = "/var/run/kmsplugin/socket.sock";
/// It reads the data of every key that it may use: IAM alone decides.
const EVERY_KEY: &str = "projects/*/locations/*/keyRings/*/cryptoKeys/*";

/// The flags of the replaced plugin.
pub struct Replaced;

/// A key, described by them.
pub(crate) type Flags = kit::Flags<Replaced>;

const fn flag(name: &'static str, value: &'static str, help: &'static str, use_: Use) -> Flag {
    Flag { name, aliases: &[], value, help, use_ }
}

/// A flag of the replaced plugin's logger.
const fn glog(name: &'static str, value: &'static str) -> Flag {
    flag(name, value, "", Use::Ignored)
}

#[rustfmt::skip]
impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("key-uri", "KEY", "Key: projects/P/locations/L/keyRings/R/cryptoKeys/K", Use::Text("kek.key")),
        flag("key-suffix", "TEXT", "What key_ids end with; another one has all data written anew", Use::Text("settings.pluginFormat.keySuffix")),
        flag("path-to-unix-socket", "SOCKET", "Socket of the key; @name is an abstract one [default: /var/run/kmsplugin/socket.sock]", Use::Named),
        flag("gce-config", "FILE", "Configuration of GCE's cloud provider, with token-url and token-body", Use::Named),
        flag("kms", "VERSION", "Version of the protocol: v2 [default: v2]", Use::Named),
        flag("healthz-port", "PORT", "Port on localhost for probes [default: 8081]", Use::Named),
        flag("healthz-path", "PATH", "Path that is ok while the key works [default: healthz]", Use::Named),
        flag("metrics-port", "PORT", "Port on localhost for metrics [default: 8082]", Use::Named),
        flag("metrics-path", "PATH", "Path of the metrics [default: metrics]", Use::Named),
        flag("integration-test", "", "Ask an emulator on this machine, without credentials", Use::Named),
        flag("fake-kms-port", "PORT", "Port of the emulator [default: 8085]", Use::Named),
        // Probes are answered from memory.
        flag("healthz-timeout", "TIME", "", Use::Ignored),
        glog("logtostderr", ""), glog("alsologtostderr", ""), glog("stderrthreshold", "LEVEL"), glog("v", "LEVEL"),
        glog("vmodule", "PATTERN"), glog("log_dir", "DIRECTORY"), glog("log_backtrace_at", "LINE"),
        glog("add_dir_header", ""), glog("skip_headers", ""), glog("log_link", "DIRECTORY"), glog("logbuflevel", "LEVEL"),
    ];
}

impl CommandLine for Gcp {
    const ABOUT: &'static str =
        "KMS v2 provider for Google Cloud KMS, a drop-in for k8s-cloudkms-plugin";
    const EXAMPLES: &'static str = "Examples:
  sidekey-gcp --config gcp.yaml
  sidekey-gcp check --config gcp.yaml --connect
  sidekey-gcp --key-uri=projects/P/locations/L/keyRings/R/cryptoKeys/K --path-to-unix-socket=/var/run/kmsplugin/socket.sock --gce-config=/etc/gce.conf

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let Some(first) = flags.first() else { return Ok(None) };
        if flags.get("key-uri").is_none() {
            let needed = || {
                Replaced::FLAGS.iter().any(|flag| flag.name == first && flag.use_ != Use::Ignored)
            };
            return if needed() {
                Err(usage(&format!("--{first} needs --key-uri")))
            } else {
                Ok(None)
            };
        }
        match flags.get("kms") {
            None | Some("v2") => {}
            Some("v1") => {
                return Err(usage(
                    "--kms=v1 is not served: kube-apiserver needs apiVersion: v2 in its EncryptionConfiguration",
                ));
            }
            Some(_) => return Err(usage("--kms must be v2")),
        }
        let listen = flags.get("path-to-unix-socket").unwrap_or(LISTEN);
        let listen = if listen.starts_with('@') { listen.to_owned() } else { absolute(listen)? };
        let mut key = json!({
            "id": "1", "type": "gcp", "listen": listen,
            "settings": {"alsoReads": [EVERY_KEY], "pluginFormat": {}},
        });
        flags.fill(&mut key)?;
        if let Some(path) = flags.get("gce-config") {
            place(&mut key, "credentials.gceConfig", absolute(path)?.into());
        }
        if flags.is_on("integration-test") {
            let port = flags.get("fake-kms-port").unwrap_or("8085");
            place(&mut key, "settings.endpoint", format!("http://localhost:{port}").into());
            place(&mut key, "credentials.anonymous", true.into());
        }
        Ok(Some(json!([key])))
    }

    fn process(flags: &Flags) -> Value {
        let path = |name, default| {
            format!("/{}", flags.get(name).unwrap_or(default).trim_start_matches('/'))
        };
        let port = |name, default| format!("127.0.0.1:{}", flags.get(name).unwrap_or(default));
        // A port that is taken was a warning there.
        json!({"health": [
            {"address": port("healthz-port", "8081"), "healthz": path("healthz-path", "healthz"), "optional": true},
            {"address": port("metrics-port", "8082"), "metrics": path("metrics-path", "metrics"), "optional": true},
        ]})
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}

/// Go programs take paths relative to where they were started.
fn absolute(path: &str) -> Result<String, Error> {
    let full = std::path::absolute(path);
    let full = full.map_err(|error| usage(&format!("{path:?} is no path")).with_source(error))?;
    Ok(full.to_string_lossy().into_owned())
}

fn usage(text: &str) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests;
