//! Puts sidecars into the manifests of API servers, and takes them out again.
//!
//! A Deployment, a StatefulSet, a DaemonSet or a Pod goes in, alone, in a list or among other
//! documents, and comes out with sidecars, volumes, mounts and flags. The text is changed in
//! places; everything else stays as it was, to the byte. What was added and replaced is noted in
//! an annotation of the pod, so that it can be taken out again, also after the manifest has been
//! through a cluster: injecting again takes out first what an earlier run put in.
//!
//! It refuses to guess: flags inside a shell's command or in a file are named, not edited; names
//! that are taken are not shared; a text that cannot be changed safely is not changed.
//!
//! The one invariant: **what comes out of taking out is what went in**.

mod add;
mod flags;
mod hosted;
mod input;
mod minter;
mod pods;
mod presence;
mod profiles;
mod record;
mod strip;
mod text;
mod vault;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{Error, VERSION};
pub use input::{Described, described, sidecars};
pub use minter::Minter;
pub use presence::{is_whole, shares_sockets, vendors_of};
pub use profiles::{
    AwsKms, AzureKms, HostedKms, IbmKms, ONE_DIRECTORY, Sidecars, SocketLayout, VaultPlugin,
};
pub use record::Profile;
use text::Draft;

/// What to put in.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The container that is to encrypt.
    pub container: String,
    /// The sidecars.
    pub sidecars: Sidecars,
    /// Images by name (`shim`, `vault`), where they are not our own of this version.
    pub images: BTreeMap<String, String>,
    /// Files come from directories of the node although the object is no Pod.
    pub static_pod: bool,
    /// Whether to set flags, where that can be done.
    pub flags: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Injected {
    /// The manifest.
    pub text: String,
    /// What was changed, and how.
    pub changes: Vec<Change>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// What was changed in one object.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Change {
    /// Kind and name.
    pub object: String,
    /// Containers that are there now, or that are gone.
    pub containers: Vec<String>,
    /// In which manner.
    pub profile: Profile,
}

impl Wanted {
    /// The image of a program of ours, or of the command itself.
    fn image(&self, name: &str) -> String {
        let prefix = if name == "sidekey" { "" } else { "sidekey-" };
        let ours = || format!("localhost/{prefix}{name}:{VERSION}");
        self.images.get(name).cloned().unwrap_or_else(ours)
    }
}

/// Puts sidecars into all objects of a text that have the container.
///
/// All mistakes are told at once, and nothing is changed if there is one.
pub fn inject(text: &str, wanted: &Wanted) -> Result<Injected, Error> {
    let draft = read(text)?;
    let targets = pods::with_container(&draft, &wanted.container)?;
    change_all(draft, targets, |draft, object, warnings| {
        let before = draft.at(&object.spec()).map(text::Node::value).unwrap_or_default();
        strip::strip(draft, object, &mut Vec::new())?;
        if presence::shares_sockets(&before, &BTreeSet::new()) {
            warnings.push(format!(
                "{object}: its sidecars had all sockets in one directory; now each has its own: \
                 publish with this version before this is applied"
            ));
        }
        add::add(draft, object, wanted, warnings).map(Some)
    })
}

/// Takes out what an earlier run has put in.
pub fn uninject(text: &str) -> Result<Injected, Error> {
    let draft = read(text)?;
    let targets = pods::all(&draft);
    change_all(draft, targets, strip::strip)
}

/// A short hash of what is put in: sidecars, images, volumes and flags. Two pods of one form are
/// alike in all that comes from here, whatever else is in them.
pub fn form(wanted: &Wanted) -> String {
    let add::Addition { init_containers, containers, volumes, mounts, flags, .. } =
        wanted.sidecars.addition(wanted, &add::Facts::default());
    let all = json!({
        "container": wanted.container, "initContainers": init_containers, "containers": containers,
        "volumes": volumes, "mounts": mounts, "flags": flags,
    });
    let mut hash = sidekey_core::hex(&sidekey_core::sha256(all.to_string().as_bytes()));
    hash.truncate(16);
    hash
}

/// The [`form`] that a pod with these annotations has; empty if it is not said, none if nothing
/// was put in.
pub fn form_of(annotations: &BTreeMap<String, String>) -> Option<String> {
    let text = annotations.get(record::ANNOTATION)?;
    let record: Option<record::Record> = serde_json::from_str(text).ok();
    Some(record.map(|record| record.form).unwrap_or_default())
}

/// The sidecar of a vendor's provider, and the volumes that it mounts: as it is put into pods of
/// kube-apiserver, for pods of its own.
pub(crate) fn provider(vendor: &str, image: &str) -> (Value, Vec<Value>) {
    profiles::provider(vendor, image)
}

/// The volume of a vendor's own sockets, as [`provider`] mounts it.
pub(crate) fn sockets_of(vendor: &str) -> String {
    profiles::sockets_of(vendor)
}

/// The sidecar that mints a token, if it is minted, and the volumes that it takes, as [`provider`]
/// has it. What the provider mounts of it is to be added there.
pub(crate) fn minter(minter: &Minter, image: &str) -> (Option<Value>, Vec<Value>) {
    profiles::minter(minter, image)
}

/// Mounts something more into a container.
pub(crate) fn add_mount(container: &mut Value, mount: Value) {
    if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        mounts.push(mount);
    }
}

/// Changes one object after the other; all mistakes are told at once.
fn change_all(
    mut draft: Draft,
    targets: Vec<pods::Object>,
    mut change: impl FnMut(
        &mut Draft,
        &pods::Object,
        &mut Vec<String>,
    ) -> Result<Option<Change>, Vec<String>>,
) -> Result<Injected, Error> {
    let mut injected = Injected { text: String::new(), changes: Vec::new(), warnings: Vec::new() };
    let mut problems = Vec::new();
    for object in &targets {
        match change(&mut draft, object, &mut injected.warnings) {
            Ok(change) => injected.changes.extend(change),
            Err(found) => {
                problems.extend(found.into_iter().map(|text| format!("{object}: {text}")))
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::usage(problems.join("\n")));
    }
    injected.text = draft.text().to_owned();
    Ok(injected)
}

fn read(text: &str) -> Result<Draft, Error> {
    Draft::read(text).map_err(Error::usage)
}
