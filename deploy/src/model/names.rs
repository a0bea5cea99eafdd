//! The names that everything has: Secrets, labels, sockets, files. Pods, the operator and the
//! command must agree on them.

use super::KeyNumber;

/// kube-apiserver's EncryptionConfiguration.
pub const ENCRYPTION_SECRET: &str = "sidekey-encryption-config";
/// The file in it.
pub const ENCRYPTION_FILE: &str = "encryption.yaml";
/// The shim's head.
pub const SHIM_SECRET: &str = "sidekey-shim";
/// The file in each head that configures its process.
pub const CONFIG_FILE: &str = "config.yaml";
/// What a revision says of itself.
pub const REVISION_FILE: &str = "revision.json";
/// Before the number of a revision's Secret.
pub const REVISION_PREFIX: &str = "sidekey-revision-";
/// Where heads are mounted in sidecars.
pub const MOUNT: &str = "/etc/sidekey";
/// Where containers that ask the control plane's API find the directory of its kubeconfig.
pub const KUBECONFIG: &str = "/etc/sidekey-kubeconfig";
/// Where kube-apiserver finds the sockets of the shim; before, those of providers were there too.
pub const SOCKETS: &str = "/var/run/kmsplugin";
/// Where each provider has a directory of its own for its sockets.
pub const PROVIDER_SOCKETS: &str = "/var/run/sidekey";
/// Where kube-apiserver finds the shim.
pub const SHIM_SOCKET: &str = "unix:///var/run/kmsplugin/kms.sock";
/// The shim's admin address, reached through kubelet.
pub const SHIM_ADMIN: &str = "127.0.0.1:8093";
/// Where the operator reaches the shims, on their pods' addresses, with mutual TLS.
pub const SHIM_ADMIN_TLS_PORT: u16 = 8094;
/// The NetworkPolicy that lets the operator through to that port.
pub const SHIM_POLICY: &str = "sidekey-shims";
/// The CA of a control plane: its certificates and its key, for the operator alone.
pub const CA_SECRET: &str = "sidekey-ca";
/// The shims' certificate.
pub const SHIM_TLS_SECRET: &str = "sidekey-shim-tls";
/// The name in it.
pub const SHIM_NAME: &str = "shim.sidekey";
/// The Deployment and the Service of providers that have pods of their own.
pub const PROVIDERS: &str = "sidekey-providers";
/// The Service that leads minters to kube-apiservers, ready or not.
pub const APISERVERS: &str = "sidekey-apiservers";
/// The socket proxies' certificate.
pub const PROXY_TLS_SECRET: &str = "sidekey-proxy-tls";
/// The name in it.
pub const PROXY_NAME: &str = "proxy.sidekey";
/// The name in the operator's certificate.
pub const OPERATOR_NAME: &str = "operator.sidekey";
/// The provider name of the first stanza.
pub const PROVIDER_NAME: &str = "sidekey";
/// Who writes our objects.
pub const FIELD_MANAGER: &str = "sidekey";

/// Label of everything that Sidekey made.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "sidekey");
/// Label with the name of the SecretEncryption.
pub const LABEL_ENCRYPTION: &str = "sidekey.dev/encryption";
/// Annotation with the revision that an object is of.
pub const ANNOTATION_REVISION: &str = "sidekey.dev/revision";

/// The head of a vendor's provider.
pub fn provider_secret(vendor: &str) -> String {
    format!("sidekey-provider-{vendor}")
}

/// A revision's Secret.
pub fn revision_secret(number: u64) -> String {
    format!("{REVISION_PREFIX}{number}")
}

/// The number in the name of a revision's Secret.
pub fn revision_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(REVISION_PREFIX)?;
    let sound = !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| sound)
}

/// The directory of a provider's own sockets.
pub fn provider_sockets(vendor: &str) -> String {
    format!("{PROVIDER_SOCKETS}/{vendor}")
}

/// Where a key's provider listens unless told otherwise.
pub fn key_socket(vendor: &str, id: KeyNumber) -> String {
    format!("unix://{PROVIDER_SOCKETS}/{vendor}/kms-{id}.sock")
}

/// Where it listened when all sockets of a pod were in one directory.
pub fn shared_key_socket(id: KeyNumber) -> String {
    format!("unix://{SOCKETS}/kms-{id}.sock")
}

/// Where the shim finds a provider's socket that was put into the one directory of before; none
/// for sockets that were put elsewhere.
pub fn own_socket(vendor: &str, socket: &str) -> Option<String> {
    let name = socket.strip_prefix("unix://")?.strip_prefix(SOCKETS)?.strip_prefix('/')?;
    (!vendor.is_empty()).then(|| format!("unix://{PROVIDER_SOCKETS}/{vendor}/{name}"))
}

/// The admin socket of a vendor's provider.
pub fn provider_admin_socket(vendor: &str) -> String {
    format!("unix://{PROVIDER_SOCKETS}/{vendor}/admin.sock")
}

/// The same when all sockets of a pod were in one directory.
pub fn shared_admin_socket(vendor: &str) -> String {
    format!("unix://{SOCKETS}/{vendor}-admin.sock")
}

/// The provider name of a stanza.
pub fn stanza_name(stanza: &str) -> String {
    format!("{PROVIDER_NAME}-{stanza}")
}

/// The stanza that has a provider name; none for that of the first one, and for those of others.
pub fn stanza_of(name: &str) -> Option<&str> {
    name.strip_prefix(PROVIDER_NAME)?.strip_prefix('-')
}

/// Whether a provider name is the shim's.
pub fn is_ours(name: &str) -> bool {
    name == PROVIDER_NAME || stanza_of(name).is_some()
}
