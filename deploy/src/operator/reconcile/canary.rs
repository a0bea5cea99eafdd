//! The canary of the key that writes: wrapped anew when the key's version has moved, and published,
//! because an old version may be retired.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use sidekey_core::config::Problems;
use sidekey_core::{Canary, KeyId};

use super::draft::Stand;
use super::report::Subject;
use super::retire::PAUSE;
use super::writes::Writes;
use super::{Halt, Pass, Published};
use crate::model::Key;
use crate::operator::jobs::{PreflightTask, Task};

/// Why a key is said to be unusable though shims write with it: a new process could not.
pub(super) const FAILED: &str = "CanaryNotRenewed";
/// What became of the canary.
pub(super) enum Renewal {
    /// It is of the version that is announced, or no better one is to be had.
    Done,
    /// It is being wrapped, or loaded: look again then.
    Waits(Duration),
    /// It could not be wrapped, which is told.
    Failed,
}

impl Pass<'_> {
    /// Publishes a canary of the version that is announced, where the published one is another's.
    pub(super) async fn renew_canary(
        &mut self,
        wanted: &Writes,
        published: &Published,
        announced: &str,
    ) -> Result<Renewal, Halt> {
        let key = wanted.key().and_then(|id| self.wanted.key(id));
        let Some(key) = key.cloned() else { return Ok(Renewal::Done) };
        let live = published.draft.document.key(key.id).and_then(|key| key.canary.as_ref());
        if !needs_another(&key, live, announced) {
            return Ok(Renewal::Done);
        }
        let files = self.files_of(&key).await?;
        let occasion = Some(announced.to_owned());
        let host_aliases = self.host_aliases().await?;
        let task =
            Task::Preflight(PreflightTask { key: key.clone(), files, occasion, host_aliases });
        let Ok(found) = self.job(&task, Subject::KeyAccessible, FAILED).await? else {
            let failed = self.report.said(Subject::KeyAccessible) == Some(FAILED);
            return Ok(if failed { Renewal::Failed } else { Renewal::Waits(PAUSE) });
        };
        let canary = &found["canary"];
        if !is_of(&key, canary, announced) {
            // The vendor has another version by now, which shims announce soon; or they cannot name
            // it. Another KEK has another key_id: its canary would shut shims out of their own key.
            let (namespace, key) = (&self.namespace, key.id.0);
            tracing::info!(
                namespace,
                key,
                announced,
                "a new process announces another key_id, the canary stays"
            );
            return Ok(Renewal::Done);
        }
        let mut stand = Stand::of(wanted.clone());
        stand.canary = Some((key.id, canary.clone()));
        self.publish(&stand, BTreeSet::new()).await?;
        let note = format!("key {}: a canary of {announced} is published", key.id);
        self.report.event(false, "CanaryRenewed", note);
        Ok(Renewal::Waits(Duration::ZERO))
    }
}

/// Whether a key whose canary is `published` must get another one. One that the document gives
/// is somebody else's to renew, and the plugins of others are not ours to run.
fn needs_another(key: &Key, published: Option<&Value>, announced: &str) -> bool {
    let ours = !key.is_external() && key.canary.is_none();
    ours && !published.is_some_and(|canary| is_of(key, canary, announced))
}

/// Whether a canary was wrapped under this key_id, which names the KEK and its version.
fn is_of(key: &Key, canary: &Value, announced: &str) -> bool {
    let canary = Canary::parse(canary, &mut Problems::default());
    let outer = canary.and_then(|canary| {
        let text = format!("sidekey/{}-{}/{}", key.id, key.fingerprint(), canary.sealed.key_id);
        KeyId::new(&text).ok()
    });
    outer.is_some_and(|outer| outer.hash() == announced)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{document, key};
    use super::*;
    use crate::model::KeyNumber;

    /// As the shims would announce it.
    fn announced(key: &Key, inner: &str) -> String {
        let text = format!("sidekey/{}-{}/{inner}", key.id, key.fingerprint());
        KeyId::new(&text).unwrap().hash()
    }

    fn canary(key_id: &str) -> Value {
        json!({"keyId": key_id, "ciphertext": "AAAA", "sha256": "0".repeat(64)})
    }

    #[test]
    fn a_canary_is_wrapped_anew_when_the_version_has_moved_and_not_before() {
        let encryption = document(json!({"keys": [key(2, "write")]}));
        let key = encryption.key(KeyNumber(2)).unwrap();
        let first = canary("vault/x/1");
        assert!(!needs_another(key, Some(&first), &announced(key, "vault/x/1")));
        assert!(needs_another(key, Some(&first), &announced(key, "vault/x/2")));
        assert!(needs_another(key, None, &announced(key, "vault/x/2")), "there was none");
        assert!(needs_another(key, Some(&json!({"keyId": 1})), &announced(key, "vault/x/2")));
        // Of another key, or of another KEK with the same number, it is not its own.
        assert!(needs_another(
            key,
            Some(&first),
            &KeyId::new("sidekey/2-ffff/vault/x/1").unwrap().hash()
        ));
        let mut given = key.clone();
        given.canary = Some(first.clone());
        assert!(!needs_another(&given, Some(&first), &announced(key, "vault/x/2")), "it is given");
        let mut external = key.clone();
        external.vendor = "external".to_owned();
        assert!(!needs_another(&external, None, &announced(key, "vault/x/2")));
    }
}
