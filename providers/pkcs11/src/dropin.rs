//! The command line of `k8s-kms-plugin` (Eclipse Keysealer, Thales before), and its data.
//!
//! `serve` is taken for what it says, and `rotation` begins the flags of an old key, which is read on
//! the same socket.

pub(crate) mod file;
pub(crate) mod form;
pub(crate) mod given;
pub(crate) mod jwe;

use clap::Args;
use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, NoCommand, Output, Secret, complain};
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use, names_a_file, place};

use crate::Pkcs11;
use crate::library::check_dynamic;

/// The variable that names the replaced plugin's own file.
const FILE: &str = "K8S_KMS_PLUGIN_CONFIG";

/// The replaced plugin.
#[derive(Debug)]
pub(crate) struct Replaced;

/// Keys, described by its flags.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    flags: kit::Flags<Replaced>,
    /// Commands of the replaced plugin
    #[arg(hide = true, value_parser = word)]
    commands: Vec<String>,
}

const fn flag(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, aliases: &[], value, help, use_: Use::Named }
}

#[rustfmt::skip]
impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("p11-lib", "FILE", "PKCS#11 library of the HSM's vendor"),
        flag("p11-label", "LABEL", "Label of the token"),
        flag("p11-slot", "SLOT", "Slot of the token, where it has no label"),
        flag("p11-pin", "PIN", "PIN of the token; a file is safer"),
        flag("p11-pin-file", "FILE", "File that holds the PIN"),
        flag("p11-key-label", "LABEL", "Label of the key"),
        flag("p11-key-id", "HEX", "CKA_ID of the key"),
        flag("p11-hmac-label", "LABEL", "Label of the second key of aes-cbc"),
        flag("p11-hmac-id", "HEX", "CKA_ID of the second key of aes-cbc"),
        flag("algorithm-family", "FAMILY", "aes-gcm, aes-cbc or rsa-oaep [default: aes-gcm]"),
        flag("provider", "HSM", "p11, softhsm, luna or dpod: the last two make IVs themselves [default: p11]"),
        flag("socket", "PATH", "Socket to serve [default: $TMPDIR/run/hsm-plugin-server.sock]"),
        flag("plugin-config", "FILE", "Configuration file of k8s-kms-plugin (K8S_KMS_PLUGIN_CONFIG)"),
        flag("read-without-integrity", "", "Read what early releases wrote with aes-cbc, which nothing authenticates"),
        flag("old-p11-lib", "FILE", ""),
        flag("old-p11-label", "LABEL", ""),
        flag("old-p11-slot", "SLOT", ""),
        flag("old-p11-pin", "PIN", ""),
        flag("old-p11-pin-file", "FILE", ""),
        flag("old-p11-key-label", "LABEL", ""),
        flag("old-p11-key-id", "HEX", ""),
        flag("old-p11-hmac-label", "LABEL", ""),
        flag("old-p11-hmac-id", "HEX", ""),
        flag("old-algorithm-family", "FAMILY", ""),
        flag("old-provider", "HSM", ""),
        Flag { name: "debug", aliases: &[], value: "", help: "", use_: Use::Ignored },
        Flag { name: "auto-create", aliases: &[], value: "", help: "", use_: Use::Refused("make the key with the tools of the HSM") },
    ];
    const PREFIXES: &'static [&'static str] = &["K8S_KMS_PLUGIN_SERVE_", "K8S_KMS_PLUGIN_SERVE_ROTATION_"];
    const VARIABLES: &'static [(&'static str, &'static str)] = &[("plugin-config", FILE)];
}

impl CommandLine for Pkcs11 {
    const ABOUT: &'static str = "KMS v2 provider for HSMs with a PKCS#11 library, also in the place of Eclipse Keysealer's k8s-kms-plugin";
    const EXAMPLES: &'static str = "Examples:
  sidekey-pkcs11 --config pkcs11.yaml
  sidekey-pkcs11 check --config pkcs11.yaml --connect
  sidekey-pkcs11 serve --p11-lib=/usr/lib/softhsm/libsofthsm2.so --p11-label=kms --p11-pin-file=/run/secrets/pin --p11-key-label=etcd --socket=/run/kms.sock
  sidekey-pkcs11 serve … rotation --old-p11-key-label=etcd-1 --old-algorithm-family=aes-gcm

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(flags) = flags.flags.with(&variable, names_a_file(std::env::args())) else {
            return Ok(None);
        };
        describe(&file::Given::of(&flags)?).map(|key| Some(json!([key])))
    }

    fn prepare(_: &Flags) -> Result<(), Error> {
        check_dynamic()
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}

/// The keys that were described.
fn describe(given: &file::Given<'_>) -> Result<Value, Error> {
    let listen = given.get("socket").unwrap_or_else(|| {
        std::env::temp_dir().join("run/hsm-plugin-server.sock").to_string_lossy().into_owned()
    });
    let mut key = one(given, "")?;
    given.refuse(&mut key)?;
    key["id"] = "1".into();
    key["type"] = "pkcs11".into();
    key["listen"] = listen.into();
    // What is written in the other families' form could not be proven.
    if key["kek"]["algorithm"] == "AES-GCM" && family(given, "")? == "aes-gcm" {
        place(&mut key, "settings.format", "keysealer".into());
    }
    if given.get("old-algorithm-family").is_some() {
        let mut old = one(given, "old-")?;
        // That of the key that writes, unless told otherwise.
        if old["settings"]["library"].is_null() {
            let library = key["settings"]["library"].clone();
            place(&mut old, "settings.library", library);
        }
        place(&mut key, "settings.olderKeks", json!([old]));
    }
    Ok(key)
}

/// One of the two keys.
fn one(given: &file::Given<'_>, old: &str) -> Result<Value, Error> {
    let get = |name: &str| given.get(&format!("{old}{name}"));
    let mut key = json!({});
    for (name, path) in [
        ("p11-lib", "settings.library"),
        ("p11-label", "kek.tokenLabel"),
        ("p11-key-label", "kek.keyLabel"),
        ("p11-key-id", "kek.keyId"),
        ("p11-hmac-label", "settings.hmacLabel"),
        ("p11-hmac-id", "settings.hmacId"),
        ("p11-pin-file", "credentials.pinFile"),
    ] {
        if let Some(value) = get(name) {
            place(&mut key, path, value.into());
        }
    }
    // The label wins, as it does there.
    if get("p11-label").is_none() {
        let slot = get("p11-slot").unwrap_or_else(|| "0".to_owned());
        let slot: u64 = slot.parse().map_err(|_| bad(&format!("--{old}p11-slot is no number")))?;
        place(&mut key, "kek.slot", slot.into());
    }
    if let Some(pin) = get("p11-pin").filter(|_| get("p11-pin-file").is_none()) {
        complain(
            "warning: a PIN on the command line, in the environment or in a configuration can be read by others, and does not change without a restart: put it into a file",
        );
        let number = given::keep(Secret::new(pin.into_bytes()));
        place(&mut key, "credentials.given", number.into());
    }
    let algorithm = if family(given, old)? == "rsa-oaep" { "RSA-OAEP-256" } else { "AES-GCM" };
    place(&mut key, "kek.algorithm", algorithm.into());
    match get("provider").as_deref() {
        None | Some("p11" | "softhsm") => {}
        Some("luna" | "dpod") => place(&mut key, "settings.ivFromToken", true.into()),
        Some(_) => return Err(bad(&format!("--{old}provider must be p11, softhsm, luna or dpod"))),
    }
    if given.get("read-without-integrity").is_some_and(|value| value == "true") {
        complain(
            "warning: what early releases of k8s-kms-plugin wrote with aes-cbc is read without any integrity: turn that off when all has been written anew",
        );
        place(&mut key, "settings.readWithoutIntegrity", true.into());
    }
    Ok(key)
}

fn family(given: &file::Given<'_>, old: &str) -> Result<&'static str, Error> {
    let families = ["aes-gcm", "aes-cbc", "rsa-oaep"];
    let name = given.get(&format!("{old}algorithm-family"));
    let name = name.as_deref().unwrap_or("aes-gcm");
    families.into_iter().find(|family| *family == name).ok_or_else(|| {
        let hint = "data of the family ml-kem stays with that plugin: let the shim ask it as an external key until everything has been written anew";
        bad(&format!("--{old}algorithm-family {name:?} is not one of {}", families.join(", "))).with_hint(hint)
    })
}

/// What the replaced plugin's command line has besides flags.
fn word(text: &str) -> Result<String, String> {
    match text {
        "serve" | "rotation" => Ok(text.to_owned()),
        "rotate" => Err("sidekey-pkcs11 cannot ask its HSM for a new version of a key: make one there under the same label, or give the control plane a new key".to_owned()),
        _ => Err("is not a command".to_owned()),
    }
}

fn bad(text: &str) -> Error {
    Error::new(Kind::Invalid, text)
}

#[cfg(test)]
mod tests;
