//! The cheap look at a foreign object: is anything that its translation stood on another one?
//!
//! The object itself is watched, and whenever its SecretEncryption changes, status included, what
//! is remembered is [forgotten](super::super::quiet). So only the Secrets and ConfigMaps that it
//! refers to are asked for, metadata alone. A copy of those that somebody changes is seen by the
//! core, which says so in the status of the SecretEncryption.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::Front;
use super::sources::Origin;

/// What a pass that found nothing wrong stood on.
#[derive(Debug)]
pub struct Stood {
    object: Option<String>,
    sources: BTreeMap<Origin, Option<String>>,
}

impl Stood {
    /// What this pass has read.
    pub(super) fn of(front: &Front<'_>) -> Self {
        Self { object: front.object.resource_version(), sources: front.sources_read().clone() }
    }

    /// Whether everything is as it was. What cannot be read is a matter for a whole pass.
    pub(super) async fn holds(&self, front: &Front<'_>) -> bool {
        if self.object.is_none() || self.object != front.object.resource_version() {
            return false;
        }
        for (origin, version) in &self.sources {
            match origin.version(&front.ctx.client).await {
                Ok(now) if now == *version => {}
                _ => return false,
            }
        }
        true
    }
}
