//! Sockets of providers: in directories of their own, and how control planes of before get there.
//!
//! Each provider's sidecar has a directory of its own, `/var/run/sidekey/<vendor>`, which only it can
//! write to; the shim mounts it to connect. Before, all sockets of a pod were in `/var/run/kmsplugin`.
//! Pods of both forms mount the same heads while a control plane is updated, in whatever order, so
//! heads and pods agree on this:
//!
//! - **A pod of today** has its provider's own directory under both names in the provider's
//!   container, so that it can listen where a head of before says. The shim sees it under the new name.
//! - **A key of before** keeps its `listen`, for ever: that path can be bound in pods of both forms,
//!   and a provider that cannot bind one does not start. To the shim both places are named, the own one
//!   first. In a pod of before the second one is the socket; in a pod of today it is in the shim's own
//!   directory, where nobody can put anything.
//! - **A new key** gets a socket under the new name where no pod of before is left, and one as of
//!   before where one is. So a control plane arrives with its next rotation.
//! - **The second place goes** when no pod of before is left: an endpoint that is never there would
//!   take its share of every slow request's time.
//!
//! Heads come first: a pod of today with heads from before it could not reach its keys. The operator
//! publishes before it changes a pod, and says in the status (`isolatedSockets`) that it has; until then
//! its webhook makes pods of the form of before. `sidekey inject` says so where it replaces sidecars of
//! before.

use std::collections::BTreeSet;

use super::Live;
use crate::Error;
use crate::model::{Key, SecretEncryption, names};

impl Live {
    /// The vendors whose providers listen in the one directory of before.
    pub(crate) fn shared_vendors(&self) -> Result<BTreeSet<String>, Error> {
        let keys = self.keys()?.into_iter().filter(is_shared);
        Ok(keys.map(|key| key.vendor).collect())
    }

    /// Whether pods of before may be left, as far as heads tell: somebody has said that there are
    /// none if shims are not led there any more.
    pub(crate) fn may_serve_pods_of_before(&self) -> Result<bool, Error> {
        let (view, keys) = (self.view()?, self.keys()?);
        let led = |key: &Key| {
            view.keys.get(&key.id).is_some_and(|seen| seen.endpoints.contains(&key.listen))
        };
        let mut shared = keys.iter().filter(|key| is_shared(key)).peekable();
        Ok(shared.peek().is_none() || shared.any(led))
    }

    /// Gives the keys of a document, where it leaves that to us, sockets that pods can bind and reach:
    /// those of before too, if some may be left.
    pub(crate) fn keep_sockets(
        &self,
        document: &mut SecretEncryption,
        before: bool,
    ) -> Result<(), Error> {
        let known = self.keys()?;
        document.spec.sockets_apart = !before;
        for key in document.spec.keys.iter_mut().filter(|key| !key.is_external()) {
            if key.listen != names::key_socket(&key.vendor, key.id) {
                continue;
            }
            let stays = match known.iter().find(|other| other.id == key.id) {
                Some(live) => live.listen == names::shared_key_socket(key.id),
                None => {
                    before
                        && known.iter().any(|other| other.vendor == key.vendor && is_shared(other))
                }
            };
            if stays {
                key.listen = names::shared_key_socket(key.id);
            }
        }
        Ok(())
    }
}

fn is_shared(key: &Key) -> bool {
    !key.is_external() && names::own_socket(&key.vendor, &key.listen).is_some()
}

#[cfg(test)]
mod tests;
