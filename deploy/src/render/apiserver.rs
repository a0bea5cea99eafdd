//! OpenShift's APIServer: `spec.encryption` of every type, the Vault plugin that OpenShift runs,
//! and the plugin that users run themselves and name by its socket.

use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_core::Endpoint;
use sidekey_core::config::{Problems, read};

use super::hosted::KnownKey;
use super::profile::{Profile, key_secret};
use crate::model::{
    Cipher, CipherKind, ControlPlane, EXTERNAL, FileRef, FileSource, Key, KeyNumber, ObjectKey,
    Role, SecretEncryption, Spec, Writer, names,
};

/// The entry of a ConfigMap with a CA bundle.
const CA_ENTRY: &str = "ca-bundle.crt";

/// What an APIServer says of its encryption.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiServer {
    /// Its name: `cluster`.
    pub name: String,
    /// How data is to be encrypted.
    pub mode: Mode,
}

/// How data is to be encrypted.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// Not at all.
    Identity,
    /// By kube-apiserver itself.
    Cipher(CipherKind),
    /// By a Vault plugin that OpenShift runs.
    Vault(Box<Vault>),
    /// By a plugin that the user runs.
    Endpoint(String),
}

/// Settings of the Vault plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vault {
    /// Pinned by digest.
    pub image: String,
    /// `https://host[:port]`.
    pub address: String,
    /// Of the transit engine.
    pub namespace: Option<String>,
    /// To log in to.
    pub auth_namespace: Option<String>,
    /// `<mount>/keys/<name>`.
    pub key_path: String,
    /// ConfigMap with the CA bundle.
    pub ca_bundle: Option<String>,
    /// Name in the server's certificate.
    pub server_name: Option<String>,
    /// Secret with `role-id` and `secret-id`.
    pub app_role: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEncryption {
    r#type: Option<String>,
    kms: Option<RawKms>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawKms {
    r#type: Option<String>,
    vault: Option<RawVault>,
    endpoint: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawVault {
    kms_plugin_image: Option<String>,
    vault_address: Option<String>,
    vault_namespace: Option<String>,
    vault_auth_namespace: Option<String>,
    vault_key_path: Option<String>,
    tls: Option<RawTls>,
    authentication: Option<RawAuthentication>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawTls {
    ca_bundle: Option<RawName>,
    server_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawName {
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawAuthentication {
    r#type: Option<String>,
    app_role: Option<RawAppRole>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAppRole {
    secret: Option<RawName>,
}

/// Checks an APIServer; `Err` lists every mistake in what concerns its encryption.
pub fn parse(document: &Value) -> Result<ApiServer, Problems> {
    let mut problems = Problems::default();
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("cluster");
    if !crate::model::is_name(name) {
        problems.add("metadata.name", "is no name of an object");
    }
    let empty = json!({});
    let spec = document.pointer("/spec/encryption").unwrap_or(&empty);
    let mode = problems.within("spec.encryption", |problems| {
        let raw: RawEncryption = read(spec, problems).unwrap_or_default();
        let kind = raw.r#type.as_deref().unwrap_or_default();
        if kind != "KMS" && raw.kms.is_some() {
            problems.add("kms", "must not be set unless type is KMS");
        }
        match kind {
            "" | "identity" => Some(Mode::Identity),
            "aescbc" => Some(Mode::Cipher(CipherKind::Aescbc)),
            "aesgcm" => Some(Mode::Cipher(CipherKind::Aesgcm)),
            "KMS" => {
                let kms = problems.require("kms", &raw.kms)?;
                problems.within("kms", |problems| read_kms(kms, problems))
            }
            other => {
                let text = format!("{other:?} is not one of identity, aescbc, aesgcm, KMS");
                problems.add("type", &text);
                None
            }
        }
    });
    problems.into_result(mode.map(|mode| ApiServer { name: name.to_owned(), mode }))
}

fn read_kms(raw: &RawKms, problems: &mut Problems) -> Option<Mode> {
    if let Some(endpoint) = &raw.endpoint {
        if raw.vault.is_some() || raw.r#type.is_some() {
            problems.add("endpoint", "is the plugin that you run: leave type and vault out");
        }
        return match endpoint.parse::<Endpoint>() {
            Ok(socket) if endpoint.starts_with("unix://") => {
                Some(Mode::Endpoint(socket.to_string()))
            }
            _ => {
                problems.add("endpoint", "is not unix:///path/to.sock");
                None
            }
        };
    }
    let kind = problems.require("type", &raw.r#type)?;
    if kind != "Vault" {
        problems.add("type", &format!("{kind:?} is not Vault, the only one that OpenShift has"));
    }
    let vault = problems.require("vault", &raw.vault)?;
    problems
        .within("vault", |problems| read_vault(vault, problems))
        .map(|vault| Mode::Vault(Box::new(vault)))
}

fn read_vault(raw: &RawVault, problems: &mut Problems) -> Option<Vault> {
    let image = problems.require("kmsPluginImage", &raw.kms_plugin_image).cloned();
    if image.as_deref().is_some_and(|image| !is_pinned(image)) {
        problems
            .add("kmsPluginImage", "is not pinned by digest: write name@sha256:<64 hex digits>");
    }
    let address = problems.require("vaultAddress", &raw.vault_address).cloned();
    if address.as_deref().is_some_and(|address| !is_server(address)) {
        problems.add("vaultAddress", "is not https://host[:port] of at most 512 characters");
    }
    let key_path = problems.require("vaultKeyPath", &raw.vault_key_path).cloned();
    if key_path.as_deref().is_some_and(|path| !is_key_path(path)) {
        problems.add("vaultKeyPath", "is not <mount>/keys/<name>");
    }
    let tls = raw.tls.as_ref();
    let bundle = tls.and_then(|tls| tls.ca_bundle.as_ref());
    if let Some(bundle) = bundle {
        problems.require("tls.caBundle.name", &bundle.name);
    }
    let app_role = problems.require("authentication", &raw.authentication).and_then(|raw| {
        problems.within("authentication", |problems| {
            if problems.require("type", &raw.r#type).is_some_and(|kind| kind != "AppRole") {
                problems.add("type", "is not AppRole");
            }
            let secret = raw.app_role.as_ref().and_then(|role| role.secret.as_ref());
            let name = secret.and_then(|secret| secret.name.clone());
            problems.require("appRole.secret.name", &name).cloned()
        })
    });
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    Some(Vault {
        image: image?,
        address: address?,
        namespace: filled(&raw.vault_namespace),
        auth_namespace: filled(&raw.vault_auth_namespace),
        key_path: key_path?,
        ca_bundle: bundle.and_then(|bundle| bundle.name.clone()),
        server_name: tls.and_then(|tls| filled(&tls.server_name)),
        app_role: app_role?,
    })
}

fn is_pinned(image: &str) -> bool {
    let digest = image.rsplit_once("@sha256:").map(|(_, digest)| digest).unwrap_or_default();
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (75..=447).contains(&image.len()) && digest.len() == 64 && digest.bytes().all(hex)
}

fn is_server(address: &str) -> bool {
    let host = address.strip_prefix("https://").unwrap_or_default();
    address.len() <= 512 && !host.is_empty() && !host.contains(['/', '?', '#', '@', ' '])
}

fn is_key_path(path: &str) -> bool {
    path.rsplit_once("/keys/")
        .is_some_and(|(mount, name)| !mount.is_empty() && !name.is_empty() && !name.contains('/'))
}

impl ApiServer {
    /// The namespace that its references are in.
    pub fn namespace(&self) -> &'static str {
        match self.mode {
            Mode::Cipher(_) => "openshift-config-managed",
            _ => "openshift-config",
        }
    }

    /// As a SecretEncryption with one key: `id`, unless it was published under another number.
    pub fn translate(
        &self,
        profile: Profile,
        component: &str,
        id: KeyNumber,
        known: &[KnownKey],
    ) -> SecretEncryption {
        let mut spec = Spec {
            control_plane: ControlPlane {
                selector: [("app".to_owned(), component.to_owned())].into(),
                container: component.trim_start_matches("openshift-").to_owned(),
                ..ControlPlane::default()
            },
            resources: resources(component),
            timeout: if profile == Profile::Openshift { "10s" } else { "5s" }.to_owned(),
            ..Spec::default()
        };
        match &self.mode {
            Mode::Identity => {}
            Mode::Cipher(kind) => {
                let (name, key) = key_secret(component, id);
                let source = FileSource::Secret(ObjectKey { name, key });
                spec.ciphers.push(Cipher { name: id.to_string(), kind: *kind, source });
                spec.write = Writer::Cipher(id.to_string());
            }
            Mode::Vault(vault) => {
                if profile == Profile::Openshift {
                    spec.images.insert("vault".to_owned(), vault.image.clone());
                }
                spec.keys.push(vault_key(vault, id, known));
                spec.write = Writer::Keys;
            }
            Mode::Endpoint(endpoint) => {
                spec.keys.push(external_key(endpoint, id));
                spec.write = Writer::Keys;
            }
        }
        SecretEncryption { name: self.name.clone(), namespace: None, spec }
    }
}

/// What each of OpenShift's API servers encrypts.
fn resources(component: &str) -> Vec<String> {
    let names: &[&str] = match component {
        "openshift-apiserver" => &["routes.route.openshift.io"],
        "openshift-oauth-apiserver" => {
            &["oauthaccesstokens.oauth.openshift.io", "oauthauthorizetokens.oauth.openshift.io"]
        }
        _ => &["secrets", "configmaps"],
    };
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn vault_key(vault: &Vault, id: KeyNumber, known: &[KnownKey]) -> Key {
    let mut kek = json!({"keyPath": vault.key_path});
    if let Some(namespace) = &vault.namespace {
        kek["namespace"] = namespace.as_str().into();
    }
    let fingerprint = sidekey_core::fingerprint(&kek);
    let before = known.iter().filter(|known| known.fingerprint == fingerprint);
    let next = known.iter().map(|known| KeyNumber(known.id.0 + 1)).max();
    let id = before.map(|known| known.id).max().or(next).unwrap_or(id);
    let mut settings = json!({"address": vault.address});
    if let Some(namespace) = &vault.auth_namespace {
        settings["authNamespace"] = namespace.as_str().into();
    }
    let mut files = Vec::new();
    let mut file = |name: String, source: FileSource| {
        let path = format!("{}/{name}", names::MOUNT);
        files.push(FileRef { name, source });
        path
    };
    if let Some(name) = &vault.ca_bundle {
        let source = ObjectKey { name: name.clone(), key: CA_ENTRY.to_owned() };
        let path = file(format!("ca-bundle-{id}.crt"), FileSource::ConfigMap(source));
        settings["tls"]["caFile"] = path.into();
    }
    if let Some(name) = &vault.server_name {
        settings["tls"]["serverName"] = name.as_str().into();
    }
    let mut secret = |key: &str| {
        let source = ObjectKey { name: vault.app_role.clone(), key: key.to_owned() };
        file(format!("{key}-{id}"), FileSource::Secret(source))
    };
    let role = json!({"roleIdFile": secret("role-id"), "secretIdFile": secret("secret-id")});
    Key {
        id,
        vendor: "vault".to_owned(),
        role: Role::Write,
        kek,
        settings,
        credentials: json!({"appRole": role}),
        files,
        canary: None,
        given_fingerprint: None,
        listen: names::key_socket("vault", id),
        endpoints: Vec::new(),
        server_uids: Vec::new(),
    }
}

fn external_key(endpoint: &str, id: KeyNumber) -> Key {
    Key {
        id,
        vendor: EXTERNAL.to_owned(),
        role: Role::Write,
        kek: Value::Null,
        settings: Value::Null,
        credentials: Value::Null,
        files: Vec::new(),
        canary: None,
        given_fingerprint: None,
        listen: endpoint.to_owned(),
        endpoints: Vec::new(),
        server_uids: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
