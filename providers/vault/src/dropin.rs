//! The command line of `sidekey-vault`: that of the plugins it replaces.
//!
//! Two of them are known by their flags and variables: OpenShift's sidecar, which is HashiCorp's
//! vault-kube-kms (`VAULT_KUBE_KMS_…`), and FalcoSuessgott's vault-kubernetes-kms (`VAULT_KMS_…`).

mod credentials;
pub(crate) mod data;
mod describe;
pub(crate) mod given;

use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Output, RotateCommand, complain, rotate};
use sidekey_rest::dropin::{self as kit, Flag, Plugin, Use};

use crate::Vault;
use describe::{describe, process};

/// The flags of both.
pub struct Plugins;

type Flags = kit::Flags<Plugins>;

/// A flag with a value that is read by its name.
const fn named(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, aliases: &[], value, help, use_: Use::Named }
}

/// A flag whose text goes into the document as it is.
const fn text(at: &'static str, flag: Flag) -> Flag {
    Flag { use_: Use::Text(at), ..flag }
}

/// A flag that is taken and not needed.
const fn ignored(name: &'static str, value: &'static str) -> Flag {
    Flag { use_: Use::Ignored, ..named(name, value, "") }
}

const fn refused(name: &'static str, help: &'static str, hint: &'static str) -> Flag {
    Flag { use_: Use::Refused(hint), ..named(name, "", help) }
}

impl Plugin for Plugins {
    const FLAGS: &'static [Flag] = &[
        named("listen-address", "SOCKET", "Socket to serve"),
        named("socket", "SOCKET", "The same, as vault-kubernetes-kms calls it"),
        named(
            "vault-address",
            "URL",
            "Address of Vault; several, separated by commas, are tried in turn",
        ),
        named(
            "allow-plaintext",
            "",
            "Let plain HTTP leave this machine: something else protects the way",
        ),
        text("kek.namespace", named("vault-namespace", "PATH", "Namespace of the transit engine")),
        text(
            "settings.authNamespace",
            named(
                "vault-auth-namespace",
                "PATH",
                "Namespace to log in to [default: that of the transit engine]",
            ),
        ),
        text("kek.keyPath", named("vault-key-path", "PATH", "The key, as <mount>/keys/<key>")),
        Flag {
            aliases: &["vault-transit-mount"],
            ..text(
                "kek.mount",
                named("transit-mount", "PATH", "Mount of the transit engine [default: transit]"),
            )
        },
        Flag {
            aliases: &["vault-transit-key"],
            ..text("kek.key", named("transit-key", "NAME", "Name of the key [default: kms]"))
        },
        named(
            "tls-ca-file",
            "FILE",
            "CA bundle that the servers are trusted by [default: that of the system]",
        ),
        named("vault-ca-cert", "FILE", "The same, as vault-kubernetes-kms calls it"),
        text(
            "settings.tls.serverName",
            named("tls-sni", "NAME", "Name that the servers' certificates are for"),
        ),
        refused(
            "tls-skip-verify",
            "Refused: there is no connection without verification",
            "servers are always verified: give their CA with -tls-ca-file",
        ),
        text(
            "settings.connectTimeout",
            named("vault-connection-timeout", "TIME", "Time for a connection"),
        ),
        named("auth-method", "METHOD", "approle, jwt, kubernetes, cert, userpass or token"),
        named("auth-mount", "PATH", "Mount of the auth method [default: its name]"),
        named("approle-role-id", "ID", "AppRole: role-id"),
        named("approle-secret-id-path", "FILE", "AppRole: file that holds the secret-id"),
        named("approle-wrapped-secret-id-path", "FILE", ""),
        named("approle-secret-id", "SECRET", "AppRole: secret-id itself; a file is safer"),
        named("approle-mount", "PATH", "AppRole: mount"),
        named("jwt-role", "NAME", "JWT: role"),
        named("jwt-mount", "PATH", "JWT: mount"),
        named("jwt-token-path", "FILE", "JWT: file that holds the token"),
        named(
            "jwt-token-source",
            "SOURCE",
            "JWT: file; tokens of SPIFFE are written to one by spiffe-helper",
        ),
        named("vault-k8s-role", "NAME", ""),
        named("vault-k8s-mount", "PATH", ""),
        named("cert-file", "FILE", "Certificate: file"),
        Flag {
            aliases: &["cert-key-file"],
            ..named("cert-key", "FILE", "Certificate: file of its key")
        },
        named("cert-pem", "FILE", "Certificate: file that holds both, as kubelet writes it"),
        named("cert-role", "NAME", "Certificate: role"),
        named("cert-mount", "PATH", "Certificate: mount"),
        named("userpass-username", "NAME", "Name of a user"),
        named("userpass-password", "SECRET", "Password itself; a file is safer"),
        named("userpass-password-path", "FILE", "File that holds the password"),
        named("userpass-mount", "PATH", "Userpass: mount"),
        Flag {
            aliases: &["vault-token"],
            ..named("token", "SECRET", "Token itself; a file is safer")
        },
        named("token-path", "FILE", "File that holds the token"),
        named("health-port", "PORT", "Port for probes, on all addresses"),
        named("metrics-port", "PORT", "Port for metrics, on loopback; 0 for none"),
        named("zap-log-level", "LEVEL", "Level of the log, as vault-kube-kms writes it"),
        named("debug", "", "Log more"),
        // What a dead plugin left is always removed.
        ignored("force-socket-overwrite", ""),
        // Only v2 is served.
        ignored("disable-v1", ""),
        refused("disable-v2", "", "only KMS v2 is served: this leaves nothing"),
        // There are no metrics of a Go runtime.
        ignored("disable-runtime-metrics", ""),
        // Tokens are renewed at two thirds of their life, for as long as Vault allows.
        ignored("token-refresh-interval", "TIME"),
        ignored("token-renewal", "TIME"),
    ];
    const PREFIXES: &'static [&'static str] = &["VAULT_KUBE_KMS_", "VAULT_KMS_"];
    const VARIABLES: &'static [(&'static str, &'static str)] =
        &[("vault-address", "VAULT_KMS_VAULT_ADDR"), ("token", "VAULT_KMS_VAULT_TOKEN")];
    const COMMON: &'static [(&'static str, &'static str)] = &[
        ("vault-address", "VAULT_ADDR"),
        ("vault-namespace", "VAULT_NAMESPACE"),
        ("token", "VAULT_TOKEN"),
        ("tls-ca-file", "VAULT_CACERT"),
        ("tls-sni", "VAULT_TLS_SERVER_NAME"),
        ("tls-skip-verify", "VAULT_SKIP_VERIFY"),
    ];
}

impl CommandLine for Vault {
    const ABOUT: &'static str =
        "KMS v2 provider for the transit engine of HashiCorp Vault and OpenBao";
    const EXAMPLES: &'static str = "Examples:
  sidekey-vault --config vault.yaml
  sidekey-vault -listen-address=unix:///var/run/kmsplugin/kms-1.sock -vault-address=https://vault:8200 -vault-key-path=transit/keys/kms -approle-role-id=ID -approle-secret-id-path=/run/vault/secret-id -tls-ca-file=/run/vault/ca.crt -metrics-port=0
  sidekey-vault -auth-method approle -approle-role-id ID -approle-secret-id SECRET -vault-address https://vault:8200 -transit-key kms -socket unix:///opt/kms/vaultkms.socket -health-port 8080
  sidekey-vault check --config vault.yaml
  sidekey-vault rotate --config vault.yaml --key 1

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = RotateCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let environment = |name: &str| std::env::var(name).ok();
        let Some(flags) = flags.with(&environment, kit::names_a_file(std::env::args())) else {
            return Ok(None);
        };
        let (key, given) = describe(&flags)?;
        if !given.is_empty() {
            complain(
                "warning: a secret on the command line or in the environment can be read by others on this machine, and does not change without a restart: put it into a file",
            );
            given::keep(given);
        }
        Ok(Some(json!([key])))
    }

    fn process(flags: &Flags) -> Value {
        let environment = |name: &str| std::env::var(name).ok();
        let flags = flags.with(&environment, false);
        flags.map_or_else(|| json!({}), |flags| process(&flags))
    }

    fn output(command: &RotateCommand) -> Output {
        command.output()
    }

    fn execute(command: RotateCommand) -> Result<Answer, Error> {
        rotate::<Self>(command)
    }
}

#[cfg(test)]
mod tests;
