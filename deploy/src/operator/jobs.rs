//! Work that the operator has done by others: Jobs in the control plane's namespace.
//!
//! They prove a key with the provider's real image, wait for every kube-apiserver, rewrite what is
//! stored, count etcd and ask vendors for new versions. The kubeconfig of the hosted cluster and the certificates of its etcd are
//! mounted by kubelet and are never seen by the operator, whose Job says what it found in its
//! termination message.
//!
//! A Job carries the SHA-256 of all that it was made from, Secret included. One of another task is
//! removed; its answer says nothing of this one.

mod manifest;
mod verdict;

#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod, Secret as SecretObject};
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::census::Subject;
use crate::cluster::refused;
use crate::migrate::Selection;
use crate::model::{Key, SecretEncryption, names};
use crate::render::ResolvedFiles;
use manifest::Plan;

/// Label with the kind of a Job's task.
pub const LABEL_JOB: &str = "sidekey.dev/job";
/// Annotation with the SHA-256 of a Job's task.
pub const ANNOTATION_TASK: &str = "sidekey.dev/task";

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Task {
    /// Prove a key.
    Preflight(PreflightTask),
    /// Wait until every kube-apiserver has come along.
    Gate(GateTask),
    /// The same, and then rewrite what is stored.
    Migrate(MigrateTask),
    /// Count in etcd whether something may go.
    Census(CensusTask),
    /// Ask the vendor for a new version of a key.
    Rotate(RotateTask),
}

/// A key to be proven, with the content of its files. It must be one that Sidekey runs the
/// provider of.
#[derive(Clone, Debug)]
pub struct PreflightTask {
    /// The key.
    pub key: Key,
    /// What its files hold.
    pub files: ResolvedFiles,
    /// What tells this trial from one of another time; none: the answer of any time will do.
    pub occasion: Option<String>,
    /// The `hostAliases` of kube-apiserver's pods: the KMS may be found by no other name.
    pub host_aliases: Value,
}

/// What every kube-apiserver must say of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateTask {
    /// Every kube-apiserver, as `https://IP:PORT`.
    pub servers: Vec<String>,
    /// The hash of the key_id that it announces.
    pub key_id_hash: Option<String>,
    /// The hash of its EncryptionConfiguration.
    pub config_hash: Option<String>,
    /// What is encrypted, and by whom, as it is published: what the document does not name any more
    /// is stored all the same.
    pub selection: Selection,
    /// How long one Job waits for that.
    pub wait: Duration,
}

/// What is stored is to be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrateTask {
    /// What must be so before.
    pub gate: GateTask,
    /// Under what: another name begins anew.
    pub target: String,
}

/// May it go?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CensusTask {
    /// What is to go.
    pub subject: Subject,
    /// Providers whose data from before the shim is that key's.
    pub legacy: Vec<String>,
    /// Providers whose data from before the shim is not that key's.
    pub others: Vec<String>,
    /// What tells this count from one of another time.
    pub occasion: String,
    /// So long after its end a yes is believed: etcd may have been restored since.
    pub fresh: Duration,
    /// For tests alone: how far apart the counts must be.
    pub apart_for_tests: Option<Duration>,
}

/// A key that is to get a new version at its vendor. It must be one that Sidekey runs the provider
/// of.
#[derive(Clone, Debug)]
pub struct RotateTask {
    /// The key.
    pub key: Key,
    /// What its files hold.
    pub files: ResolvedFiles,
    /// The hash of its key_id as the shims announce it: with any other nothing is done, so that a
    /// Job which is run again does not ask twice.
    pub key_id_hash: String,
    /// The `hostAliases` of kube-apiserver's pods.
    pub host_aliases: Value,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// There is no Job of this task.
    Absent,
    /// It is not done yet.
    Running {
        /// How far it is, or what it waits for.
        progress: Option<String>,
    },
    /// It is done, and the answer is yes: the key may go live, everything is rewritten, nothing
    /// needs what is to go, the key has a new version (`after` is the hash of its key_id).
    Succeeded(Value),
    /// It is not so.
    Failed {
        /// It stays so until somebody changes something; else another Job may succeed.
        terminal: bool,
        /// Why.
        reason: String,
    },
}

impl Task {
    /// What kind it is, in a word.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Preflight(_) => "preflight",
            Self::Gate(_) => "gate",
            Self::Migrate(_) => "migrate",
            Self::Census(_) => "census",
            Self::Rotate(_) => "ask",
        }
    }

    /// The name of its Job. What may be done at the same time has names of its own.
    pub fn job_name(&self) -> String {
        let label = self.label();
        match self {
            Self::Preflight(PreflightTask { key, .. }) | Self::Rotate(RotateTask { key, .. }) => {
                format!("sidekey-{label}-{}", key.id)
            }
            Self::Gate(_) | Self::Migrate(_) => format!("sidekey-{label}"),
            Self::Census(CensusTask { subject: Subject::Key(id), .. }) => {
                format!("sidekey-{label}-key-{id}")
            }
            // Names of providers need not be names of objects.
            Self::Census(CensusTask { subject: Subject::Name(name), .. }) => {
                let hash = sidekey_core::hex(&sidekey_core::sha256(name.as_bytes()));
                format!("sidekey-{label}-name-{}", &hash[..12])
            }
        }
    }
}

/// The Job of this task, and what it says. One of another task with its name is removed, and
/// counts as absent; so is a count that was done too long ago.
pub async fn look(
    client: &Client,
    encryption: &SecretEncryption,
    task: &Task,
) -> Result<Found, Error> {
    let plan = Plan::new(encryption, task)?;
    let place = Place::new(client, encryption)?;
    let Some(job) = place.job(&plan.name).await? else { return Ok(Found::Absent) };
    if job.annotations().get(ANNOTATION_TASK) != Some(&plan.hash) {
        place.remove(&job).await?;
        return Ok(Found::Absent);
    }
    let pod = place.pod(&job).await?;
    let found = verdict::of(task, &job, pod.as_ref());
    if let (Task::Census(task), Found::Succeeded(_)) = (task, &found)
        && !verdict::is_fresh(&job, pod.as_ref(), task.fresh, SystemTime::now())
    {
        place.remove(&job).await?;
        return Ok(Found::Absent);
    }
    if let Found::Running { progress: None } = found {
        // Its Secret comes after it: whoever was interrupted between the two starts again.
        if plan.secret.is_some() && !place.has_secret(&job).await? {
            return Ok(Found::Absent);
        }
        return Ok(Found::Running { progress: place.progress(&job, pod.as_ref()).await });
    }
    Ok(found)
}

/// Makes the Job of this task. One of the same task that is not done goes on; any other of its
/// name makes room.
pub async fn start(
    client: &Client,
    encryption: &SecretEncryption,
    task: &Task,
) -> Result<(), Error> {
    let plan = Plan::new(encryption, task)?;
    let place = Place::new(client, encryption)?;
    let job = match place.job(&plan.name).await? {
        Some(job) => {
            let same = job.annotations().get(ANNOTATION_TASK) == Some(&plan.hash);
            let pod = place.pod(&job).await?;
            let runs = matches!(verdict::of(task, &job, pod.as_ref()), Found::Running { .. });
            if same && runs {
                job
            } else {
                place.remove(&job).await?;
                place.create(&plan).await?
            }
        }
        None => place.create(&plan).await?,
    };
    place.put_secret(&plan, &job).await
}

/// Removes the Jobs that are done; their Secrets go with them.
pub async fn clear(client: &Client, encryption: &SecretEncryption) -> Result<(), Error> {
    let place = Place::new(client, encryption)?;
    let (managed, by) = names::MANAGED_BY;
    let ours =
        format!("{managed}={by},{}={},{LABEL_JOB}", names::LABEL_ENCRYPTION, encryption.name);
    let list = place.jobs.list(&ListParams::default().labels(&ours)).await;
    let list = list.map_err(|error| refused("cannot list Jobs", error))?;
    for job in list.items.iter().filter(|job| verdict::is_over(job)) {
        place.remove(job).await?;
    }
    Ok(())
}

/// The control plane's namespace.
struct Place {
    jobs: Api<Job>,
    pods: Api<Pod>,
    secrets: Api<SecretObject>,
    events: Api<Event>,
}

impl Place {
    fn new(client: &Client, encryption: &SecretEncryption) -> Result<Self, Error> {
        let namespace = encryption.namespace.as_deref().ok_or_else(|| {
            Error::usage(format!("SecretEncryption {} has no namespace", encryption.name))
        })?;
        Ok(Self {
            jobs: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            events: Api::namespaced(client.clone(), namespace),
        })
    }

    async fn job(&self, name: &str) -> Result<Option<Job>, Error> {
        let found = self.jobs.get_opt(name).await;
        let found = found.map_err(|error| refused(format!("cannot read Job {name}"), error))?;
        // One that is being deleted has nothing more to say.
        Ok(found.filter(|job| job.metadata.deletion_timestamp.is_none()))
    }

    async fn create(&self, plan: &Plan) -> Result<Job, Error> {
        let what = || format!("cannot create Job {}", plan.name);
        let job: Job = serde_json::from_value(plan.job.clone())
            .map_err(|error| Error::failed(what()).because(error))?;
        let manager = Some(names::FIELD_MANAGER.to_owned());
        let parameters = PostParams { field_manager: manager, ..PostParams::default() };
        self.jobs.create(&parameters, &job).await.map_err(|error| refused(what(), error))
    }

    /// With its pods, and just the one that was looked at.
    async fn remove(&self, job: &Job) -> Result<(), Error> {
        let name = job.name_any();
        let mut parameters = DeleteParams::background();
        if let Some(uid) = job.uid() {
            let alone = kube::api::Preconditions { uid: Some(uid), resource_version: None };
            parameters = parameters.preconditions(alone);
        }
        match self.jobs.delete(&name, &parameters).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(refused(format!("cannot delete Job {name}"), error)),
        }
    }

    /// The newest pod of a Job.
    async fn pod(&self, job: &Job) -> Result<Option<Pod>, Error> {
        let uid = job.uid().unwrap_or_default();
        let own =
            ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
        let what = || format!("cannot list the pods of Job {}", job.name_any());
        let list = self.pods.list(&own).await.map_err(|error| refused(what(), error))?;
        let made = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Ok(list.items.into_iter().max_by_key(made))
    }

    async fn has_secret(&self, job: &Job) -> Result<bool, Error> {
        let name = job.name_any();
        let found = self.secrets.get_metadata_opt(&name).await;
        let found = found.map_err(|error| refused(format!("cannot read Secret {name}"), error))?;
        let uid = job.uid().unwrap_or_default();
        Ok(found.is_some_and(|secret| secret.owner_references().iter().any(|one| one.uid == uid)))
    }

    /// What the pod mounts; it goes with the Job.
    async fn put_secret(&self, plan: &Plan, job: &Job) -> Result<(), Error> {
        let Some(secret) = &plan.secret else { return Ok(()) };
        let mut secret = secret.clone();
        secret["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "Job", "name": plan.name,
            "uid": job.uid().unwrap_or_default(),
        }]);
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let applied = self.secrets.patch(&plan.name, &parameters, &Patch::Apply(&secret)).await;
        applied.map_err(|error| refused(format!("cannot write Secret {}", plan.name), error))?;
        Ok(())
    }

    /// The last line of its log, or else what keeps it from starting. Beside the point: what
    /// cannot be read is left out.
    async fn progress(&self, job: &Job, pod: Option<&Pod>) -> Option<String> {
        if let Some(pod) = pod.filter(|pod| verdict::has_begun(pod)) {
            let container = Some(manifest::CONTAINER.to_owned());
            let last = LogParams { container, tail_lines: Some(1), ..LogParams::default() };
            let text = self.pods.logs(&pod.name_any(), &last).await.ok()?;
            return text.lines().next_back().map(|line| line.trim().to_owned());
        }
        if let Some(text) = pod.and_then(verdict::unscheduled) {
            return Some(text);
        }
        let uid = pod.map_or_else(|| job.uid(), ResourceExt::uid)?;
        let fields = format!("involvedObject.uid={uid},type=Warning");
        let events = self.events.list(&ListParams::default().fields(&fields)).await.ok()?;
        let newest = events.items.into_iter().max_by_key(|event| {
            let time = event.last_timestamp.as_ref().map(|time| time.0);
            time.or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
        })?;
        newest.message
    }
}
