//! What new data is written with, wherever that is said.

use crate::Error;
use crate::model::{KeyNumber, Role, SecretEncryption, Writer, names};
use crate::publish::Live;
use crate::render::encryption::Provider;
use crate::rotate::Turn;

/// As a [`Turn`] calls what is stored in clear.
const IDENTITY: &str = "identity";
/// As a [`Turn`] calls a provider name from before the shim.
const ADOPTED: &str = "adopted";

/// What new data is written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// A key behind the shim.
    Key(KeyNumber),
    /// A cipher of kube-apiserver's own, or a provider name from before the shim.
    Name(String),
    /// Nothing.
    Clear,
}

impl Writes {
    /// What a document asks for.
    pub(super) fn wanted(document: &SecretEncryption) -> Self {
        match (&document.spec.write, document.writer()) {
            (Writer::Keys, Some(key)) => Self::Key(key.id),
            (Writer::Cipher(name), _) => Self::Name(name.clone()),
            (Writer::Keys, None) | (Writer::Identity, _) => Self::Clear,
        }
    }

    /// What is published; none if nothing is.
    pub(super) fn live(live: &Live) -> Result<Option<Self>, Error> {
        let view = live.view()?;
        let Some(stanzas) = &view.stanzas else { return Ok(None) };
        let mut first = stanzas.iter().filter_map(|stanza| stanza.providers.first());
        // Resources that are new are written in clear for a while, whatever writes the others.
        let any = first.clone().next();
        let first = first.find(|provider| **provider != Provider::Identity).or(any);
        Ok(first.map(|provider| match provider {
            Provider::Identity => Self::Clear,
            Provider::Cipher { keys, .. } => {
                keys.first().map_or(Self::Clear, |(name, _)| Self::Name(name.clone()))
            }
            Provider::Kms { name, .. } if names::is_ours(name) => {
                view.writer().map_or(Self::Clear, Self::Key)
            }
            Provider::Kms { name, .. } => Self::Name(name.clone()),
        }))
    }

    /// What was written with before anything was published: the name that is adopted, or nothing.
    pub(super) fn before(document: &SecretEncryption) -> Self {
        let first = document.spec.adopt.first();
        first.map_or(Self::Clear, |adoption| Self::Name(adoption.name.clone()))
    }

    pub(super) fn of_turn(turn: &Turn) -> Self {
        match turn.id {
            0 if turn.vendor == IDENTITY => Self::Clear,
            0 => Self::Name(turn.fingerprint.clone()),
            id => Self::Key(KeyNumber(id)),
        }
    }

    /// As the state of a rotation has it; `document` knows its keys and ciphers.
    pub(super) fn turn(&self, document: &SecretEncryption) -> Turn {
        match self {
            Self::Key(id) => {
                let key = document.key(*id);
                let vendor = key.map(|key| key.vendor.clone()).unwrap_or_default();
                let fingerprint = key.map(crate::model::Key::fingerprint).unwrap_or_default();
                Turn { id: id.0, vendor, fingerprint }
            }
            Self::Name(name) => {
                let cipher = document.spec.ciphers.iter().find(|cipher| cipher.name == *name);
                let vendor = cipher.map_or(ADOPTED, |cipher| cipher.kind.label());
                Turn { id: 0, vendor: vendor.to_owned(), fingerprint: name.clone() }
            }
            Self::Clear => Turn { id: 0, vendor: IDENTITY.to_owned(), fingerprint: String::new() },
        }
    }

    /// As a SecretEncryption says it.
    pub(super) fn writer(&self) -> Writer {
        match self {
            Self::Key(_) => Writer::Keys,
            Self::Name(name) => Writer::Cipher(name.clone()),
            Self::Clear => Writer::Identity,
        }
    }

    pub(super) fn key(&self) -> Option<KeyNumber> {
        match self {
            Self::Key(id) => Some(*id),
            _ => None,
        }
    }
}

/// As people are told.
pub(super) fn say(turn: &Turn) -> String {
    match Writes::of_turn(turn) {
        Writes::Key(id) => format!("key {id} ({})", turn.vendor),
        Writes::Name(name) => format!("{} {name}", turn.vendor),
        Writes::Clear => "no encryption".to_owned(),
    }
}

/// Gives the role of the writer behind the shim to this key alone.
pub(super) fn promote(document: &mut SecretEncryption, writer: KeyNumber) {
    for key in &mut document.spec.keys {
        key.role = if key.id == writer { Role::Write } else { Role::Read };
    }
}
