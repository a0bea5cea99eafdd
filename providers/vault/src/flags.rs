//! The command line of `sidekey-vault`: that of the plugins it replaces.
//!
//! Two of them are known by their flags and variables: OpenShift's sidecar, which is HashiCorp's
//! vault-kube-kms (`VAULT_KUBE_KMS_…`), and FalcoSuessgott's vault-kubernetes-kms (`VAULT_KMS_…`).

mod credentials;
mod describe;
mod environment;

use clap::Args;
use serde_json::Value;
use sidekey_core::{Answer, CommandLine, Error, Output, RotateCommand, complain, rotate};

use crate::Vault;
use crate::given;
use describe::{describe, process};

/// One key, described by the flags of a plugin that is replaced. All are text: where one is
/// missing, a variable may stand for it. Not `Debug`: there may be secrets among them.
#[derive(Clone, Default, Args)]
pub struct Flags {
    /// Socket to serve
    #[arg(long, value_name = "SOCKET")]
    listen_address: Option<String>,
    /// The same, as vault-kubernetes-kms calls it
    #[arg(long, value_name = "SOCKET", conflicts_with = "listen_address")]
    socket: Option<String>,
    /// Address of Vault; several, separated by commas, are tried in turn
    #[arg(long, value_name = "URL")]
    vault_address: Option<String>,
    /// Namespace of the transit engine
    #[arg(long, value_name = "PATH")]
    vault_namespace: Option<String>,
    /// Namespace to log in to [default: that of the transit engine]
    #[arg(long, value_name = "PATH")]
    vault_auth_namespace: Option<String>,
    /// The key, as <mount>/keys/<key>
    #[arg(long, value_name = "PATH")]
    vault_key_path: Option<String>,
    /// Mount of the transit engine [default: transit]
    #[arg(long, value_name = "PATH", alias = "vault-transit-mount")]
    transit_mount: Option<String>,
    /// Name of the key [default: kms]
    #[arg(long, value_name = "NAME", alias = "vault-transit-key")]
    transit_key: Option<String>,
    /// CA bundle that the servers are trusted by [default: that of the system]
    #[arg(long, value_name = "FILE")]
    tls_ca_file: Option<String>,
    /// The same, as vault-kubernetes-kms calls it
    #[arg(long, value_name = "FILE", conflicts_with = "tls_ca_file")]
    vault_ca_cert: Option<String>,
    /// Name that the servers' certificates are for
    #[arg(long, value_name = "NAME")]
    tls_sni: Option<String>,
    /// Refused: there is no connection without verification
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tls_skip_verify: Option<String>,
    /// Time for a connection to one of several servers
    #[arg(long, value_name = "TIME")]
    vault_connection_timeout: Option<String>,
    /// approle, jwt, kubernetes, cert, userpass or token
    #[arg(long, value_name = "METHOD")]
    auth_method: Option<String>,
    /// Mount of the auth method [default: its name]
    #[arg(long, value_name = "PATH")]
    auth_mount: Option<String>,
    /// AppRole: role-id
    #[arg(long, value_name = "ID")]
    approle_role_id: Option<String>,
    /// AppRole: file that holds the secret-id
    #[arg(long, value_name = "FILE")]
    approle_secret_id_path: Option<String>,
    /// AppRole: file that holds the token which the secret-id is wrapped in
    #[arg(long, value_name = "FILE")]
    approle_wrapped_secret_id_path: Option<String>,
    /// AppRole: secret-id itself; a file is safer
    #[arg(long, value_name = "SECRET")]
    approle_secret_id: Option<String>,
    /// AppRole: mount
    #[arg(long, value_name = "PATH")]
    approle_mount: Option<String>,
    /// JWT: role
    #[arg(long, value_name = "NAME")]
    jwt_role: Option<String>,
    /// JWT: mount
    #[arg(long, value_name = "PATH")]
    jwt_mount: Option<String>,
    /// JWT: file that holds the token
    #[arg(long, value_name = "FILE")]
    jwt_token_path: Option<String>,
    /// JWT: file; tokens of SPIFFE are written to one by spiffe-helper
    #[arg(long, value_name = "SOURCE")]
    jwt_token_source: Option<String>,
    /// Kubernetes: role
    #[arg(long, value_name = "NAME", hide = true)]
    vault_k8s_role: Option<String>,
    /// Kubernetes: mount
    #[arg(long, value_name = "PATH", hide = true)]
    vault_k8s_mount: Option<String>,
    /// Certificate: file
    #[arg(long, value_name = "FILE")]
    cert_file: Option<String>,
    /// Certificate: file of its key
    #[arg(long, value_name = "FILE", alias = "cert-key-file")]
    cert_key: Option<String>,
    /// Certificate: file that holds both, as kubelet writes it
    #[arg(long, value_name = "FILE", conflicts_with = "cert_file")]
    cert_pem: Option<String>,
    /// Certificate: role
    #[arg(long, value_name = "NAME")]
    cert_role: Option<String>,
    /// Certificate: mount
    #[arg(long, value_name = "PATH")]
    cert_mount: Option<String>,
    /// Name of a user
    #[arg(long, value_name = "NAME")]
    userpass_username: Option<String>,
    /// Password itself; a file is safer
    #[arg(long, value_name = "SECRET")]
    userpass_password: Option<String>,
    /// File that holds the password
    #[arg(long, value_name = "FILE")]
    userpass_password_path: Option<String>,
    /// Userpass: mount
    #[arg(long, value_name = "PATH")]
    userpass_mount: Option<String>,
    /// Token itself; a file is safer
    #[arg(long, value_name = "SECRET", alias = "vault-token")]
    token: Option<String>,
    /// File that holds the token
    #[arg(long, value_name = "FILE")]
    token_path: Option<String>,
    /// Port for probes, on all addresses
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    health_port: Option<String>,
    /// Port for metrics, on loopback; 0 for none
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    metrics_port: Option<String>,
    /// Level of the log, as vault-kube-kms writes it
    #[arg(long, value_name = "LEVEL")]
    zap_log_level: Option<String>,
    /// Log more
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    debug: Option<String>,
    /// Taken and not needed: what a dead plugin left is always removed
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    force_socket_overwrite: Option<String>,
    /// Taken: only v2 is served
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    disable_v1: Option<String>,
    /// Refused: only v2 is served
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    disable_v2: Option<String>,
    /// Taken and not needed: there are no metrics of a Go runtime
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    disable_runtime_metrics: Option<String>,
    /// Taken and not needed: tokens are renewed at two thirds of their life
    #[arg(long, hide = true)]
    token_refresh_interval: Option<String>,
    /// Taken and not needed: tokens are renewed for as long as Vault allows
    #[arg(long, hide = true)]
    token_renewal: Option<String>,
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
        let Some(flags) = flags.with(&environment, names_a_file(std::env::args())) else {
            return Ok(None);
        };
        let (key, given) = describe(&flags)?;
        if !given.is_empty() {
            complain(
                "warning: a secret on the command line or in the environment can be read by others on this machine, and does not change without a restart: put it into a file",
            );
            given::keep(given);
        }
        Ok(Some(serde_json::json!([key])))
    }

    fn process(flags: &Flags) -> Value {
        let environment = |name: &str| std::env::var(name).ok();
        let flags = flags.with(&environment, false);
        flags.map_or_else(|| serde_json::json!({}), |flags| process(&flags))
    }

    fn output(command: &RotateCommand) -> Output {
        command.output()
    }

    fn execute(command: RotateCommand) -> Result<Answer, Error> {
        rotate::<Self>(command)
    }
}

/// Whether a configuration file is named: variables do not count beside one, because Vault's own
/// are in many environments.
fn names_a_file(arguments: impl Iterator<Item = String>) -> bool {
    arguments.skip(1).any(|argument| {
        let name = argument.split('=').next().unwrap_or_default();
        matches!(name, "--config" | "-config")
    })
}

#[cfg(test)]
mod tests;
