//! How a provider gets the token that it logs in with. Where one is minted, that is `sidekey token`,
//! as a container beside it; others are volumes that kubelet fills.
//!
//! It never holds a pod's start up: it has no probe, and the kubeconfig's Secret may be missing
//! until it is there. The API server that it asks starts after it.

use serde_json::{Value, json};
use sidekey_core::config::parse_duration;

use crate::model::names::KUBECONFIG;
use crate::model::{Minted, ObjectKey, PodToken, Token, TokenSource};

/// Before the vendor in the name of a minter's container.
pub(crate) const PREFIX: &str = "sidekey-token-";

/// The driver of volumes from a secrets store.
const SECRETS_STORE: &str = "secrets-store.csi.k8s.io";
/// The shortest life of a token that kubelet asks for.
const SHORTEST: u64 = 600;

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

    /// The command's line, where a container mints it.
    pub(crate) fn args(&self) -> Option<Vec<String>> {
        let Minted { audience, service_account, expiry } = self.token.minted()?;
        let mut args = vec![
            "token".to_owned(),
            format!("--kubeconfig={KUBECONFIG}/kubeconfig"),
            format!("--service-account-namespace={}", service_account.namespace),
            format!("--service-account-name={}", service_account.name),
            format!("--token-audience={audience}"),
            format!("--token-file={}", self.token.file),
            format!("--expiry={expiry}"),
        ];
        args.extend(self.server.iter().map(|server| format!("--server={server}")));
        Some(args)
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

    /// The volumes that it takes.
    pub(crate) fn volumes(&self) -> Vec<Value> {
        let mut volume = json!({"name": self.volume()});
        match &self.token.source {
            TokenSource::Minted(_) => {
                volume["emptyDir"] = json!({"medium": "Memory"});
                return vec![volume, self.kubeconfig()];
            }
            TokenSource::SecretsStore { secret_provider_class } => {
                volume["csi"] = json!({
                    "driver": SECRETS_STORE, "readOnly": true,
                    "volumeAttributes": {"secretProviderClass": secret_provider_class},
                });
            }
            TokenSource::Pod { pod_token: PodToken { audience, expiry } } => {
                let mut token = json!({"path": self.token.file_name()});
                // It has been read once: it is sound.
                let seconds = parse_duration(expiry).map(|time| time.as_secs());
                token["expirationSeconds"] = seconds.unwrap_or(SHORTEST).into();
                if let Some(audience) = audience {
                    token["audience"] = audience.as_str().into();
                }
                volume["projected"] = json!({"sources": [{"serviceAccountToken": token}]});
            }
        }
        vec![volume]
    }

    fn kubeconfig(&self) -> Value {
        let ObjectKey { name, key } = &self.kubeconfig;
        let secret = json!({
            "secretName": name, "optional": true, "items": [{"key": key, "path": "kubeconfig"}],
        });
        json!({"name": self.kubeconfig_volume(), "secret": secret})
    }

    fn volume(&self) -> String {
        format!("kms-token-{}", self.token.vendor)
    }

    fn kubeconfig_volume(&self) -> String {
        format!("{}-kubeconfig", self.volume())
    }
}
