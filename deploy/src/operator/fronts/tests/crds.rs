//! The schemas of the foreign objects that tests on clusters use.

use super::*;

fn crd(file: &str) -> Value {
    let path = format!("{}/../e2e/crds/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What the schema drops or refuses of a value, as far as types, enums and required fields go.
fn misfits(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                match &schema["properties"][name] {
                    Value::Null if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                    Value::Null => found.push(format!("{path}.{name}")),
                    known => misfits(&format!("{path}.{name}"), known, inner, found),
                }
            }
            let required = schema["required"].as_array().into_iter().flatten();
            let missing = required.filter(|name| map.get(name.as_str().unwrap()).is_none());
            found.extend(missing.map(|name| format!("{path}.{name} is required")));
        }
        Value::Array(items) => {
            for item in items {
                misfits(path, &schema["items"], item, found);
            }
        }
        Value::String(_) => {
            let known = schema["enum"].as_array();
            if schema["type"] != "string" || known.is_some_and(|known| !known.contains(value)) {
                found.push(format!("{path}: {value}"));
            }
        }
        _ => {}
    }
}

fn schema(file: &str) -> Value {
    crd(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn assert_fits(file: &str, object: &Value) {
    let mut found = Vec::new();
    let schema = schema(file);
    for part in ["spec", "status"] {
        misfits(part, &schema["properties"][part], &object[part], &mut found);
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn the_schemas_are_of_the_kinds_that_are_watched() {
    for (file, resource) in [
        ("hostedclusters.yaml", crate::operator::api::hosted_cluster()),
        ("apiservers.yaml", crate::operator::api::api_server()),
    ] {
        let crd = crd(file);
        let spec = &crd["spec"];
        assert_eq!(spec["group"], resource.group.as_str());
        assert_eq!(spec["names"]["kind"], resource.kind.as_str());
        assert_eq!(spec["names"]["plural"], resource.plural.as_str());
        assert_eq!(spec["versions"][0]["name"], resource.version.as_str());
        assert_eq!(crd["metadata"]["name"], format!("{}.{}", resource.plural, resource.group));
        assert_eq!(spec["versions"][0]["subresources"]["status"], json!({}));
    }
}

#[tokio::test]
async fn what_is_mirrored_fits_the_schema() {
    for encryption in [aws(K1), azure("1"), ibm(&[1]), aescbc("aes")] {
        let fake = world(encryption);
        fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
        fake.put_secret(SOURCES, "aes", &[("key", &[7; 32])]);
        pass(&fake).await;
        let spec = spec(&fake);
        let active = match spec["keys"].as_array().unwrap().first() {
            Some(key) => json!({"id": 1, "vendor": key["type"], "fingerprint": "x"}),
            None => json!({"id": 0, "vendor": "aescbc", "fingerprint": spec["write"]}),
        };
        let time = "2026-01-01T00:00:00Z";
        let past = json!({"from": active, "to": active, "state": "Completed", "startedTime": time, "completionTime": time});
        let said = json!({"type": "KMSKeyAccessible", "status": "False", "reason": "R", "message": "", "lastTransitionTime": time});
        status(
            &fake,
            json!({"activeKey": active, "history": [past], "conditions": [said], "encryptedUnder": "x"}),
        );
        pass(&fake).await;
        let hosted = fake.at(HOSTED).unwrap();
        let shown = &hosted["status"]["secretEncryption"];
        assert!(shown["activeKey"].is_object() && shown["history"][0].is_object(), "{shown}");
        assert_fits("hostedclusters.yaml", &hosted);
        assert_stable(&fake).await;
    }
}

#[test]
fn an_unknown_field_of_the_encryption_does_not_fit() {
    let mut object = json!({"spec": {"secretEncryption": aws(K1), "other": 1}, "status": {"x": 1}});
    assert_fits("hostedclusters.yaml", &object);
    object["spec"]["secretEncryption"]["kms"]["aws"]["activKey"] = json!({});
    let mut found = Vec::new();
    misfits("", &schema("hostedclusters.yaml"), &object, &mut found);
    assert_eq!(found, [".spec.secretEncryption.kms.aws.activKey"]);
}
