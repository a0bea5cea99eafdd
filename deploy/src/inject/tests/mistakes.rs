//! What is refused, and what is said of it.

use super::*;

fn refused(text: &str, wanted: &Wanted) -> (String, String) {
    let error = inject(text, wanted).unwrap_err();
    assert_eq!(error.exit(), crate::Exit::Usage);
    (error.report(), error.advice().unwrap_or_default().to_owned())
}

#[test]
fn a_container_that_is_not_there_is_told_with_those_that_are() {
    let wanted = Wanted { container: "apiserver".to_owned(), ..sidekey(&["aws"]) };
    let (error, hint) = refused(HOSTED, &wanted);
    assert_eq!(error, "no container has the name apiserver");
    assert_eq!(hint, "choose one with --container: konnectivity, kube-apiserver");
}

#[test]
fn what_describes_no_pod_is_told_by_its_kind() {
    let (error, hint) = refused("kind: Service\n---\nkind: ConfigMap\n", &sidekey(&["aws"]));
    assert_eq!(error, "there is ConfigMap, Service, and nothing that describes a pod");
    assert!(hint.contains("StatefulSet"));
    let (error, _) = refused("# nothing\n", &sidekey(&["aws"]));
    assert!(error.contains("there is no object"), "{error}");
}

#[test]
fn names_that_are_taken_are_all_told_at_once() {
    let text = "kind: Deployment
metadata: {name: a}
spec:
  template:
    spec:
      containers:
      - name: kube-apiserver
        args: [--encryption-provider-config=a, --encryption-provider-config=b]
        volumeMounts: [{name: mine, mountPath: /var/run/kmsplugin}]
      - name: sidekey-aws
      initContainers: [{name: sidekey-shim}]
      volumes: [{name: kms-sockets, hostPath: {path: /x}}, {name: mine, emptyDir: {}}]
";
    let (error, _) = refused(text, &sidekey(&["aws"]));
    let expected = [
        "Deployment a: containers has sidekey-aws already, and it is not from here; take it out first",
        "Deployment a: initContainers has sidekey-shim already, and it is not from here; take it out first",
        "Deployment a: there is another volume kms-sockets; take it out, or rename it",
        "Deployment a: something else is mounted at /var/run/kmsplugin",
        "Deployment a: --encryption-provider-config is given twice; leave one",
    ];
    assert_eq!(error, expected.join("\n"));
}

#[test]
fn a_text_that_means_something_in_two_places_is_refused() {
    let text = "kind: Pod
spec:
  containers:
  - &c {name: kube-apiserver, args: [x]}
other: *c
";
    let (error, _) = refused(text, &sidekey(&["aws"]));
    assert!(error.contains("is referred to from elsewhere in the file"), "{error}");
    let text = "kind: Pod\nbase: &c {name: kube-apiserver}\nspec: {containers: [*c]}\n";
    let (error, _) = refused(text, &sidekey(&["aws"]));
    assert!(error.contains("is a reference to another part of the file"), "{error}");
}

#[test]
fn a_note_that_cannot_be_read_is_no_reason_to_guess() {
    let text = "kind: Pod
metadata: {annotations: {sidekey.dev/injected: '{}'}}
spec: {containers: [{name: kube-apiserver}]}
";
    let (error, _) = refused(text, &sidekey(&["aws"]));
    assert!(error.contains("sidekey.dev/injected does not say what was put in"), "{error}");
    assert!(uninject(text).is_err());
}

#[test]
fn where_nothing_was_put_in_nothing_is_taken_out() {
    let out = uninject(HOSTED).unwrap();
    assert_eq!(out.text, HOSTED);
    assert!(out.changes.is_empty());
}

#[test]
fn hypershifts_sidecars_need_secrets_and_so_no_static_pod() {
    let kms =
        HostedKms::Aws(AwsKms { active: "arn:a".to_owned(), backup: None, region: "r".to_owned() });
    let sidecars = Sidecars::HyperShift { kms, minter: None };
    let (error, _) = refused(KUBEADM, &Wanted { sidecars, ..sidekey(&[]) });
    assert!(error.contains("which a static pod cannot"), "{error}");
}
