use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sidekey_core::Secret;

use super::manifest::Plan;
use super::*;

mod ask;
mod stale;
mod token;

fn encryption() -> SecretEncryption {
    let document = json!({
        "apiVersion": "sidekey.dev/v1alpha1",
        "kind": "SecretEncryption",
        "metadata": {"name": "cluster-a", "namespace": "clusters-a"},
        "spec": {
            "resources": ["secrets", "widgets.example.com"],
            "stanzas": [{"name": "tokens", "resources": ["oauthtokens.oauth.example.com"]}],
            "images": {"sidekey": "mirror/sidekey:1", "vault": "mirror/vault:1"},
            "controlPlane": {"kubeconfig": {"name": "hosted", "key": "config"}},
            "keys": [{
                "id": 2, "type": "vault", "role": "write",
                "kek": {"key": "kms"},
                "credentials": {"tokenFile": "/etc/sidekey/token"},
                "files": [{"name": "token", "secret": {"name": "vault", "key": "token"}}],
            }],
        },
    });
    SecretEncryption::from_document(&document).unwrap()
}

fn preflight(token: &str) -> Task {
    let key = encryption().spec.keys[0].clone();
    let mut files = ResolvedFiles::default();
    files.insert(key.files[0].source.clone(), Secret::new(token.as_bytes().to_vec()));
    Task::Preflight(PreflightTask { key, files, occasion: None, host_aliases: Value::Null })
}

fn gate() -> GateTask {
    GateTask {
        servers: vec!["https://10.0.0.4:6443".into(), "https://10.0.0.5:6443".into()],
        key_id_hash: Some(format!("sha256:{}", "a".repeat(64))),
        config_hash: Some(format!("sha256:{}", "b".repeat(64))),
        selection: Selection::of(&encryption()).unwrap(),
        wait: Duration::from_secs(300),
    }
}

fn migrate() -> Task {
    Task::Migrate(MigrateTask { gate: gate(), target: "2-abcd".into() })
}

fn census(subject: Subject) -> Task {
    Task::Census(CensusTask {
        subject,
        legacy: vec!["awskmskey-1".into()],
        others: vec!["old".into()],
        occasion: "1".into(),
        fresh: Duration::from_secs(300),
        apart_for_tests: None,
    })
}

fn all() -> Vec<Task> {
    let (key, name) = (Subject::Key(1), Subject::Name("Key_1".into()));
    vec![preflight("t"), Task::Gate(gate()), migrate(), census(key), census(name), ask::task("t")]
}

fn plan(task: &Task) -> Plan {
    Plan::new(&encryption(), task).unwrap()
}

fn pod_spec(plan: &Plan) -> &Value {
    &plan.job["spec"]["template"]["spec"]
}

fn args(plan: &Plan) -> String {
    let args = pod_spec(plan)["containers"][0]["args"].as_array().unwrap().clone();
    args.iter().map(|arg| arg.as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_pod_is_restricted_and_has_no_account() {
    for task in all() {
        let plan = plan(&task);
        let _: Job = serde_json::from_value(plan.job.clone()).unwrap();
        assert!(crate::model::is_name(&plan.name), "{}", plan.name);
        let spec = pod_spec(&plan);
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().unwrap());
        for container in lists.into_iter().flatten() {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true);
            assert_eq!(context["allowPrivilegeEscalation"], false);
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
            assert!(container["resources"]["requests"]["memory"].is_string());
        }
        let image = if let Task::Rotate(_) = task { "mirror/vault:1" } else { "mirror/sidekey:1" };
        assert_eq!(spec["containers"][0]["image"], image);
        assert!(args(&plan).contains("--result-file=/dev/termination-log"));
        assert_eq!(plan.job["metadata"]["labels"]["sidekey.dev/encryption"], "cluster-a");
        assert_eq!(
            plan.job["spec"]["template"]["metadata"]["labels"]["sidekey.dev/job"],
            task.label()
        );
        assert_eq!(plan.job["metadata"]["annotations"][ANNOTATION_TASK], plan.hash);
    }
}

#[test]
fn the_command_takes_what_each_job_gives_it() {
    for task in all().into_iter().filter(|task| !matches!(task, Task::Rotate(_))) {
        let plan = plan(&task);
        let args = pod_spec(&plan)["containers"][0]["args"].as_array().unwrap().clone();
        let args = args.iter().map(|arg| arg.as_str().unwrap().to_owned());
        crate::cli::check(["sidekey".to_owned()].into_iter().chain(args)).unwrap();
    }
}

#[test]
fn rewriting_waits_for_every_server_and_every_provider() {
    let plan = plan(&migrate());
    let args = args(&plan);
    for part in [
        "--server=https://10.0.0.4:6443 --server=https://10.0.0.5:6443",
        "--resources=secrets,widgets.example.com,oauthtokens.oauth.example.com",
        "--require-provider=sidekey --require-provider=sidekey-tokens",
        "--require-key-id-hash=sha256:aaa",
        "--require-config-hash=sha256:bbb",
        "--checkpoint=/var/lib/sidekey/",
        "--wait=300s",
    ] {
        assert!(args.contains(part), "{part}: {args}");
    }
    assert!(!args.contains("--await-only"));
    let volumes = &pod_spec(&plan)["volumes"];
    let kubeconfig = json!({
        "secretName": "hosted", "items": [{"key": "config", "path": "kubeconfig"}],
    });
    assert_eq!(volumes[0]["secret"], kubeconfig);
    assert!(volumes[1]["emptyDir"].is_object());
    // A container that failed goes on from there, in the same pod.
    assert_eq!(pod_spec(&plan)["restartPolicy"], "OnFailure");
    let alone = GateTask { servers: Vec::new(), ..gate() };
    assert!(Plan::new(&encryption(), &Task::Gate(alone)).is_err());
    let nothing = GateTask { key_id_hash: None, config_hash: None, ..gate() };
    assert!(Plan::new(&encryption(), &Task::Gate(nothing)).is_err());
}

#[test]
fn what_is_published_is_rewritten_also_if_the_document_does_not_name_it_any_more() {
    let mut less = encryption();
    less.spec.resources.retain(|name| name != "widgets.example.com");
    for task in [migrate(), Task::Gate(gate())] {
        let plan = Plan::new(&less, &task).unwrap();
        assert!(args(&plan).contains("--resources=secrets,widgets.example.com,"));
    }
}

#[test]
fn a_count_reaches_etcd_with_the_files_that_the_control_plane_names() {
    let plan = plan(&census(Subject::Key(1)));
    let args = args(&plan);
    assert!(args.contains("--may-drop=1 --legacy-name=awskmskey-1 --other-name=old"), "{args}");
    assert!(args.contains("--wait") && !args.contains("apart"), "{args}");
    assert!(args.contains("--endpoints=https://etcd-client:2379"), "{args}");
    let sources = &pod_spec(&plan)["volumes"][1]["projected"]["sources"];
    assert_eq!(sources[0]["configMap"]["name"], "etcd-ca");
    let key = json!({"key": "etcd-client.key", "path": "client.key"});
    assert_eq!(sources[2]["secret"]["items"][0], key);
}

#[test]
fn a_trial_runs_the_providers_own_image_and_shows_secrets_to_it_alone() {
    let plan = plan(&preflight("hunter2"));
    let provider = &pod_spec(&plan)["initContainers"][0];
    assert_eq!(provider["image"], "mirror/vault:1");
    assert_eq!(provider["restartPolicy"], "Always");
    assert!(args(&plan).contains("--socket=unix:///var/run/sidekey/vault/kms-2.sock"));
    let mounts = pod_spec(&plan)["containers"][0]["volumeMounts"].as_array().unwrap().clone();
    let sockets = |path: &str| json!({"name": "sockets", "mountPath": path, "readOnly": true});
    assert_eq!(mounts, [sockets("/var/run/sidekey/vault"), sockets("/var/run/kmsplugin")]);
    assert!(!plan.job.to_string().contains("hunter2"));
    let data = plan.secret.unwrap()["data"].as_object().unwrap().clone();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["config.yaml", "token"]);
}

#[test]
fn a_trial_of_another_occasion_is_another_one() {
    let of = |occasion: Option<&str>| {
        let Task::Preflight(mut task) = preflight("t") else { unreachable!() };
        task.occasion = occasion.map(str::to_owned);
        plan(&Task::Preflight(task)).hash
    };
    assert_eq!(of(None), plan(&preflight("t")).hash);
    assert_ne!(of(None), of(Some("sha256:a")));
    assert_ne!(of(Some("sha256:a")), of(Some("sha256:b")));
}

#[test]
fn a_reader_with_a_canary_must_read_it_and_need_not_write() {
    let Task::Preflight(mut task) = preflight("t") else { unreachable!() };
    task.key.role = crate::model::Role::Read;
    task.key.canary = Some(json!({"keyId": "x", "ciphertext": "AAAA", "sha256": "00"}));
    let plan = plan(&Task::Preflight(task));
    let args = args(&plan);
    assert!(args.contains("--read-only --canary=/etc/sidekey/canary.json"), "{args}");
    let canary = &pod_spec(&plan)["volumes"][0]["secret"]["items"];
    assert_eq!(*canary, json!([{"key": "canary.json", "path": "canary.json"}]));
}

#[test]
fn another_credential_image_or_target_is_another_task() {
    let hash = |task: &Task| plan(task).hash;
    assert_eq!(hash(&preflight("a")), hash(&preflight("a")));
    assert_ne!(hash(&preflight("a")), hash(&preflight("b")));
    let other = MigrateTask { gate: gate(), target: "3".into() };
    assert_ne!(hash(&migrate()), hash(&Task::Migrate(other)));
    let mut encryption = encryption();
    encryption.spec.images.insert("sidekey".into(), "mirror/sidekey:2".into());
    assert_ne!(Plan::new(&encryption, &migrate()).unwrap().hash, hash(&migrate()));
}

#[test]
fn a_key_of_others_cannot_be_tried_here() {
    let Task::Preflight(mut task) = preflight("t") else { unreachable!() };
    task.key.vendor = crate::model::EXTERNAL.into();
    assert!(Plan::new(&encryption(), &Task::Preflight(task)).is_err());
}

fn job(status: Value) -> Job {
    serde_json::from_value(json!({"metadata": {"name": "x"}, "status": status})).unwrap()
}

fn pod(own: Value, provider: Option<Value>) -> Pod {
    let status = |name: &str, state: Value| {
        let mut all = json!({
            "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        });
        all.as_object_mut().unwrap().extend(state.as_object().unwrap().clone());
        all
    };
    let init: Vec<Value> = provider.into_iter().map(|state| status("provider", state)).collect();
    serde_json::from_value(json!({"status": {
        "containerStatuses": [status("sidekey", own)], "initContainerStatuses": init,
    }}))
    .unwrap()
}

fn ended(code: i32, message: impl ToString) -> Value {
    json!({"state": {"terminated": {"exitCode": code, "message": message.to_string()}}})
}

fn found(task: &Task, own: Value, provider: Option<Value>) -> Found {
    verdict::of(task, &job(json!({})), Some(&pod(own, provider)))
}

fn failure(found: Found) -> (bool, String) {
    match found {
        Found::Failed { terminal, reason } => (terminal, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_trial_that_succeeds_gives_the_key_its_canary_and_the_hash_of_its_configuration() {
    let said = json!({"verdict": "ready", "keys": [{
        "id": "-", "type": "unix:///x", "role": "write", "verdict": "ready", "steps": [],
        "keyIdHash": "sha256:1", "canary": {"keyId": "k"},
    }]});
    let Found::Succeeded(report) = found(&preflight("t"), ended(0, said), None) else { panic!() };
    assert_eq!((&report["id"], &report["type"]), (&json!("2"), &json!("vault")));
    assert_eq!(report["canary"]["keyId"], "k");
    assert!(report["configHash"].as_str().unwrap().starts_with("sha256:"));
}

#[test]
fn trials_that_may_pass_are_told_from_those_that_cannot() {
    let said = |result: &str| {
        let step = json!({"check": "encrypt", "result": result, "detail": "denied"});
        json!({"verdict": "x", "keys": [{"steps": [step]}]})
    };
    let task = preflight("t");
    let (terminal, reason) = failure(found(&task, ended(3, said("terminal")), None));
    assert!(terminal && reason.starts_with("encrypt: denied"), "{reason}");
    assert!(!failure(found(&task, ended(1, said("transient")), None)).0);
    let (terminal, reason) = failure(found(&task, ended(64, "error: no such flag"), None));
    assert!(terminal && reason.contains("no such flag"), "{reason}");
    // Nobody listens, because the provider refuses its file: that is what counts.
    let provider = json!({"restartCount": 2, "lastState": {"terminated": {
        "exitCode": 64, "message": "kek.key: is required",
    }}, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    for own in [ended(1, said("transient")), json!({"state": {"running": {}}})] {
        let (terminal, reason) = failure(found(&task, own, Some(provider.clone())));
        assert!(terminal && reason.contains("kek.key: is required"), "{reason}");
    }
    let crash = json!({"restartCount": 1, "lastState": {"terminated": {"exitCode": 139}}});
    assert!(!failure(found(&task, json!({"state": {"running": {}}}), Some(crash))).0);
    // It ends because it is told to.
    let good = json!({"verdict": "ready", "keys": [{}]});
    let told = json!({"state": {"terminated": {"exitCode": 143}}});
    assert!(matches!(found(&task, ended(0, good), Some(told)), Found::Succeeded(_)));
}

#[test]
fn an_image_that_does_not_come_is_named() {
    let waiting = |reason: &str| json!({"state": {"waiting": {"reason": reason, "message": "m"}}});
    for (reason, stays) in [
        ("ErrImagePull", false),
        ("ImagePullBackOff", false),
        ("ErrImageNeverPull", false),
        ("CreateContainerConfigError", false),
        ("InvalidImageName", true),
    ] {
        let own = waiting("PodInitializing");
        let (terminal, text) = failure(found(&preflight("t"), own, Some(waiting(reason))));
        assert_eq!(terminal, stays, "{reason}");
        assert!(text.contains(reason) && text.contains("provider (i)"), "{text}");
    }
    let coming = found(&migrate(), waiting("ContainerCreating"), None);
    assert_eq!(coming, Found::Running { progress: None });
}

#[test]
fn only_a_whole_migration_is_one() {
    let said = |complete: bool| json!({"complete": complete, "dryRun": false, "resources": []});
    assert!(matches!(found(&migrate(), ended(0, said(true)), None), Found::Succeeded(_)));
    assert!(!failure(found(&migrate(), ended(0, said(false)), None)).0);
    assert!(!failure(found(&migrate(), ended(0, ""), None)).0);
    let error = json!({"error": "no answer", "hint": "is it up?"});
    let mut again = ended(1, &error);
    assert_eq!(found(&migrate(), again.clone(), None), Found::Running { progress: None });
    again["restartCount"] = 3.into();
    let (terminal, reason) = failure(found(&migrate(), again, None));
    assert!(!terminal && reason.starts_with("no answer (is it up?)"), "{reason}");
    let mut wrong = json!({"state": {"running": {}}, "restartCount": 1});
    wrong["lastState"] = ended(64, json!({"error": "bad kubeconfig"}))["state"].clone();
    assert!(failure(found(&migrate(), wrong, None)).0);
}

#[test]
fn a_count_succeeds_only_if_it_says_yes() {
    let said = |may: &str| json!({"mayDrop": may, "counted": 40, "reasons": ["12 objects are stored under key 1"]});
    let task = census(Subject::Key(1));
    assert!(matches!(found(&task, ended(0, said("yes")), None), Found::Succeeded(_)));
    let (terminal, reason) = failure(found(&task, ended(3, said("no")), None));
    assert!(!terminal && reason.starts_with("12 objects"), "{reason}");
    assert!(failure(found(&task, ended(1, said("unknown")), None)).0);
    assert!(!failure(found(&task, ended(0, said("no")), None)).0);
    for counted in [json!(0), json!(null)] {
        let said = json!({"mayDrop": "yes", "counted": counted, "reasons": []});
        let (terminal, reason) = failure(found(&task, ended(0, said), None));
        assert!(terminal && reason.contains("no object at all"), "{reason}");
    }
}

#[test]
fn a_job_without_its_pod_has_no_answer() {
    let condition = |kind: &str| {
        job(json!({"conditions": [{"type": kind, "status": "True", "reason": "DeadlineExceeded"}]}))
    };
    let of = |job: &Job| verdict::of(&migrate(), job, None);
    assert_eq!(of(&job(json!({}))), Found::Running { progress: None });
    assert!(!failure(of(&condition("Complete"))).0);
    assert!(failure(of(&condition("Failed"))).1.contains("DeadlineExceeded"));
    assert!(verdict::is_over(&condition("Failed")) && !verdict::is_over(&job(json!({}))));
}

#[test]
fn a_provider_under_trial_finds_its_kms_by_the_names_that_kube_apiserver_has() {
    let aliases = json!([{"ip": "172.30.0.100", "hostnames": ["v.vault.azure.net"]}]);
    let Task::Preflight(mut task) = preflight("t") else { panic!() };
    assert!(pod_spec(&plan(&Task::Preflight(task.clone())))["hostAliases"].is_null());
    task.host_aliases = aliases.clone();
    let plan = plan(&Task::Preflight(task));
    let _: Job = serde_json::from_value(plan.job.clone()).unwrap();
    assert_eq!(pod_spec(&plan)["hostAliases"], aliases);
}
