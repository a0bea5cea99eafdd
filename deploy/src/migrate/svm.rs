//! Leaves the rewriting to the cluster's own migrator, through its StorageVersionMigration API:
//! Kubernetes' own (behind the feature gate `StorageVersionMigrator`), or the operator that
//! OpenShift has for it.
//!
//! There is one object for each resource, under the same name each time and marked with the write
//! key: whoever comes back finds what was begun, and what was begun for another key is replaced.

use std::time::Duration;

use http::StatusCode;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::api::{Answer, Api, Call};
use super::checkpoint::Mark;
use super::drive::told;
use super::outcome::{Outcome, State};
use super::pages::count as count_objects;
use super::resources::Resource;
use super::{Observer, Plan};
use crate::Error;

/// Between two looks.
const POLL: Duration = Duration::from_secs(1);

const IN_TREE: &str = "storagemigration.k8s.io";
const OPENSHIFT: &str = "migration.k8s.io";
const PLURAL: &str = "storageversionmigrations";

/// Which API the cluster has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flavour {
    group: &'static str,
    version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Group {
    versions: Vec<Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Migration {
    metadata: Metadata,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    message: String,
}

/// What a migration says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Untouched,
    Running,
    Succeeded,
    Failed(String),
}

/// Has everything rewritten by the cluster itself.
pub async fn run(
    client: &Client,
    plan: &Plan,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let begun = Instant::now();
    let api = Api::new(client, &plan.options);
    let flavour = Flavour::find(&api).await?;
    observer.note(&format!("the cluster migrates by {}/{}", flavour.group, flavour.version));
    let target = plan.checkpoint.as_ref().map(|(_, run)| run.target.clone());
    let mut jobs = Vec::new();
    for resource in &plan.resolved.resources {
        let objects = count_objects(&api, resource).await.unwrap_or(0);
        jobs.push(Job::begin(&api, &flavour, resource, target.as_deref(), objects).await?);
    }
    observer.begin(jobs.iter().map(|job| job.objects).sum());
    let mut stop = plan.stop.clone();
    while jobs.iter().any(Job::is_open) && !stop.is_told() {
        for job in jobs.iter_mut().filter(|job| job.is_open()) {
            job.look(&api, plan.options.patience, observer).await?;
        }
        tokio::select! {
            () = stop.told() => {}
            () = sleep(POLL) => {}
        }
    }
    let mut outcome =
        Outcome { target, skipped: plan.resolved.skipped.clone(), ..Outcome::default() };
    outcome.interrupted = jobs.iter().any(Job::is_open);
    for job in jobs {
        outcome.resources.push(job.end(&api).await?);
    }
    outcome.seconds = begun.elapsed().as_secs_f64();
    Ok(outcome)
}

impl Flavour {
    async fn find(api: &Api) -> Result<Self, Error> {
        for (group, wanted) in
            [(IN_TREE, ["v1", "v1beta1", "v1alpha1"].as_slice()), (OPENSHIFT, &["v1alpha1"])]
        {
            let answer = send(api, &Call::get(format!("/apis/{group}"))).await?;
            let served: Group = serde_json::from_slice(&answer.body).unwrap_or_default();
            let version = wanted
                .iter()
                .find(|wanted| served.versions.iter().any(|served| served.version == **wanted));
            if let Some(version) = version.filter(|_| answer.is_ok()) {
                return Ok(Self { group, version: (*version).to_owned() });
            }
        }
        Err(Error::failed("this cluster has no StorageVersionMigration API").hint(
            "leave out --via svm, or turn on the feature gate StorageVersionMigrator of kube-apiserver \
             (with --runtime-config=storagemigration.k8s.io/v1beta1=true) and kube-controller-manager",
        ))
    }

    fn path(&self) -> String {
        format!("/apis/{}/{}/{PLURAL}", self.group, self.version)
    }

    /// OpenShift's own controllers know their migrations by these names.
    fn name(&self, resource: &Resource) -> String {
        let owner =
            if self.group == OPENSHIFT { "encryption-migration" } else { "sidekey-migration" };
        let group = if resource.group.is_empty() { "core" } else { &resource.group };
        format!("{owner}-{group}-{}", resource.name)
    }

    fn annotation(&self) -> &'static str {
        match self.group {
            OPENSHIFT => "encryption.apiserver.operator.openshift.io/write-key",
            _ => "sidekey.dev/write-key",
        }
    }

    fn object(&self, resource: &Resource, target: Option<&str>) -> Value {
        let mut which = json!({"group": resource.group, "resource": resource.name});
        if self.version == "v1alpha1" {
            which["version"] = resource.version.clone().into();
        }
        let mut metadata = json!({
            "name": self.name(resource),
            "labels": {"app.kubernetes.io/managed-by": "sidekey"},
        });
        if let Some(target) = target {
            metadata["annotations"] = json!({self.annotation(): target});
        }
        json!({
            "apiVersion": format!("{}/{}", self.group, self.version),
            "kind": "StorageVersionMigration",
            "metadata": metadata,
            "spec": {"resource": which},
        })
    }
}

impl Migration {
    fn phase(&self) -> Phase {
        let holds = |name: &str| {
            self.status.conditions.iter().find(|c| c.r#type == name && c.status == "True")
        };
        if let Some(failed) = holds("Failed") {
            return Phase::Failed(failed.message.clone());
        }
        match (holds("Succeeded"), self.status.conditions.is_empty()) {
            (Some(_), _) => Phase::Succeeded,
            (None, true) => Phase::Untouched,
            (None, false) => Phase::Running,
        }
    }
}

/// The migration of one resource.
struct Job<'a> {
    resource: &'a Resource,
    path: String,
    objects: u64,
    begun: Instant,
    /// How it ended: with what reason, if it failed.
    ended: Option<Option<String>>,
}

impl<'a> Job<'a> {
    /// Finds the migration of this resource for this key, or makes one.
    async fn begin(
        api: &Api,
        flavour: &Flavour,
        resource: &'a Resource,
        target: Option<&str>,
        objects: u64,
    ) -> Result<Self, Error> {
        let path = format!("{}/{}", flavour.path(), flavour.name(resource));
        let mut job = Self { resource, path, objects, begun: Instant::now(), ended: None };
        let object = flavour.object(resource, target).to_string();
        // Somebody else may make or remove it at the same moment, but not for ever.
        let mut tries = 0;
        loop {
            tries += 1;
            if let Some(found) = job.read(api).await? {
                let marked = found.metadata.annotations.get(flavour.annotation());
                let ours = target.is_some() && marked.map(String::as_str) == target;
                if ours && !matches!(found.phase(), Phase::Failed(_)) {
                    return Ok(job);
                }
                job.remove(api).await?;
            }
            let made = send(api, &Call::post(flavour.path(), object.clone())).await?;
            match made.status {
                _ if made.is_ok() => return Ok(job),
                StatusCode::CONFLICT if tries < 10 => sleep(api.rest(tries)).await,
                _ => {
                    job.ended = Some(Some(format!(
                        "cannot create its StorageVersionMigration: {}",
                        made.reason()
                    )));
                    return Ok(job);
                }
            }
        }
    }

    fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    async fn read(&self, api: &Api) -> Result<Option<Migration>, Error> {
        let answer = send(api, &Call::get(&self.path)).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let what = || format!("cannot read {}", self.path);
        if !answer.is_ok() {
            return Err(Error::failed(what()).because(answer.reason()));
        }
        let read = serde_json::from_slice(&answer.body);
        read.map(Some).map_err(|error| Error::failed(what()).because(error))
    }

    async fn remove(&self, api: &Api) -> Result<(), Error> {
        let answer = send(api, &Call::delete(&self.path)).await?;
        match answer.is_ok() || answer.status == StatusCode::NOT_FOUND {
            true => Ok(()),
            false => {
                Err(Error::failed(format!("cannot delete {}", self.path)).because(answer.reason()))
            }
        }
    }

    async fn look(
        &mut self,
        api: &Api,
        patience: Duration,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let phase = self.read(api).await?.map(|migration| migration.phase());
        self.ended = match phase {
            None => Some(Some("somebody has deleted its StorageVersionMigration".into())),
            Some(Phase::Failed(why)) => Some(Some(format!("the cluster's migrator says: {why}"))),
            Some(Phase::Succeeded) => Some(None),
            Some(Phase::Untouched) if self.begun.elapsed() > patience => Some(Some(
                "no migrator has taken it up: does kube-controller-manager have the feature gate \
                 StorageVersionMigrator?"
                    .into(),
            )),
            Some(Phase::Untouched | Phase::Running) => None,
        };
        if self.ended == Some(None) {
            observer.resource(self.resource, 0);
            observer.advance(self.objects);
        }
        Ok(())
    }

    /// What has succeeded is cleaned up; what has failed can be looked at.
    async fn end(self, api: &Api) -> Result<super::ResourceOutcome, Error> {
        let mut mark = Mark { state: State::Partial, ..Mark::default() };
        mark.counts.objects = self.objects;
        if self.ended == Some(None) {
            mark.state = State::Done;
            self.remove(api).await?;
        }
        Ok(told(self.resource, mark, self.ended.flatten()))
    }
}

async fn send(api: &Api, call: &Call) -> Result<Answer, Error> {
    api.send(call)
        .await
        .map_err(|lost| lost.into_error("cannot use the StorageVersionMigration API"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Resource {
        Resource {
            group: "route.openshift.io".into(),
            version: "v1".into(),
            name: "routes".into(),
            namespaced: true,
            patchable: true,
        }
    }

    #[test]
    fn a_migration_has_the_form_that_its_api_wants() {
        let openshift = Flavour { group: OPENSHIFT, version: "v1alpha1".into() };
        let object = openshift.object(&routes(), Some("encryption-key-7"));
        assert_eq!(object["apiVersion"], "migration.k8s.io/v1alpha1");
        let metadata = &object["metadata"];
        assert_eq!(metadata["name"], "encryption-migration-route.openshift.io-routes");
        let annotation = "encryption.apiserver.operator.openshift.io/write-key";
        assert_eq!(metadata["annotations"], json!({annotation: "encryption-key-7"}));
        let which = json!({"group": "route.openshift.io", "resource": "routes", "version": "v1"});
        assert_eq!(object["spec"]["resource"], which);

        let in_tree = Flavour { group: IN_TREE, version: "v1beta1".into() };
        let object = in_tree.object(&Resource { group: String::new(), ..routes() }, None);
        assert_eq!(object["metadata"]["name"], "sidekey-migration-core-routes");
        assert!(object["metadata"].get("annotations").is_none(), "{object}");
        assert_eq!(object["spec"]["resource"], json!({"group": "", "resource": "routes"}));
    }

    #[test]
    fn a_migration_is_done_only_when_it_says_so() {
        let phase = |conditions: Value| {
            let migration = json!({"metadata": {}, "status": {"conditions": conditions}});
            serde_json::from_value::<Migration>(migration).unwrap().phase()
        };
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "message": "why"});
        assert_eq!(phase(json!([])), Phase::Untouched);
        assert_eq!(phase(json!([condition("Running", "True")])), Phase::Running);
        assert_eq!(phase(json!([condition("Succeeded", "False")])), Phase::Running);
        assert_eq!(phase(json!([condition("Succeeded", "True")])), Phase::Succeeded);
        let both = json!([condition("Succeeded", "True"), condition("Failed", "True")]);
        assert_eq!(phase(both), Phase::Failed("why".into()));
    }
}
