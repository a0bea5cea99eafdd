//! What a set of files says of keys, names and resources: the same for what is live and for what
//! is to be.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use sidekey_core::Secret;
use sidekey_core::config::document;

use super::live::{key_number, main};
use crate::Error;
use crate::model::{KeyNumber, names};
use crate::render::encryption::{self, Provider, StanzaView};
use crate::render::{PartName, Rendered};

/// What is read and written with what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// kube-apiserver's stanzas; none if its file is not there.
    pub stanzas: Option<Vec<StanzaView>>,
    /// The shim's keys.
    pub keys: BTreeMap<KeyNumber, KeyView>,
    /// The key of data from before the shim, by socket.
    pub legacy: BTreeMap<String, KeyNumber>,
    /// The keys of each vendor as its provider has them.
    pub providers: BTreeMap<String, BTreeMap<KeyNumber, Value>>,
}

/// A key, as the shim has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// Whether it writes.
    pub writes: bool,
    /// Of its KEK.
    pub fingerprint: String,
    /// Who serves it; empty if the file does not say.
    pub vendor: String,
    /// Where.
    pub endpoints: Vec<String>,
    /// As whom, if not as the shim's own user or root.
    pub server_uids: Vec<u32>,
}

impl View {
    /// What was rendered.
    pub fn of(rendered: &Rendered) -> Result<Self, Error> {
        Self::read(rendered.parts.iter().map(|part| (&part.name, &part.files)))
    }

    /// What the files of parts say.
    pub fn read<'a>(
        parts: impl Iterator<Item = (&'a PartName, &'a BTreeMap<String, Secret>)>,
    ) -> Result<Self, Error> {
        let mut view = Self::default();
        for (name, files) in parts {
            let Some(document) = main(name, files) else {
                let text = format!("cannot read {} of {name}", name.main_file());
                return Err(Error::failed(text)
                    .hint("is it ours? what is live must be understood before it is changed"));
            };
            match name {
                PartName::Provider(vendor) => view.add_provider(vendor, &document),
                _ => view.add(&document)?,
            }
        }
        Ok(view)
    }

    /// Whether data from before the shim is this key's, whatever the key itself has written.
    pub(crate) fn reads_legacy(&self, key: KeyNumber) -> bool {
        self.legacy.values().any(|other| *other == key)
    }

    /// A file or directory: an EncryptionConfiguration, a shim's file, a Secret's manifest, or
    /// what `publish --to-dir` has filled.
    pub fn load(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            let directory = super::Directory { path: path.to_owned(), group: None };
            let live = directory.live()?;
            if live.parts.is_empty() {
                let text = format!("{} holds nothing that was published", path.display());
                return Err(Error::usage(text)
                    .hint("give a file, or the directory that was given to publish --to-dir"));
            }
            return live.view();
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::usage(format!("cannot read {}", path.display())).because(error)
        })?;
        let mut view = Self::default();
        let wrong = |error| Error::usage(format!("cannot use {}", path.display())).because(error);
        let document = document(&text).map_err(wrong)?;
        view.add(&document).map_err(|error| {
            Error::usage(format!("cannot use {}", path.display())).because(error)
        })?;
        Ok(view)
    }

    /// Adds an EncryptionConfiguration or a shim's file.
    pub(crate) fn add_text(&mut self, text: &str) -> Result<(), Error> {
        let document = document(text)
            .map_err(|error| Error::failed("cannot read what was rendered").because(error))?;
        self.add(&document)
    }

    /// Adds a document of one of the known kinds.
    fn add(&mut self, document: &Value) -> Result<(), Error> {
        if document["kind"] == "EncryptionConfiguration" {
            let stanzas = encryption::view(document).map_err(|problems| {
                Error::failed("cannot read the live EncryptionConfiguration").because(problems)
            })?;
            self.stanzas = Some(stanzas);
            return Ok(());
        }
        if !document["keys"].is_array() {
            return Err(Error::failed(
                "neither an EncryptionConfiguration nor a shim's configuration",
            ));
        }
        self.add_shim(document);
        Ok(())
    }

    fn add_shim(&mut self, document: &Value) {
        for key in document["keys"].as_array().into_iter().flatten() {
            let Some(id) = key_number(&key["id"]) else { continue };
            let given = key["fingerprint"].as_str().map(str::to_owned);
            let fingerprint = given.unwrap_or_else(|| sidekey_core::fingerprint(&key["kek"]));
            let endpoints = key["endpoints"].as_array().into_iter().flatten();
            let uids = key["serverUids"].as_array().into_iter().flatten();
            let uids = uids.filter_map(|uid| u32::try_from(uid.as_u64()?).ok());
            self.keys.insert(
                id,
                KeyView {
                    writes: key["role"] == "write",
                    fingerprint,
                    vendor: key["type"].as_str().unwrap_or_default().to_owned(),
                    endpoints: endpoints.filter_map(Value::as_str).map(str::to_owned).collect(),
                    server_uids: uids.collect(),
                },
            );
        }
        let listen = document["listen"].as_str().unwrap_or(names::SHIM_SOCKET).to_owned();
        self.legacy.extend(key_number(&document["legacyKey"]).map(|key| (listen, key)));
        for adopt in document["adopt"].as_array().into_iter().flatten() {
            let listen = adopt["listen"].as_str().unwrap_or_default().to_owned();
            self.legacy.extend(key_number(&adopt["key"]).map(|key| (listen, key)));
        }
    }

    fn add_provider(&mut self, vendor: &str, document: &Value) {
        let list = document["keys"].as_array().into_iter().flatten();
        let keys = list.filter_map(|key| Some((key_number(&key["id"])?, key.clone())));
        self.providers.insert(vendor.to_owned(), keys.collect());
    }

    /// The plugins that kube-apiserver writes with; none if its file is not there.
    pub(crate) fn writing_plugins(&self) -> Option<impl Iterator<Item = &str>> {
        let first = self.stanzas.as_ref()?.iter().filter_map(|stanza| stanza.providers.first());
        Some(first.filter_map(|provider| match provider {
            Provider::Kms { name, .. } => Some(name.as_str()),
            _ => None,
        }))
    }

    /// The key that writes behind the shim.
    pub fn writer(&self) -> Option<KeyNumber> {
        self.keys.iter().find(|(_, key)| key.writes).map(|(id, _)| *id)
    }
}
