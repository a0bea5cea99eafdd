//! Which number a key has.
//!
//! A number stands in what is stored, so it is never used for another key. The KEK that writes now,
//! or is on its way to write, keeps its number: whoever applies the same document twice changes
//! nothing, and whoever goes back before a new key was promoted is where he was. A KEK that wrote
//! before and is to write again gets a new number, and so does one whose rotation was given up.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

use super::ANNOTATION_LAST;
use crate::model::KeyNumber;
use crate::operator::status::Status;
use crate::render::hosted::KnownKey;
use crate::rotate::Stage;

/// Every number that was ever given, and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    known: BTreeMap<u64, Known>,
    /// The highest.
    last: u64,
    /// The key that writes now, or cannot be kept from it any more.
    current: Option<u64>,
    /// The highest that may have written.
    wrote: u64,
    /// Rotations to them were given up.
    given_up: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Known {
    fingerprint: String,
    /// Named by the document, or part of a rotation.
    wanted: bool,
    /// Loaded, as far as is known.
    loaded: bool,
}

impl Numbers {
    /// What a SecretEncryption says; or, where there is none, the head that its shims still have.
    pub(super) fn of(encryption: Option<&DynamicObject>, head: &[(KnownKey, bool)]) -> Self {
        let mut numbers = Self::default();
        for (key, writes) in head {
            numbers.add(key.id.0, &key.fingerprint, *writes, true);
            numbers.wrote = numbers.wrote.max(key.id.0);
            numbers.current = if *writes { Some(key.id.0) } else { numbers.current };
        }
        let Some(encryption) = encryption else { return numbers };
        for key in encryption.data["spec"]["keys"].as_array().into_iter().flatten() {
            let Some(id) = key["id"].as_u64() else { continue };
            numbers.add(id, &fingerprint(key), true, true);
        }
        numbers.add_status(&Status::of(encryption));
        let noted = encryption.annotations().get(ANNOTATION_LAST);
        let noted = noted.and_then(|text| text.parse().ok()).unwrap_or_default();
        numbers.last = numbers.last.max(noted);
        numbers
    }

    fn add_status(&mut self, status: &Status) {
        for key in &status.keys {
            self.add(key.id, &key.fingerprint, false, true);
        }
        for key in &status.retired {
            let Ok(id) = key.id.parse() else { continue };
            self.add(id, &key.fingerprint, false, false);
            self.wrote = self.wrote.max(id);
        }
        for past in &status.history {
            self.add(past.from.id, &past.from.fingerprint, false, false);
            self.add(past.to.id, &past.to.fingerprint, false, false);
            self.wrote = self.wrote.max(past.from.id);
            if past.state == Stage::Interrupted {
                self.given_up.insert(past.to.id);
            } else {
                self.wrote = self.wrote.max(past.to.id);
            }
        }
        for turn in [&status.active_key, &status.target_key].into_iter().flatten() {
            self.add(turn.id, &turn.fingerprint, true, true);
        }
        let stage = status.rotation.as_ref().map(|rotation| rotation.stage);
        let promoted = status.target_key.as_ref().filter(|_| stage.is_some_and(Stage::is_promoted));
        if let Some(current) = promoted.or(status.active_key.as_ref()) {
            self.current = Some(current.id);
            self.wrote = self.wrote.max(current.id);
        }
        if let Some(active) = &status.active_key {
            self.wrote = self.wrote.max(active.id);
        }
    }

    fn add(&mut self, id: u64, fingerprint: &str, wanted: bool, loaded: bool) {
        // 0 stands for what has no number.
        if id == 0 {
            return;
        }
        self.last = self.last.max(id);
        let known = self.known.entry(id).or_default();
        known.fingerprint = fingerprint.to_owned();
        known.wanted |= wanted;
        known.loaded |= loaded;
    }

    /// The highest number that was ever given.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The number that a KEK keeps if it is to write.
    pub(super) fn writer(&self, fingerprint: &str) -> Option<u64> {
        let free =
            |id: u64| Some(id) == self.current || (id > self.wrote && !self.given_up.contains(&id));
        let same = |known: &Known| known.wanted && known.fingerprint == fingerprint;
        let mut found = self.known.iter().filter(|(id, known)| same(known) && free(**id));
        found.next_back().map(|(id, _)| *id)
    }

    /// The number that a KEK keeps if it is to read: what it wrote carries it.
    fn reader(&self, fingerprint: &str) -> Option<u64> {
        let same = |known: &&Known| known.fingerprint == fingerprint;
        let rank = |(id, known): (&u64, &Known)| (known.loaded, *id);
        let found = self
            .known
            .iter()
            .filter(|(id, known)| same(known) && (known.loaded || !self.given_up.contains(*id)));
        found.map(rank).max().map(|(_, id)| id)
    }

    /// For a translation whose writer has this fingerprint: each KEK once, with the number that it
    /// keeps, so that all others get numbers that were never given.
    pub(super) fn known(&self, writer: Option<&str>) -> Vec<KnownKey> {
        let fingerprints: BTreeSet<&str> =
            self.known.values().map(|known| known.fingerprint.as_str()).collect();
        let mut known = Vec::new();
        for fingerprint in fingerprints {
            let id = match writer {
                Some(writer) if writer == fingerprint => self.writer(fingerprint),
                _ => self.reader(fingerprint),
            };
            let fingerprint = fingerprint.to_owned();
            known.extend(id.map(|id| KnownKey { id: KeyNumber(id), fingerprint }));
        }
        if self.last > 0 {
            // No KEK has this fingerprint: it holds the place.
            known.push(KnownKey { id: KeyNumber(self.last), fingerprint: String::new() });
        }
        known
    }
}

/// Of a key as it stands in a document.
pub(super) fn fingerprint(key: &Value) -> String {
    match key["fingerprint"].as_str() {
        Some(given) => given.to_owned(),
        None => sidekey_core::fingerprint(&key["kek"]),
    }
}
