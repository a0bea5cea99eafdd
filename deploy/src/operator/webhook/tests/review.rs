//! A review, from its question to its answer.

use base64::Engine;
use kube::runtime::watcher::Event;

use super::*;

pub(super) async fn body_of(answer: Answer) -> (u16, Value) {
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

pub(super) fn review(object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5", "operation": "CREATE", "namespace": "clusters-a",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": object, "oldObject": null, "dryRun": false,
        },
    })
}

#[tokio::test]
async fn a_review_is_answered_in_the_form_that_the_api_server_takes() {
    let shelf = Shelf::whole();
    let webhook = Webhook::new(shelf.clone(), options());
    let ask = async |review: &Value| body_of(webhook.review(review.to_string().into()).await).await;
    assert_eq!(ask(&review(&pod())).await.0, 503, "nothing is known yet");
    shelf.take(Event::Init);
    let object = encryption(|_| {});
    shelf.take(Event::InitApply(serde_json::from_value(object).unwrap()));
    shelf.take(Event::InitDone);

    let (status, answer) = ask(&review(&pod())).await;
    assert_eq!((status, &answer["kind"]), (200, &json!("AdmissionReview")));
    let response = &answer["response"];
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("705ab4f5"), &json!(true)));
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = response["patch"].as_str().unwrap();
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    named(&patch[0]["value"]["initContainers"], "sidekey-shim");

    for change in [
        |review: &mut Value| review["request"]["operation"] = "UPDATE".into(),
        |review: &mut Value| review["request"]["kind"]["kind"] = "Deployment".into(),
        |review: &mut Value| review["request"]["namespace"] = Value::from(""),
    ] {
        let mut other = review(&pod());
        change(&mut other);
        let (status, answer) = ask(&other).await;
        assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
        assert!(answer["response"]["patch"].is_null());
    }
    let mut orphan = review(&pod());
    orphan["request"]["namespace"] = "clusters-b".into();
    let (_, answer) = ask(&orphan).await;
    assert_eq!(answer["response"]["allowed"], false, "nobody knows what it needs");
    let mut wrong = pod();
    wrong["spec"]["containers"] = json!([]);
    let (_, answer) = ask(&review(&wrong)).await;
    assert_eq!(answer["response"]["allowed"], false);
    assert!(answer["response"]["status"]["message"].as_str().unwrap().contains("clusters-a/a"));
    for bad in [
        json!(null),
        json!({}),
        json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "1"}}),
    ] {
        assert_eq!(ask(&bad).await.0, 400, "{bad}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(body_of(webhook.review(deep.into()).await).await.0, 400);
}
