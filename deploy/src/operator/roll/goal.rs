//! What pods are to be like.

use std::collections::BTreeMap;

use serde_json::Value;

use super::plane::{Member, Workload};
use crate::Error;
use crate::inject::{self, Profile, Sidecars, SocketLayout, Wanted};
use crate::model::SecretEncryption;

/// What pods are to be like.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// With these sidecars, and perhaps with idle ones.
    Sidecars(Box<Wish>),
    /// Without any.
    Bare,
}

/// The sidecars that are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) wanted: Wanted,
    pub(super) vendors: Vec<String>,
    form: String,
}

/// The sidecars that a SecretEncryption asks for.
pub(super) fn wanted(encryption: &SecretEncryption) -> Result<Wanted, Error> {
    let sidecars = inject::sidecars(encryption, Profile::Sidekey).map_err(|problems| {
        Error::usage(format!("SecretEncryption {} asks for no sidecars", encryption.name))
            .because(problems)
    })?;
    Ok(Wanted {
        container: encryption.spec.control_plane.container.clone(),
        sidecars,
        images: encryption.spec.images.clone(),
        static_pod: false,
        flags: true,
    })
}

impl Goal {
    pub(super) fn sidecars(encryption: &SecretEncryption) -> Result<Self, Error> {
        let wanted = wanted(encryption)?;
        let vendors = match &wanted.sidecars {
            Sidecars::Sidekey { vendors, .. } => vendors.clone(),
            _ => Vec::new(),
        };
        let form = inject::form(&wanted);
        Ok(Self::Sidecars(Box::new(Wish { wanted, vendors, form })))
    }

    pub(super) fn fits_template(&self, workload: &Workload) -> bool {
        self.fits(&workload.annotations(), workload.pod_spec())
    }

    /// Why a pod is not as it should be, if it is not.
    pub(super) fn misfit(&self, pod: &Member) -> Option<String> {
        let annotations = pod.annotations();
        if self.fits(&annotations, pod.spec()) {
            return None;
        }
        let what = match (self, inject::form_of(&annotations)) {
            (Self::Bare, _) => "still has sidecars",
            (Self::Sidecars(_), None) => "has no sidecars yet",
            (Self::Sidecars(_), Some(_)) => "has other sidecars than it should",
        };
        Some(format!("{} {what}", pod.title()))
    }

    /// The same of a pod whose sidecars others put in, in whatever form. If it says what is in
    /// it, then no provider may be missing; else the shims themselves say whom they reach.
    pub(super) fn lacks(&self, pod: &Member) -> Option<String> {
        let title = pod.title();
        let Self::Sidecars(wish) = self else {
            return pod.has_shim().then(|| format!("{title} still has sidecars"));
        };
        let add = "injection is None, so somebody else is to add it";
        if !pod.has_shim() {
            return Some(format!(
                "{title} has no container {}: {add}",
                crate::fleet::SHIM_CONTAINER
            ));
        }
        let annotations = pod.annotations();
        inject::form_of(&annotations)?;
        let there = inject::vendors_of(&annotations);
        let missing = wish.vendors.iter().find(|vendor| !there.contains(vendor))?;
        Some(format!("{title} has no container sidekey-{missing}: {add}"))
    }

    fn fits(&self, annotations: &BTreeMap<String, String>, spec: &Value) -> bool {
        let form = inject::form_of(annotations);
        match (self, form) {
            (Self::Bare, form) => form.is_none(),
            (Self::Sidecars(_), None) => false,
            (Self::Sidecars(wish), Some(form)) => {
                wish.takes(&form, annotations, spec) && inject::is_whole(annotations, spec)
            }
        }
    }
}

impl Wish {
    /// Whether a form is the wanted one, or would be if the vendors that are there besides were
    /// wanted too. Their images are those of now, or those that they were put in with.
    fn takes(&self, form: &str, annotations: &BTreeMap<String, String>, spec: &Value) -> bool {
        if form == self.form {
            return true;
        }
        let mut vendors = inject::vendors_of(annotations);
        vendors.retain(|vendor| !self.vendors.contains(vendor));
        if vendors.is_empty() {
            return false;
        }
        let mut more = self.wanted.clone();
        let idle = vendors.clone();
        vendors.extend(self.vendors.iter().cloned());
        vendors.sort_unstable();
        match &mut more.sidecars {
            Sidecars::Sidekey { vendors: all, .. } => *all = vendors,
            other => {
                *other =
                    Sidecars::Sidekey { vendors, minters: Vec::new(), layout: SocketLayout::Own };
            }
        }
        if inject::form(&more) == form {
            return true;
        }
        for vendor in idle {
            let image = image(spec, &format!("sidekey-{vendor}"));
            more.images.extend(image.map(|image| (vendor, image)));
        }
        inject::form(&more) == form
    }
}

fn image(spec: &Value, container: &str) -> Option<String> {
    let mut containers = spec["initContainers"].as_array().into_iter().flatten();
    let found = containers.find(|item| item["name"] == container)?;
    found["image"].as_str().map(str::to_owned)
}
