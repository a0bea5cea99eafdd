//! What describes the sidecars: a SecretEncryption, or a HostedCluster.

use std::collections::BTreeMap;

use serde_json::Value;
use sidekey_core::config::{Problems, document};

use super::minter::Minter;
use super::profiles::{AwsKms, HostedKms, Sidecars, SocketLayout};
use super::record::Profile;
use super::{hosted, vault};
use crate::Error;
use crate::model::{Key, Placement, Role, SecretEncryption};

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
            Ok(Sidecars::HyperShift { kms: HostedKms::Aws(aws(&spec.keys)?), minter: None })
        }
    }
}

/// HyperShift's containers have a key of AWS each, by role.
fn aws(keys: &[Key]) -> Result<AwsKms, Problems> {
    let mut problems = Problems::default();
    let (mut active, mut backup, mut region) = (None, None, None);
    for (index, key) in keys.iter().enumerate() {
        problems.within(&format!("spec.keys[{index}]"), |problems| {
            if key.vendor != "aws" {
                problems.add("type", "only aws has a place in HyperShift's sidecars by this file");
                return;
            }
            let Some(arn) = key.kek["key"].as_str().filter(|arn| arn.starts_with("arn:")) else {
                problems.add("kek.key", "must be an ARN");
                return;
            };
            let there = match &key.kek["region"] {
                Value::String(region) => Some(region.clone()),
                _ => arn.split(':').nth(3).map(str::to_owned),
            };
            if region.is_some() && region != there {
                problems.add("kek.region", "must be that of the other key");
            }
            region = there;
            let place = if key.role == Role::Write { &mut active } else { &mut backup };
            if place.replace(arn.to_owned()).is_some() {
                problems
                    .add("role", "HyperShift has one key that reads, besides the one that writes");
            }
        });
    }
    let keys = active.zip(region).map(|(active, region)| AwsKms { active, backup, region });
    if keys.is_none() {
        problems.add("spec.keys", "there is no key that writes");
    }
    problems.into_result(keys)
}
