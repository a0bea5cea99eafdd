//! What mints a token beside a provider: `sidekey token`, as a container.
//!
//! It never holds a pod's start up: it has no probe, and the kubeconfig's Secret may be missing
//! until it is there. The API server that it asks starts after it.

use serde_json::{Value, json};

use crate::model::names::KUBECONFIG;
use crate::model::{ObjectKey, Token};

/// Before the vendor in the name of a minter's container.
pub(crate) const PREFIX: &str = "sidekey-token-";

/// A token, and how who mints it reaches the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minter {
    /// The token.
    pub token: Token,
    /// The Secret with the kubeconfig.
    pub kubeconfig: ObjectKey,
    /// Where to ask in the place of the kubeconfig's own server.
    pub server: Option<String>,
}

impl Minter {
    /// The container's name.
    pub(crate) fn name(&self) -> String {
        format!("{PREFIX}{}", self.token.vendor)
    }

    /// The command's line.
    pub(crate) fn args(&self) -> Vec<String> {
        let Token { file, audience, service_account, expiry, .. } = &self.token;
        let mut args = vec![
            "token".to_owned(),
            format!("--kubeconfig={KUBECONFIG}/kubeconfig"),
            format!("--service-account-namespace={}", service_account.namespace),
            format!("--service-account-name={}", service_account.name),
            format!("--token-audience={audience}"),
            format!("--token-file={file}"),
            format!("--expiry={expiry}"),
        ];
        args.extend(self.server.iter().map(|server| format!("--server={server}")));
        args
    }

    /// What its container mounts.
    pub(crate) fn mounts(&self) -> Value {
        json!([
            {"name": self.volume(), "mountPath": self.token.directory()},
            {"name": self.kubeconfig_volume(), "mountPath": KUBECONFIG, "readOnly": true},
        ])
    }

    /// What the provider mounts to read the token.
    pub(crate) fn reader_mount(&self) -> Value {
        self.mount_of(&self.volume())
    }

    /// The same where the token is in another volume.
    pub(crate) fn mount_of(&self, volume: &str) -> Value {
        json!({"name": volume, "mountPath": self.token.directory(), "readOnly": true})
    }

    /// The volumes of both.
    pub(crate) fn volumes(&self) -> [Value; 2] {
        let ObjectKey { name, key } = &self.kubeconfig;
        let secret = json!({
            "secretName": name, "optional": true, "items": [{"key": key, "path": "kubeconfig"}],
        });
        [
            json!({"name": self.volume(), "emptyDir": {"medium": "Memory"}}),
            json!({"name": self.kubeconfig_volume(), "secret": secret}),
        ]
    }

    fn volume(&self) -> String {
        format!("kms-token-{}", self.token.vendor)
    }

    fn kubeconfig_volume(&self) -> String {
        format!("{}-kubeconfig", self.volume())
    }
}
