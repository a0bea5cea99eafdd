//! Content of Secrets, ConfigMaps and files that a document refers to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Secret as SecretObject};
use kube::{Api, Client};
use sidekey_core::Secret;

use crate::Error;
use crate::cluster::refused;
use crate::model::{FileSource, ObjectKey, SecretEncryption};

/// Content by where it comes from.
#[derive(Clone, Debug, Default)]
pub struct ResolvedFiles(BTreeMap<FileSource, Secret>);

impl ResolvedFiles {
    /// Adds content.
    pub fn insert(&mut self, source: FileSource, content: Secret) {
        self.0.insert(source, content);
    }

    /// Whether this is known.
    pub fn contains(&self, source: &FileSource) -> bool {
        self.0.contains_key(source)
    }

    /// The content; empty if it is not known, which [`require`](Self::require) rules out.
    pub fn content(&self, source: &FileSource) -> Secret {
        self.0.get(source).cloned().unwrap_or_default()
    }

    /// Names all that is missing, and all that is empty.
    pub fn require(&self, encryption: &SecretEncryption) -> Result<(), Error> {
        let mut missing = Vec::new();
        for source in encryption.sources() {
            match self.0.get(source) {
                None => missing.push(format!("{source}: not found")),
                Some(content) if content.expose().is_empty() => {
                    missing.push(format!("{source}: empty"));
                }
                Some(_) => {}
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let text =
            format!("{} refers to what is not there\n{}", encryption.name, missing.join("\n"));
        Err(Error::failed(text).hint(
            "make them in the control plane's namespace, or give them as files: \
             --from-dir DIR with DIR/<name>/<key>",
        ))
    }

    /// Reads what is in files: `file` beside the document, objects as `DIR/<name>/<key>`.
    pub fn from_files(
        encryption: &SecretEncryption,
        beside: &Path,
        directory: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut found = Self::default();
        for source in encryption.sources() {
            let path: PathBuf = match (source, directory) {
                (FileSource::File(path), _) => beside.join(path),
                (FileSource::Secret(ObjectKey { name, key }), Some(directory))
                | (FileSource::ConfigMap(ObjectKey { name, key }), Some(directory)) => {
                    directory.join(name).join(key)
                }
                _ => continue,
            };
            match std::fs::read(&path) {
                Ok(bytes) => found.insert(source.clone(), Secret::new(bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    let text = format!("cannot read {} for {source}", path.display());
                    return Err(Error::failed(text).because(error));
                }
            }
        }
        Ok(found)
    }

    /// Adds what the cluster has of the rest. Each object is read once.
    pub async fn from_cluster(
        &mut self,
        encryption: &SecretEncryption,
        client: &Client,
        namespace: &str,
    ) -> Result<(), Error> {
        let secrets: Api<SecretObject> = Api::namespaced(client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let mut seen: BTreeMap<(bool, String), BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for source in encryption.sources() {
            let (secret, object) = match source {
                FileSource::Secret(object) => (true, object),
                FileSource::ConfigMap(object) => (false, object),
                FileSource::File(_) => continue,
            };
            if self.contains(source) {
                continue;
            }
            let index = (secret, object.name.clone());
            if !seen.contains_key(&index) {
                let data = if secret {
                    read_secret(&secrets, &object.name).await?
                } else {
                    read_map(&maps, &object.name).await?
                };
                seen.insert(index.clone(), data);
            }
            let content = seen.get(&index).and_then(|data| data.get(&object.key));
            if let Some(content) = content {
                self.insert(source.clone(), Secret::new(content.clone()));
            }
        }
        Ok(())
    }
}

async fn read_secret(
    api: &Api<SecretObject>,
    name: &str,
) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let object = api.get_opt(name).await;
    let object = object.map_err(|error| refused(format!("cannot read Secret {name}"), error))?;
    let data = object.and_then(|object| object.data).unwrap_or_default();
    Ok(data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect())
}

async fn read_map(api: &Api<ConfigMap>, name: &str) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let object = api.get_opt(name).await;
    let object = object.map_err(|error| refused(format!("cannot read ConfigMap {name}"), error))?;
    let Some(object) = object else { return Ok(BTreeMap::new()) };
    let text = object.data.unwrap_or_default();
    let binary = object.binary_data.unwrap_or_default();
    let text = text.into_iter().map(|(key, text)| (key, text.into_bytes()));
    Ok(text.chain(binary.into_iter().map(|(key, bytes)| (key, bytes.0))).collect())
}
