//! The command line of `sidekey-okms`: that of ovh/okms-k8s-encryption-provider.

pub(crate) mod data;

use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, NoCommand, Output};
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use, names_a_file, place};

use crate::Okms;

/// Where the replaced plugin listens unless told otherwise.
const LISTEN: &str = "/var/run/okms_etcd_plugin.sock";
/// What it does not start without, beside the key.
const NEEDED: [&str; 3] = ["serv-addr", "client-cert", "client-key"];
/// Where the paths among its flags go.
const PATHS: [(&str, &str); 3] = [
    ("client-cert", "credentials.certFile"),
    ("client-key", "credentials.keyFile"),
    ("ca", "settings.caFile"),
];

/// The flags and variables of the replaced plugin.
pub struct Replaced;

/// A key, described by them.
pub(crate) type Flags = kit::Flags<Replaced>;

const fn flag(name: &'static str, value: &'static str, help: &'static str, use_: Use) -> Flag {
    Flag { name, aliases: &[], value, help, use_ }
}

#[rustfmt::skip]
impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("protocol", "PROTOCOL", "Protocol to reach the key by: rest or kmip", Use::Text("kek.protocol")),
        flag("serv-addr", "ADDRESS", "Address of OKMS: https://eu-west-rbx.okms.ovh.net, or eu-west-rbx.okms.ovh.net:5696 for kmip", Use::Named),
        flag("okms-id", "ID", "Id of the OKMS domain, for rest", Use::Named),
        flag("encryption-key-id", "ID", "Id of the key", Use::Text("kek.key")),
        flag("encryption-key-label", "LABEL", "Label of the key, in the place of its id: it is followed", Use::Text("kek.label")),
        flag("client-cert", "FILE", "Access certificate", Use::Named),
        flag("client-key", "FILE", "Its private key", Use::Named),
        flag("ca", "FILE", "CA bundle to trust in the place of the system's", Use::Named),
        flag("sock", "SOCKET", "Socket of the key [default: /var/run/okms_etcd_plugin.sock]", Use::Named),
        flag("debug", "", "More log lines; requests and answers are never shown", Use::Named),
        // Callers say how long they wait.
        flag("timeout", "TIME", "", Use::Ignored),
    ];
    const VARIABLES: &'static [(&'static str, &'static str)] = &[
        ("protocol", "OKMS_PROTOCOL"),
        ("serv-addr", "OKMS_SERV_ADDR"),
        ("okms-id", "OKMS_ID"),
        ("encryption-key-id", "OKMS_KEY_ID"),
        ("encryption-key-label", "OKMS_KEY_LABEL"),
        ("client-cert", "OKMS_CLIENT_CERT"),
        ("client-key", "OKMS_CLIENT_KEY"),
        ("ca", "OKMS_CA_CERT"),
        ("sock", "OKMS_SOCK"),
        ("debug", "OKMS_DEBUG"),
    ];
}

impl CommandLine for Okms {
    const ABOUT: &'static str =
        "KMS v2 provider for OVHcloud KMS, a drop-in for okms-k8s-encryption-provider";
    const EXAMPLES: &'static str = "Examples:
  sidekey-okms --config okms.yaml
  sidekey-okms check --config okms.yaml --connect
  sidekey-okms --protocol=rest --serv-addr=https://eu-west-rbx.okms.ovh.net --okms-id=… --encryption-key-id=… --client-cert=/etc/okms/cert.pem --client-key=/etc/okms/key.pem --sock=/var/run/okms_etcd_plugin.sock

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        given(flags).map(|flags| Ok(json!([describe(&flags)?]))).transpose()
    }

    fn process(flags: &Flags) -> Value {
        match given(flags).is_some_and(|flags| flags.is_on("debug")) {
            true => json!({"log": {"level": "debug"}}),
            false => json!({}),
        }
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}

/// Flags, and variables in the place of those that are missing.
fn given(flags: &Flags) -> Option<Flags> {
    let variable = |name: &str| std::env::var(name).ok();
    flags.with(&variable, names_a_file(std::env::args()))
}

/// The key that they describe.
fn describe(flags: &Flags) -> Result<Value, Error> {
    let of_rest: &[&str] = match flags.get("protocol") {
        Some("rest") => &["okms-id"],
        Some("kmip") => &[],
        _ => return Err(usage("--protocol (OKMS_PROTOCOL) must be rest or kmip")),
    };
    let missing: Vec<String> = NEEDED
        .iter()
        .chain(of_rest)
        .filter(|name| flags.get(name).is_none())
        .map(|name| format!("--{name} ({})", variable_of(name)))
        .collect();
    if !missing.is_empty() {
        return Err(usage(&format!("missing: {}", missing.join(", "))));
    }
    match (flags.get("encryption-key-id"), flags.get("encryption-key-label")) {
        (Some(_), None) | (None, Some(_)) => {}
        (None, None) => {
            return Err(usage("missing: --encryption-key-id or --encryption-key-label"));
        }
        _ => {
            return Err(usage("--encryption-key-id and --encryption-key-label exclude each other"));
        }
    }
    let address = flags.get("serv-addr").unwrap_or_default().trim_end_matches('/');
    let mut key = json!({
        "id": "1", "type": "okms", "listen": absolute(flags.get("sock").unwrap_or(LISTEN))?,
        "settings": {"address": address, "alsoReads": [data::ANY], "pluginFormat": true},
    });
    flags.fill(&mut key)?;
    if let [name] = of_rest {
        place(&mut key, "kek.okmsId", flags.get(name).into());
    }
    for (name, path) in PATHS {
        if let Some(file) = flags.get(name) {
            place(&mut key, path, absolute(file)?.into());
        }
    }
    Ok(key)
}

fn variable_of(flag: &str) -> &'static str {
    let known = Replaced::VARIABLES.iter().find(|(name, _)| *name == flag);
    known.map_or("", |(_, variable)| variable)
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
