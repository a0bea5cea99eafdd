//! A rotation is given up only while its key has never written.

use super::*;
use crate::operator::roll::fake::Fake;
use crate::render::Created;

const SECRETS: &str = "/api/v1/namespaces/clusters-a/secrets";
const STATE: &str = "/api/v1/namespaces/clusters-a/configmaps/sidekey-rotation";
const STATUS: &str = "/apis/sidekey.dev/v1alpha1/namespaces/clusters-a/secretencryptions/a/status";

/// A control plane in which these keys are published, as somebody may do it by hand.
fn plane(published: &SecretEncryption) -> Fake {
    let fake = Fake::default();
    let rendered = render(published, 2, &resolve(published, 7), Phase::Settled).unwrap();
    for secret in rendered.objects(&Created::now()) {
        let name = secret["metadata"]["name"].as_str().unwrap();
        fake.put(&format!("{SECRETS}/{name}"), secret.clone());
    }
    fake
}

#[tokio::test]
async fn a_rotation_whose_key_writes_already_is_not_given_up() {
    let published = document(json!({"keys": [key(1, "read"), key(2, "write")]}));
    let fake = plane(&published);
    let mut state = State::begin(turn(Mode::Key(1)), turn(Mode::Key(2)), "now", None);
    state = state.after(Step::Preflight, "now");
    state.read_revision = Some(1);
    let text = serde_json::to_string(&state).unwrap();
    let metadata = json!({"name": "sidekey-rotation", "namespace": "clusters-a"});
    fake.put(STATE, json!({"metadata": metadata, "data": {"rotation.json": text}}));
    let head = fake.at(&format!("{SECRETS}/sidekey-shim"));

    let wanted = document(json!({
        "keys": [key(1, "write"), key(2, "read")], "controlPlane": {"injection": "None"},
    }));
    let mut object: DynamicObject = serde_json::from_value(wanted.document()).unwrap();
    object.metadata.resource_version = Some("1".into());
    reconcile(&object, &fake.context()).await.unwrap();
    assert_eq!(fake.at(&format!("{SECRETS}/sidekey-shim")), head, "nothing was published");
    assert_eq!(fake.at(STATE)["data"]["rotation.json"], text, "nothing was given up");
    let status = fake.at(STATUS)["status"].to_string();
    assert!(status.contains("key 2 writes, though the rotation"), "{status}");
}
