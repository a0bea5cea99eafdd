//! Which revision is in use, and whether all say the same.

use super::documents::Document;
use super::sockets::Seen;
use super::{Area, Findings};
use crate::fleet::{Fleet, Wanted};

/// The heads on this host, and what runs.
pub(super) fn compare(documents: &[Document], seen: &Seen, findings: &mut Findings) {
    for document in documents.iter().filter(|document| !document.is_encryption()) {
        let Some((loaded, refused)) = seen.loaded.get(&document.part) else { continue };
        let (Some(head), subject) = (document.revision(), &document.part) else { continue };
        let now = loaded.as_deref().unwrap_or("none");
        if now == head {
            findings.ok(Area::Revision, subject, format!("revision {head} is in use"));
            continue;
        }
        let why = refused.as_ref().map_or(String::new(), |why| format!(": {why}"));
        let text = format!("revision {now} is in use, {head} is published{why}");
        let fix = "a fresh one is taken within seconds; if it is refused, mend what it names";
        findings.problem(Area::Revision, subject, text, fix);
    }
}

/// All replicas of a cluster.
pub(super) async fn observe(fleet: &Fleet, wanted: &Wanted, findings: &mut Findings) {
    let observed = match fleet.observe().await {
        Ok(observed) => observed,
        Err(error) => {
            let fix = error.advice().unwrap_or("check the kubeconfig and the namespace").to_owned();
            findings.problem(Area::Network, "the cluster", error.report(), &fix);
            return;
        }
    };
    let judged = observed.judge(wanted);
    for text in &judged.wrong {
        let fix = "`sidekey status` shows every replica; see the log of the one that is named";
        findings.problem(Area::Key, "the replicas", text, fix);
    }
    for text in &judged.silent {
        let fix = "does its pod run, and may the kubeconfig's user forward ports?";
        findings.problem(Area::Network, "the replicas", text, fix);
    }
    if judged.is_empty() {
        let (shims, servers) = (observed.shims.len(), observed.servers.len());
        let text = format!("{shims} shims and {servers} kube-apiservers agree");
        findings.ok(Area::Key, "the replicas", text);
    }
}
