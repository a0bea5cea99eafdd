//! Sockets: there, listening, speaking KMS v2, and closed to everybody else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use sidekey_core::proto::v2::StatusRequest;
use sidekey_core::{Endpoint, KeyId, client};

use super::documents::Document;
use super::{Area, Findings, Options};
use crate::fleet::{Address, Fleet};

/// What sockets told.
#[derive(Default)]
pub(super) struct Seen {
    /// key_id hashes by endpoint.
    pub(super) hashes: BTreeMap<String, String>,
    /// Revisions in use, and why a newer one is not, by the part that told it.
    pub(super) loaded: BTreeMap<String, (Option<String>, Option<String>)>,
}

pub(super) async fn examine(
    documents: &[Document],
    options: &Options,
    findings: &mut Findings,
) -> Seen {
    let mut seen = Seen::default();
    directory(&options.socket_dir, findings);
    for endpoint in endpoints(documents, options) {
        if !file(&endpoint, findings) {
            continue;
        }
        if endpoint.to_string().ends_with("admin.sock") {
            admin(&endpoint, options, findings, &mut seen).await;
        } else {
            plugin(&endpoint, options, findings, &mut seen).await;
        }
    }
    let shim = documents.iter().find(|document| document.is_shim());
    let admin = shim.and_then(|shim| shim.value["admin"].as_str());
    if let Some(address) = admin {
        let address = Address::parse(&format!("http://{address}"), &Default::default());
        if let Ok(address) = address {
            ask_shim(address, options, findings, &mut seen).await;
        }
    }
    seen
}

fn directory(path: &Path, findings: &mut Findings) {
    let subject = path.display();
    match fs::metadata(path) {
        Err(error) => findings.problem(
            Area::Socket,
            subject,
            format!("cannot be looked at: {error}"),
            "make it with mode 0750 for the sidecars' user (65532): see `Standalone clusters`",
        ),
        Ok(found) if !found.is_dir() => {
            findings.problem(
                Area::Socket,
                subject,
                "is no directory",
                "remove it and make it anew",
            );
        }
        Ok(found) => {
            let mode = found.permissions().mode() & 0o7777;
            if mode & 0o007 != 0 {
                let text = format!("mode {mode:04o}: every user of the node may look into it");
                findings.warning(Area::Socket, subject, text, "chmod 0750");
            } else {
                let (uid, gid) = (found.uid(), found.gid());
                findings.ok(Area::Socket, subject, format!("mode {mode:04o}, {uid}:{gid}"));
            }
        }
    }
}

/// Those in the directory, and those that files name.
fn endpoints(documents: &[Document], options: &Options) -> BTreeSet<Endpoint> {
    let entries = fs::read_dir(&options.socket_dir).into_iter().flatten().flatten();
    let here = entries.map(|entry| entry.path());
    let here = here.filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
    let mut endpoints: BTreeSet<Endpoint> = here.map(Endpoint::Path).collect();
    for document in documents {
        for text in document.texts(|text| text.starts_with("unix://")) {
            let Ok(endpoint) = text.parse::<Endpoint>() else { continue };
            endpoints.insert(on_host(endpoint, options));
        }
    }
    endpoints
}

/// Pods have the directory under its usual name, whatever it is called here.
pub(super) fn on_host(endpoint: Endpoint, options: &Options) -> Endpoint {
    let inside =
        endpoint.path().and_then(|path| path.strip_prefix(crate::model::names::SOCKETS).ok());
    match inside {
        Some(name) => Endpoint::Path(options.socket_dir.join(name)),
        None => endpoint,
    }
}

/// Whether there is a socket to ask.
fn file(endpoint: &Endpoint, findings: &mut Findings) -> bool {
    let Some(path) = endpoint.path() else { return true };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) => {
            let fix = "is its process running, and is the directory mounted there? see its log";
            findings.problem(Area::Socket, endpoint, format!("is not there: {error}"), fix);
            return false;
        }
    };
    if !found.file_type().is_socket() {
        let fix = "remove it: whoever should listen there cannot";
        findings.problem(Area::Socket, endpoint, "is no socket", fix);
        return false;
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        let text = format!("mode {mode:04o}: every user of the node may connect");
        findings.warning(Area::Socket, endpoint, text, "set `socket.mode: \"0660\"`");
    }
    true
}

/// Connects, and says who is there.
async fn connected(endpoint: &Endpoint, options: &Options, findings: &mut Findings) -> bool {
    let connected = tokio::time::timeout(options.timeout, endpoint.connect()).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let fix = "nobody listens there: is the process running, and may you connect?";
            findings.problem(Area::Socket, endpoint, format!("cannot connect: {error}"), fix);
            return false;
        }
        Err(_) => {
            let fix = "whoever listens there hangs: see its log, restart it";
            findings.problem(Area::Socket, endpoint, "takes no connection", fix);
            return false;
        }
    };
    let owner = endpoint.path().and_then(|path| Some(fs::metadata(path).ok()?.uid()));
    let peer = socket_peercred(&stream).ok().map(|peer| peer.uid.as_raw());
    let strangers = owner.zip(peer).filter(|(owner, peer)| owner != peer);
    if let Some((owner, peer)) = strangers {
        let text = format!("belongs to uid {owner}, but uid {peer} listens");
        let fix = "find out who listens there: ss -xlp";
        findings.warning(Area::Socket, endpoint, text, fix);
    }
    true
}

async fn plugin(endpoint: &Endpoint, options: &Options, findings: &mut Findings, seen: &mut Seen) {
    if !connected(endpoint, options, findings).await {
        return;
    }
    let asked = async {
        let mut client = client::connect(endpoint).await.map_err(|error| error.to_string())?;
        let answer = client
            .status(StatusRequest {})
            .await
            .map_err(|status| format!("Status is {:?}: {}", status.code(), status.message()))?;
        let answer = answer.into_inner();
        if !matches!(answer.version.as_str(), "v2" | "v2beta1") {
            return Err(format!("speaks {:?}, not KMS v2", answer.version));
        }
        if answer.healthz != "ok" {
            return Err(format!("healthz is {:?}", answer.healthz));
        }
        KeyId::new(&answer.key_id).map_err(|error| error.report())
    };
    match tokio::time::timeout(options.timeout, asked).await {
        Ok(Ok(key_id)) => {
            let hash = key_id.hash();
            findings.ok(Area::Key, endpoint, format!("Status is ok, key_id {hash}"));
            seen.hashes.insert(endpoint.to_string(), hash);
        }
        Ok(Err(text)) => {
            let fix =
                "its log and `/status` of its admin socket say more; see the provider's README";
            findings.problem(Area::Key, endpoint, text, fix);
        }
        Err(_) => {
            let fix = "whoever listens there hangs: see its log, restart it";
            findings.problem(Area::Key, endpoint, "does not answer Status", fix);
        }
    }
}

async fn admin(endpoint: &Endpoint, options: &Options, findings: &mut Findings, seen: &mut Seen) {
    if !connected(endpoint, options, findings).await {
        return;
    }
    let name = endpoint.path().and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
    let address = Address::Unix(endpoint.clone());
    if name.contains("shim") {
        return ask_shim(address, options, findings, seen).await;
    }
    let fleet = Fleet::new().timeout(options.timeout).provider(address);
    let Ok(observed) = fleet.observe().await else { return };
    let judged = observed.judge(&Default::default());
    report(endpoint.to_string(), judged, findings);
    for status in observed.providers.iter().filter_map(|provider| provider.status.as_ref()) {
        let refused = status.config.refused.as_ref().map(|refusal| refusal.error.clone());
        seen.loaded.insert(status.provider.clone(), (status.config.revision.clone(), refused));
    }
}

async fn ask_shim(address: Address, options: &Options, findings: &mut Findings, seen: &mut Seen) {
    let subject = address.to_string();
    let fleet = Fleet::new().timeout(options.timeout).shim(address);
    let Ok(observed) = fleet.observe().await else { return };
    report(subject, observed.judge(&Default::default()), findings);
    for status in observed.shims.iter().filter_map(|shim| shim.status.as_ref()) {
        let refused = status.config.refused.as_ref().map(|refusal| refusal.error.clone());
        seen.loaded.insert("shim".to_owned(), (status.revision.clone(), refused));
    }
}

fn report(subject: String, judged: crate::fleet::Findings, findings: &mut Findings) {
    if judged.is_empty() {
        findings.ok(Area::Key, subject, "all keys can be used");
        return;
    }
    for text in judged.wrong.into_iter().chain(judged.silent) {
        let fix = "see its log, and the KMS that it names";
        findings.problem(Area::Key, &subject, text, fix);
    }
}
