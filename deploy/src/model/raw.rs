//! A SecretEncryption as it is written: every field optional, so that one mistake hides no other.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};
use sidekey_core::config::fields::text;

use super::{CipherKind, Injection, Placement, Role};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Raw {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<RawMetadata>,
    pub(super) spec: Option<RawSpec>,
    /// The operator's; not looked at here.
    #[serde(rename = "status")]
    pub(super) _status: Option<Value>,
}

/// The rest of an object's metadata is the API server's business.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawMetadata {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    #[serde(flatten)]
    pub(super) _rest: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawSpec {
    pub(super) control_plane: Option<RawControlPlane>,
    pub(super) resources: Option<Vec<Option<String>>>,
    pub(super) stanzas: Option<Vec<Option<RawStanza>>>,
    #[serde(deserialize_with = "text")]
    pub(super) timeout: Option<String>,
    pub(super) placement: Option<Placement>,
    pub(super) images: Option<BTreeMap<String, String>>,
    pub(super) shim: Option<Map<String, Value>>,
    pub(super) shim_files: Option<Vec<Option<RawFile>>>,
    pub(super) legacy_key: Option<Value>,
    pub(super) adopt: Option<Vec<Option<RawAdoption>>>,
    pub(super) ciphers: Option<Vec<Option<RawCipher>>>,
    pub(super) write: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) convergence: Option<String>,
    pub(super) auto_rotation: Option<RawAutoRotation>,
    pub(super) tokens: Option<Vec<Option<RawToken>>>,
    pub(super) keys: Option<Vec<Option<RawKey>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawAutoRotation {
    #[serde(deserialize_with = "text")]
    pub(super) every: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawToken {
    pub(super) r#type: Option<String>,
    pub(super) file: Option<String>,
    pub(super) audience: Option<String>,
    pub(super) service_account: Option<RawAccount>,
    #[serde(deserialize_with = "text")]
    pub(super) expiry: Option<String>,
    pub(super) secret_provider_class: Option<String>,
    pub(super) pod_token: Option<RawPodToken>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawPodToken {
    pub(super) audience: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) expiry: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawAccount {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawControlPlane {
    pub(super) selector: Option<BTreeMap<String, String>>,
    pub(super) container: Option<String>,
    pub(super) injection: Option<Injection>,
    pub(super) port: Option<u16>,
    pub(super) kubeconfig: Option<RawObjectKey>,
    pub(super) local_kubeconfig: Option<RawObjectKey>,
    pub(super) etcd: Option<RawEtcd>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawEtcd {
    pub(super) endpoints: Option<Vec<String>>,
    pub(super) tls: Option<RawEtcdTls>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawEtcdTls {
    pub(super) ca: Option<RawSource>,
    pub(super) cert: Option<RawSource>,
    pub(super) key: Option<RawSource>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawSource {
    pub(super) secret: Option<RawObjectKey>,
    pub(super) config_map: Option<RawObjectKey>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawStanza {
    pub(super) name: Option<String>,
    pub(super) resources: Option<Vec<Option<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawAdoption {
    pub(super) name: Option<String>,
    pub(super) listen: Option<String>,
    pub(super) key: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawFile {
    pub(super) name: Option<String>,
    pub(super) secret: Option<RawObjectKey>,
    pub(super) config_map: Option<RawObjectKey>,
    pub(super) file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawCipher {
    pub(super) name: Option<String>,
    pub(super) r#type: Option<CipherKind>,
    pub(super) secret: Option<RawObjectKey>,
    pub(super) config_map: Option<RawObjectKey>,
    pub(super) file: Option<PathBuf>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawObjectKey {
    pub(super) name: Option<String>,
    pub(super) key: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawKey {
    pub(super) id: Option<Value>,
    pub(super) r#type: Option<String>,
    pub(super) role: Option<Role>,
    pub(super) kek: Option<Map<String, Value>>,
    pub(super) settings: Option<Map<String, Value>>,
    pub(super) credentials: Option<Map<String, Value>>,
    pub(super) files: Option<Vec<Option<RawFile>>>,
    pub(super) canary: Option<Value>,
    pub(super) fingerprint: Option<String>,
    pub(super) listen: Option<String>,
    pub(super) endpoints: Option<Vec<Option<String>>>,
    pub(super) server_uids: Option<Vec<u32>>,
}
