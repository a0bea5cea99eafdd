//! The image of a KMS plugin that another operator runs, exchanged for ours: nothing else.
//!
//! In native mode HyperShift's own operator drives, and our images stand in for those of its
//! sidecars. For AWS and IBM it takes the image from an annotation of the HostedCluster; the image of
//! Azure's plugin comes from the release payload, and nothing but the pod itself can be changed.
//!
//! What is put in holds the keys of a control plane, so nobody but who runs the operator says which
//! image that is: no pod, no HostedCluster, no namespace names one. It is pinned by its digest, or it
//! is on the list of `--image`.
//!
//! **Ignore, not Fail.** Both images take the same flags, and the payload's reads what ours wrote: a
//! control plane that is started while no operator answers runs with the image of the payload. For
//! that ours must write the payload's format. Azure's plugin has had two, of which each release reads
//! one: the namespace's label says which ([`Format`]).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::decide::{Decision, MIRROR};
use crate::Error;

/// The setting.
pub(crate) const FLAG: &str = "--native-image";

/// A plugin as HyperShift runs it.
struct Native {
    /// Whose.
    vendor: &'static str,
    /// The containers.
    containers: [&'static str; 2],
    /// The first of its arguments: another program under such a name stays as it is.
    argument: &'static str,
}

/// Plugins whose image nothing but a webhook can exchange.
const NATIVES: [Native; 1] = [Native {
    vendor: "azure",
    containers: ["azure-kms-provider-active", "azure-kms-provider-backup"],
    argument: "--keyvault-name=",
}];

/// Who can have another image without a webhook, and how.
const ANNOTATIONS: [(&str, &str); 2] = [
    ("aws", "hypershift.openshift.io/aws-kms-provider-image"),
    ("ibmcloud", "hypershift.openshift.io/ibmcloud-kms-provider-image"),
];

/// What the payload's own plugin reads, and so what ours has to write in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// That of OpenShift 4.19 and newer, which our image writes where HyperShift's sockets are.
    Binary,
    /// That of OpenShift up to 4.18.
    Text,
}

impl Format {
    /// The argument without which our image writes another one.
    fn argument(self) -> Option<&'static str> {
        match self {
            Self::Binary => None,
            Self::Text => Some("--format=text"),
        }
    }
}

/// The images that plugins are to have, by vendor. None: pods stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeImages(BTreeMap<String, String>);

impl NativeImages {
    /// What the command line says, where `listed` are the images that it names elsewhere.
    pub(crate) fn new(
        wanted: &[(String, String)],
        listed: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let mut images = BTreeMap::new();
        for (vendor, image) in wanted {
            if let Some((_, annotation)) = ANNOTATIONS.iter().find(|(name, _)| name == vendor) {
                let hint = format!("set the annotation {annotation} on the HostedCluster");
                return Err(Error::usage(format!(
                    "{FLAG}: HyperShift has its own way for {vendor}"
                ))
                .hint(hint));
            }
            if !NATIVES.iter().any(|native| native.vendor == vendor) {
                let known: Vec<_> = NATIVES.iter().map(|native| native.vendor).collect();
                let text = format!("{FLAG}: {vendor:?} is not one of {}", known.join(", "));
                return Err(Error::usage(text));
            }
            if !has_digest(image) && listed.get(vendor) != Some(image) {
                let text = format!("{FLAG}: {image} has no digest, and a tag may move");
                let hint = format!(
                    "write {vendor}=REPOSITORY@sha256:…, or name the same image by --image too"
                );
                return Err(Error::usage(text).hint(hint));
            }
            images.insert(vendor.clone(), image.clone());
        }
        Ok(Self(images))
    }

    /// What becomes of a pod.
    pub(super) fn decide(&self, pod: &Value, format: Format) -> Decision {
        if !pod["metadata"]["annotations"][MIRROR].is_null() {
            return Decision::Untouched;
        }
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let (mut patch, mut warnings) = (Vec::new(), Vec::new());
        for (index, container) in containers.enumerate() {
            let Some(image) = self.image_for(container) else { continue };
            if container["image"] == image {
                continue;
            }
            if !takes_arguments(container) {
                let name = container["name"].as_str().unwrap_or_default();
                warnings
                    .push(format!("container {name} has a command of its own: its image stays"));
                continue;
            }
            let path = format!("/spec/containers/{index}/image");
            patch.push(json!({"op": "replace", "path": path, "value": image}));
            if let Some(argument) = format.argument() {
                let path = format!("/spec/containers/{index}/args/-");
                patch.push(json!({"op": "add", "path": path, "value": argument}));
            }
        }
        match patch.is_empty() && warnings.is_empty() {
            true => Decision::Untouched,
            false => Decision::Changed { patch: patch.into(), warnings },
        }
    }

    /// The image that a container is to have.
    fn image_for(&self, container: &Value) -> Option<&str> {
        let name = container["name"].as_str()?;
        let native = NATIVES.iter().find(|native| native.containers.contains(&name))?;
        let first = container["args"][0].as_str()?;
        let image = self.0.get(native.vendor)?;
        first.starts_with(native.argument).then_some(image)
    }
}

/// Whether the image's own entry point runs: another image has another program.
fn takes_arguments(container: &Value) -> bool {
    container["command"].as_array().is_none_or(Vec::is_empty)
}

/// Whether an image is named by what is in it.
fn has_digest(image: &str) -> bool {
    image.split_once("@sha256:").is_some_and(|(name, digest)| {
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        !name.is_empty() && digest.len() == 64 && digest.bytes().all(hex)
    })
}
