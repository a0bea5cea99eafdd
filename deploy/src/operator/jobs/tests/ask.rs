//! Asking the vendor for a new version.

use clap::Subcommand;
use sidekey_core::RotateCommand;

use super::*;

fn hash(digit: &str) -> String {
    format!("sha256:{}", digit.repeat(64))
}

pub(super) fn task(token: &str) -> Task {
    let Task::Preflight(PreflightTask { key, files, .. }) = preflight(token) else {
        unreachable!()
    };
    Task::Rotate(RotateTask { key, files, key_id_hash: hash("a"), host_aliases: Value::Null })
}

#[test]
fn the_providers_own_image_asks_once_for_each_version() {
    let plan = plan(&task("hunter2"));
    assert_eq!(plan.name, "sidekey-ask-2");
    let fingerprint = encryption().spec.keys[0].fingerprint();
    let args = args(&plan);
    for part in [
        "rotate --config=/etc/sidekey/config.yaml --key=2",
        &format!("--shim-key=2-{fingerprint}"),
        &format!("--if-key-id-hash={}", hash("a")),
    ] {
        assert!(args.contains(part), "{part}: {args}");
    }
    // Who retries is the operator, which looks at the key_id before.
    assert_eq!(pod_spec(&plan)["restartPolicy"], "Never");
    assert_eq!(pod_spec(&plan)["initContainers"], json!([]));
    assert!(!plan.job.to_string().contains("hunter2"));
    let data = plan.secret.unwrap()["data"].as_object().unwrap().clone();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["config.yaml", "token"]);
}

#[test]
fn the_provider_takes_what_the_job_gives_it() {
    let plan = plan(&task("t"));
    let args = pod_spec(&plan)["containers"][0]["args"].as_array().unwrap().clone();
    let args = args.iter().map(|arg| arg.as_str().unwrap().to_owned());
    let tree = clap::Command::new("provider").no_binary_name(true);
    RotateCommand::augment_subcommands(tree).try_get_matches_from(args).unwrap();
}

#[test]
fn the_next_version_is_another_task_and_a_key_of_others_is_none() {
    let Task::Rotate(first) = task("t") else { unreachable!() };
    let next = RotateTask { key_id_hash: hash("b"), ..first.clone() };
    let hash_of = |task: RotateTask| plan(&Task::Rotate(task)).hash;
    assert_ne!(hash_of(next), hash_of(first.clone()));
    let mut foreign = first;
    foreign.key.vendor = crate::model::EXTERNAL.into();
    assert!(Plan::new(&encryption(), &Task::Rotate(foreign)).is_err());
}

#[test]
fn only_another_key_id_is_an_answer() {
    let said = |rotated: bool, after: &str| json!({"key": "2", "rotated": rotated, "before": hash("a"), "after": after});
    for rotated in [true, false] {
        let found = found(&task("t"), ended(0, said(rotated, &hash("b"))), None);
        assert!(matches!(found, Found::Succeeded(_)), "{found:?}");
    }
    assert!(!failure(found(&task("t"), ended(0, said(true, &hash("a"))), None)).0);
    assert!(!failure(found(&task("t"), ended(0, json!({"rotated": true})), None)).0);
}

#[test]
fn refusals_that_stay_are_told_from_those_that_pass() {
    let of = |code: i32, kind: &str| {
        let said = json!({"error": "no (do this)", "kind": kind});
        let (terminal, reason) = failure(found(&task("t"), ended(code, said), None));
        assert!(reason.starts_with("no (do this)"), "{reason}");
        terminal
    };
    for kind in ["denied", "key_state", "config", "corrupt"] {
        assert!(of(1, kind), "{kind}");
    }
    for kind in ["unavailable", "throttled", "timeout", "bug", "unheard_of"] {
        assert!(!of(1, kind), "{kind}");
    }
    assert!(of(64, "invalid"));
    // A provider that has no such command says so in its log.
    let unable = ended(64, "error: sidekey-x cannot ask its KMS for a new version of a key");
    let (terminal, reason) = failure(found(&task("t"), unable, None));
    assert!(terminal && reason.contains("cannot ask its KMS"), "{reason}");
    assert!(!failure(found(&task("t"), ended(137, ""), None)).0);
}
