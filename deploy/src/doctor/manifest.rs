//! kube-apiserver's static manifest: the flags without which a rotation needs a restart.

use serde_json::Value;

use super::{Area, Findings, Options};
use crate::model::names;

const CONFIG: &str = "--encryption-provider-config";
const RELOAD: &str = "--encryption-provider-config-automatic-reload";

pub(super) fn examine(options: &Options, findings: &mut Findings) {
    // Elsewhere kube-apiserver is no static pod; that is no fault.
    let Ok(manifest) = sidekey_core::read_file(&options.manifest) else { return };
    let subject = options.manifest.display();
    let containers = manifest["spec"]["containers"].as_array().into_iter().flatten();
    let Some(server) = containers.into_iter().find(|one| one["name"] == "kube-apiserver") else {
        let fix = "name the manifest of kube-apiserver with --manifest";
        findings.warning(Area::Encryption, subject, "has no container kube-apiserver", fix);
        return;
    };
    if flag(server, CONFIG).is_none() {
        let text = format!("has no {CONFIG}: nothing is encrypted");
        let fix = "add the flags of `Standalone clusters`, or use `sidekey inject`";
        findings.problem(Area::Encryption, &subject, text, fix);
        return;
    }
    match flag(server, RELOAD).as_deref() {
        Some("true" | "") => findings.ok(Area::Encryption, &subject, "has the flags"),
        _ => findings.warning(
            Area::Encryption,
            &subject,
            format!("{RELOAD} is not true: a new EncryptionConfiguration needs a restart"),
            "set it to true",
        ),
    }
    let mounts = server["volumeMounts"].as_array().into_iter().flatten();
    let mut paths = mounts.filter_map(|mount| mount["mountPath"].as_str());
    let covers = |path: &str| names::SOCKETS == path.trim_end_matches('/') || path == "/var/run";
    if !paths.any(covers) {
        let text = format!("does not mount {}", names::SOCKETS);
        let fix = "mount the directory of sockets, or kube-apiserver cannot reach the shim";
        findings.problem(Area::Encryption, subject, text, fix);
    }
}

/// The value of a flag, in the command or in the arguments; empty if it has none.
fn flag(container: &Value, name: &str) -> Option<String> {
    let lists = [&container["command"], &container["args"]];
    let words = lists.into_iter().filter_map(|list| list.as_array()).flatten();
    words.filter_map(|word| word.as_str()).find_map(|word| {
        let rest = word.strip_prefix(name)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value.to_owned()),
            None => rest.is_empty().then(String::new),
        }
    })
}
