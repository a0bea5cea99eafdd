//! Older keys of a control plane: the replaced plugin serves all of them on one socket.

use std::sync::Arc;

use serde::Deserialize;
use sidekey_core::Error;
use sidekey_core::config::Problems;
use sidekey_rest::Address;

use crate::config::{Kek, Settings, check_name};
use crate::root_key::RootKey;
use crate::session::Session;

/// More keys than a control plane has had.
const MAX: usize = 100;

/// A key whose data is read on the same socket.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OlderKek {
    instance: Option<String>,
    key: Option<String>,
    address: Option<String>,
    key_ring: Option<String>,
    correlation_id: Option<String>,
}

impl OlderKek {
    pub(crate) fn check_all(all: &[Self], settings: &Settings, problems: &mut Problems) {
        if all.len() > MAX {
            problems.add("olderKeks", &format!("has more than {MAX} keys"));
        }
        for (index, kek) in all.iter().take(MAX).enumerate() {
            problems.within(&format!("olderKeks[{index}]"), |problems| {
                kek.kek().check(problems);
                if let Some(text) = &kek.address {
                    Address::check("address", text, settings.allow_plaintext, problems);
                }
                check_name("keyRing", kek.key_ring.as_deref(), problems);
                check_name("correlationId", kek.correlation_id.as_deref(), problems);
            });
        }
    }

    pub(crate) fn key(
        &self,
        session: &Arc<Session>,
        settings: &Settings,
    ) -> Result<RootKey, Error> {
        let address = self.address.as_ref().or(settings.address.as_ref());
        let (ring, correlation) = (self.key_ring.as_deref(), self.correlation_id.as_deref());
        RootKey::new(session, address, &self.kek(), ring, correlation)
    }

    fn kek(&self) -> Kek {
        Kek { instance: self.instance.clone(), key: self.key.clone() }
    }
}
