//! OpenShift's and HyperShift's sidecars.

use super::*;

fn vault(ids: &[u64], secret: Option<&str>) -> Wanted {
    let plugins = ids
        .iter()
        .map(|&id| VaultPlugin {
            id,
            address: "https://vault.example:8200".to_owned(),
            key_path: "transit/keys/kms".to_owned(),
            role_id: "role".to_owned(),
            secret_id_file: format!("kms-plugin-secret-approle_secret-id-{id}"),
            ca_file: Some(format!("kms-plugin-configmap-ca_ca-bundle.crt-{id}")),
            server_name: Some("vault".to_owned()),
            namespace: Some("a".to_owned()),
            auth_namespace: None,
        })
        .collect();
    let secret = secret.map(str::to_owned);
    Wanted { sidecars: Sidecars::OpenShift { plugins, secret }, ..sidekey(&[]) }
}

fn aws(backup: Option<&str>) -> Wanted {
    let kms = HostedKms::Aws(AwsKms {
        active: "arn:aws:kms:us-east-1:1:key/a".to_owned(),
        backup: backup.map(str::to_owned),
        region: "us-east-1".to_owned(),
    });
    Wanted { sidecars: Sidecars::HyperShift { kms, minter: None }, ..sidekey(&[]) }
}

#[test]
fn openshifts_static_pod_has_one_sidecar_for_each_key() {
    let injected = injected(OPENSHIFT, &vault(&[1, 2], None));
    let pod = nth(&injected.text, 0);
    let spec = &pod["spec"];
    assert_eq!(
        names(&spec["initContainers"]),
        ["setup", "vault-kms-plugin-1", "vault-kms-plugin-2"]
    );
    let files = "/etc/kubernetes/static-pod-resources/secrets/encryption-config";
    assert_eq!(
        spec["initContainers"][2],
        json!({
            "name": "vault-kms-plugin-2",
            "restartPolicy": "Always",
            "image": format!("localhost/sidekey-vault:{VERSION}"),
            "imagePullPolicy": "IfNotPresent",
            "args": [
                "-listen-address=unix:///var/run/kmsplugin/kms-2.sock",
                "-vault-address=https://vault.example:8200",
                "-vault-key-path=transit/keys/kms",
                "-approle-role-id=role",
                format!("-approle-secret-id-path={files}/kms-plugin-secret-approle_secret-id-2"),
                format!("-tls-ca-file={files}/kms-plugin-configmap-ca_ca-bundle.crt-2"),
                "-tls-sni=vault",
                "-vault-namespace=a",
                "-metrics-port=0",
            ],
            "securityContext": {
                "runAsUser": 0, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "startupProbe": {
                "exec": {"command": [
                    "/sidekey-vault", "probe", "--socket=unix:///var/run/kmsplugin/kms-2.sock",
                ]},
                "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60,
            },
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "kms-plugin-socket", "mountPath": "/var/run/kmsplugin"},
                {
                    "name": "resource-dir", "mountPath": "/etc/kubernetes/static-pod-resources",
                    "readOnly": true,
                },
            ],
        })
    );
    assert_eq!(names(&spec["volumes"]), ["resource-dir", "kms-plugin-socket"]);
    assert!(injected.warnings.iter().any(|text| text.contains(ONE_DIRECTORY)));
    assert_eq!(spec["containers"][0]["args"], nth(OPENSHIFT, 0)["spec"]["containers"][0]["args"]);
}

#[test]
fn openshifts_deployments_have_the_secret_of_the_revision() {
    let injected = injected(HOSTED, &vault(&[7], Some("encryption-config-7")));
    let spec = &nth(&injected.text, 1)["spec"]["template"]["spec"];
    assert_eq!(spec["volumes"][1]["secret"]["secretName"], "encryption-config-7");
    let sidecar = &spec["initContainers"][0];
    assert_eq!(sidecar["volumeMounts"][1]["mountPath"], "/var/run/secrets/kms-plugin");
    assert_eq!(sidecar["securityContext"]["runAsUser"], Value::Null);
    let error = inject(HOSTED, &vault(&[7], None)).unwrap_err();
    assert!(error.report().contains("--encryption-config-secret"));
    let error = inject(KUBEADM, &vault(&[7], None)).unwrap_err();
    assert!(error.report().contains("there is no volume resource-dir"), "{}", error.report());
}

#[test]
fn hypershifts_containers_have_its_names_and_ports_that_nobody_has() {
    let injected = injected(HOSTED, &aws(Some("arn:aws:kms:us-east-1:1:key/b")));
    let spec = &nth(&injected.text, 1)["spec"]["template"]["spec"];
    let containers = &spec["containers"];
    assert_eq!(
        names(containers),
        ["kube-apiserver", "konnectivity", "aws-kms-active", "aws-kms-backup"]
    );
    // konnectivity has 8080.
    assert_eq!(
        containers[2]["args"],
        json!([
            "--key=arn:aws:kms:us-east-1:1:key/a",
            "--region=us-east-1",
            "--listen=/var/run/awskmsactive.sock",
            "--health-port=:8081",
        ])
    );
    assert_eq!(containers[2]["livenessProbe"]["httpGet"]["port"], 8081);
    assert_eq!(containers[3]["ports"][0]["containerPort"], 8082);
    let moved: Vec<_> =
        injected.warnings.iter().filter(|text| text.contains("in use in this pod")).collect();
    assert_eq!(moved.len(), 2, "{:?}", injected.warnings);
    assert!(injected.warnings.iter().any(|text| text.contains(ONE_DIRECTORY)));
    assert_eq!(
        containers[0]["args"].as_array().unwrap()[2..],
        [
            json!("--encryption-provider-config=/etc/kubernetes/secret-encryption/config.yaml"),
            json!("--encryption-provider-config-automatic-reload=false"),
        ]
    );
    assert_eq!(
        containers[0]["volumeMounts"],
        json!([
            {
                "name": "kas-secret-encryption-config",
                "mountPath": "/etc/kubernetes/secret-encryption",
            },
            {"name": "kms-socket", "mountPath": "/var/run"},
        ])
    );
    assert_eq!(
        names(&spec["volumes"]),
        [
            "kms-socket",
            "kas-secret-encryption-config",
            "aws-kms-credentials",
            "aws-kms-token",
            "tmp-dir",
        ]
    );
    // The backup goes as it came.
    let without = inject(&injected.text, &aws(None)).unwrap();
    assert_eq!(without.text, inject(HOSTED, &aws(None)).unwrap().text);
}

#[test]
fn volumes_that_hypershift_has_already_are_shared_and_stay() {
    let volume = "      volumes: [{name: tmp-dir, emptyDir: {}}]\n      securityContext";
    let text = HOSTED.replace("      securityContext", volume);
    let out = injected(&text, &aws(None)).text;
    assert_eq!(out.matches("name: tmp-dir").count(), 2, "{out}");
}

#[test]
fn another_profile_takes_the_place_of_the_first() {
    let first = inject(HOSTED, &aws(None)).unwrap().text;
    let second = inject(&first, &sidekey(&["aws"])).unwrap().text;
    assert_eq!(second, inject(HOSTED, &sidekey(&["aws"])).unwrap().text);
}

#[test]
fn a_secret_encryption_says_what_each_profile_needs() {
    let key = json!({
        "id": 2, "type": "vault", "role": "write", "kek": {"mount": "transit", "key": "kms"},
        "settings": {
            "addresses": ["https://a:8200", "https://b:8200"], "tls": {"caFile": "/etc/sidekey/ca-2"},
        },
        "credentials": {"appRole": {"roleId": "role", "secretIdFile": "/etc/sidekey/secret-id-2"}},
        "files": [
            {"name": "secret-id-2", "secret": {"name": "approle", "key": "secret-id"}},
            {"name": "ca-2", "configMap": {"name": "ca", "key": "ca-bundle.crt"}},
        ],
    });
    let document = |keys: Value| {
        json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"keys": keys, "images": {"vault": "example.com/vault:1"}},
        })
        .to_string()
    };
    let text = document(json!([key]));
    let ours = described(&text, Profile::Sidekey, "f").unwrap();
    let Sidecars::Sidekey { vendors, .. } = &ours.sidecars else { panic!("{ours:?}") };
    assert_eq!(vendors, &["vault"]);
    assert_eq!(ours.images["vault"], "example.com/vault:1");
    let openshift = described(&text, Profile::OpenShift, "f").unwrap();
    let Sidecars::OpenShift { plugins, .. } = &openshift.sidecars else { panic!("{openshift:?}") };
    assert_eq!(plugins[0].secret_id_file, "kms-plugin-secret-approle_secret-id-2");
    assert_eq!(plugins[0].ca_file.as_deref(), Some("kms-plugin-configmap-ca_ca-bundle.crt-2"));
    assert_eq!(plugins[0].address, "https://a:8200,https://b:8200");

    let mut other = key.clone();
    other["credentials"] = json!({"kubernetes": {"role": "r", "tokenFile": "/t"}});
    other["settings"]["requestTimeout"] = "1s".into();
    let error = described(&document(json!([other])), Profile::OpenShift, "f").unwrap_err().report();
    for mistake in [
        "spec.keys[0].settings.requestTimeout: the flags of OpenShift's sidecars cannot say this",
        "spec.keys[0].credentials.kubernetes: the flags",
        "spec.keys[0].credentials.appRole.roleId: is required",
    ] {
        assert!(error.contains(mistake), "{error}");
    }
    let error = described(&text, Profile::HyperShift, "f").unwrap_err().report();
    assert!(error.contains("spec.keys[0].type: only aws"), "{error}");
}
