//! Variables that stand for flags.

use super::Flags;

/// The prefixes of the two plugins; what follows is the name of the flag.
const PREFIXES: [&str; 2] = ["VAULT_KUBE_KMS_", "VAULT_KMS_"];

/// Variables that are not named after their flag.
const OTHERS: [(&str, &str); 2] =
    [("vault-address", "VAULT_KMS_VAULT_ADDR"), ("token", "VAULT_KMS_VAULT_TOKEN")];

/// Variables of Vault's own clients. They fill in, and describe no key by themselves.
const VAULT: [(&str, &str); 6] = [
    ("vault-address", "VAULT_ADDR"),
    ("vault-namespace", "VAULT_NAMESPACE"),
    ("token", "VAULT_TOKEN"),
    ("tls-ca-file", "VAULT_CACERT"),
    ("tls-sni", "VAULT_TLS_SERVER_NAME"),
    ("tls-skip-verify", "VAULT_SKIP_VERIFY"),
];

impl Flags {
    /// With variables in the place of missing flags; `None` if nothing describes a key. Variables
    /// alone do not, where a `file` describes the keys.
    pub(super) fn with(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
        file: bool,
    ) -> Option<Self> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let mut flags = self.clone();
        // Templates write flags that they have no value for, and Go takes those for not given.
        for (_, slot) in flags.slots() {
            slot.take_if(|value| value.is_empty());
        }
        let by_flag = flags.slots().iter().any(|(_, slot)| slot.is_some());
        if !by_flag && file {
            return None;
        }
        let mut described = by_flag;
        for (flag, slot) in flags.slots() {
            if slot.is_some() {
                continue;
            }
            let name = flag.to_ascii_uppercase().replace('-', "_");
            let plain = PREFIXES.iter().find_map(|prefix| set(&format!("{prefix}{name}")));
            let other = || of(&OTHERS, flag).and_then(&set);
            *slot = plain.or_else(other);
            described |= slot.is_some();
        }
        if !described {
            return None;
        }
        for (flag, slot) in flags.slots() {
            if slot.is_none() {
                *slot = of(&VAULT, flag).and_then(&set);
            }
        }
        Some(flags)
    }

    /// Every flag with its name.
    fn slots(&mut self) -> [(&'static str, &mut Option<String>); 47] {
        [
            ("listen-address", &mut self.listen_address),
            ("socket", &mut self.socket),
            ("vault-address", &mut self.vault_address),
            ("vault-namespace", &mut self.vault_namespace),
            ("vault-auth-namespace", &mut self.vault_auth_namespace),
            ("vault-key-path", &mut self.vault_key_path),
            ("transit-mount", &mut self.transit_mount),
            ("transit-key", &mut self.transit_key),
            ("tls-ca-file", &mut self.tls_ca_file),
            ("tls-sni", &mut self.tls_sni),
            ("tls-skip-verify", &mut self.tls_skip_verify),
            ("vault-connection-timeout", &mut self.vault_connection_timeout),
            ("auth-method", &mut self.auth_method),
            ("auth-mount", &mut self.auth_mount),
            ("approle-role-id", &mut self.approle_role_id),
            ("approle-secret-id-path", &mut self.approle_secret_id_path),
            ("approle-wrapped-secret-id-path", &mut self.approle_wrapped_secret_id_path),
            ("approle-secret-id", &mut self.approle_secret_id),
            ("approle-mount", &mut self.approle_mount),
            ("jwt-role", &mut self.jwt_role),
            ("jwt-mount", &mut self.jwt_mount),
            ("jwt-token-path", &mut self.jwt_token_path),
            ("jwt-token-source", &mut self.jwt_token_source),
            ("vault-k8s-role", &mut self.vault_k8s_role),
            ("vault-k8s-mount", &mut self.vault_k8s_mount),
            ("cert-file", &mut self.cert_file),
            ("cert-key", &mut self.cert_key),
            ("cert-pem", &mut self.cert_pem),
            ("cert-role", &mut self.cert_role),
            ("cert-mount", &mut self.cert_mount),
            ("userpass-username", &mut self.userpass_username),
            ("userpass-password", &mut self.userpass_password),
            ("userpass-password-path", &mut self.userpass_password_path),
            ("userpass-mount", &mut self.userpass_mount),
            ("token", &mut self.token),
            ("token-path", &mut self.token_path),
            ("health-port", &mut self.health_port),
            ("metrics-port", &mut self.metrics_port),
            ("zap-log-level", &mut self.zap_log_level),
            ("debug", &mut self.debug),
            ("force-socket-overwrite", &mut self.force_socket_overwrite),
            ("disable-v1", &mut self.disable_v1),
            ("disable-v2", &mut self.disable_v2),
            ("disable-runtime-metrics", &mut self.disable_runtime_metrics),
            ("token-refresh-interval", &mut self.token_refresh_interval),
            ("token-renewal", &mut self.token_renewal),
            ("vault-ca-cert", &mut self.vault_ca_cert),
        ]
    }
}

fn of(list: &[(&str, &'static str)], flag: &str) -> Option<&'static str> {
    list.iter().find(|(name, _)| *name == flag).map(|(_, variable)| *variable)
}
