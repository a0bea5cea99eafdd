//! The Jobs, as they are sent to the API server.
//!
//! Their pods have no account, no right, no user of root's and no file system to write to. They name
//! no user: images have their own, and OpenShift gives each namespace another one.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sidekey_core::config::document;
use sidekey_core::{Secret, hex, sha256};

use super::{CensusTask, GateTask, LABEL_JOB, MigrateTask, PreflightTask, RotateTask, Task};
use crate::Error;
use crate::census::Subject;
use crate::inject::{Minter, add_mount};
use crate::model::{FileSource, Key, ObjectKey, Role, SecretEncryption, Writer, names};
use crate::render::{PartName, Phase, ResolvedFiles, manifest, render};

/// The container that answers.
pub(super) const CONTAINER: &str = "sidekey";
/// The provider under trial.
pub(super) const PROVIDER: &str = "provider";
/// What mints the provider's token first, where it needs one.
pub(super) const TOKEN: &str = "token";
/// Where the answer goes: kubelet makes the file, also where all else is read-only.
const ANSWER: &str = "/dev/termination-log";
/// Where the pod keeps what a container that is started again goes on from.
const STATE: &str = "/var/lib/sidekey";
const ETCD: &str = "/etc/sidekey-etcd";
const CANARY_FILE: &str = "canary.json";
/// How long a token is tried for: the API server is there, or the Job can do nothing.
const TOKEN_WAIT: &str = "60s";
/// A finished Job is kept so long, for people who look for its log.
const KEPT_SECONDS: u32 = 3600;
/// Longer than the trial and than images take to come.
const PREFLIGHT_SECONDS: u32 = 600;
/// Vendors take their time until a new version is there.
const ROTATE_SECONDS: u32 = 300;

/// What is sent.
pub(super) struct Plan {
    /// The Job's name, and its Secret's.
    pub(super) name: String,
    /// SHA-256 of all of it.
    pub(super) hash: String,
    pub(super) job: Value,
    pub(super) secret: Option<Value>,
}

/// What tells one pod from another.
struct Work {
    /// Whose image it is.
    image: String,
    args: Vec<String>,
    volumes: Vec<Value>,
    mounts: Vec<Value>,
    /// What runs beside it.
    sidecars: Vec<Value>,
    /// Addresses of names that the cluster's DNS does not know.
    host_aliases: Value,
    /// Whether the container is started again in its pod, where it finds what it has kept.
    resumes: bool,
    deadline: Option<u64>,
}

impl Plan {
    pub(super) fn new(encryption: &SecretEncryption, task: &Task) -> Result<Self, Error> {
        let name = task.job_name();
        let (work, files) = match task {
            Task::Preflight(task) => preflight(encryption, task, &name)?,
            Task::Gate(gate) => (waiting(encryption, gate)?, None),
            Task::Migrate(task) => (migrate(encryption, task)?, None),
            Task::Census(task) => (census(encryption, task)?, None),
            Task::Rotate(task) => rotate(encryption, task, &name)?,
        };
        let (managed, by) = names::MANAGED_BY;
        let labels = json!({
            managed: by, names::LABEL_ENCRYPTION: encryption.name, LABEL_JOB: task.label(),
        });
        let metadata = json!({
            "name": name, "namespace": encryption.namespace, "labels": labels,
        });
        let secret = files.map(|files| manifest(metadata.clone(), &files, false));
        let mut job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": work.job(encryption, &labels),
        });
        let mut whole = vec![job.clone(), json!(secret)];
        if let Task::Preflight(PreflightTask { occasion: Some(occasion), .. }) = task {
            whole.push(json!(occasion));
        }
        let hash = hex(&sha256(json!(whole).to_string().as_bytes()));
        job["metadata"]["annotations"] = json!({super::ANNOTATION_TASK: hash});
        Ok(Self { name, hash, job, secret })
    }
}

impl Work {
    fn new<const N: usize>(args: [&str; N]) -> Self {
        Self {
            image: "sidekey".to_owned(),
            args: args.map(str::to_owned).to_vec(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            sidecars: Vec::new(),
            host_aliases: Value::Null,
            resumes: false,
            deadline: None,
        }
    }

    fn arg(&mut self, text: impl Into<String>) {
        self.args.push(text.into());
    }

    fn mount(&mut self, name: &str, path: &str, source: (&str, Value)) {
        let writable = source.0 == "emptyDir";
        self.volumes.push(json!({"name": name, source.0: source.1}));
        self.mounts.push(json!({"name": name, "mountPath": path, "readOnly": !writable}));
    }

    /// Has the token made that the key's provider logs in with, before anything else starts; gives
    /// what is to be mounted where it is read.
    fn mint(&mut self, encryption: &SecretEncryption, key: &Key) -> Option<Value> {
        let minter = Minter {
            token: encryption.token(&key.vendor)?.clone(),
            kubeconfig: encryption.spec.control_plane.kubeconfig.clone(),
            server: None,
        };
        if let Some(mut args) = minter.args() {
            args.extend(["--once".to_owned(), format!("--wait={TOKEN_WAIT}")]);
            args.extend(["--output=json".to_owned(), format!("--result-file={ANSWER}")]);
            let mut container = container(TOKEN, &encryption.image("sidekey"), &args);
            container["volumeMounts"] = minter.mounts();
            self.sidecars.push(container);
        }
        self.volumes.extend(minter.volumes());
        Some(minter.reader_mount())
    }

    fn job(mut self, encryption: &SecretEncryption, labels: &Value) -> Value {
        self.arg("--output=json");
        self.arg(format!("--result-file={ANSWER}"));
        let mut container = container(CONTAINER, &encryption.image(&self.image), &self.args);
        container["volumeMounts"] = self.mounts.into();
        let mut spec = json!({
            // Who retries is the operator, which knows why; it looks before this is reached.
            "backoffLimit": if self.resumes { 20 } else { 0 },
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": if self.resumes { "OnFailure" } else { "Never" },
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 15,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "initContainers": self.sidecars,
                    "containers": [container],
                    "volumes": self.volumes,
                },
            },
        });
        if !self.host_aliases.is_null() {
            spec["template"]["spec"]["hostAliases"] = self.host_aliases;
        }
        if let Some(seconds) = self.deadline {
            spec["activeDeadlineSeconds"] = seconds.into();
        }
        spec
    }
}

fn container(name: &str, image: &str, args: &[String]) -> Value {
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "terminationMessagePath": ANSWER,
        // What ends without an answer has said why in its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsNonRoot": true,
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
    })
}

fn migrate(encryption: &SecretEncryption, task: &MigrateTask) -> Result<Work, Error> {
    let mut work = gate(encryption, &task.gate)?;
    work.arg(format!("--target={}", task.target));
    work.arg(format!("--checkpoint={STATE}/checkpoint.json"));
    work.mount("state", STATE, ("emptyDir", json!({})));
    work.resumes = true;
    Ok(work)
}

fn waiting(encryption: &SecretEncryption, task: &GateTask) -> Result<Work, Error> {
    let mut work = gate(encryption, task)?;
    work.arg("--await-only");
    // Its own time, and that for the image to come.
    work.deadline = Some(task.wait.as_secs() + u64::from(PREFLIGHT_SECONDS));
    Ok(work)
}

fn gate(encryption: &SecretEncryption, task: &GateTask) -> Result<Work, Error> {
    if task.servers.is_empty() || (task.key_id_hash.is_none() && task.config_hash.is_none()) {
        return Err(Error::failed("there is no kube-apiserver, or nothing, to wait for"));
    }
    let selection = &task.selection;
    let resources: Vec<String> = selection.patterns.iter().map(ToString::to_string).collect();
    let mut work = Work::new(["migrate", "--ignore-missing"]);
    work.arg(format!("--kubeconfig={}/kubeconfig", names::KUBECONFIG));
    work.arg(format!("--resources={}", resources.join(",")));
    for server in &task.servers {
        work.arg(format!("--server={server}"));
    }
    if let Some(hash) = &task.config_hash {
        work.arg(format!("--require-config-hash={hash}"));
    }
    if let Some(hash) = &task.key_id_hash {
        work.arg(format!("--require-key-id-hash={hash}"));
        for name in &selection.writers {
            work.arg(format!("--require-provider={name}"));
        }
    }
    work.arg(format!("--wait={}s", task.wait.as_secs()));
    let ObjectKey { name, key } = &encryption.spec.control_plane.kubeconfig;
    let source = json!({"secretName": name, "items": [{"key": key, "path": "kubeconfig"}]});
    work.mount("kubeconfig", names::KUBECONFIG, ("secret", source));
    Ok(work)
}

fn census(encryption: &SecretEncryption, task: &CensusTask) -> Result<Work, Error> {
    let mut work = Work::new(["census", "--wait"]);
    match &task.subject {
        Subject::Key(id) => work.arg(format!("--may-drop={id}")),
        Subject::Name(name) => work.arg(format!("--may-drop-name={name}")),
    }
    for name in &task.legacy {
        work.arg(format!("--legacy-name={name}"));
    }
    for name in &task.others {
        work.arg(format!("--other-name={name}"));
    }
    if let Some(apart) = task.apart_for_tests {
        work.arg(format!("--apart-for-tests={}ms", apart.as_millis()));
    }
    work.arg(format!("--state={STATE}/first-{}.json", task.occasion));
    work.mount("state", STATE, ("emptyDir", json!({})));
    let etcd = &encryption.spec.control_plane.etcd;
    work.arg(format!("--endpoints={}", etcd.endpoints.join(",")));
    if let Some(tls) = &etcd.tls {
        let parts = [
            ("cacert", "ca.crt", &tls.ca),
            ("cert", "client.crt", &tls.cert),
            ("key", "client.key", &tls.key),
        ];
        let mut sources = Vec::new();
        for (flag, file, source) in parts {
            work.arg(format!("--{flag}={ETCD}/{file}"));
            sources.push(projected(source, file)?);
        }
        work.mount("etcd", ETCD, ("projected", json!({"sources": sources})));
    }
    work.resumes = true;
    Ok(work)
}

fn projected(source: &FileSource, file: &str) -> Result<Value, Error> {
    let (kind, ObjectKey { name, key }) = match source {
        FileSource::Secret(object) => ("secret", object),
        FileSource::ConfigMap(object) => ("configMap", object),
        FileSource::File(path) => {
            return Err(Error::usage(format!("pods cannot mount the file {}", path.display()))
                .hint("put it into a Secret of the control plane's namespace"));
        }
    };
    Ok(json!({kind: {"name": name, "items": [{"key": key, "path": file}]}}))
}

/// The provider with just the file that it is to get, and the trial beside it.
fn preflight(
    encryption: &SecretEncryption,
    task: &PreflightTask,
    name: &str,
) -> Result<(Work, Option<BTreeMap<String, Secret>>), Error> {
    let key = &task.key;
    if key.is_external() {
        return Err(Error::usage(format!("key {} is served by others", key.id))
            .hint("prove it where its plugin runs: sidekey preflight --socket"));
    }
    let mut files = provider_files(encryption, key, &task.files)?;
    let mut work = Work::new(["preflight", "--timeout=60s"]);
    work.host_aliases = task.host_aliases.clone();
    work.arg(format!("--socket={}", key.listen));
    if key.role == Role::Read {
        work.arg("--read-only");
    }
    if let Some(canary) = &key.canary {
        files.insert(CANARY_FILE.to_owned(), Secret::new(canary.to_string().into_bytes()));
        work.arg(format!("--canary={}/{CANARY_FILE}", names::MOUNT));
        // Of all files only what is no secret.
        let source =
            json!({"secretName": name, "items": [{"key": CANARY_FILE, "path": CANARY_FILE}]});
        work.mount("canary", names::MOUNT, ("secret", source));
    }
    work.volumes.push(json!({"name": "sockets", "emptyDir": {"medium": "Memory"}}));
    let directories = [names::provider_sockets(&key.vendor), names::SOCKETS.to_owned()];
    let mount = |path: &String| json!({"name": "sockets", "mountPath": path});
    let mut sockets: Vec<Value> = directories.iter().map(mount).collect();
    work.mounts.extend(sockets.iter().cloned().map(|mut mount| {
        mount["readOnly"] = true.into();
        mount
    }));
    let config = format!("--config={}/{}", names::MOUNT, names::CONFIG_FILE);
    let mut provider = container(PROVIDER, &encryption.image(&key.vendor), &[config]);
    provider["restartPolicy"] = "Always".into();
    sockets.push(json!({"name": "provider", "mountPath": names::MOUNT, "readOnly": true}));
    provider["volumeMounts"] = sockets.into();
    work.volumes.push(json!({"name": "provider", "secret": {"secretName": name}}));
    if let Some(mount) = work.mint(encryption, key) {
        add_mount(&mut provider, mount);
    }
    work.sidecars.push(provider);
    work.deadline = Some(PREFLIGHT_SECONDS.into());
    Ok((work, Some(files)))
}

/// The provider's own command, with just the file that it would serve with.
fn rotate(
    encryption: &SecretEncryption,
    task: &RotateTask,
    name: &str,
) -> Result<(Work, Option<BTreeMap<String, Secret>>), Error> {
    let key = &task.key;
    if key.is_external() {
        return Err(Error::usage(format!("key {} is served by others", key.id))
            .hint("rotate it where its plugin runs, or at its KMS"));
    }
    let files = provider_files(encryption, key, &task.files)?;
    let mut work = Work::new(["rotate"]);
    work.host_aliases = task.host_aliases.clone();
    work.image = key.vendor.clone();
    work.arg(format!("--config={}/{}", names::MOUNT, names::CONFIG_FILE));
    work.arg(format!("--key={}", key.id));
    work.arg(format!("--shim-key={}-{}", key.id, key.fingerprint()));
    work.arg(format!("--if-key-id-hash={}", task.key_id_hash));
    work.arg(format!("--timeout={ROTATE_SECONDS}s"));
    work.mount("provider", names::MOUNT, ("secret", json!({"secretName": name})));
    let token = work.mint(encryption, key);
    work.mounts.extend(token);
    work.deadline = Some(u64::from(ROTATE_SECONDS + PREFLIGHT_SECONDS));
    Ok((work, Some(files)))
}

/// What the provider would mount, if this were its only key.
fn provider_files(
    encryption: &SecretEncryption,
    key: &Key,
    resolved: &ResolvedFiles,
) -> Result<BTreeMap<String, Secret>, Error> {
    let mut alone = encryption.clone();
    let spec = &mut alone.spec;
    spec.keys = vec![key.clone()];
    spec.keys[0].role = Role::Write;
    spec.write = Writer::Keys;
    spec.legacy_key = None;
    spec.adopt.clear();
    spec.ciphers.clear();
    spec.shim_files.clear();
    let rendered = render(&alone, 1, resolved, Phase::Settled)?;
    let part = rendered.part(&PartName::Provider(key.vendor.clone()));
    let mut files = part.map(|part| part.files.clone()).unwrap_or_default();
    let unreadable = || Error::failed(format!("key {} gives no provider's file", key.id));
    let text = files.get(names::CONFIG_FILE).and_then(Secret::as_text).ok_or_else(unreadable)?;
    let mut config = document(text).map_err(|problems| unreadable().because(problems))?;
    // Tried often: whoever waits here wants to know soon.
    config["probe"] = json!({"interval": "2s"});
    files.insert(names::CONFIG_FILE.to_owned(), Secret::new(config.to_string().into_bytes()));
    Ok(files)
}
