//! OpenShift's manner: one native sidecar for each key, with the names, arguments, volumes and
//! limits that its operators give them, and a startup probe, which they do not.

use serde_json::{Value, json};

use super::super::Wanted;
use super::super::add::{Addition, Facts};
use super::{ONE_DIRECTORY, mount, read_only, startup_probe};

const SOCKETS: &str = "/var/run/kmsplugin";

/// One key of Vault, and where its files are: names in the encryption-config Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultPlugin {
    /// The number of the key.
    pub id: u64,
    /// `https://host:port`
    pub address: String,
    /// `<mount>/keys/<name>`
    pub key_path: String,
    /// The AppRole's role-id, which is not secret.
    pub role_id: String,
    /// The file with its secret-id.
    pub secret_id_file: String,
    /// The file with the CA bundle.
    pub ca_file: Option<String>,
    /// The name that the server's certificate is for.
    pub server_name: Option<String>,
    /// The namespace of the transit engine.
    pub namespace: Option<String>,
    /// The namespace to log in to.
    pub auth_namespace: Option<String>,
}

pub(super) fn addition(
    plugins: &[VaultPlugin],
    secret: Option<&str>,
    wanted: &Wanted,
    facts: &Facts,
) -> Addition {
    let mut addition = Addition {
        volumes: vec![json!({"name": "kms-plugin-socket", "emptyDir": {}})],
        mounts: vec![mount("kms-plugin-socket", SOCKETS)],
        ..Addition::default()
    };
    let (data, path, files) = if facts.static_pod {
        addition.needs.push("resource-dir");
        let path = "/etc/kubernetes/static-pod-resources";
        ("resource-dir", path, format!("{path}/secrets/encryption-config"))
    } else {
        match secret {
            Some(name) => addition
                .volumes
                .push(json!({"name": "kms-plugins-data", "secret": {"secretName": name}})),
            None => addition.problems.push(
                "the sidecars need the Secret of this revision: --encryption-config-secret NAME"
                    .to_owned(),
            ),
        }
        let path = "/var/run/secrets/kms-plugin";
        ("kms-plugins-data", path, path.to_owned())
    };
    let image = wanted.image("vault");
    addition.init_containers = plugins
        .iter()
        .map(|plugin| {
            let mounts = json!([mount("kms-plugin-socket", SOCKETS), read_only(data, path)]);
            sidecar(plugin, &image, &files, &mounts, facts)
        })
        .collect();
    addition.warnings.push(ONE_DIRECTORY.to_owned());
    addition.warnings.push(
        "OpenShift sets its API servers' flags in their configuration (apiServerArguments): \
         encryption-provider-config must be there"
            .to_owned(),
    );
    addition
}

fn sidecar(plugin: &VaultPlugin, image: &str, files: &str, mounts: &Value, facts: &Facts) -> Value {
    let socket = format!("{SOCKETS}/kms-{}.sock", plugin.id);
    let mut context = json!({
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if facts.static_pod {
        context["runAsUser"] = 0.into();
    }
    json!({
        "name": format!("vault-kms-plugin-{}", plugin.id),
        "restartPolicy": "Always",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": args(plugin, &socket, files),
        "securityContext": context,
        "startupProbe": startup_probe("sidekey-vault", &socket),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    })
}

fn args(plugin: &VaultPlugin, socket: &str, files: &str) -> Vec<String> {
    let mut args = vec![
        format!("-listen-address=unix://{socket}"),
        format!("-vault-address={}", plugin.address),
        format!("-vault-key-path={}", plugin.key_path),
        format!("-approle-role-id={}", plugin.role_id),
        format!("-approle-secret-id-path={files}/{}", plugin.secret_id_file),
    ];
    let ca = plugin.ca_file.as_ref().map(|name| format!("{files}/{name}"));
    let optional = [
        ("-tls-ca-file", &ca),
        ("-tls-sni", &plugin.server_name),
        ("-vault-namespace", &plugin.namespace),
        ("-vault-auth-namespace", &plugin.auth_namespace),
    ];
    for (name, value) in optional {
        args.extend(value.as_ref().map(|value| format!("{name}={value}")));
    }
    args.push("-metrics-port=0".to_owned());
    args
}
