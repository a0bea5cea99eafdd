//! What is copied into the control plane's namespace, and what whoever may write Secrets there
//! cannot have copied.

use super::fake::secret;
use super::*;

const COPY: &str = "sidekey-source-ibm";

/// Puts a Secret into the control plane's namespace that looks like a copy of `origin`.
fn forge(fake: &Fake, name: &str, origin: &str, entry: &str) {
    fake.put_secret(PLANE, name, &[(entry, b"x")]);
    fake.change(&secret(PLANE, name), |object| {
        object["metadata"]["labels"] =
            json!({"sidekey.dev/copy-for": "a", "app.kubernetes.io/managed-by": "sidekey"});
        object["metadata"]["annotations"] = json!({"sidekey.dev/copy-of": origin});
    });
}

/// Everything in the control plane's namespace, as text.
fn plane(fake: &Fake) -> String {
    let world = fake.lock();
    let inside = world.objects.iter().filter(|(path, _)| path.contains(&format!("/{PLANE}/")));
    inside.map(|(path, object)| format!("{path} {object}\n")).collect()
}

fn base64(content: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(content)
}

#[tokio::test]
async fn a_forged_copy_of_another_tenants_secret_is_never_filled() {
    let fake = world(ibm(&[1]));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
    fake.put_secret("clusters-b", "admin-kubeconfig", &[("kubeconfig", b"theirs")]);
    fake.put(
        "/api/v1/namespaces/clusters-b/configmaps/ca",
        json!({"metadata": {"name": "ca"}, "data": {"kubeconfig": "theirs"}}),
    );
    pass(&fake).await;
    for kind in ["Secret", "ConfigMap"] {
        for name in ["admin-kubeconfig", "ca"] {
            let origin = format!("{kind}/clusters-b/{name}");
            for copy in ["mine", COPY, "sidekey-source-admin-kubeconfig", "sidekey-bundle-ca"] {
                forge(&fake, copy, &origin, "kubeconfig");
                pass(&fake).await;
                let now = plane(&fake);
                assert!(!now.contains(&base64(b"theirs")), "{origin} in {copy}: {now}");
            }
        }
    }
}

#[tokio::test]
async fn only_what_the_object_names_is_read_in_its_own_namespace_too() {
    let fake = world(ibm(&[1]));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one"), ("other", b"theirs")]);
    // HostedClusters share a namespace, and with it the kubeconfigs of all of them.
    fake.put_secret(SOURCES, "b-admin-kubeconfig", &[("kubeconfig", b"theirs")]);
    pass(&fake).await;
    let copy = "sidekey-source-b-admin-kubeconfig";
    forge(&fake, copy, "Secret/clusters/b-admin-kubeconfig", "kubeconfig");
    // So does one Secret have more in it than the object names.
    let other = k8s_openapi::ByteString(b"x".to_vec());
    fake.change(&secret(PLANE, COPY), |object| object["data"]["other"] = json!(other));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"two"), ("other", b"theirs")]);
    pass(&fake).await;
    assert!(!plane(&fake).contains(&base64(b"theirs")), "{}", plane(&fake));
    assert_eq!(fake.content(PLANE, COPY, "iam_apikey").unwrap(), b"two");
}

#[tokio::test]
async fn a_key_of_a_vendor_that_has_left_logs_in_with_what_its_source_holds_now() {
    let fake = world(ibm(&[1]));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
    pass(&fake).await;
    let first = json!({"id": 1, "vendor": "ibmcloud", "fingerprint": fingerprint(&fake, 1)});
    let loaded = json!([{"id": 1, "type": "ibmcloud", "role": "write", "fingerprint": fingerprint(&fake, 1)}]);
    status(&fake, json!({"activeKey": first, "keys": loaded}));
    pass(&fake).await;
    edit(&fake, aws(K1)).await;
    assert_eq!(keys(&fake), ["1 ibmcloud read", "2 aws write"]);
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"two")]);
    pass(&fake).await;
    assert_eq!(fake.content(PLANE, COPY, "iam_apikey").unwrap(), b"two");
    // What the source has no more may be all that the key has to log in with.
    fake.lock().objects.remove(&secret(SOURCES, "ibm"));
    pass(&fake).await;
    assert_eq!(fake.content(PLANE, COPY, "iam_apikey").unwrap(), b"two");
    pass(&fake).await;
    assert_stable(&fake).await;
}

#[tokio::test]
async fn what_no_key_of_the_document_logs_in_with_is_not_read_any_more_and_stays() {
    let fake = world(ibm(&[1]));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
    pass(&fake).await;
    edit(&fake, aws(K1)).await;
    pass(&fake).await;
    assert_eq!(keys(&fake), ["2 aws write"]);
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"two")]);
    pass(&fake).await;
    assert_eq!(fake.content(PLANE, COPY, "iam_apikey").unwrap(), b"one");
    assert_stable(&fake).await;
}
