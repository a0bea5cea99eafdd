//! The three manners of running sidecars.

mod hypershift;
mod hypershift_vendors;
mod openshift;
mod sidekey;

use serde_json::{Value, json};

use super::Wanted;
use super::add::{Addition, Facts};
use super::minter::Minter;
use super::record::Profile;
pub use hypershift::{AwsKms, AzureKms, HostedKms, IbmKms};
pub use openshift::VaultPlugin;

/// Sidecars, in one of the profiles.
#[derive(Clone, Debug)]
pub enum Sidecars {
    /// The shim, and a sidecar for each of these vendors.
    Sidekey {
        /// Names of providers: `vault`, `aws`.
        vendors: Vec<String>,
        /// What mints tokens for them; those of other vendors are not put in.
        minters: Vec<Minter>,
        /// Where providers have their sockets.
        layout: SocketLayout,
    },
    /// None: kube-apiserver holds its keys itself, and only gets its file.
    Configuration,
    /// One for each key.
    OpenShift {
        /// The keys.
        plugins: Vec<VaultPlugin>,
        /// The revisioned Secret, where the pod is not one of the node's own.
        secret: Option<String>,
    },
    /// An active one, and perhaps a backup.
    HyperShift {
        /// The keys.
        kms: HostedKms,
        /// What mints the tokens that the sidecars log in with, if nobody else does.
        minter: Option<String>,
    },
}

/// What is to be known of the layouts of others.
pub const ONE_DIRECTORY: &str = "this layout has the sockets of all sidecars in one directory, and each \
    of them can put its own in the place of another's; the profile sidekey keeps them apart";

/// Where providers have their sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLayout {
    /// Each in a directory of its own, which the shim can only read.
    #[default]
    Own,
    /// All in one, with the shim's, as pods were made before: for heads that know no other.
    Shared,
}

impl Sidecars {
    /// Whose manner this is.
    pub fn profile(&self) -> Profile {
        match self {
            Self::Sidekey { .. } | Self::Configuration => Profile::Sidekey,
            Self::OpenShift { .. } => Profile::OpenShift,
            Self::HyperShift { .. } => Profile::HyperShift,
        }
    }

    pub(super) fn addition(&self, wanted: &Wanted, facts: &Facts) -> Addition {
        match self {
            Self::Sidekey { vendors, minters, layout } => {
                sidekey::addition(vendors, minters, *layout, wanted, facts)
            }
            Self::Configuration => sidekey::configuration(facts),
            Self::OpenShift { plugins, secret } => {
                openshift::addition(plugins, secret.as_deref(), wanted, facts)
            }
            Self::HyperShift { kms, minter } => {
                hypershift::addition(kms, minter.as_deref(), wanted, facts)
            }
        }
    }
}

/// A vendor's sidecar and the volumes that it mounts: its sockets are in one of its own.
pub(super) fn provider(vendor: &str, image: &str) -> (Value, Vec<Value>) {
    sidekey::provider(vendor, image, SocketLayout::Own, &Facts::default())
}

/// The volume of a vendor's own sockets, for whoever may reach them.
pub(super) fn sockets_of(vendor: &str) -> String {
    format!("kms-sockets-{vendor}")
}

/// What mints a token, if it is minted, and the volumes that it takes.
pub(super) fn minter(minter: &Minter, image: &str) -> (Option<Value>, Vec<Value>) {
    (sidekey::minter(minter, image, &Facts::default()), minter.volumes())
}

/// Asks whether a program listens, nothing more: a KMS that is away is no reason to restart.
fn startup_probe(program: &str, socket: &str) -> Value {
    let mut probe = listens(program, socket);
    probe["periodSeconds"] = 1.into();
    probe["failureThreshold"] = 60.into();
    probe
}

fn liveness_probe(program: &str, socket: &str) -> Value {
    let mut probe = listens(program, socket);
    probe["periodSeconds"] = 10.into();
    probe["failureThreshold"] = 6.into();
    probe
}

fn listens(program: &str, socket: &str) -> Value {
    let command = json!([format!("/{program}"), "probe", format!("--socket=unix://{socket}")]);
    json!({"exec": {"command": command}, "timeoutSeconds": 5})
}

fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path})
}

fn read_only(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path, "readOnly": true})
}
