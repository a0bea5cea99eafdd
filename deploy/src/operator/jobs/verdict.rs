//! What a Job and its pod say.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use serde_json::Value;
use sidekey_core::Kind;

use super::manifest::{CONTAINER, PROVIDER, TOKEN};
use super::{Found, Task};
use crate::Exit;
use crate::preflight::Subject;

/// How often kubelet may start a container again before it counts as failed.
const RESTARTS: i32 = 3;
/// Longer reasons are cut.
const REASON: usize = 1000;
/// What no other try can mend.
const HOPELESS: [&str; 1] = ["InvalidImageName"];
/// Why a container waits, though nothing is wrong.
const COMING: [&str; 3] = ["ContainerCreating", "PodInitializing", "CrashLoopBackOff"];

/// Whether it will not run any more.
pub(super) fn is_over(job: &Job) -> bool {
    condition(job, "Complete").is_some() || condition(job, "Failed").is_some()
}

/// What became of the task.
pub(super) fn of(task: &Task, job: &Job, pod: Option<&Pod>) -> Found {
    let status = pod.and_then(|pod| pod.status.as_ref());
    if let Some(found) = status.and_then(|status| of_pod(task, status)) {
        return found;
    }
    if let Some(why) = condition(job, "Failed") {
        return failed(false, why);
    }
    if condition(job, "Complete").is_some() {
        return failed(false, "its pod is gone, and its answer with it".to_owned());
    }
    Found::Running { progress: None }
}

/// Whether it ended no longer ago than that. What does not say when it ended is not.
pub(super) fn is_fresh(job: &Job, pod: Option<&Pod>, limit: Duration, now: SystemTime) -> bool {
    let own = pod.and_then(|pod| container(pod.status.as_ref()?, CONTAINER));
    let ended = own.and_then(|own| last(own)?.finished_at.clone());
    let ended = ended.or_else(|| job.status.as_ref()?.completion_time.clone());
    let Some(ended) = ended.map(|ended| SystemTime::from(ended.0)) else { return false };
    // Clocks of nodes may be ahead.
    now.duration_since(ended).map_or(true, |age| age <= limit)
}

/// Whether the container that answers has a log.
pub(super) fn has_begun(pod: &Pod) -> bool {
    let container = pod.status.as_ref().and_then(|status| container(status, CONTAINER));
    let state = container.and_then(|container| container.state.as_ref());
    state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

/// Why no node takes the pod.
pub(super) fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let mut unmet = conditions.filter(|one| one.type_ == "PodScheduled" && one.status == "False");
    unmet.next()?.message.clone()
}

fn condition(job: &Job, kind: &str) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.iter().flatten();
    let found = conditions.into_iter().find(|one| one.type_ == kind && one.status == "True")?;
    let parts = [&found.reason, &found.message];
    Some(parts.into_iter().flatten().cloned().collect::<Vec<_>>().join(": "))
}

fn of_pod(task: &Task, status: &PodStatus) -> Option<Found> {
    let own = container(status, CONTAINER);
    if let Some(ended) = own.and_then(|own| own.state.as_ref()?.terminated.as_ref())
        && (ended.exit_code == 0 || own.is_some_and(|own| !restarts(task, own)))
    {
        return Some(answer(task, ended, crashed(status)));
    }
    if let Some((own, ended)) = own.and_then(|own| Some((own, last(own)?))) {
        let found = answer(task, ended, None);
        // Kubelet tries again; what cannot get better by that is told at once.
        let may_pass = matches!(found, Found::Failed { terminal: false, .. });
        let again = may_pass && ended.exit_code == Exit::Failure as i32 && restarts(task, own);
        if !again {
            return Some(found);
        }
    }
    if let Some(found) = untokened(status).or_else(|| crashed(status)) {
        return Some(found);
    }
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find_map(stuck)
}

/// Whether kubelet still starts it again in its pod.
fn restarts(task: &Task, own: &ContainerStatus) -> bool {
    matches!(task, Task::Migrate(_) | Task::Census(_)) && own.restart_count < RESTARTS
}

fn last(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let now = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    now.or_else(|| container.last_state.as_ref()?.terminated.as_ref())
}

fn container<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.into_iter().find(|container| container.name == name)
}

/// No token came for the provider, which therefore never started.
fn untokened(status: &PodStatus) -> Option<Found> {
    let ended = last(container(status, TOKEN)?).filter(|ended| ended.exit_code != 0)?;
    let said = ended.message.as_deref().unwrap_or_default().trim();
    let document: Option<Value> = serde_json::from_str(said).ok();
    let why = document.as_ref().and_then(reason).unwrap_or_else(|| said.to_owned());
    let text = format!("there is no token for the provider: {why}");
    Some(failed(ended.exit_code == Exit::Usage as i32, text))
}

/// A provider that does not run as it should: a file that it refuses stays refused.
fn crashed(status: &PodStatus) -> Option<Found> {
    let provider = container(status, PROVIDER)?;
    let ended = last(provider).filter(|ended| ended.exit_code != 0)?;
    // It is told to end once the trial is over.
    let told = ended.exit_code > 128 && provider.restart_count == 0;
    let said = ended.message.as_deref().unwrap_or_default().trim();
    let text = format!("the provider ended with {}: {said}", ended.exit_code);
    (!told).then(|| failed(ended.exit_code == Exit::Usage as i32, text))
}

/// An image that does not come, or a container that cannot be made.
fn stuck(container: &ContainerStatus) -> Option<Found> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !COMING.contains(reason))?;
    let said = waiting.message.as_deref().unwrap_or_default();
    let text = format!("container {} ({}): {reason}: {said}", container.name, container.image);
    Some(failed(HOPELESS.contains(&reason), text))
}

/// What a container that has ended says. `beside` is why its provider does not run, which is
/// the better reason.
fn answer(task: &Task, ended: &ContainerStateTerminated, beside: Option<Found>) -> Found {
    let said = ended.message.as_deref().unwrap_or_default().trim();
    let document: Option<Value> = serde_json::from_str(said).ok().filter(Value::is_object);
    let code = ended.exit_code;
    if code == Exit::Success as i32 {
        return match document {
            Some(document) => yes(task, document),
            None => failed(false, format!("it ended well, but has not said what it found: {said}")),
        };
    }
    if let Some(found) = beside {
        return found;
    }
    let reason = document.as_ref().and_then(reason).unwrap_or_else(|| match said {
        "" => ended.reason.clone().unwrap_or_else(|| "it says nothing".to_owned()),
        said => said.to_owned(),
    });
    let no = code == Exit::No as i32;
    let said = document.unwrap_or_default();
    let terminal = match task {
        _ if code == Exit::Usage as i32 => true,
        // What is still needed may be rewritten; what cannot be told needs somebody who knows.
        Task::Census(_) => said["mayDrop"] == "unknown",
        Task::Preflight(_) => no,
        Task::Rotate(_) => stays(&said["kind"]),
        Task::Gate(_) | Task::Migrate(_) => false,
    };
    failed(terminal, format!("{reason} (exit code {code})"))
}

/// Whether a provider's failure of this kind stays until somebody changes something.
fn stays(kind: &Value) -> bool {
    let kind = Kind::ALL.into_iter().find(|known| *kind == known.label());
    kind.is_some_and(|kind| kind != Kind::Bug && !kind.is_transient())
}

/// The answer of a Job that has succeeded, if it is really yes.
fn yes(task: &Task, mut document: Value) -> Found {
    let counted = document["counted"].as_u64().unwrap_or_default();
    if matches!(task, Task::Census(_)) && document["mayDrop"] == "yes" && counted == 0 {
        let text = "it says yes, but has counted no object at all: does controlPlane.etcd name the \
                    etcd of kube-apiserver?";
        return failed(true, text.to_owned());
    }
    let is_yes = match task {
        Task::Preflight(_) => document["verdict"] == "ready",
        Task::Gate(_) => document["kind"] == "Gate",
        Task::Migrate(_) => document["complete"] == true && document["dryRun"] == false,
        Task::Census(_) => document["mayDrop"] == "yes",
        Task::Rotate(task) => {
            let after = document["after"].as_str();
            after.is_some_and(|after| after.starts_with("sha256:") && after != task.key_id_hash)
        }
    };
    if !is_yes {
        return failed(false, format!("it has not said yes: {document}"));
    }
    let Task::Preflight(task) = task else { return Found::Succeeded(document) };
    let mut report = document["keys"][0].take();
    let files = task.key.files.iter();
    let files = files.map(|file| (file.name.clone(), task.files.content(&file.source)));
    report["id"] = task.key.id.to_string().into();
    report["type"] = task.key.vendor.as_str().into();
    report["configHash"] = Subject::of(&task.key, files.collect()).config_hash().into();
    Found::Succeeded(report)
}

/// Why not, in the words of the command.
fn reason(document: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if let Some(error) = text(&document["error"]) {
        let hint = text(&document["hint"]).map(|hint| format!(" ({hint})"));
        return Some(format!("{error}{}", hint.unwrap_or_default()));
    }
    let mut parts: Vec<String> = list(&document["reasons"]).iter().filter_map(text).collect();
    for key in list(&document["keys"]) {
        let bad = |step: &Value| step["result"] == "terminal" || step["result"] == "transient";
        let steps = list(&key["steps"]).into_iter().filter(bad);
        parts.extend(steps.map(|step| {
            let [check, detail] = ["check", "detail"].map(|name| text(&step[name]));
            format!("{}: {}", check.unwrap_or_default(), detail.unwrap_or_default())
        }));
    }
    for one in list(&document["resources"]) {
        let name = text(&one["resource"]).unwrap_or_default();
        parts.extend(text(&one["reason"]).map(|reason| format!("{name}: {reason}")));
        let failures = list(&one["failures"]);
        parts.extend(failures.first().map(|first| {
            let [object, why] = ["object", "reason"].map(|name| text(&first[name]));
            let (object, why) = (object.unwrap_or_default(), why.unwrap_or_default());
            format!("{} of {name} failed, among them {object}: {why}", one["failed"])
        }));
    }
    for one in list(&document["skipped"]).iter().filter(|one| one["matters"] == true) {
        let [name, why] = ["resource", "reason"].map(|field| text(&one[field]));
        parts.push(format!("{}: {}", name.unwrap_or_default(), why.unwrap_or_default()));
    }
    if document["interrupted"] == true {
        parts.push("it was stopped before its end".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn failed(terminal: bool, reason: String) -> Found {
    let reason = match reason.char_indices().nth(REASON) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason,
    };
    Found::Failed { terminal, reason }
}
