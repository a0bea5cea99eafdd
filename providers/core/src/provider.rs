//! What a provider has to write; everything else is in this crate.

pub(crate) mod backend;
pub(crate) mod run;
pub(crate) mod supervisor;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::config::Problems;
use crate::files::Files;
use crate::{Error, KeyId, Secret};

/// A wrapped key as kube-apiserver stores it; its `Debug` shows lengths in the place of bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Sealed {
    /// The KEK and version that wrapped it, without the shim's prefix.
    pub key_id: KeyId,
    /// What the KMS returned.
    pub ciphertext: Bytes,
    /// What else Decrypt will need; in clear beside the ciphertext.
    pub annotations: BTreeMap<String, Bytes>,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key_id, ciphertext, annotations } = self;
        let (bytes, notes) = (ciphertext.len(), annotations.len());
        write!(f, "Sealed({key_id:?}, {bytes} bytes, {notes} annotations)")
    }
}

/// What a provider may know of the call it serves.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The caller's request identifier, for logs.
    pub uid: &'a str,
    /// When the answer is of no use any more. The runtime enforces it; a provider may use it to
    /// set timeouts of its own.
    pub deadline: Instant,
}

/// What the KMS says of the end of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// When it is deleted, if that is planned.
    pub at: Option<SystemTime>,
    /// Whether somebody could delete it at once, where the KMS tells.
    pub allowed: Option<bool>,
}

/// One key at one KMS.
///
/// The runtime calls [`connect`](Provider::connect) at start and again whenever the
/// configuration or one of the [`files`](Provider::files) changes; the new client must prove
/// itself before it replaces the old one, which serves until then.
pub trait Provider: Sized + Send + Sync + 'static {
    /// The name in the binary, in metrics, in annotations and in `type` of the configuration.
    const NAME: &'static str;

    /// `kek`, `settings` and `credentials` of one key. Unknown fields are reported by the
    /// runtime; make what is required an `Option` and report it missing in
    /// [`check`](Provider::check), so that all mistakes are found at once. No `flatten`.
    type Config: DeserializeOwned + Send + Sync + 'static;

    /// Reports every mistake that types cannot express; paths are relative to the key.
    fn check(config: &Self::Config, problems: &mut Problems);

    /// The files that the client is made of: their change makes a new client.
    fn files(config: &Self::Config) -> Vec<PathBuf>;

    /// Files that the content of those names in turn: a profile may name the file of its token.
    /// They are read and watched like the others.
    fn named_files(_config: &Self::Config, _files: &Files) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Makes a client; must not change anything at the KMS. `previous` is the client in use, if
    /// there is one: a choice that must not flap (a fallback taken, say) is carried over from it,
    /// and a client that could read less than it is refused.
    fn connect(
        config: &Self::Config,
        files: &Files,
        previous: Option<&Self>,
    ) -> impl Future<Output = Result<Self, Error>> + Send;

    /// The version that new data should be wrapped with, as the KMS itself reports it.
    fn key_id(&self) -> impl Future<Output = Result<KeyId, Error>> + Send;

    /// Wraps under exactly `key_id`. Where the KMS cannot pin a version, the answer says which
    /// one it used, and the runtime sorts it out.
    fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Sealed, Error>> + Send;

    /// Wraps with the version that the KMS takes now, for a probe: the answer, or
    /// [`verify`](Provider::verify) of it, says which one that was, and so tells of a rotation.
    /// `known` is the announced one. Write it where [`encrypt`](Provider::encrypt) names a
    /// version to the KMS.
    fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Sealed, Error>> + Send {
        self.encrypt(known, plaintext, call)
    }

    /// Unwraps. A key_id that this KEK never issued is [`Kind::KeyState`](crate::Kind::KeyState);
    /// ciphertext that does not authenticate is [`Kind::Corrupt`](crate::Kind::Corrupt).
    fn decrypt(
        &self,
        sealed: &Sealed,
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Secret, Error>> + Send;

    /// Unwraps what this client wrapped a moment ago, and says which version it was really
    /// wrapped with. Write it where the KMS tells the version only when it unwraps.
    fn verify(
        &self,
        sealed: &Sealed,
        call: &Call<'_>,
    ) -> impl Future<Output = Result<(Secret, KeyId), Error>> + Send {
        async { Ok((self.decrypt(sealed, call).await?, sealed.key_id.clone())) }
    }

    /// Gives back what the client holds at the KMS, a token say, because the process ends. There
    /// is a moment for it, and nothing may depend on it.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// When the credentials in use expire, if that is known.
    fn expiry(&self) -> Option<SystemTime> {
        None
    }

    /// What the KMS says of the end of the key, as far as it is known.
    fn deletion(&self) -> Deletion {
        Deletion::default()
    }

    /// One line about this client for `/status`: a fallback taken, say.
    fn note(&self) -> Option<String> {
        None
    }
}
