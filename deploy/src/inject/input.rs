//! What describes the sidecars: a SecretEncryption, or a HostedCluster.

use std::collections::BTreeMap;

use sidekey_core::config::{Problems, document};

use super::minter::Minter;
use super::profiles::{Sidecars, SocketLayout};
use super::record::Profile;
use super::{hosted, vault};
use crate::Error;
use crate::model::{Placement, SecretEncryption};

/// What a description asks for.
#[derive(Clone, Debug)]
pub struct Described {
    /// The sidecars.
    pub sidecars: Sidecars,
    /// The container that is to encrypt.
    pub container: String,
    /// Images by name.
    pub images: BTreeMap<String, String>,
}

/// Reads a description; all mistakes at once. `name` is the file's, for them.
pub fn described(text: &str, profile: Profile, name: &str) -> Result<Described, Error> {
    let wrong = |problems: Problems| Error::usage(name).because(problems);
    let document = document(text).map_err(wrong)?;
    match document["kind"].as_str() {
        Some("HostedCluster" | "HostedControlPlane") if profile == Profile::HyperShift => {
            let kms = hosted::read(&document).map_err(wrong)?;
            Ok(Described {
                sidecars: Sidecars::HyperShift { kms, minter: None },
                container: "kube-apiserver".to_owned(),
                images: BTreeMap::new(),
            })
        }
        Some(kind @ ("HostedCluster" | "HostedControlPlane")) => {
            Err(Error::usage(format!("{name}: a {kind} describes HyperShift's sidecars"))
                .hint("use --profile hypershift, or a SecretEncryption"))
        }
        _ => {
            let encryption = SecretEncryption::from_document(&document).map_err(wrong)?;
            let sidecars = sidecars(&encryption, profile).map_err(wrong)?;
            Ok(Described {
                sidecars,
                container: encryption.spec.control_plane.container.clone(),
                images: encryption.spec.images,
            })
        }
    }
}

/// What a SecretEncryption asks for, in a profile.
pub fn sidecars(encryption: &SecretEncryption, profile: Profile) -> Result<Sidecars, Problems> {
    let spec = &encryption.spec;
    match profile {
        Profile::Sidekey if spec.keys.is_empty() => Ok(Sidecars::Configuration),
        Profile::Sidekey => {
            let proxied = spec.placement == Placement::Proxy;
            let vendors = encryption.vendors();
            let vendors = vendors.into_iter().filter(|_| !proxied).map(str::to_owned).collect();
            let minters = spec.tokens.iter().map(|token| Minter {
                token: token.clone(),
                kubeconfig: spec.control_plane.local_kubeconfig.clone(),
                server: None,
            });
            Ok(Sidecars::Sidekey { vendors, minters: minters.collect(), layout: SocketLayout::Own })
        }
        Profile::OpenShift => {
            let plugins = vault::plugins(&spec.keys)?;
            Ok(Sidecars::OpenShift { plugins, secret: None })
        }
        Profile::HyperShift => {
            Ok(Sidecars::HyperShift { kms: hosted::of_keys(&spec.keys)?, minter: None })
        }
    }
}
