//! The layouts of others, for those who keep their operators: HyperShift's and OpenShift's names,
//! sockets, timeouts and Secrets. Without the shim, the order of providers is in
//! EncryptionConfiguration, and each key has a socket of its own.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::Secret;

use super::hosted::{AZURE_LOGINS, AzureAccess};
use super::{Created, Phase, ResolvedFiles, encryption, hashes, manifest, render};
use crate::model::{
    AzureKey, Cipher, FileSource, Key, KeyNumber, ObjectKey, Role, SecretEncryption, Spec, Writer,
    azure_cloud, names,
};
use crate::{Error, report};

/// Whose layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Ours: a shim, and one socket for kube-apiserver.
    #[default]
    Sidekey,
    /// OpenShift's, as library-go writes it.
    Openshift,
    /// HyperShift's.
    Hypershift,
}

/// What a layout needs to know besides the document.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    /// Whose.
    pub profile: Profile,
    /// OpenShift's API server that it is for.
    pub component: &'a str,
    /// Number of the revision, in ours.
    pub revision: u64,
    /// Whether new data is stored in clear for now.
    pub phase: Phase,
}

const OPENSHIFT_PREFIX: &str = "encryption.apiserver.operator.openshift.io";
const OPENSHIFT_NAMESPACE: &str = "openshift-config-managed";
const OPENSHIFT_TIMEOUT: &str = "10s";
const HYPERSHIFT_TIMEOUT: &str = "35s";
const HYPERSHIFT_SECRET: &str = "kas-secret-encryption-config";

/// The Secret of one of OpenShift's keys, and the entry in it.
pub(super) fn key_secret(component: &str, id: KeyNumber) -> (String, String) {
    (format!("encryption-key-{component}-{id}"), format!("{OPENSHIFT_PREFIX}-key"))
}

/// All objects of a layout, in the order in which they are to be applied.
pub fn objects(
    encryption: &SecretEncryption,
    files: &ResolvedFiles,
    layout: &Layout<'_>,
) -> Result<Vec<Value>, Error> {
    files.require(encryption)?;
    match layout.profile {
        Profile::Sidekey => {
            let rendered = render(encryption, layout.revision, files, layout.phase)?;
            Ok(rendered.objects(&Created::now()))
        }
        Profile::Openshift => openshift(encryption, files, layout),
        Profile::Hypershift => hypershift(encryption, files, layout.phase),
    }
}

/// What writes goes first, readers follow with the newest first, identity comes last.
fn ordered(
    encryption: &SecretEncryption,
    phase: Phase,
    kms: impl Fn(&Key) -> Value,
    cipher: impl Fn(&Cipher) -> Value,
) -> Vec<Value> {
    let spec = &encryption.spec;
    let writer = if phase == Phase::IdentityFirst { &Writer::Identity } else { &spec.write };
    let mut list: Vec<(bool, Value)> = Vec::new();
    let mut keys: Vec<&Key> = spec.keys.iter().collect();
    keys.sort_by_key(|key| (key.role, std::cmp::Reverse(key.id)));
    for key in keys {
        list.push((*writer == Writer::Keys && key.role == Role::Write, kms(key)));
    }
    for entry in &spec.ciphers {
        list.push((*writer == Writer::Cipher(entry.name.clone()), cipher(entry)));
    }
    list.push((*writer == Writer::Identity, json!({"identity": {}})));
    list.sort_by_key(|(writes, _)| !writes);
    list.into_iter().map(|(_, value)| value).collect()
}

fn cipher_entry(cipher: &Cipher, files: &ResolvedFiles) -> Value {
    let secret = STANDARD.encode(files.content(&cipher.source).expose());
    json!({"name": cipher.name, "secret": secret})
}

fn hypershift(
    encryption: &SecretEncryption,
    files: &ResolvedFiles,
    phase: Phase,
) -> Result<Vec<Value>, Error> {
    let spec = &encryption.spec;
    let readers = spec.keys.iter().filter(|key| key.role == Role::Read);
    let readers = readers.filter(|key| key.vendor != "ibmcloud").count();
    if readers > 1 {
        return Err(Error::usage(format!(
            "{} has {readers} keys to read with: HyperShift has one backup sidecar",
            encryption.name
        ))
        .hint("use the sidekey profile: its shim serves any number of keys"));
    }
    let mut names = BTreeMap::new();
    for key in &spec.keys {
        names.insert(key.id, hypershift_provider(key)?);
    }
    let mut providers = ordered(
        encryption,
        phase,
        |key| {
            let (name, endpoint) = &names[&key.id];
            encryption::kms(name, endpoint, HYPERSHIFT_TIMEOUT)
        },
        |cipher| json!({cipher.kind.label(): {"keys": [cipher_entry(cipher, files)]}}),
    );
    join(&mut providers);
    let resources: &[String] = match spec.keys.is_empty() {
        true => &["secrets".to_owned()],
        false => &spec.resources,
    };
    let stanza = json!({"resources": resources, "providers": providers});
    let text =
        report::yaml(&encryption::accepted(encryption::document(vec![stanza]), &encryption.name)?)?;
    let content = [("config.yaml".to_owned(), Secret::new(text.into_bytes()))].into();
    let mut metadata = json!({"name": HYPERSHIFT_SECRET});
    if let Some(namespace) = &encryption.namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    let mut objects = vec![manifest(metadata.clone(), &content, false)];
    objects.splice(0..0, logins(spec, &metadata)?);
    Ok(objects)
}

/// The Secrets that HyperShift's sidecars log in with.
fn logins(spec: &Spec, metadata: &Value) -> Result<Vec<Value>, Error> {
    let logins = [("azure", "azure-kms-config", "cloud.conf"), ("aws", "kms-creds", "credentials")];
    let mut objects = Vec::new();
    for (vendor, name, entry) in logins {
        let Some(key) = spec.keys.iter().find(|key| key.vendor == vendor) else { continue };
        let content = if vendor == "aws" { aws_credentials(key) } else { azure_config(key)? };
        let content = [(entry.to_owned(), content)].into();
        let mut metadata = metadata.clone();
        metadata["name"] = name.into();
        objects.push(manifest(metadata, &content, false));
    }
    Ok(objects)
}

/// All of IBM's keys are in one process, behind one name; all AES-CBC keys are in one provider.
fn join(providers: &mut Vec<Value>) {
    let mut joined: Vec<Value> = Vec::new();
    for provider in providers.drain(..) {
        if joined.contains(&provider) {
            continue;
        }
        let keys = provider.pointer("/aescbc/keys").and_then(Value::as_array).cloned();
        let last = joined.last_mut().and_then(|last| last.pointer_mut("/aescbc/keys"));
        let last = last.and_then(Value::as_array_mut);
        match (keys, last) {
            (Some(keys), Some(last)) => last.extend(keys),
            _ => joined.push(provider),
        }
    }
    *providers = joined;
}

/// Name and socket of a key in HyperShift: sockets are named for roles there.
fn hypershift_provider(key: &Key) -> Result<(String, String), Error> {
    let role = if key.role == Role::Write { "active" } else { "backup" };
    let text = |name: &str| key.kek[name].as_str().unwrap_or_default();
    match key.vendor.as_str() {
        "aws" => {
            let name = hashes::aws_provider(text("key"));
            Ok((name, format!("unix:///var/run/awskms{role}.sock")))
        }
        "azure" => {
            let named = AzureKey::of(&key.kek).ok_or_else(|| {
                Error::usage(format!("key {}: its kek names no version", key.id))
                    .hint("HyperShift knows no key without one: write kek.version")
            })?;
            let endpoint = format!("unix:///opt/azurekms{role}.socket");
            Ok((hashes::azure_provider(&named), endpoint))
        }
        "ibmcloud" => Ok(("ibmv2".to_owned(), "unix:///tmp/keyprotectprovider.sock".to_owned())),
        other => Err(Error::usage(format!("HyperShift has no provider {other} (key {})", key.id))
            .hint("use the sidekey profile, which serves every provider")),
    }
}

/// The file that HyperShift gives to AWS's SDK.
fn aws_credentials(key: &Key) -> Secret {
    let text = |name: &str| key.credentials[name].as_str().unwrap_or_default();
    let arn = key.kek["key"].as_str().unwrap_or_default();
    let region = key.kek["region"].as_str().or_else(|| arn.split(':').nth(3)).unwrap_or_default();
    let content = format!(
        "[default]\nrole_arn = {}\nweb_identity_token_file = {}\nsts_regional_endpoints = regional\nregion = {region}\n",
        text("roleArn"),
        text("webIdentityTokenFile"),
    );
    Secret::new(content.into_bytes())
}

/// What HyperShift's operator writes into Azure's `cloud.conf`, as far as its plugin reads it.
fn azure_config(key: &Key) -> Result<Secret, Error> {
    let refused = |what: &str| Error::usage(format!("key {}: {what}", key.id));
    let cloud = azure_cloud(&key.kek, &key.settings).ok_or_else(|| {
        refused("the URL of its vault is not of the cloud that HyperShift's plugin would ask")
            .hint("the plugin is told the vault's name alone: write settings.cloud as the name of the vault's own cloud")
    })?;
    let access = AzureAccess::of(&key.credentials)
        .ok_or_else(|| refused(&format!("credentials {AZURE_LOGINS}")))?;
    let mut config = json!({"cloud": cloud, "useManagedIdentityExtension": false});
    if let Some(tenant) = key.credentials["tenantId"].as_str() {
        config["tenantId"] = tenant.into();
    }
    match access {
        AzureAccess::ManagedIdentity { .. } => {
            config["aadMSIDataPlaneIdentityPath"] = key.credentials["identityFile"].clone();
        }
        AzureAccess::WorkloadIdentity { .. } => {
            config["useWorkloadIdentityExtension"] = true.into()
        }
    }
    Ok(Secret::new(format!("{config:#}\n").into_bytes()))
}

fn openshift(
    encryption: &SecretEncryption,
    files: &ResolvedFiles,
    layout: &Layout<'_>,
) -> Result<Vec<Value>, Error> {
    let spec = &encryption.spec;
    let all = spec.stanzas.iter().flat_map(|stanza| &stanza.resources);
    let mut resources: Vec<&String> = spec.resources.iter().chain(all).collect();
    resources.sort();
    let stanzas = resources.into_iter().map(|resource| {
        let short = resource.split('.').next().unwrap_or_default();
        let providers = ordered(
            encryption,
            layout.phase,
            |key| {
                let name = format!("{}_{short}", key.id);
                encryption::kms(&name, &openshift_socket(key), OPENSHIFT_TIMEOUT)
            },
            |cipher| json!({cipher.kind.label(): {"keys": [cipher_entry(cipher, files)]}}),
        );
        json!({"resources": [resource], "providers": providers})
    });
    let document = encryption::document(stanzas.collect());
    let document = encryption::accepted(document, &encryption.name)?;
    let mut data = BTreeMap::new();
    data.insert("encryption-config".to_owned(), Secret::new(document.to_string().into_bytes()));
    let mut objects = Vec::new();
    for key in &spec.keys {
        let mut own = BTreeMap::new();
        for (name, content) in plugin_data(encryption, key, files)? {
            data.insert(format!("{name}-{}", key.id), content.clone());
            own.insert(format!("{OPENSHIFT_PREFIX}-{name}"), content);
        }
        let socket = openshift_socket(key);
        let kms = &encryption::kms(&key.id.to_string(), &socket, OPENSHIFT_TIMEOUT)["kms"];
        let kms = Secret::new(kms.to_string().into_bytes());
        own.insert(format!("{OPENSHIFT_PREFIX}-kms-encryption-config"), kms);
        // OpenShift's state machine finds keys by their content; those of a KMS have none.
        own.insert(format!("{OPENSHIFT_PREFIX}-key"), Secret::new(vec![0; 16]));
        objects.push(key_object(layout.component, &key.id.to_string(), "KMS", &own));
    }
    for cipher in &spec.ciphers {
        let content = files.content(&cipher.source);
        let own = [(format!("{OPENSHIFT_PREFIX}-key"), content)].into();
        objects.push(key_object(layout.component, &cipher.name, cipher.kind.label(), &own));
    }
    let name = format!("encryption-config-{}", layout.component);
    let metadata = json!({"name": name, "namespace": OPENSHIFT_NAMESPACE});
    objects.push(manifest(metadata, &data, false));
    Ok(objects)
}

/// OpenShift has the sockets of all keys in one directory.
fn openshift_socket(key: &Key) -> String {
    if key.listen == names::key_socket(&key.vendor, key.id) {
        return names::shared_key_socket(key.id);
    }
    key.listen.clone()
}

fn key_object(component: &str, id: &str, mode: &str, data: &BTreeMap<String, Secret>) -> Value {
    let description = "WARNING: DO NOT EDIT. Altering of the encryption secrets will render you cluster inaccessible. Catastrophic data loss can occur from the most minor changes.";
    let metadata = json!({
        "name": format!("encryption-key-{component}-{id}"),
        "namespace": OPENSHIFT_NAMESPACE,
        "labels": {format!("{OPENSHIFT_PREFIX}/component"): component},
        "annotations": {
            "kubernetes.io/description": description,
            format!("{OPENSHIFT_PREFIX}/mode"): mode,
            format!("{OPENSHIFT_PREFIX}/internal-reason"): "rendered by sidekey",
            format!("{OPENSHIFT_PREFIX}/external-reason"): "",
        },
        "finalizers": [format!("{OPENSHIFT_PREFIX}/deletion-protection")],
    });
    manifest(metadata, data, false)
}

/// A plugin's settings and what they refer to, without the number of its key.
fn plugin_data(
    encryption: &SecretEncryption,
    key: &Key,
    files: &ResolvedFiles,
) -> Result<BTreeMap<String, Secret>, Error> {
    let mut data = BTreeMap::new();
    if key.is_external() {
        return Ok(data);
    }
    if key.vendor != "vault" {
        return Err(Error::usage(format!(
            "OpenShift runs no plugin for {} (key {})",
            key.vendor, key.id
        ))
        .hint("use the sidekey profile, or run the plugin yourself: type external"));
    }
    for file in &key.files {
        let name = match &file.source {
            FileSource::Secret(ObjectKey { name, key }) => format!("secret-{name}_{key}"),
            FileSource::ConfigMap(ObjectKey { name, key }) => format!("configmap-{name}_{key}"),
            FileSource::File(path) => {
                let text = format!("key {}: {} is a file", key.id, path.display());
                let hint = "OpenShift knows Secrets and ConfigMaps only";
                return Err(Error::usage(text).hint(hint));
            }
        };
        data.insert(format!("kms-plugin-{name}"), files.content(&file.source));
    }
    let config = vault_config(encryption, key).to_string();
    data.insert("kms-plugin-config".to_owned(), Secret::new(config.into_bytes()));
    Ok(data)
}

/// OpenShift's own form of a Vault key.
fn vault_config(encryption: &SecretEncryption, key: &Key) -> Value {
    let source = |path: Option<&str>| {
        let name = path.and_then(|path| path.strip_prefix(names::MOUNT))?.strip_prefix('/')?;
        let file = key.files.iter().find(|file| file.name == name)?;
        match &file.source {
            FileSource::Secret(object) | FileSource::ConfigMap(object) => Some(object.name.clone()),
            FileSource::File(_) => None,
        }
    };
    let (kek, settings) = (&key.kek, &key.settings);
    let path = kek["keyPath"].as_str().map(str::to_owned).unwrap_or_else(|| {
        let mount = kek["mount"].as_str().unwrap_or("transit");
        format!("{mount}/keys/{}", kek["key"].as_str().unwrap_or_default())
    });
    let address = settings["address"].as_str().or_else(|| settings["addresses"][0].as_str());
    let mut vault = json!({
        "kmsPluginImage": encryption.image("vault"),
        "vaultAddress": address.unwrap_or_default(),
        "vaultKeyPath": path,
        "authentication": {"type": "AppRole"},
    });
    if let Some(name) = source(key.credentials["appRole"]["secretIdFile"].as_str()) {
        vault["authentication"]["appRole"] = json!({"secret": {"name": name}});
    }
    for (name, value) in
        [("vaultNamespace", &kek["namespace"]), ("vaultAuthNamespace", &settings["authNamespace"])]
    {
        if value.is_string() {
            vault[name] = value.clone();
        }
    }
    if let Some(name) = source(settings["tls"]["caFile"].as_str()) {
        vault["tls"]["caBundle"] = json!({"name": name});
    }
    if settings["tls"]["serverName"].is_string() {
        vault["tls"]["serverName"] = settings["tls"]["serverName"].clone();
    }
    json!({"type": "Vault", "vault": vault})
}

#[cfg(test)]
mod tests;
