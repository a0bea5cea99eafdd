//! Whether a change is safe. What may be stored must stay readable, whatever the change.

use std::collections::{BTreeMap, BTreeSet};

use sidekey_core::NO_FINGERPRINT;

use super::view::KeyView;
use super::{Options, View};
use crate::Error;
use crate::model::KeyNumber;
use crate::render::encryption::{Provider, StanzaView, providers};

/// Why a change is not safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    /// What would happen.
    pub what: String,
    /// What must be proven unused, or named by force, for it to be done; none: never.
    pub subject: Option<String>,
}

impl Objection {
    fn never(what: String) -> Self {
        Self { what, subject: None }
    }

    fn unless(subject: impl Into<String>, what: String) -> Self {
        Self { what, subject: Some(subject.into()) }
    }
}

/// Refuses with all objections at once; gives what somebody should know.
pub fn verify(old: &View, new: &View, options: &Options) -> Result<Vec<String>, Error> {
    let mut notes = Vec::new();
    let proven =
        |subject: &str| options.proofs.iter().any(|proof| proof.unused.as_deref() == Some(subject));
    let mut refused = Vec::new();
    for Objection { what, subject } in objections(old, new) {
        match subject {
            Some(subject) if proven(&subject) => notes.push(format!("{what}: a census allows it")),
            Some(subject) if options.drop.contains(&subject) => {
                notes.push(format!("{what}: by force"));
            }
            Some(subject) => {
                let counts = options.proofs.iter().filter_map(|proof| proof.counted.get(&subject));
                let count = counts.max().map(|count| format!(" ({count} objects counted)"));
                let count = count.unwrap_or_default();
                refused
                    .push(format!("{what}{count}; --force-drop {subject} to do so all the same"));
            }
            None => refused.push(what),
        }
    }
    if refused.is_empty() {
        notes.extend(advice(old, new));
        return Ok(notes);
    }
    let error = Error::refused(format!("nothing was published\n{}", refused.join("\n")));
    // What may never be done says itself what to do instead.
    if !refused.iter().any(|text| text.contains("--force-drop")) {
        return Err(error);
    }
    Err(error.hint(
        "`sidekey census --may-drop` shows whether it is still needed; give its answer with --census",
    ))
}

/// Everything that is not safe in a change.
pub fn objections(old: &View, new: &View) -> Vec<Objection> {
    let mut list = keys(old, new);
    list.extend(legacy(old, new));
    if let (Some(before), Some(after)) = (&old.stanzas, &new.stanzas) {
        // What a wildcard had counts too, where a resource gets a stanza of its own.
        for resource in names(before).union(&names(after)) {
            let Some(old) = providers(before, resource) else { continue };
            match providers(after, resource) {
                None => list.push(Objection::unless(
                    *resource,
                    format!("{resource} would no longer be in EncryptionConfiguration: what is encrypted of them could not be read"),
                )),
                Some(new) => list.extend(resource_objections(resource, &old, &new)),
            }
        }
    }
    list.dedup();
    list
}

/// Every resource that is named.
fn names(stanzas: &[StanzaView]) -> BTreeSet<&str> {
    stanzas.iter().flat_map(|stanza| stanza.resources.iter().map(String::as_str)).collect()
}

fn keys(old: &View, new: &View) -> Vec<Objection> {
    let mut list = Vec::new();
    for (id, key) in &old.keys {
        match new.keys.get(id) {
            None => list.push(Objection::unless(
                id.to_string(),
                format!("key {id} would go while something may be stored under it"),
            )),
            Some(other) => list.extend(changed_kek(*id, key, other)),
        }
    }
    let (writer, before) = (new.writer(), old.writer());
    if let (Some(writer), Some(before)) = (writer, before)
        && writer != before
        && !old.keys.contains_key(&writer)
    {
        list.push(Objection::never(format!(
            "key {writer} would write before every replica can read with it: publish it with role read first, as `sidekey rotate` does"
        )));
    }
    list
}

fn changed_kek(id: KeyNumber, old: &KeyView, new: &KeyView) -> Option<Objection> {
    let says = |key: &KeyView| key.fingerprint != NO_FINGERPRINT;
    let moved = says(old) && old.fingerprint != new.fingerprint;
    moved.then(|| {
        Objection::never(format!(
            "key {id} would be another KEK (fingerprint {} instead of {}): another KEK gets another number, or `fingerprint: \"{}\"` if only its name changed",
            new.fingerprint, old.fingerprint, old.fingerprint
        ))
    })
}

/// Data from before the shim carries no number: only the socket tells whose it is.
fn legacy(old: &View, new: &View) -> Vec<Objection> {
    let mut list = Vec::new();
    for (socket, key) in &old.legacy {
        match new.legacy.get(socket) {
            Some(other) if other == key => {}
            Some(other) => list.push(Objection::never(format!(
                "data from before the shim at {socket} is key {key}'s and would be taken for key {other}'s"
            ))),
            None => list.push(Objection::unless(
                key.to_string(),
                format!("data from before the shim at {socket}, which is key {key}'s, could not be read"),
            )),
        }
    }
    list
}

fn resource_objections(resource: &str, old: &[&Provider], new: &[&Provider]) -> Vec<Objection> {
    let mut list = Vec::new();
    let labels = |providers: &[&Provider]| -> BTreeSet<String> {
        providers.iter().flat_map(|provider| provider.labels()).collect()
    };
    let (before, after) = (labels(old), labels(new));
    for label in before.difference(&after) {
        let name = label.rsplit('/').next().unwrap_or_default();
        let what = match label.as_str() {
            "identity" => format!("{resource} that are stored in clear could not be read"),
            _ => {
                format!("the provider {label} would go from {resource}: its data could not be read")
            }
        };
        list.push(Objection::unless(name, what));
    }
    let (secrets, others) = (secrets(old), secrets(new));
    for (name, hash) in &secrets {
        if others.get(name).is_some_and(|other| other != hash) {
            list.push(Objection::never(format!(
                "{name} of {resource} would be another key under the same name"
            )));
        }
    }
    let first = new.first().map(|provider| provider.labels()).unwrap_or_default();
    let known = first.is_empty() || first.iter().any(|label| before.contains(label));
    if !known {
        list.push(Objection::never(format!(
            "{} would write {resource} before every kube-apiserver can read with it: publish with --identity-first, wait until all have it, and publish again",
            first.join(", ")
        )));
    }
    list
}

fn secrets(providers: &[&Provider]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for provider in providers {
        if let Provider::Cipher { kind, keys } = provider {
            all.extend(keys.iter().map(|(name, hash)| (format!("{kind}/{name}"), hash.clone())));
        }
    }
    all
}

/// What is allowed, but should be known.
fn advice(old: &View, new: &View) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(after) = &new.stanzas else { return notes };
    let written = |stanzas: &[StanzaView], resource: &str| {
        let list = providers(stanzas, resource).unwrap_or_default();
        list.first().is_some_and(|first| !matches!(first, Provider::Identity))
    };
    match &old.stanzas {
        None if names(after).iter().any(|name| written(after, name)) => notes.push(
            "nothing was published here before: with several kube-apiservers publish with \
             --identity-first until all of them have it, so that none meets what it cannot read"
                .to_owned(),
        ),
        Some(before) => {
            for resource in names(after) {
                if providers(before, resource).is_none() && written(after, resource) {
                    notes.push(format!(
                        "{resource} are new: a kube-apiserver that has not reloaded yet cannot read what others encrypt of them"
                    ));
                }
            }
        }
        None => {}
    }
    notes
}

#[cfg(test)]
mod tests;
