//! What vault-kubernetes-kms writes and reads.
//!
//! It stores the ciphertext as Vault gave it, bound to nothing, and a number as key_id. When it
//! reads it looks at neither key_id nor annotations. Data of ours that it is to read has our key_id,
//! and an annotation that says that nothing binds it.

use std::collections::BTreeMap;

use bytes::Bytes;
use sidekey_core::{Error, KeyId, Kind, Sealed};
use tokio::time::Instant;

use crate::Vault;
use crate::lineage::Lineage;

/// On what is not bound by associated data; its value is of no account.
const UNBOUND: &str = "unbound.vault.sidekey.dev";

/// What stands beside data of ours that is bound to its key_id, or is not.
pub(crate) fn annotations(bound: bool) -> BTreeMap<String, Bytes> {
    let note = (!bound).then(|| (UNBOUND.to_owned(), Bytes::from_static(b"1")));
    note.into_iter().collect()
}

/// Whether data of ours is bound to its key_id. The annotation may be forged: what was wrapped in
/// the other way does not authenticate then.
pub(crate) fn is_bound(sealed: &Sealed) -> bool {
    !sealed.annotations.contains_key(UNBOUND)
}

impl Vault {
    /// Whether data beside `number` may have been written by vault-kubernetes-kms with this key.
    pub(crate) async fn check_legacy(
        &self,
        key_id: &KeyId,
        number: u64,
        version: u32,
        deadline: Instant,
    ) -> Result<(), Error> {
        let unknown = |why: &str| Error::new(Kind::KeyState, format!("{key_id}: {why}"));
        if !self.legacy {
            return Err(unknown("data of vault-kubernetes-kms is not read")
                .with_hint("set settings.legacyData: true"));
        }
        let lineage = self.lineage_with(version, deadline).await?;
        self.usable(&lineage, version)?;
        match lineage.is_legacy(number) {
            true => Ok(()),
            false => Err(unknown("is no version of this key")),
        }
    }
}

impl Lineage {
    /// Whether vault-kubernetes-kms may have written this number with this key. It asks for the
    /// newest version after it has encrypted, perhaps another server, and never looks at the number
    /// again: while the key is rotated the two need not agree, and the data must be read all the
    /// same. The ciphertext names the version that counts.
    pub(crate) fn is_legacy(&self, number: u64) -> bool {
        let made = |made: &i64| u64::try_from(*made) == Ok(number);
        (1..=u64::from(self.latest)).contains(&number) || self.made.values().any(made)
    }
}
