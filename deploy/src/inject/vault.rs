//! Keys of Vault, as OpenShift's sidecars are told of them: by flags and nothing else.

use serde_json::{Map, Value};
use sidekey_core::config::Problems;

use super::profiles::VaultPlugin;
use crate::model::{FileSource, Key, names};

/// Reads the keys; what the flags cannot say is a mistake.
pub(super) fn plugins(keys: &[Key]) -> Result<Vec<VaultPlugin>, Problems> {
    let mut problems = Problems::default();
    let mut plugins = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        problems.within(&format!("spec.keys[{index}]"), |problems| {
            plugins.extend(plugin(key, problems));
        });
    }
    if keys.is_empty() {
        problems.add("spec.keys", "there is none");
    }
    problems.into_result(Some(plugins))
}

fn plugin(key: &Key, problems: &mut Problems) -> Option<VaultPlugin> {
    if key.vendor != "vault" {
        problems.add("type", "OpenShift's sidecars are for vault alone; use the profile sidekey");
        return None;
    }
    if ![names::key_socket("vault", key.id), names::shared_key_socket(key.id)].contains(&key.listen)
    {
        problems.add("listen", "OpenShift's sidecars have the socket of their key alone");
    }
    let (key_path, namespace) = kek(key, problems);
    let mut settings = Fields::new(&key.settings, "settings");
    let address = settings.text("address").or_else(|| settings.texts("addresses"));
    let auth_namespace = settings.text("authNamespace");
    let tls = settings.take("tls");
    settings.end(problems);
    let mut tls = Fields::new(&tls, "settings.tls");
    let (ca, server_name) = (tls.text("caFile"), tls.text("serverName"));
    tls.end(problems);
    let mut credentials = Fields::new(&key.credentials, "credentials");
    let role = credentials.take("appRole");
    credentials.end(problems);
    let mut role = Fields::new(&role, "credentials.appRole");
    let (role_id, secret_id) = (role.text("roleId"), role.text("secretIdFile"));
    role.end(problems);

    let ca_file = ca.map(|path| file(key, &path, "settings.tls.caFile", problems));
    let path = "credentials.appRole.secretIdFile";
    let secret_id_file =
        problems.require(path, &secret_id).cloned().map(|text| file(key, &text, path, problems));
    problems.require("kek.keyPath", &key_path);
    problems.require("settings.address", &address);
    problems.require("credentials.appRole.roleId", &role_id);
    Some(VaultPlugin {
        id: key.id.0,
        address: address?,
        key_path: key_path?,
        role_id: role_id?,
        secret_id_file: secret_id_file?,
        ca_file,
        server_name,
        namespace,
        auth_namespace,
    })
}

/// The path of the key, and its namespace.
fn kek(key: &Key, problems: &mut Problems) -> (Option<String>, Option<String>) {
    let mut kek = Fields::new(&key.kek, "kek");
    let key_path = match kek.text("keyPath") {
        Some(path) => Some(path),
        None => {
            let mount = kek.text("mount").unwrap_or_else(|| "transit".to_owned());
            kek.text("key").map(|key| format!("{mount}/keys/{key}"))
        }
    };
    let namespace = kek.text("namespace");
    kek.end(problems);
    (key_path, namespace)
}

/// The name that a file has in OpenShift's encryption-config Secret.
fn file(key: &Key, path: &str, field: &str, problems: &mut Problems) -> String {
    let name = path.strip_prefix(names::MOUNT).and_then(|name| name.strip_prefix('/'));
    let source = key.files.iter().find(|file| Some(file.name.as_str()) == name);
    match source.map(|file| &file.source) {
        Some(FileSource::Secret(at)) => {
            format!("kms-plugin-secret-{}_{}-{}", at.name, at.key, key.id.0)
        }
        Some(FileSource::ConfigMap(at)) => {
            format!("kms-plugin-configmap-{}_{}-{}", at.name, at.key, key.id.0)
        }
        _ => {
            let text =
                "must be one of files, from a Secret or a ConfigMap: OpenShift has no others";
            problems.add(field, text);
            String::new()
        }
    }
}

/// Fields of an object, taken out one by one: what is left over cannot be expressed.
struct Fields {
    left: Map<String, Value>,
    path: &'static str,
}

impl Fields {
    fn new(value: &Value, path: &'static str) -> Self {
        Self { left: value.as_object().cloned().unwrap_or_default(), path }
    }

    fn take(&mut self, name: &str) -> Value {
        self.left.remove(name).unwrap_or_default()
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.left.get(name) {
            Some(Value::String(_)) => self.take(name).as_str().map(str::to_owned),
            _ => None,
        }
    }

    /// A list of texts, with commas between them.
    fn texts(&mut self, name: &str) -> Option<String> {
        let list = self.take(name);
        let texts: Option<Vec<&str>> = list.as_array()?.iter().map(Value::as_str).collect();
        texts.filter(|texts| !texts.is_empty()).map(|texts| texts.join(","))
    }

    fn end(self, problems: &mut Problems) {
        for name in self.left.keys() {
            let path = format!("{}.{name}", self.path);
            problems.add(&path, "the flags of OpenShift's sidecars cannot say this");
        }
    }
}
