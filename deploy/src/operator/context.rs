//! What every pass of a reconciler needs.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube::runtime::events::Recorder;

use super::metrics::Metrics;
use super::quiet::Quiet;
use super::webhook::NativeImages;
use crate::model::SecretEncryption;

/// Shared by every pass of every reconciler.
#[derive(Clone)]
pub struct Context {
    /// The cluster that the operator runs on.
    pub client: Client,
    /// Tells people what happens, as Events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// What the command line says.
    pub options: Options,
    /// Where nothing was to be done.
    pub quiet: Quiet,
}

/// What the command line says to reconcilers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace that the operator itself runs in.
    pub namespace: String,
    /// Images where a SecretEncryption names none: `shim`, `proxy`, `sidekey`, or a vendor.
    pub images: BTreeMap<String, String>,
    /// Images that plugins which others run are to have.
    pub(crate) native_images: NativeImages,
    /// How often a control plane with nothing to do is looked at.
    pub poll: Duration,
    /// For tests alone: how far apart the counts of a census must be.
    pub census_apart: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: "sidekey-system".to_owned(),
            images: BTreeMap::new(),
            native_images: NativeImages::default(),
            poll: Duration::from_secs(30),
            census_apart: None,
        }
    }
}

impl Options {
    /// Fills in the images that the SecretEncryption leaves open.
    pub fn complete(&self, encryption: &mut SecretEncryption) {
        for (name, image) in &self.images {
            encryption.spec.images.entry(name.clone()).or_insert_with(|| image.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Spec;

    #[test]
    fn an_image_that_is_named_stays_and_one_that_is_not_comes_from_the_command_line() {
        let images = [("shim", "r/shim:2"), ("aws", "r/aws:2")];
        let images = images.map(|(name, image)| (name.to_owned(), image.to_owned())).into();
        let options = Options { images, ..Options::default() };
        let spec = Spec {
            images: BTreeMap::from([("shim".to_owned(), "mine/shim:1".to_owned())]),
            ..Spec::default()
        };
        let mut encryption =
            SecretEncryption { name: "a".into(), namespace: Some("clusters-a".into()), spec };
        options.complete(&mut encryption);
        assert_eq!(encryption.image("shim"), "mine/shim:1");
        assert_eq!(encryption.image("aws"), "r/aws:2");
    }
}
