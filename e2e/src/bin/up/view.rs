//! What is said when everything is up.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde_json::json;
use sidekey_e2e::cluster::POD_IMAGE;
use sidekey_e2e::{binaries, local};

use crate::show::Rotation;
use crate::stack::Stack;

/// For people: what runs where.
pub(crate) fn text(stack: &mut Stack) -> Result<String> {
    let mut text = String::new();
    let milliseconds = stack.trial.took.as_secs_f64() * 1000.0;
    writeln!(text, "Sidekey is up: Status, Encrypt and Decrypt answered in {milliseconds:.1} ms.")?;
    if let Some(cluster) = &stack.cluster {
        let what = if cluster.node().is_some() { "cluster" } else { "kube-apiserver" };
        writeln!(text, "{what} up in {:.1} s", cluster.took().as_secs_f64())?;
    }
    writeln!(text)?;
    for (name, pid) in stack.pids() {
        writeln!(text, "  {name:<14}  pid {pid}")?;
    }
    writeln!(text, "  key_id          {}", stack.trial.key_id)?;
    writeln!(text, "  socket          {}", stack.files.endpoint())?;
    writeln!(text, "  status page     {}/", stack.shim.admin_url())?;
    writeln!(text, "  shim admin      {}", stack.shim.admin_url())?;
    writeln!(text, "  provider admin  {}", stack.provider.admin_url())?;
    writeln!(text, "  shim config     {}", stack.files.shim().display())?;
    writeln!(text, "  provider config {}", stack.files.provider().display())?;
    writeln!(text, "\nFor kube-apiserver, in {}:\n", stack.encryption_file.display())?;
    for line in stack.encryption.to_string().lines() {
        writeln!(text, "    {line}")?;
    }
    Ok(text)
}

/// For people: what to try while it runs.
pub(crate) fn next(stack: &Stack) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "\nTry next:")?;
    writeln!(text, "  curl {}/status", stack.shim.admin_url())?;
    match stack.kubeconfig() {
        Some(path) => {
            let kubectl = format!("kubectl --kubeconfig {}", path.display());
            writeln!(text, "  {kubectl} create secret generic hello --from-literal=a=b")?;
            writeln!(text, "  {kubectl} get --raw '/readyz?verbose'")?;
            writeln!(text, "{}", node(stack, &kubectl))?;
        }
        None => {
            let file = stack.encryption_file.display();
            writeln!(text, "  kube-apiserver --encryption-provider-config={file} ...")?;
            writeln!(text, "  cargo up -- --apiserver")?;
            writeln!(text, "  cargo up -- --cluster   # as root")?;
        }
    }
    let (files, key) = (&stack.files, stack.files.next_key()?);
    let (file, provider, shim) = (files.key(key), files.provider(), files.shim());
    let (shim, program) = (shim.display(), binaries::path(local::PROGRAM)?);
    let endpoint = files.provider_line(key);
    writeln!(text, "\nTo rotate to key {key} while it runs:")?;
    writeln!(text, "  {} create --key-file {}", program.display(), file.display())?;
    writeln!(text, "  echo '{endpoint}' >> {}", provider.display())?;
    let line = files.shim_line(key, "read", None);
    writeln!(text, "  echo '{line}' >> {shim}")?;
    writeln!(text, "and when the status page shows the key as healthy:")?;
    writeln!(
        text,
        "  sed -i 's/role: write,/role: read,/; s/{{id: {key}, role: read,/{{id: {key}, role: write,/' {shim}"
    )?;
    writeln!(text, "\nKeys and configurations stay for the next run. Ctrl-C ends this one.")?;
    Ok(text)
}

/// What can be done with a node, or how to get one.
fn node(stack: &Stack, kubectl: &str) -> String {
    let Some(pid) = stack.node() else { return "  cargo up -- --cluster   # as root".to_owned() };
    let enter = format!("nsenter --target {pid} --net --mount --pid");
    let load = "ctr -n k8s.io images import ARCHIVE   # then imagePullPolicy: Never";
    let run = format!("run hello --image {POD_IMAGE} --image-pull-policy Never -- serve :8080");
    format!("  {kubectl} {run}\n  {kubectl} get pods -A -o wide\n  {enter} {load}")
}

/// For programs: one line.
pub(crate) fn json(stack: &mut Stack, rotation: Option<&Rotation>) -> Result<String> {
    let pids: BTreeMap<String, u32> = stack.pids().into_iter().collect();
    let value = json!({
        "endpoint": stack.files.endpoint(),
        "socket": stack.files.socket(),
        "keyId": stack.trial.key_id,
        "admin": stack.shim.admin_url(),
        "statusPage": format!("{}/", stack.shim.admin_url()),
        "providerAdmin": stack.provider.admin_url(),
        "shimConfig": stack.files.shim(),
        "providerConfig": stack.files.provider(),
        "encryptionConfiguration": stack.encryption_file,
        "kubeconfig": stack.kubeconfig(),
        "clusterSeconds": stack.cluster.as_ref().map(|cluster| cluster.took().as_secs_f64()),
        "node": stack.node(),
        "rotation": rotation,
        "pids": pids,
    });
    Ok(value.to_string())
}
