//! What is said when everything is up.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde_json::json;
use sidekey_e2e::{binaries, local};

use crate::stack::Stack;

/// For people: what runs where, and what to try.
pub(crate) fn text(stack: &mut Stack, once: bool) -> Result<String> {
    let mut text = String::new();
    let milliseconds = stack.trial.took.as_secs_f64() * 1000.0;
    writeln!(
        text,
        "Sidekey is up: Status, Encrypt and Decrypt answered in {milliseconds:.1} ms.\n"
    )?;
    for (name, pid) in stack.pids() {
        writeln!(text, "  {name:<14}  pid {pid}")?;
    }
    let admin = stack.plugin.admin().address();
    writeln!(text, "  key_id          {}", stack.trial.key_id)?;
    writeln!(text, "  socket          {}", stack.plugin.endpoint())?;
    writeln!(text, "  admin           http://{admin}")?;
    let key_file = stack.plugin.key_file().display();
    writeln!(text, "  key file        {key_file} (kept for the next run)")?;
    writeln!(text, "\nFor kube-apiserver, in {}:\n", stack.encryption_file.display())?;
    for line in stack.encryption.to_string().lines() {
        writeln!(text, "    {line}")?;
    }
    if once {
        return Ok(text);
    }
    let program = binaries::path(local::PROGRAM)?;
    writeln!(text, "\nTry next:")?;
    writeln!(text, "  curl http://{admin}/status")?;
    writeln!(text, "  {} rotate --key-file {key_file} --activate", program.display())?;
    match stack.kubeconfig() {
        Some(path) => {
            let path = path.display();
            writeln!(
                text,
                "  kubectl --kubeconfig {path} create secret generic hello --from-literal=a=b"
            )?;
            writeln!(text, "  kubectl --kubeconfig {path} get --raw '/readyz?verbose'")?;
        }
        None => {
            let file = stack.encryption_file.display();
            writeln!(text, "  kube-apiserver --encryption-provider-config={file} ...")?;
            writeln!(text, "  cargo up -- --cluster")?;
        }
    }
    writeln!(text, "\nCtrl-C ends it.")?;
    Ok(text)
}

/// For programs: one line.
pub(crate) fn json(stack: &mut Stack) -> Result<String> {
    let pids: BTreeMap<String, u32> = stack.pids().into_iter().collect();
    let value = json!({
        "endpoint": stack.plugin.endpoint(),
        "socket": stack.plugin.socket(),
        "admin": format!("http://{}", stack.plugin.admin().address()),
        "keyFile": stack.plugin.key_file(),
        "keyId": stack.trial.key_id,
        "encryptionConfiguration": stack.encryption_file,
        "kubeconfig": stack.kubeconfig(),
        "pids": pids,
    });
    Ok(value.to_string())
}
