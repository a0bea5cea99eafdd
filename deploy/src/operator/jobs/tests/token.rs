//! Jobs of providers that log in with a token of the hosted cluster.

use super::*;
use crate::model::TokenSource;

const DIRECTORY: &str = "/var/run/secrets/openshift/serviceaccount";

fn minting() -> SecretEncryption {
    let mut encryption = encryption();
    encryption.spec.tokens = vec![crate::model::Token::of("vault")];
    encryption
}

fn mounts(container: &Value) -> Vec<(&str, bool)> {
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mounts = mounts.filter(|mount| mount["mountPath"] == DIRECTORY);
    mounts.map(|mount| (mount["name"].as_str().unwrap(), mount["readOnly"] == true)).collect()
}

#[test]
fn a_token_is_minted_before_a_provider_is_tried_or_asked() {
    for task in [preflight("t"), ask::task("t")] {
        let plan = Plan::new(&minting(), &task).unwrap();
        let _: Job = serde_json::from_value(plan.job.clone()).unwrap();
        let spec = pod_spec(&plan);
        let minter = &spec["initContainers"][0];
        assert_eq!(
            (&minter["name"], &minter["image"]),
            (&json!("token"), &json!("mirror/sidekey:1"))
        );
        assert!(minter["restartPolicy"].is_null(), "it ends before the others start");
        let args = minter["args"].as_array().unwrap().iter();
        let args: Vec<String> = args.map(|arg| arg.as_str().unwrap().to_owned()).collect();
        assert!(args.contains(&"--once".to_owned()), "{args:?}");
        crate::cli::check(["sidekey".to_owned()].into_iter().chain(args)).unwrap();
        assert_eq!(mounts(minter), [("kms-token-vault", false)]);
        let reader = match task {
            Task::Preflight(_) => &spec["initContainers"][1],
            _ => &spec["containers"][0],
        };
        assert_eq!(mounts(reader), [("kms-token-vault", true)]);
        // The kubeconfig of the namespace, for the minter alone, by its name.
        let text = spec["volumes"].to_string();
        assert!(text.contains(r#""secretName":"hosted""#), "{text}");
        assert!(!reader.to_string().contains("kubeconfig"), "{reader}");
    }
}

#[test]
fn what_a_secrets_store_gives_is_mounted_by_the_one_that_logs_in_with_it() {
    let mut encryption = minting();
    let token = &mut encryption.spec.tokens[0];
    token.file = format!("{DIRECTORY}/kms-msi");
    token.source = TokenSource::SecretsStore { secret_provider_class: "managed".to_owned() };
    for task in [preflight("t"), ask::task("t")] {
        let plan = Plan::new(&encryption, &task).unwrap();
        let _: Job = serde_json::from_value(plan.job.clone()).unwrap();
        let spec = pod_spec(&plan);
        assert!(
            !spec["initContainers"].to_string().contains("--once"),
            "nothing is minted: {spec}"
        );
        let reader = match task {
            Task::Preflight(_) => &spec["initContainers"][0],
            _ => &spec["containers"][0],
        };
        assert_eq!(mounts(reader), [("kms-token-vault", true)]);
        let volumes = spec["volumes"].to_string();
        assert!(volumes.contains(r#""secretProviderClass":"managed""#), "{volumes}");
        assert!(!volumes.contains("kubeconfig"), "{volumes}");
    }
}

#[test]
fn without_a_token_in_the_document_nothing_is_minted() {
    for task in all() {
        let plan = plan(&task);
        assert!(!plan.job.to_string().contains("kms-token"), "{}", plan.job);
    }
    let others = Plan::new(&minting(), &migrate()).unwrap();
    assert!(!others.job.to_string().contains("kms-token"), "{}", others.job);
}

#[test]
fn a_token_that_does_not_come_is_told_and_one_that_is_refused_is_the_end() {
    let waiting = json!({"state": {"waiting": {"reason": "PodInitializing"}}});
    let tried = |code: i32, said: &str| {
        let mut pod = pod(waiting.clone(), Some(waiting.clone()));
        let status = json!({
            "name": "token", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "message": said}},
        });
        let list = pod.status.as_mut().unwrap().init_container_statuses.as_mut().unwrap();
        list.insert(0, serde_json::from_value(status).unwrap());
        verdict::of(&preflight("t"), &job(json!({})), Some(&pod))
    };
    let said = r#"{"error": "no token of kube-system/x", "hint": "is it up?"}"#;
    let reason =
        "there is no token for the provider: no token of kube-system/x (is it up?)".to_owned();
    assert_eq!(tried(1, said), Found::Failed { terminal: false, reason: reason.clone() });
    assert_eq!(tried(64, said), Found::Failed { terminal: true, reason });
    assert_eq!(tried(0, ""), Found::Running { progress: None });
}
