//! Resources that are new beside others that are encrypted already.
//!
//! A kube-apiserver that has not reloaded cannot read what another one encrypts of them. So first
//! they are written in clear and can be read encrypted: a stanza of new ones alone has identity
//! first, and others are in one more stanza, with identity alone, before that which they are in.
//! When every kube-apiserver has that, the order is turned, and what is stored of them is rewritten.
//!
//! A wildcard cannot be in two stanzas, nor may one list have two providers of one name: it comes
//! along only in a stanza of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use sidekey_core::{hex, sha256};

use super::super::reason;
use super::draft::Stand;
use super::report::Subject;
use super::retire::PAUSE;
use super::steps::changes_mode;
use super::writes::{Writes, say};
use super::{Halt, Pass, Published};
use crate::Error;
use crate::fleet::Observation;
use crate::model::{SecretEncryption, Writer, resources};
use crate::operator::jobs::{self, MigrateTask, Task};
use crate::publish::{Live, View};
use crate::render::encryption::{Provider, StanzaView, providers};
use crate::rotate::State;

/// The reason while kube-apiservers are waited for longer than usual.
const WAITING: &str = "Waiting";

/// The resources of a document that must be written in clear for now. `proven`: every kube-apiserver
/// has what is published.
pub(super) fn unread(
    document: &SecretEncryption,
    view: &View,
    proven: bool,
) -> Result<Vec<String>, Error> {
    let Some(live) = view.stanzas.as_ref().filter(|_| document.spec.write != Writer::Identity)
    else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    let lists = document.spec.lists();
    for (index, (name, list)) in lists.iter().enumerate() {
        let writer = label(document, name);
        let new = list.iter().filter(|resource| is_unread(live, resource, &writer, proven));
        let new: Vec<String> = new.cloned().collect();
        let alone = new.len() == list.len();
        let takes = |wildcard: &String| takes_over(live, &lists, index, wildcard);
        let mut wildcards = new.iter().filter(|resource| resources::is_wildcard(resource));
        if let Some(wildcard) = wildcards.find(|wildcard| !alone || takes(wildcard)) {
            return Err(Error::refused(format!(
                "{wildcard:?} cannot be added to a list of {} that is encrypted already: every \
                 kube-apiserver must read it before one encrypts it",
                document.name
            ))
            .hint(format!(
                "leave the list as it was and give it a stanza of its own, such as `stanzas: \
                 [{{name: rest, resources: [{wildcard:?}]}}]`; or go by `write: identity`"
            )));
        }
        all.extend(new);
    }
    Ok(all)
}

/// What a stanza with this provider name is written with, as providers are told apart.
fn label(document: &SecretEncryption, name: &str) -> String {
    let Writer::Cipher(own) = &document.spec.write else { return name.to_owned() };
    let cipher = document.spec.ciphers.iter().find(|cipher| cipher.name == *own);
    cipher.map_or_else(|| own.clone(), |cipher| format!("{}/{own}", cipher.kind.label()))
}

fn is_unread(live: &[StanzaView], resource: &str, writer: &str, proven: bool) -> bool {
    let Some(list) = providers(live, resource) else { return true };
    let in_clear = list.first().is_none_or(|first| **first == Provider::Identity);
    let read = list.iter().any(|one| one.labels().iter().any(|label| label == writer));
    in_clear && !(proven && read)
}

/// Whether something that is encrypted would be in this list for the sake of the wildcard alone.
fn takes_over(
    live: &[StanzaView],
    lists: &[(String, &[String])],
    index: usize,
    wildcard: &str,
) -> bool {
    let encrypted = |resource: &&String| {
        let list = providers(live, resource).unwrap_or_default();
        list.first().is_some_and(|first| **first != Provider::Identity)
    };
    let best = |list: &[String], resource: &str| {
        list.iter().filter_map(|name| resources::fit(name, resource)).max()
    };
    let all = live.iter().flat_map(|stanza| &stanza.resources).filter(encrypted);
    let mut covered = all.filter(|resource| resources::covers(wildcard, resource));
    covered.any(|resource| {
        let own = best(lists[index].1, resource);
        let mut others = lists.iter().enumerate().filter(|(other, _)| *other != index);
        !others.any(|(_, (_, list))| best(list, resource) > own)
    })
}

/// The resources that are encrypted, in order of name.
pub(super) fn encrypted(document: &SecretEncryption) -> Vec<String> {
    let spec = &document.spec;
    if spec.write == Writer::Identity {
        return Vec::new();
    }
    let all = spec.lists().into_iter().flat_map(|(_, list)| list.iter());
    let all: BTreeSet<&String> = all.filter(|name| !spec.unread.contains(name)).collect();
    all.into_iter().cloned().collect()
}

/// Whether a rotation has seen every kube-apiserver with what is published. It does so before it
/// turns the order, and what is new after that is not part of it.
pub(super) fn proven(state: &State, live: &Live, promoted: bool) -> bool {
    let to = Writes::of_turn(&state.to);
    let before = || matches!(Writes::live(live), Ok(Some(writes)) if writes != to);
    promoted && changes_mode(state) && before()
}

impl Pass<'_> {
    /// Has new resources encrypted once every kube-apiserver can read them so; how long to wait.
    pub(super) async fn take_in(
        &mut self,
        wanted: &Writes,
        published: &Published,
    ) -> Result<Option<Duration>, Halt> {
        let document = &published.draft.document;
        if document.spec.unread.is_empty() {
            return Ok(None);
        }
        if self.report.now.encrypted_resources.is_empty() {
            // Written down before anything else happens: it tells what is to be rewritten.
            self.report.now.encrypted_resources = encrypted(document);
            self.tell_unread(published);
            return Ok(Some(Duration::ZERO));
        }
        let task = Task::Gate(self.gate(published, None).await?);
        if self.job(&task, Subject::UpToDate, WAITING).await?.is_err() {
            let text = waits(document);
            self.report.set(Subject::Configured, Some(false), reason::PUBLISHING, text);
            if self.report.said(Subject::UpToDate) != Some(WAITING) {
                self.tell_unread(published);
            }
            return Ok(Some(PAUSE));
        }
        let mut stand = Stand::of(wanted.clone());
        stand.proven = true;
        let turned = self.publish(&stand, BTreeSet::new()).await?;
        // What it has found out says nothing of another time.
        jobs::clear(&self.ctx.client, &self.wanted).await?;
        self.tell_unread(published);
        let text = format!("revision {}: {}", turned.revision, document.spec.unread.join(", "));
        self.report.event(false, "ResourcesEncrypted", text);
        Ok(Some(Duration::ZERO))
    }

    /// Says that not everything is encrypted yet, where that is so.
    pub(super) fn tell_unread(&mut self, published: &Published) {
        let document = &published.draft.document;
        if !document.spec.unread.is_empty() {
            let text = waits(document);
            self.report.set(Subject::UpToDate, Some(false), reason::READ_ONLY, text);
        }
    }

    /// Rewrites what is stored of resources that have come along; how long to wait for that.
    pub(super) async fn rewrite_new(
        &mut self,
        wanted: &Writes,
        published: &Published,
        seen: &Observation,
    ) -> Result<Option<Duration>, Halt> {
        let all = encrypted(&published.draft.document);
        let known = &mut self.report.now.encrypted_resources;
        let covered = |name: &String| known.iter().any(|one| resources::covers(one, name));
        let new: Vec<String> = all.iter().filter(|name| !covered(name)).cloned().collect();
        // Where nothing was written down yet, all of them have been there before.
        if new.is_empty() || known.is_empty() {
            *known = all;
            return Ok(None);
        }
        let hash = match wanted.key().map(|_| seen.announced()) {
            Some(Err(_)) => return Ok(Some(self.ctx.options.poll.min(PAUSE))),
            Some(Ok(announced)) => Some(announced),
            None => None,
        };
        let under = say(&wanted.turn(&self.wanted));
        let lists = hex(&sha256(all.join(",").as_bytes()));
        let gate = self.gate(published, hash.clone()).await?;
        let version = hash.as_deref().unwrap_or_default();
        let target = format!("{under} {version} with resources {}", &lists[..12]);
        let text = format!("{} under {under}", new.join(", "));
        let task = Task::Migrate(MigrateTask { gate, target });
        match self.job(&task, Subject::UpToDate, "ReEncryptionFailed").await? {
            Ok(_) => {
                self.report.now.encrypted_resources = all;
                if hash.is_some() {
                    self.report.now.encrypted_under = hash;
                    self.report.now.moved = None;
                }
                self.report.event(false, "ReEncryptionCompleted", text.clone());
                self.report.set(Subject::UpToDate, Some(true), "ReEncryptionCompleted", text);
                Ok(Some(Duration::ZERO))
            }
            Err(progress) => {
                if self.report.said(Subject::UpToDate) != Some("ReEncryptionFailed") {
                    let text =
                        progress.map_or_else(|| text.clone(), |how| format!("{text}: {how}"));
                    self.report.set(Subject::UpToDate, Some(false), reason::RE_ENCRYPTION, text);
                }
                Ok(Some(PAUSE))
            }
        }
    }
}

fn waits(document: &SecretEncryption) -> String {
    let new = document.spec.unread.join(", ");
    format!("{new}: stored in clear until every kube-apiserver can read them encrypted")
}
