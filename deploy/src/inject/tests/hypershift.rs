//! HyperShift's sidecars for Azure and IBM, as its own operator renders them. What is more than there
//! hardens them: no privilege escalation, no capabilities.

use super::*;

const CLIENT: &str = "11111111-2222-3333-4444-555555555555";
const TOKEN: &str = "/var/run/secrets/openshift/serviceaccount";

fn cluster(kms: Value, status: Value) -> String {
    let platform = json!({"azure": {"tenantID": "tenant"}});
    let encryption = json!({"type": "kms", "kms": kms});
    json!({
        "kind": "HostedCluster",
        "metadata": {"name": "demo", "namespace": "clusters"},
        "spec": {"secretEncryption": encryption, "platform": platform},
        "status": {"secretEncryption": status},
    })
    .to_string()
}

/// The pod's spec with the sidecars of a description.
fn put(description: &str, minter: Option<&str>) -> Value {
    let described = described(description, Profile::HyperShift, "hc").unwrap();
    let Sidecars::HyperShift { kms, .. } = described.sidecars else { panic!() };
    let sidecars = Sidecars::HyperShift { kms, minter: minter.map(str::to_owned) };
    let mut images = BTreeMap::new();
    images.insert("azure".to_owned(), "azure-kms-encryption-provider".to_owned());
    images.insert("ibmcloud".to_owned(), "ibmcloud-kms".to_owned());
    let wanted = Wanted { sidecars, images, ..sidekey(&[]) };
    let kubeconfig = "{name: localhost-kubeconfig, secret: {secretName: localhost-kubeconfig}}";
    let volume = format!("      volumes: [{kubeconfig}]\n");
    let text = HOSTED.replace("      securityContext", &format!("{volume}      securityContext"));
    nth(&injected(&text, &wanted).text, 1)["spec"]["template"]["spec"].clone()
}

fn azure(more: Value) -> Value {
    let key = |version: &str| json!({"keyVaultName": "test-kms-keyvault", "keyName": "test-key", "keyVersion": version});
    let mut azure = json!({"activeKey": key("2"), "backupKey": key("1")});
    for (name, value) in more.as_object().unwrap() {
        azure[name] = value.clone();
    }
    json!({"provider": "Azure", "azure": azure})
}

/// As in a kube-apiserver of HyperShift's.
fn azure_container(role: &str, version: &str, health: u16, metrics: u16) -> Value {
    json!({
        "name": format!("azure-kms-provider-{role}"),
        "image": "azure-kms-encryption-provider",
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--keyvault-name=test-kms-keyvault",
            "--key-name=test-key",
            format!("--key-version={version}"),
            format!("--listen-addr=unix:///opt/azurekms{role}.socket"),
            format!("--healthz-port={health}"),
            format!("--metrics-addr={metrics}"),
            "--healthz-path=/healthz",
            "--config-file-path=/etc/kubernetes/azure.json",
            "-v=1",
        ],
        "livenessProbe": {
            "failureThreshold": 3,
            "httpGet": {"path": "/healthz", "port": health, "scheme": "HTTP"},
            "initialDelaySeconds": 120, "periodSeconds": 300, "successThreshold": 1,
            "timeoutSeconds": 160,
        },
        "ports": [{"containerPort": health, "name": "http", "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
        "securityContext": {
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"mountPath": "/etc/kubernetes", "name": "azure-kms-credentials"},
            {"mountPath": "/opt", "name": "kms-socket"},
            {"mountPath": "/mnt/certs", "name": "kms-cert", "readOnly": true},
            {"mountPath": "/tmp", "name": "tmp-dir"},
        ],
    })
}

#[test]
fn managed_azure_has_two_containers_and_its_certificate_from_the_secrets_store() {
    let identity = json!({"kms": {"credentialsSecretName": "kms-msi", "objectEncoding": "utf-8"}});
    let spec = put(&cluster(azure(identity), Value::Null), None);
    assert_eq!(spec["containers"][2], azure_container("active", "2", 8787, 8095));
    assert_eq!(spec["containers"][3], azure_container("backup", "1", 8788, 8096));
    let main = &spec["containers"][0];
    let socket = json!({"name": "kms-socket", "mountPath": "/opt"});
    assert!(main["volumeMounts"].as_array().unwrap().contains(&socket), "{main}");
    let args = main["args"].to_string();
    assert!(
        args.contains("--encryption-provider-config=/etc/kubernetes/secret-encryption/config.yaml")
    );
    assert!(args.contains("--encryption-provider-config-automatic-reload=false"), "{args}");
    for volume in [
        json!({"name": "kms-socket", "emptyDir": {}}),
        json!({"name": "azure-kms-credentials", "secret": {
            "secretName": "azure-kms-config", "items": [{"key": "cloud.conf", "path": "azure.json"}],
        }}),
        json!({"name": "kms-cert", "csi": {
            "driver": "secrets-store.csi.k8s.io", "readOnly": true,
            "volumeAttributes": {"secretProviderClass": "managed-azure-kms"},
        }}),
    ] {
        let volumes = spec["volumes"].as_array().unwrap();
        assert!(volumes.contains(&volume), "{volume} in {volumes:?}");
    }
}

#[test]
fn self_managed_azure_logs_in_with_a_token_of_the_hosted_cluster() {
    let identity = json!({"workloadIdentity": {"clientID": CLIENT}, "keyVaultType": "ManagedHSM"});
    let spec = put(&cluster(azure(identity), Value::Null), Some("cpo:1"));
    let active = &spec["containers"][2];
    assert_eq!(active["args"].as_array().unwrap().last(), Some(&json!("--managed-hsm")));
    assert_eq!(
        active["env"],
        json!([
            {"name": "AZURE_CLIENT_ID", "value": CLIENT},
            {"name": "AZURE_TENANT_ID", "value": "tenant"},
            {"name": "AZURE_FEDERATED_TOKEN_FILE", "value": format!("{TOKEN}/token")},
        ])
    );
    let token = json!({"name": "azure-kms-cloud-token", "mountPath": TOKEN, "readOnly": true});
    assert_eq!(active["volumeMounts"][2], token);
    let minter = &spec["containers"][4];
    assert_eq!(minter["name"], "azure-kms-token-minter");
    assert_eq!(minter["command"], json!(["/usr/bin/control-plane-operator", "token-minter"]));
    assert_eq!(
        minter["args"],
        json!([
            "--token-audience=openshift",
            "--service-account-namespace=kube-system",
            "--service-account-name=kms-provider",
            format!("--token-file={TOKEN}/token"),
            "--kubeconfig=/etc/kubernetes/kubeconfig",
        ])
    );
    assert_eq!(
        minter["volumeMounts"],
        json!([
            {"name": "azure-kms-cloud-token", "mountPath": TOKEN},
            {"name": "localhost-kubeconfig", "mountPath": "/etc/kubernetes"},
        ])
    );
    let memory = json!({"name": "azure-kms-cloud-token", "emptyDir": {"medium": "Memory"}});
    assert!(spec["volumes"].as_array().unwrap().contains(&memory), "{}", spec["volumes"]);
}

#[test]
fn until_hypershift_promotes_a_new_key_the_old_one_is_the_active_one() {
    let mut kms = azure(json!({"workloadIdentity": {"clientID": CLIENT}}));
    kms["azure"].as_object_mut().unwrap().remove("backupKey");
    let key =
        json!({"keyVaultName": "test-kms-keyvault", "keyName": "test-key", "keyVersion": "1"});
    let status = json!({"activeKey": {"provider": "Azure", "azure": key}});
    let spec = put(&cluster(kms, status), None);
    let version = |index: usize| spec["containers"][index]["args"][2].clone();
    assert_eq!((version(2), version(3)), (json!("--key-version=1"), json!("--key-version=2")));
}

fn ibm(auth: Value) -> Value {
    let key = |version: u32| {
        json!({
            "crkID": format!("crk-{version}"), "instanceID": "instance", "correlationID": "x",
            "url": "https://us-south.kms.cloud.ibm.com", "keyVersion": version,
        })
    };
    json!({"provider": "IBMCloud", "ibmcloud": {
        "region": "us-south", "auth": auth, "keyList": [key(2), key(1)],
    }})
}

#[test]
fn ibm_has_one_container_with_all_keys_in_its_environment() {
    let spec = put(&cluster(ibm(json!({"type": "Managed", "managed": {}})), Value::Null), None);
    let mut container = spec["containers"][2].clone();
    let data = container["env"][10]["value"].take();
    let data: Value = serde_json::from_str(data.as_str().unwrap()).unwrap();
    let entry = |version: u32| {
        json!({
            "crkID": format!("crk-{version}"), "instanceID": "instance", "correlationID": "x",
            "url": "https://us-south.kms.cloud.ibm.com", "serviceToService": true,
        })
    };
    assert_eq!(data, json!({"1": entry(1), "2": entry(2)}));
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    assert_eq!(
        container,
        json!({
            "name": "ibmcloud-kms",
            "image": "ibmcloud-kms",
            "imagePullPolicy": "IfNotPresent",
            "env": [
                variable("LOG_LEVEL", "info"),
                variable("NUM_LEN_BYTES", "4"),
                variable("CACHE_TIMEOUT_IN_HOURS", "1"),
                variable("RESTART_DELAY_IN_SECONDS", "0"),
                variable("UNIX_SOCKET_PATH", "/tmp/keyprotectprovider.sock"),
                variable("KP_TIMEOUT", "10"),
                variable("KP_WDEK_PATH", "/tmp/kp/wdek"),
                variable("KP_STATE_PATH", "/tmp/kp/state"),
                variable("HEALTHZ_PATH", "/healthz"),
                variable("HEALTHZ_PORT", ":8081"),
                {"name": "KP_DATA_JSON", "value": null},
                variable("REGION", "us-south"),
            ],
            "ports": [{"name": "http", "containerPort": 8001, "protocol": "TCP"}],
            "livenessProbe": {
                "failureThreshold": 3,
                "httpGet": {"path": "healthz/liveness", "port": 8081, "scheme": "HTTP"},
                "initialDelaySeconds": 120, "periodSeconds": 300, "successThreshold": 1,
                "timeoutSeconds": 160,
            },
            "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
            "securityContext": {
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "ibmcloud-kms-kp", "mountPath": "/tmp/kp"},
                {"name": "kms-socket", "mountPath": "/tmp"},
                {"name": "pod-identity-token", "mountPath": "/etc/pod-identity-token"},
            ],
        })
    );
    let token = json!({"path": "pod-identity-token", "expirationSeconds": 900});
    let token = json!({"sources": [{"serviceAccountToken": token}]});
    for volume in [
        json!({"name": "kms-socket", "emptyDir": {}}),
        json!({"name": "ibmcloud-kms-kp", "secret": {"secretName": "kp-wdek-secret", "optional": true}}),
        json!({"name": "pod-identity-token", "projected": token}),
    ] {
        let volumes = spec["volumes"].as_array().unwrap();
        assert!(volumes.contains(&volume), "{volume} in {volumes:?}");
    }
    let auth = json!({"type": "Unmanaged", "unmanaged": {"credentials": {"name": "k"}}});
    let spec = put(&cluster(ibm(auth), Value::Null), None);
    let source = json!({"secretKeyRef": {"name": "k", "key": "iam_apikey"}});
    let api_key = json!({"name": "API_KEY", "valueFrom": source});
    assert_eq!(spec["containers"][2]["env"][12], api_key);
    let data = spec["containers"][2]["env"][10]["value"].as_str().unwrap();
    assert!(data.contains(r#""serviceToService":false"#), "{data}");
}

fn document(keys: Value) -> String {
    let metadata = json!({"name": "a", "namespace": "n"});
    let kind = crate::model::KIND;
    json!({"apiVersion": crate::model::API_VERSION, "kind": kind, "metadata": metadata, "spec": {"keys": keys}})
        .to_string()
}

#[test]
fn a_secret_encryption_gives_the_same_containers_as_the_hosted_cluster() {
    let identity = json!({"kms": {"credentialsSecretName": "kms-msi", "objectEncoding": "utf-8"}});
    let key = |id: u64, role: &str| {
        json!({
            "id": id, "type": "azure", "role": role,
            "kek": {"vault": "test-kms-keyvault", "key": "test-key", "version": id.to_string()},
            "credentials": {"identityFile": "/mnt/certs/kms-msi"},
        })
    };
    let ours = put(&document(json!([key(2, "write"), key(1, "read")])), None);
    assert_eq!(ours, put(&cluster(azure(identity), Value::Null), None));
    let key = |id: u64, role: &str| {
        json!({
            "id": id, "type": "ibmcloud", "role": role,
            "kek": {"instance": "instance", "key": format!("crk-{id}")},
            "settings": {"address": "https://us-south.kms.cloud.ibm.com", "correlationId": "x"},
            "credentials": {"apiKeyFile": "/etc/sidekey/key"},
            "files": [{"name": "key", "secret": {"name": "k", "key": "iam_apikey"}}],
        })
    };
    let ours = put(&document(json!([key(2, "write"), key(1, "read")])), None);
    let auth = json!({"type": "Unmanaged", "unmanaged": {"credentials": {"name": "k"}}});
    assert_eq!(ours, put(&cluster(ibm(auth), Value::Null), None));
}

#[test]
fn what_hypershifts_sidecars_cannot_be_told_is_refused() {
    let refusal = |text: &str| described(text, Profile::HyperShift, "f").unwrap_err().report();
    let azure = json!({
        "id": 2, "type": "azure", "role": "write", "kek": {"vault": "v", "key": "k"},
        "credentials": {"clientSecretFile": "/etc/sidekey/secret"},
        "files": [{"name": "secret", "secret": {"name": "s", "key": "secret"}}],
    });
    let error = refusal(&document(json!([azure])));
    assert!(error.contains("spec.keys[0].kek.version: is required"), "{error}");
    let mut pinned = azure.clone();
    pinned["kek"]["version"] = "1".into();
    let error = refusal(&document(json!([pinned])));
    assert!(error.contains("spec.keys[0].credentials: must be tenantId"), "{error}");
    let ibm = |id: u64, role: &str| {
        json!({
            "id": id, "type": "ibmcloud", "role": role, "kek": {"instance": "i", "key": "c"},
            "settings": {"address": "https://eu-de.kms.cloud.ibm.com"},
            "credentials": {"tokenFile": "/run/pod/token", "profileName": "p"},
        })
    };
    let error = refusal(&document(json!([ibm(1, "write"), ibm(2, "read")])));
    assert!(error.contains("the highest id must be that of the key that writes"), "{error}");
    let mixed = json!([pinned, ibm(1, "read")]);
    let error = refusal(&document(mixed));
    assert!(error.contains("spec.keys[1].type: ibmcloud beside azure"), "{error}");
    let gcp = json!({"id": 1, "type": "gcp", "role": "write", "kek": {"key": "k"}});
    let error = refusal(&document(json!([gcp])));
    assert!(error.contains("spec.keys[0].type: only aws, azure and ibmcloud"), "{error}");
    let status = json!({"activeKey": {"provider": "AWS", "aws": {"arn": "arn:aws:kms:x"}}});
    let kms = super::hypershift::azure(json!({"workloadIdentity": {"clientID": CLIENT}}));
    let error = refusal(&cluster(kms, status));
    assert!(error.contains("sidecars of one provider"), "{error}");
}
