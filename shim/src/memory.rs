//! What a key must be able to read: proof that it is the very KEK that wrote the data.
//!
//! Where the configuration gives no canary, a write key has one that the shim wrapped itself, and
//! a read key the first ciphertext that it decrypted. Both are kept with the last good
//! configuration. They are no secrets: wrapped bytes, and a hash of 32 random ones.
//!
//! A canary may outlive the version that wrapped it. What the key has written since it had read that
//! very canary stands in for it then: whoever reads it has the same KEK.
//!
//! A canary may also have been wrapped by mistake with another KEK than the one that wrote. So a key
//! that writes must read what the shim wrote with it, too, where that was not vouched for by the same
//! canary. It is always of the newest version, so that no retirement makes it unreadable.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;
use serde_json::Value;
use sidekey_core::config::{KeyNumber, Problems};
use sidekey_core::{Canary, Error, KeyId, Kind, Sealed, hex, sha256};
use tokio::time::Instant;

use crate::call::{CallFailure, Client};

/// Stands for the hash where there is none: the parser of canaries wants one.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Something that a key has written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) sealed: Sealed,
    /// SHA-256 of what is in it, where it is known.
    sha256: Option<String>,
    /// Written by this very process on trust: that it can be read proves nothing of what was
    /// written before.
    pub(crate) fresh: bool,
    /// The canary of the configuration that its writer had read, as a digest.
    vouched_by: Option<String>,
    /// What decides where this cannot be read.
    stand_in: Option<Box<Memory>>,
    /// What must be read as well.
    besides: Option<Box<Memory>>,
}

/// More than a kube-apiserver has a key write in its life; it does so when it starts or rotates.
const MOST_WRITTEN: usize = 1024;

/// What a process has written for its callers.
#[derive(Default)]
pub(crate) struct Written {
    hasher: RandomState,
    hashes: Mutex<HashSet<u64>>,
}

impl Written {
    /// Notes what was just written.
    pub(crate) fn note(&self, sealed: &Sealed) {
        let mut hashes = self.hashes.lock();
        if hashes.len() < MOST_WRITTEN {
            hashes.insert(self.hasher.hash_one(&sealed.ciphertext));
        }
    }

    /// Whether it was, or may have been: once there is no more room, everything may.
    pub(crate) fn knows(&self, sealed: &Sealed) -> bool {
        let hashes = self.hashes.lock();
        hashes.len() == MOST_WRITTEN || hashes.contains(&self.hasher.hash_one(&sealed.ciphertext))
    }
}

/// Under what name [`Memory::vouched_by`] is kept.
const VOUCHED_BY: &str = "vouchedBy";

impl Memory {
    /// The canary of a configuration; what the key has written since it had read it stands in. A
    /// key that `writes` must read what the shim wrote with it under no or another canary besides.
    pub(crate) fn of_canary(canary: &Canary, own: Option<Self>, writes: bool) -> Self {
        let digest = digest(canary);
        let (vouched, other): (Option<_>, Option<_>) = match own.map(Box::new) {
            Some(own) if own.vouched_by.as_ref() == Some(&digest) => (Some(own), None),
            own => (None, own.filter(|own| writes && own.written_under().is_some())),
        };
        Self { stand_in: vouched, besides: other, ..Self::from(canary) }
    }

    /// What was decrypted for a caller: what is in it is none of our business.
    pub(crate) fn read(sealed: Sealed) -> Self {
        let (vouched_by, stand_in, besides) = (None, None, None);
        Self { sealed, sha256: None, fresh: false, vouched_by, stand_in, besides }
    }

    /// What the shim has just written, with a plugin that has read `canary`; on trust, if there was
    /// nothing to read before.
    pub(crate) fn written(sample: &Canary, canary: Option<&Canary>, on_trust: bool) -> Self {
        Self { fresh: on_trust, vouched_by: canary.map(digest), ..Self::from(sample) }
    }

    /// The key_id under which the shim itself wrote it, if it did.
    pub(crate) fn written_under(&self) -> Option<&KeyId> {
        self.sha256.as_ref().map(|_| &self.sealed.key_id)
    }

    /// The form in which it is kept.
    pub(crate) fn document(&self) -> Value {
        let sha256 = self.sha256.clone().unwrap_or_default();
        let mut document = Canary { sealed: self.sealed.clone(), sha256 }.document();
        if self.sha256.is_none() {
            document["sha256"] = Value::Null;
        }
        if let Some(digest) = &self.vouched_by {
            document[VOUCHED_BY] = digest.as_str().into();
        }
        document
    }

    /// Reads that form.
    pub(crate) fn parse(mut document: Value) -> Option<Self> {
        let known = !document.get("sha256")?.is_null();
        let vouched_by = document.as_object_mut()?.remove(VOUCHED_BY);
        let vouched_by = vouched_by.and_then(|digest| Some(digest.as_str()?.to_owned()));
        if !known {
            document["sha256"] = NO_HASH.into();
        }
        let mut problems = Problems::default();
        let canary = Canary::parse(&document, &mut problems).filter(|_| problems.is_empty())?;
        let sha256 = known.then_some(canary.sha256);
        Some(Self { sha256, vouched_by, ..Self::read(canary.sealed) })
    }

    /// Has the plugin decrypt it, or what stands in for it. A plugin with another KEK cannot; one
    /// whose KMS is away has proven nothing.
    pub(crate) async fn check(
        &self,
        key: KeyNumber,
        client: &mut Client,
        deadline: Instant,
    ) -> Result<(), CallFailure> {
        match (self.check_itself(key, client, deadline).await, &self.stand_in) {
            (Err(CallFailure::Answered(error)), Some(stand_in)) if error.is_lasting() => {
                stand_in.check_itself(key, client, deadline).await?;
                tracing::warn!(%key, error = error.report(),
                    "the canary cannot be read any more, but what the key has written since it was can: publish a new canary");
                Ok(())
            }
            (Ok(()), _) => match &self.besides {
                Some(written) => written.check_itself(key, client, deadline).await,
                None => Ok(()),
            },
            (failed, _) => failed,
        }
    }

    async fn check_itself(
        &self,
        key: KeyNumber,
        client: &mut Client,
        deadline: Instant,
    ) -> Result<(), CallFailure> {
        let what = || format!("key {key} cannot read its canary");
        let another = || {
            Error::new(Kind::KeyState, what())
                .with_hint("another KEK than the one that wrote is behind this endpoint: correct it, or give the other KEK a new id; if the version that wrote it was retired, give the key a canary of a newer one")
                .lasting()
        };
        match client.decrypt(&self.sealed, "shim-canary", deadline).await {
            Ok(plaintext) => match &self.sha256 {
                Some(sha256) => {
                    let canary = Canary { sealed: self.sealed.clone(), sha256: sha256.clone() };
                    canary
                        .verify(&plaintext)
                        .map_err(|error| CallFailure::Answered(another().with_source(error)))
                }
                None => Ok(()),
            },
            Err(CallFailure::Answered(error))
                if matches!(error.kind(), Kind::KeyState | Kind::Corrupt | Kind::Invalid) =>
            {
                Err(CallFailure::Answered(another().with_source(error)))
            }
            Err(failure) => {
                Err(failure.map(|error| Error::new(error.kind(), what()).with_source(error)))
            }
        }
    }
}

impl From<&Canary> for Memory {
    fn from(canary: &Canary) -> Self {
        let sha256 = Some(canary.sha256.clone());
        Self { sha256, ..Self::read(canary.sealed.clone()) }
    }
}

fn digest(canary: &Canary) -> String {
    hex(&sha256(canary.document().to_string().as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;
    use sidekey_core::{KeyId, Secret};

    use super::*;

    #[test]
    fn what_is_kept_is_read_as_it_was_with_and_without_a_hash() {
        let sealed = Sealed {
            key_id: KeyId::new("v/1").unwrap(),
            ciphertext: Bytes::from_static(b"wrapped"),
            annotations: [("a.example".to_owned(), Bytes::from_static(b"x"))].into(),
        };
        let canary = Canary::new(sealed.clone(), &Secret::new(vec![7; 32]));
        let vouched = Memory::written(&canary, Some(&canary), false);
        for memory in [Memory::from(&canary), Memory::read(sealed), vouched] {
            assert_eq!(Memory::parse(memory.document()), Some(memory));
        }
        for broken in [Value::Null, "x".into(), serde_json::json!({"sha256": null})] {
            assert_eq!(Memory::parse(broken), None);
        }
    }
}
