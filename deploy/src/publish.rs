//! Puts what was rendered where pods read it: into the heads of a cluster, or into directories of
//! a host.
//!
//! The order is what makes it safe. First the revision, which is history and changes nothing; then
//! the providers, so that a key is served before anybody asks for it; then the shim; then
//! kube-apiserver. Whoever is killed in between leaves every part whole, old or new, and the next
//! one goes on.
//!
//! It refuses what could make data unreadable: to let a key, a name or a resource go while
//! something may be stored with it, to give a number to another KEK, and to write with a key that
//! was not there to read before.

pub mod census;
pub mod check;
mod cluster;
pub mod directory;
pub mod live;
mod sockets;
pub mod view;

use std::collections::BTreeSet;

use kube::Client;
use serde::Serialize;

pub use census::Proof;
pub use directory::Directory;
pub use live::{Live, LivePart};
pub use view::View;

use crate::Error;
use crate::model::SecretEncryption;
use crate::render::{Created, Phase, Rendered, ResolvedFiles, render};

/// Where to.
#[derive(Clone)]
pub enum Target {
    /// A namespace of a cluster.
    Cluster {
        /// Of the cluster.
        client: Client,
        /// The control plane's.
        namespace: String,
    },
    /// Directories of a host, for static pods.
    Directory(Directory),
}

/// What may be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Revisions to keep.
    pub keep: usize,
    /// Numbers of keys, names and resources that may go though nothing proves them unused.
    pub drop: BTreeSet<String>,
    /// What was counted in etcd.
    pub proofs: Vec<Proof>,
    /// Take over fields that another manager has changed.
    pub force_conflicts: bool,
    /// Write a revision also if the heads hold just this: the newest one is of a change that was
    /// given up half done.
    pub anew: bool,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The revision that is live now.
    pub revision: u64,
    /// Whether anything was written.
    pub changed: bool,
    /// What was written, in order.
    pub written: Vec<String>,
    /// Revisions that were pruned.
    pub pruned: Vec<u64>,
    /// What somebody should know or do.
    pub notes: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keep: 10,
            drop: BTreeSet::new(),
            proofs: Vec::new(),
            force_conflicts: false,
            anew: false,
        }
    }
}

impl Target {
    /// What is there now.
    pub async fn live(&self, name: &str) -> Result<Live, Error> {
        match self {
            Self::Cluster { client, namespace } => cluster::live(client, namespace, name).await,
            Self::Directory(directory) => directory.live(),
        }
    }

    /// Publishes a revision that was rendered with the next number.
    async fn write(
        &self,
        live: &Live,
        rendered: &Rendered,
        options: &Options,
    ) -> Result<Outcome, Error> {
        let created = Created::now();
        match self {
            Self::Cluster { client, namespace } => {
                cluster::write(client, namespace, live, rendered, &created, options).await
            }
            Self::Directory(directory) => directory.write(live, rendered, &created, options),
        }
    }
}

/// Publishes `encryption` as the next revision; nothing is written if nothing has changed.
pub async fn publish(
    target: &Target,
    encryption: &SecretEncryption,
    files: &ResolvedFiles,
    phase: Phase,
    options: &Options,
) -> Result<Outcome, Error> {
    let _guard = match target {
        Target::Directory(directory) => Some(directory.lock()?),
        Target::Cluster { .. } => None,
    };
    let live = target.live(&encryption.name).await?;
    let draft = render(encryption, 0, files, phase)?;
    let mut notes = verify(&live, &draft, options)?;
    if let Some(revision) = live.holds(&draft).filter(|_| !options.anew) {
        let (written, pruned) = (Vec::new(), Vec::new());
        return Ok(Outcome { revision, changed: false, written, pruned, notes });
    }
    let rendered = render(encryption, live.next(&draft.digest), files, phase)?;
    let mut outcome = target.write(&live, &rendered, options).await?;
    notes.append(&mut outcome.notes);
    if let Target::Cluster { namespace, .. } = target {
        // Two who began at the same time may have written by turns: both must know.
        let after = target.live(&encryption.name).await?;
        if after.holds(&draft) != Some(rendered.revision) {
            return Err(Error::failed(format!(
                "somebody else published to {namespace} at the same time as revision {}",
                rendered.revision
            ))
            .hint("look with `sidekey diff`, and publish again: parts are whole, but not all of one revision"));
        }
    }
    for part in live.parts.keys().filter(|name| rendered.part(name).is_none()) {
        notes.push(format!(
            "{} is left as it is, credentials included: remove it when no pod mounts it",
            target.place(part)
        ));
    }
    outcome.notes = notes;
    Ok(outcome)
}

/// Refuses what is not safe; gives what somebody should know.
pub fn verify(live: &Live, draft: &Rendered, options: &Options) -> Result<Vec<String>, Error> {
    let new = View::of(draft)?;
    let mut notes = Vec::new();
    for old in live.views()? {
        for note in check::verify(&old, &new, options)? {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    Ok(notes)
}

impl Target {
    /// How people call the place of a part.
    pub fn place(&self, part: &crate::render::PartName) -> String {
        match self {
            Self::Cluster { namespace, .. } => format!("Secret {namespace}/{}", part.secret()),
            Self::Directory(directory) => {
                format!("directory {}", directory.path.join(part.directory()).display())
            }
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster { namespace, .. } => write!(f, "Cluster({namespace})"),
            Self::Directory(directory) => directory.fmt(f),
        }
    }
}
