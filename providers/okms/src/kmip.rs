//! OKMS by KMIP, or any other server that speaks 1.2 to 1.4 of it.
//!
//! What is stored is the ciphertext with its tag behind it, and the IV in an annotation: the form of
//! the replaced plugin. Bound to its scope it is where the server knows additional authenticated data,
//! from KMIP 1.4 on.

use sidekey_core::{Error, Sealed, Secret};
use sidekey_rest::{Address, Trust};
use sidekey_ttlv::{Cipher, Client, Mode};
use tokio::time::Instant;

use crate::Target;
use crate::dropin::data::{IV_LEN, annotations, iv};

/// A server, and the keys that it lets us use.
pub(crate) struct Kmip(Client);

impl Kmip {
    pub(crate) fn new(address: Address, trust: &Trust) -> Self {
        Self(Client::new(trust, [address]))
    }

    /// Whether a key can be used.
    pub(crate) async fn look(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.0.check(id, deadline).await
    }

    /// The ids of the active keys that have a label.
    pub(crate) async fn find(&self, label: &str, deadline: Instant) -> Result<Vec<String>, Error> {
        self.0.locate(label, deadline).await
    }

    pub(crate) async fn encrypt(&self, to: &Target, plaintext: &[u8]) -> Result<Sealed, Error> {
        let iv = Secret::random(IV_LEN)?;
        let cipher = Cipher { mode: Mode::Gcm, iv: iv.expose(), aad: to.bound.as_bytes() };
        let ciphertext = self.0.encrypt(&to.id, &cipher, plaintext, to.deadline).await?.into();
        let (key_id, annotations) = (to.key_id.clone(), annotations(iv.expose()));
        Ok(Sealed { key_id, ciphertext, annotations })
    }

    pub(crate) async fn decrypt(&self, to: &Target, sealed: &Sealed) -> Result<Secret, Error> {
        let cipher = Cipher { mode: Mode::Gcm, iv: iv(sealed)?, aad: to.bound.as_bytes() };
        self.0.decrypt(&to.id, &cipher, &sealed.ciphertext, to.deadline).await
    }
}
