//! Our own manner: the shim, and one sidecar for each vendor, however many keys it has.

use serde_json::{Value, json};

use super::super::add::{Addition, Facts};
use super::super::flags::{CONFIG, RELOAD};
use super::super::minter::Minter;
use super::super::{SocketLayout, Wanted, add_mount};
use super::{liveness_probe, mount, read_only, sockets_of, startup_probe};
use crate::model::names::{SOCKETS, provider_admin_socket, provider_sockets, shared_admin_socket};

/// The volume of the shim's sockets; in the form of before, of all sockets of the pod.
const SHIM_SOCKETS: &str = "kms-sockets";
/// Where each sidecar has its files.
const FILES: &str = "/etc/sidekey";
/// Where kube-apiserver has its EncryptionConfiguration.
const ENCRYPTION: &str = "/etc/kubernetes/encryption";
/// The user of our images.
const UID: u64 = 65532;

/// kube-apiserver's file, and nothing beside it.
pub(super) fn configuration(facts: &Facts) -> Addition {
    Addition {
        volumes: vec![encryption(facts)],
        mounts: vec![read_only("kms-encryption", ENCRYPTION)],
        flags: vec![(CONFIG, format!("{ENCRYPTION}/encryption.yaml")), (RELOAD, "true".to_owned())],
        ..Addition::default()
    }
}

fn encryption(facts: &Facts) -> Value {
    files("kms-encryption", "sidekey-encryption-config", "kube-apiserver", facts)
}

pub(super) fn addition(
    vendors: &[String],
    minters: &[Minter],
    layout: SocketLayout,
    wanted: &Wanted,
    facts: &Facts,
) -> Addition {
    let head = files("kms-shim", "sidekey-shim", "shim", facts);
    let mut volumes = vec![sockets(SHIM_SOCKETS), encryption(facts), head];
    let mut mounts = vec![mount(SHIM_SOCKETS, SOCKETS)];
    let mut init_containers = Vec::new();
    let mut problems = Vec::new();
    // The last to start is the first to end: the shim before those that it needs.
    for vendor in vendors {
        let (mut container, own) = provider(vendor, &wanted.image(vendor), layout, facts);
        if layout == SocketLayout::Own {
            // It connects, and makes nothing there.
            mounts.push(read_only(&sockets_of(vendor), &provider_sockets(vendor)));
        }
        if let Some(minter) = minters.iter().find(|minter| minter.token.vendor == *vendor) {
            let mount = match facts.minted(vendor, minter.token.directory()) {
                // Who made the pod mints it already.
                Some(volume) => minter.mount_of(volume),
                None => {
                    init_containers.extend(self::minter(minter, &wanted.image("sidekey"), facts));
                    volumes.extend(minter.volumes());
                    minter.reader_mount()
                }
            };
            add_mount(&mut container, mount);
            problems.extend(facts.static_pod.then(|| {
                format!(
                    "a static pod has no Secrets and no account, so nothing mints the token of \
                     {vendor} there"
                )
            }));
        }
        init_containers.push(container);
        volumes.extend(own);
    }
    mounts.push(read_only("kms-shim", FILES));
    let listen = format!("{SOCKETS}/kms.sock");
    let args = [config(), format!("--listen=unix://{listen}")];
    let image = wanted.image("shim");
    init_containers.push(sidecar("sidekey-shim", &image, &args, &listen, &mounts, facts));
    let mut addition = configuration(facts);
    addition.mounts.insert(0, read_only(SHIM_SOCKETS, SOCKETS));
    Addition { init_containers, volumes, problems, ..addition }
}

/// What mints a token, if it is minted. No probe: it waits for the very API server that waits for
/// it to start.
pub(super) fn minter(minter: &Minter, image: &str, facts: &Facts) -> Option<Value> {
    let args = minter.args()?;
    Some(json!({
        "name": minter.name(),
        "restartPolicy": "Always",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "securityContext": security(facts),
        "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": minter.mounts(),
    }))
}

/// A vendor's sidecar, and the volumes that are its own.
pub(super) fn provider(
    vendor: &str,
    image: &str,
    layout: SocketLayout,
    facts: &Facts,
) -> (Value, Vec<Value>) {
    let (program, volume) = (format!("sidekey-{vendor}"), format!("kms-provider-{vendor}"));
    let head = files(&volume, &format!("sidekey-provider-{vendor}"), vendor, facts);
    let (admin, mut mounts, mut volumes) = match layout {
        SocketLayout::Own => {
            let (own, directory) = (sockets_of(vendor), provider_sockets(vendor));
            // Heads of before say the second one.
            let mounts = vec![mount(&own, &directory), mount(&own, SOCKETS)];
            (provider_admin_socket(vendor), mounts, vec![sockets(&own)])
        }
        SocketLayout::Shared => {
            (shared_admin_socket(vendor), vec![mount(SHIM_SOCKETS, SOCKETS)], Vec::new())
        }
    };
    let admin = admin.trim_start_matches("unix://");
    mounts.push(read_only(&volume, FILES));
    volumes.push(head);
    let args = [config(), format!("--admin-socket={admin}")];
    (sidecar(&program, image, &args, admin, &mounts, facts), volumes)
}

fn sockets(name: &str) -> Value {
    json!({"name": name, "emptyDir": {"medium": "Memory"}})
}

fn config() -> String {
    format!("--config={FILES}/config.yaml")
}

/// A head Secret, or the node's directory in its place. Whole: a swap of `..data` must be seen.
fn files(name: &str, secret: &str, directory: &str, facts: &Facts) -> Value {
    if facts.static_pod {
        let path = format!("{FILES}/{directory}");
        json!({"name": name, "hostPath": {"path": path, "type": "Directory"}})
    } else {
        json!({"name": name, "secret": {"secretName": secret}})
    }
}

fn sidecar(
    program: &str,
    image: &str,
    args: &[String],
    socket: &str,
    mounts: &[Value],
    facts: &Facts,
) -> Value {
    json!({
        "name": program,
        "restartPolicy": "Always",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "securityContext": security(facts),
        "startupProbe": startup_probe(program, socket),
        "livenessProbe": liveness_probe(program, socket),
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": mounts,
    })
}

/// Sockets are opened by their owner and by root: sidecars have the container's user, or, where
/// that is root, any other. A Deployment that names none gets one from its namespace.
fn security(facts: &Facts) -> Value {
    let mut context = json!({
        "runAsNonRoot": true,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let uid = match facts.uid {
        Some(0) => Some(UID),
        None if facts.static_pod => Some(UID),
        uid => uid,
    };
    if let Some(uid) = uid {
        context["runAsUser"] = uid.into();
    }
    if facts.static_pod {
        // The files' group.
        context["runAsGroup"] = UID.into();
    }
    context
}
