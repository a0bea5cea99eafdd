//! A kube-apiserver may have more than one etcd.

use super::*;

#[tokio::test]
async fn a_kube_apiserver_with_more_than_one_etcd_is_named() {
    let (wish, bare) = (encryption("Template", &["vault"]), deployment(3));
    let fake = cluster(&bare, &three(&bare));
    assert_eq!(stores_elsewhere(&fake.context(), &wish).await.unwrap(), None);

    let flag = "--etcd-servers-overrides=/secrets#https://other:2379";
    let mut pods = three(&bare);
    pods[1]["spec"]["containers"][0]["args"] = json!(["--secure-port=6443", flag]);
    let old = cluster(&bare, &pods);
    let why = stores_elsewhere(&old.context(), &wish).await.unwrap().unwrap();
    assert!(why.contains("kas-b") && why.contains("sidekey census"), "{why}");

    let mut next = bare.clone();
    next["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["kas", flag]);
    let new = cluster(&next, &three(&bare));
    let why = stores_elsewhere(&new.context(), &wish).await.unwrap().unwrap();
    assert!(why.contains("Deployment kube-apiserver"), "{why}");
}
