//! The control plane that a rotation changes: its heads, its replicas, what it has stored.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{State, Turn, World};
use crate::Error;
use crate::fleet::{Fleet, Observation};
use crate::migrate::{self, Plan, Run, Selection, Stop};
use crate::model::{Key, KeyNumber, Role, SecretEncryption};
use crate::preflight::{self, Outcome, Subject, Verdict};
use crate::publish::{self, Live, Options, Target};
use crate::render::{Phase, ResolvedFiles};

/// Everything that a rotation works with.
pub struct Plane {
    /// Where the heads are.
    pub target: Target,
    /// How it is to be in the end: the new key writes, the old one reads.
    pub wanted: SecretEncryption,
    /// What the keys' files hold.
    pub files: ResolvedFiles,
    /// Who must follow.
    pub fleet: Fleet,
    /// How the new key is proven before; none: only the shims prove it.
    pub preflight: Option<preflight::Options>,
    /// The API whose stored objects are rewritten.
    pub api: kube::Config,
    /// Who is told how that goes.
    pub progress: Box<dyn migrate::Observer>,
}

/// From which key to which, as things are; none if the wanted key writes already.
pub fn turns(live: &Live, wanted: &SecretEncryption) -> Result<(Option<Turn>, Turn), Error> {
    let Some(writer) = wanted.writer() else {
        return Err(Error::usage("no key of the file has the role write"));
    };
    let to = turn(writer);
    let view = live.view()?;
    let Some(current) = view.writer() else {
        return Err(Error::refused("no key writes there yet").hint(
            "to begin, publish with one key (`sidekey publish`) and put the sidecars in (`sidekey inject`)",
        ));
    };
    if current == writer.id {
        return Ok((None, to));
    }
    if wanted.key(current).is_none_or(|key| key.role != Role::Read) {
        return Err(Error::refused(format!("key {current} writes now and is not in the file"))
            .hint(format!("keep key {current} there with role: read: what it wrote needs it")));
    }
    let seen = view.keys.get(&current);
    let from = seen.map(|seen| Turn {
        id: current.0,
        vendor: seen.vendor.clone(),
        fingerprint: seen.fingerprint.clone(),
    });
    Ok((from, to))
}

fn turn(key: &Key) -> Turn {
    Turn { id: key.id.0, vendor: key.vendor.clone(), fingerprint: key.fingerprint() }
}

impl Plane {
    /// The document of a stage: these roles, and canaries for every key that has one somewhere.
    fn document(&self, state: &State, live: &Live, writer: u64) -> Result<SecretEncryption, Error> {
        let mut document = self.wanted.clone();
        for key in &mut document.spec.keys {
            key.role = if key.id.0 == writer { Role::Write } else { Role::Read };
            if key.canary.is_none() {
                let made = state.canary.clone().filter(|_| key.id.0 == state.to.id);
                key.canary = match made {
                    Some(made) => Some(made),
                    None => live.canary(key)?,
                };
            }
        }
        Ok(document)
    }

    async fn put(&self, document: &SecretEncryption, options: &Options) -> Result<u64, Error> {
        let phase = Phase::Settled;
        let done = publish::publish(&self.target, document, &self.files, phase, options).await?;
        Ok(done.revision)
    }

    /// What everybody says, or why that cannot be asked at the moment.
    async fn look(&self) -> Result<Observation, Vec<String>> {
        self.fleet.observe().await.map_err(|error| vec![error.report()])
    }

    fn names(&self) -> Vec<String> {
        let stanzas = self.wanted.spec.stanzas.iter();
        let more = stanzas.map(|stanza| crate::model::names::stanza_name(&stanza.name));
        [crate::model::names::PROVIDER_NAME.to_owned()].into_iter().chain(more).collect()
    }
}

impl World for Plane {
    async fn preflight(&mut self, to: &Turn) -> Result<Option<Value>, Error> {
        let Some(options) = &self.preflight else { return Ok(None) };
        let key = self.wanted.key(KeyNumber(to.id));
        let Some(key) = key.filter(|key| !key.is_external()) else { return Ok(None) };
        let files = key.files.iter();
        let files = files.map(|file| (file.name.clone(), self.files.content(&file.source)));
        let mut subject = Subject::of(key, files.collect());
        if subject.canary.is_none() {
            // A key that comes back must be the one that it was.
            subject.canary = self.target.live(&self.wanted.name).await?.canary(key)?;
        }
        let report = preflight::prove(&subject, options).await?;
        if report.verdict == Verdict::Ready {
            return Ok(report.canary.or(subject.canary));
        }
        let bad = |outcome| matches!(outcome, Outcome::Transient | Outcome::Terminal);
        let found = report.steps.iter().filter(|step| bad(step.result));
        let found: Vec<String> =
            found.map(|step| format!("{}: {}", step.check, step.detail)).collect();
        let what = format!("key {} must not go live: {}", to.id, found.join("; "));
        Err(if report.verdict == Verdict::Refused {
            Error::refused(what).hint("nothing was changed; mend the file and run it again")
        } else {
            Error::failed(what).hint("nothing was changed; it may work in a moment: run it again")
        })
    }

    async fn publish(&mut self, state: &State, as_writer: bool) -> Result<u64, Error> {
        let live = self.target.live(&self.wanted.name).await?;
        let writer = if as_writer { state.to.id } else { state.from.id };
        let document = self.document(state, &live, writer)?;
        self.put(&document, &Options::default()).await
    }

    async fn withdraw(&mut self, state: &State) -> Result<Option<String>, Error> {
        let live = self.target.live(&self.wanted.name).await?;
        let to = KeyNumber(state.to.id);
        state.refuse_if_it_writes(&live)?;
        let there = live.views()?.iter().any(|view| view.keys.contains_key(&to));
        let stays = state.may_hold_data(&live)?;
        if !there || stays.is_some() {
            return Ok(stays.filter(|_| there));
        }
        let mut document = self.document(state, &live, state.from.id)?;
        document.spec.keys.retain(|key| key.id != to);
        let drop = BTreeSet::from([to.to_string()]);
        self.put(&document, &Options { drop, ..Options::default() }).await?;
        Ok(None)
    }

    async fn missing_readers(&mut self, state: &State) -> Result<Vec<String>, Error> {
        let seen = match self.look().await {
            Ok(seen) => seen,
            Err(missing) => return Ok(missing),
        };
        let revision = state.read_revision.unwrap_or_default();
        Ok(seen.missing_readers(revision, Some(KeyNumber(state.to.id))))
    }

    async fn missing_writers(&mut self, state: &State) -> Result<Vec<String>, Error> {
        let seen = match self.look().await {
            Ok(seen) => seen,
            Err(missing) => return Ok(missing),
        };
        if let Err(missing) = seen.all_loaded(state.write_revision.unwrap_or_default()) {
            return Ok(missing);
        }
        let hash = match seen.announced() {
            Ok(hash) => hash,
            Err(missing) => return Ok(missing),
        };
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(seen.all_announce(&hash, &names).err().unwrap_or_default())
    }

    async fn migrate(&mut self, state: &State) -> Result<(), Error> {
        let document = crate::report::yaml(&self.wanted.document())?;
        let selection = Selection::of_secret_encryption(&document, &self.wanted.name)?;
        let client = migrate::client(self.api.clone())?;
        let options = migrate::Options::default();
        let resolved = migrate::resolve(&client, &selection.patterns, &options).await?;
        // A position counts for this rotation and for no other.
        let target = format!("key {} since {}", state.to.id, state.started_time);
        let run = Run { cluster: migrate::gate::cluster_id(&client).await?, target };
        let checkpoint = run.default_path().map(|path| (path, run));
        let plan = Plan { resolved, options, checkpoint, stop: Stop::never() };
        let outcome = migrate::run(&client, &plan, self.progress.as_mut()).await?;
        if outcome.is_complete() {
            return Ok(());
        }
        Err(unfinished(&outcome))
    }
}

fn unfinished(outcome: &migrate::Outcome) -> Error {
    let failed: u64 = outcome.resources.iter().map(|resource| resource.counts.failed).sum();
    let mut reasons: Vec<String> = outcome
        .resources
        .iter()
        .filter_map(|resource| {
            Some(format!("{}: {}", resource.resource, resource.reason.as_ref()?))
        })
        .collect();
    let named = outcome.resources.iter().flat_map(|resource| &resource.failures).take(5);
    reasons.extend(named.map(|failure| format!("{}: {}", failure.object, failure.reason)));
    let reasons =
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    Error::failed(format!("{failed} objects are not under the new key{reasons}"))
        .hint("both keys stay in use; mend what is named and run the same command again")
}

#[cfg(test)]
mod tests;
