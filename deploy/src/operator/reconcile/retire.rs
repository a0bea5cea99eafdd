//! Between rotations: what moves at the vendor is followed, and what nothing needs goes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams};
use sidekey_core::{hex, sha256};

use super::super::reason;
use super::back::left_out;
use super::draft::{Retained, Stand};
use super::outlook::pace;
use super::report::{Subject, now};
use super::writes::Writes;
use super::{Asked, Calm, Halt, Pass, Published, canary, pods};
use crate::census;
use crate::cluster::refused;
use crate::fleet::Replica;
use crate::model::{Adoption, KeyNumber, Placement, SecretEncryption, names};
use crate::operator::jobs::{self, CensusTask, Found, RotateTask, Task};
use crate::operator::schedule::Version;
use crate::operator::status::Retired;
use crate::operator::{proxy, roll};
use crate::render::PartName;

/// What the administrator is told of a key that nothing stored needs.
const ADVICE: &str = "nothing in etcd needs it. Backups made before then do: keep it at the KMS, \
                      disabled if you like, as long as you keep any of them";

/// So long, and one poll, a count that has ended is believed: in the usual way it is looked at
/// within seconds.
const FRESH: Duration = Duration::from_secs(300);

/// Between two looks at what takes its time.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

impl Pass<'_> {
    /// Nothing is to be rotated: keeps everything in place, and lets go what is not needed.
    pub(super) async fn settle(&mut self, wanted: Writes) -> Result<Duration, Halt> {
        let stand = Stand::of(wanted.clone());
        let published = self.publish(&stand, BTreeSet::new()).await?;
        self.report.now.active_key = Some(wanted.turn(&published.draft.document));
        self.report.now.target_key = None;
        self.report.now.rotation = None;
        let missing = self.place(&published).await?;
        let Asked { seen, replicas, tls } = self.observe(&published).await?;
        if !missing.is_empty() {
            return Ok(self.unsettled(reason::ROLL_OUT, missing));
        }
        let late = match published.draft.document.spec.keys.is_empty() {
            true => Vec::new(),
            false => seen.all_loaded(published.revision).err().unwrap_or_default(),
        };
        if !late.is_empty() {
            return Ok(self.unsettled(reason::PUBLISHING, late));
        }
        if let Some(wait) = self.take_in(&wanted, &published).await? {
            return Ok(wait);
        }
        if self.wanted.spec.placement != Placement::Proxy {
            proxy::remove(self.ctx, &self.wanted).await?;
        }
        self.tidy(&published).await?;
        let left_out = left_out(&self.left_out);
        let text = format!("revision {} is in use{left_out}", published.revision);
        self.report.set(Subject::Configured, Some(true), "AsExpected", text);
        let idle = self.kept.state.as_ref().map_or("none", |state| state.stage.label()).to_owned();
        self.report.set(Subject::Rotating, Some(false), &idle, "");
        if let Some(wait) = self.rewrite_new(&wanted, &published, &seen).await? {
            return Ok(wait);
        }
        if let Some(wait) = self.follow(&wanted, &published, &seen).await? {
            return Ok(wait);
        }
        let asked = match seen.announced() {
            Ok(announced) => self.ask(&wanted, &announced).await?,
            Err(_) => None,
        };
        match asked {
            Some(wait) => Ok(wait),
            None => {
                // A canary that could not be renewed is asked for again: that is no calm.
                let renewed = self.report.said(Subject::KeyAccessible) != Some(canary::FAILED);
                if renewed && self.candidate(&wanted, &published).is_none() {
                    self.calm = Calm::new(&seen, replicas, tls);
                }
                self.retire(&wanted, &published).await
            }
        }
    }

    /// Says who has not come along yet; gives when to look again.
    fn unsettled(&mut self, reason: &str, missing: Vec<String>) -> Duration {
        let known = self.report.since(Subject::Configured, reason);
        self.report.set(Subject::Configured, Some(false), reason, missing.join("; "));
        pace(known)
    }

    /// Deletes the heads of vendors without a key, and the shim's where there is none at all, once no
    /// pod mounts them any more.
    async fn tidy(&mut self, published: &Published) -> Result<(), Halt> {
        let document = &published.draft.document;
        let used = document.vendors();
        let heads = self.live.parts.keys().filter_map(|part| match part {
            PartName::Provider(vendor) => Some(vendor.as_str()),
            _ => None,
        });
        let left: Vec<&str> = heads.filter(|vendor| !used.contains(vendor)).collect();
        let shim = document.spec.keys.is_empty() && self.live.parts.contains_key(&PartName::Shim);
        if left.is_empty() && !shim {
            return Ok(());
        }
        let idle = roll::idle_vendors(self.ctx, document).await?;
        let left = left.into_iter().filter(|vendor| !idle.contains_key(*vendor));
        let mut left: Vec<String> = left.map(names::provider_secret).collect();
        // A file without keys is refused by a shim that starts, so the last one stays as it is too.
        if shim && !roll::is_mounted(self.ctx, document, names::SHIM_SECRET).await? {
            left.push(names::SHIM_SECRET.to_owned());
        }
        let api: Api<Secret> = Api::namespaced(self.ctx.client.clone(), &self.namespace);
        for name in left {
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => self.report.event(false, "HeadRemoved", format!("Secret {name}")),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    let what = format!("cannot delete Secret {}/{name}", self.namespace);
                    return Err(refused(what, error).into());
                }
            }
        }
        Ok(())
    }

    /// Asks the vendor for a new version of the key, when that is due; how long to wait for it.
    async fn ask(&mut self, wanted: &Writes, announced: &str) -> Result<Option<Duration>, Halt> {
        let key = wanted.key().and_then(|id| self.wanted.key(id)).cloned();
        let schedule = self.wanted.spec.auto_rotation.clone();
        let Some((key, schedule)) = key.filter(|key| !key.is_external()).zip(schedule) else {
            self.report.now.auto_rotation = None;
            return Ok(None);
        };
        let time = SystemTime::now();
        let version = Version::seen(self.report.now.auto_rotation.as_ref(), announced, time);
        self.report.now.auto_rotation = Some(version.clone());
        if version.due(&schedule, time) != Some(Duration::ZERO) {
            return Ok(None);
        }
        let files = self.files_of(&key).await?;
        let (key_id_hash, host_aliases) = (announced.to_owned(), self.host_aliases().await?);
        let task = Task::Rotate(RotateTask { key, files, key_id_hash, host_aliases });
        let (client, wanted) = (&self.ctx.client, &self.wanted);
        match jobs::look(client, wanted, &task).await? {
            Found::Absent => jobs::start(client, wanted, &task).await?,
            Found::Running { .. } => {}
            // Shims find the new version by themselves.
            Found::Succeeded(_) => return Ok(Some(PAUSE)),
            Found::Failed { terminal, reason } => {
                self.report.event(true, "AutoRotationFailed", reason.clone());
                self.report.now.auto_rotation = Some(version.refused(terminal, &reason, time));
                jobs::clear(client, wanted).await?;
            }
        }
        Ok(Some(PAUSE))
    }

    /// What was retained and is gone was retired, also by a pass that could not say so any more.
    pub(super) fn note_retired(&mut self) -> Result<(), Halt> {
        let live = self.live.view()?.keys;
        let gone = self.report.now.keys.iter().filter(|key| key.retained);
        let gone = gone.filter(|key| !live.contains_key(&KeyNumber(key.id)));
        let gone: Vec<Retired> = gone
            .filter(|key| !self.report.now.retired.iter().any(|one| one.id == key.id.to_string()))
            .map(|key| Retired {
                id: key.id.to_string(),
                vendor: key.vendor.clone(),
                fingerprint: key.fingerprint.clone(),
                retired_time: now(),
                advice: ADVICE.to_owned(),
                left: false,
            })
            .collect();
        self.report.now.retired.splice(0..0, gone);
        Ok(())
    }

    /// Has etcd counted for the first of what is not wanted any more; what nothing needs goes.
    async fn retire(&mut self, wanted: &Writes, published: &Published) -> Result<Duration, Halt> {
        let Some(retained) = self.candidate(wanted, published) else {
            return Ok(self.ctx.options.poll);
        };
        let names = last_names(&retained, &published.draft.document);
        let what = describe(&retained);
        if let Some(why) = roll::stores_elsewhere(self.ctx, &self.wanted).await? {
            self.report.set(
                Subject::Rotating,
                Some(false),
                "Retained",
                format!("{what} stays: {why}"),
            );
            return Ok(self.ctx.options.poll);
        }
        let mut open = None;
        let replicas = pods(self.ctx, &self.wanted, &self.namespace).replicas().await?;
        let started = self.kept.state.as_ref().map(|state| state.started_time.as_str());
        let occasion = occasion(started, &replicas);
        for task in self.counts(&retained, &names, published, &occasion) {
            let task = Task::Census(task);
            if let Err(progress) = self.job(&task, Subject::UpToDate, "CensusFailed").await? {
                open.get_or_insert_with(|| progress.unwrap_or_default());
            }
        }
        if let Some(text) = open {
            if self.report.said(Subject::UpToDate) != Some("CensusFailed") {
                let text = format!("{what} stays until nothing needs it: {text}");
                self.report.set(Subject::Rotating, Some(false), "Retiring", text);
            }
            return Ok(PAUSE);
        }
        let mut stand = Stand::of(wanted.clone());
        stand.leaving = BTreeSet::from([retained.name()]);
        let mut drop = stand.leaving.clone();
        drop.extend(names);
        if let Retained::Adopted(adoption) = &retained {
            // The key itself stays; data from before the shim does not need it any more.
            drop.insert(adoption.key.to_string());
        }
        self.publish(&stand, drop).await?;
        jobs::clear(&self.ctx.client, &self.wanted).await?;
        self.report.now.retired.insert(0, retired(&retained));
        self.report.event(false, "Retired", format!("{what}: {ADVICE}"));
        Ok(Duration::ZERO)
    }

    /// What may go next: what is not wanted any more, names from before the shim, and what a
    /// document that was translated has kept because only a count can tell.
    fn candidate(&self, wanted: &Writes, published: &Published) -> Option<Retained> {
        let spec = &published.draft.document.spec;
        let writes = |name: &str| *wanted == Writes::Name(name.to_owned());
        let mut adopted = spec.adopt.iter().filter(|adoption| !writes(&adoption.name));
        if let Some(retained) = published.draft.retained.first() {
            // Names go before the key whose data they are.
            let of = |adoption: &&Adoption| retained.name() == adoption.key.to_string();
            let adopted = adopted.find(of).cloned().map(Retained::Adopted);
            return adopted.or_else(|| Some(retained.clone()));
        }
        let adopted = adopted.next();
        if let Some(adoption) = adopted {
            return Some(Retained::Adopted(adoption.clone()));
        }
        let cipher = spec.ciphers.iter().find(|cipher| self.translated && !writes(&cipher.name));
        cipher.map(|cipher| Retained::Cipher(cipher.clone()))
    }

    /// The counts of what is to go, and of the names that go with it.
    fn counts(
        &self,
        retained: &Retained,
        names: &[String],
        published: &Published,
        occasion: &str,
    ) -> Vec<CensusTask> {
        let subject = match retained {
            Retained::Key(key) => census::Subject::Key(key.id.0),
            other => census::Subject::Name(other.name()),
        };
        let names = names.iter().cloned().map(census::Subject::Name);
        let all: Vec<census::Subject> = [subject].into_iter().chain(names).collect();
        // Of several one may end a compaction of etcd later than another, which must last so long.
        let fresh = if all.len() > 1 { 2 * FRESH } else { FRESH } + self.ctx.options.poll;
        let count = |subject| CensusTask { fresh, ..self.census(subject, published, occasion) };
        all.into_iter().map(count).collect()
    }

    fn census(
        &self,
        subject: census::Subject,
        published: &Published,
        occasion: &str,
    ) -> CensusTask {
        let key = match subject {
            census::Subject::Key(id) => Some(KeyNumber(id)),
            census::Subject::Name(_) => None,
        };
        let adopted = &published.draft.document.spec.adopt;
        let names = |own: bool| {
            let some = adopted.iter().filter(move |one| (Some(one.key) == key) == own);
            some.map(|one| one.name.clone()).collect()
        };
        CensusTask {
            subject,
            legacy: names(true),
            others: names(false),
            occasion: occasion.to_owned(),
            fresh: FRESH,
            apart_for_tests: self.ctx.options.census_apart,
        }
    }
}

/// A count of before another rotation says nothing of now, nor does one of before every
/// kube-apiserver was stopped, as it is for a restore of etcd.
pub(super) fn occasion(started: Option<&str>, replicas: &[Replica]) -> String {
    let mut pods: Vec<&str> =
        replicas.iter().map(|replica| replica.uid.as_deref().unwrap_or(&replica.name)).collect();
    pods.sort_unstable();
    let text = format!("{} {}", started.unwrap_or_default(), pods.join(" "));
    let mut occasion = hex(&sha256(text.as_bytes()));
    occasion.truncate(8);
    occasion
}

/// Our own provider names, if the last key behind the shim is to go: what is stored may carry one of
/// them without being that key's.
pub(super) fn last_names(retained: &Retained, document: &SecretEncryption) -> Vec<String> {
    let Retained::Key(last) = retained else { return Vec::new() };
    if document.spec.keys.iter().any(|key| key.id != last.id) {
        return Vec::new();
    }
    let stanzas = document.spec.stanzas.iter().map(|stanza| names::stanza_name(&stanza.name));
    [names::PROVIDER_NAME.to_owned()].into_iter().chain(stanzas).collect()
}

fn describe(retained: &Retained) -> String {
    match retained {
        Retained::Key(key) => format!("key {} ({})", key.id, key.vendor),
        Retained::Cipher(cipher) => format!("{} {}", cipher.kind.label(), cipher.name),
        Retained::Adopted(adoption) => format!("the provider name {}", adoption.name),
    }
}

fn retired(retained: &Retained) -> Retired {
    let (vendor, fingerprint) = match retained {
        Retained::Key(key) => (key.vendor.clone(), key.fingerprint()),
        Retained::Cipher(cipher) => (cipher.kind.label().to_owned(), String::new()),
        Retained::Adopted(adoption) => (format!("name of key {}", adoption.key), String::new()),
    };
    Retired {
        id: retained.name(),
        vendor,
        fingerprint,
        retired_time: now(),
        advice: ADVICE.to_owned(),
        left: false,
    }
}
