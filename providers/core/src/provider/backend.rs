//! Where generics end: one provider's types behind two small object-safe traits.

use std::any::Any;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tonic::async_trait;

use crate::files::Files;
use crate::{Call, Deletion, Error, KeyId, Provider, Sealed, Secret};

/// A client of any provider.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    async fn key_id(&self) -> Result<KeyId, Error>;
    async fn encrypt(&self, id: &KeyId, text: &[u8], call: &Call<'_>) -> Result<Sealed, Error>;
    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error>;
    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error>;
    async fn verify(&self, sealed: &Sealed, call: &Call<'_>) -> Result<(Secret, KeyId), Error>;
    async fn close(&self);
    fn expiry(&self) -> Option<SystemTime>;
    fn deletion(&self) -> Deletion;
    fn note(&self) -> Option<String>;
    fn as_any(&self) -> &dyn Any;
}

/// Makes clients of one configured key.
#[async_trait]
pub(crate) trait Connector: Send + Sync {
    /// The files that a client is made of.
    fn files(&self) -> &BTreeSet<PathBuf>;
    /// Those, and what their content names.
    fn all_files(&self, files: &Files) -> BTreeSet<PathBuf>;
    /// Makes a client.
    async fn connect(
        &self,
        files: &Files,
        previous: Option<&dyn Backend>,
    ) -> Result<Arc<dyn Backend>, Error>;
}

/// The connector of a provider.
pub(crate) struct Typed<P: Provider> {
    config: P::Config,
    files: BTreeSet<PathBuf>,
}

impl<P: Provider> Typed<P> {
    pub(crate) fn new(config: P::Config) -> Self {
        let files = P::files(&config).into_iter().collect();
        Self { config, files }
    }
}

#[async_trait]
impl<P: Provider> Connector for Typed<P> {
    fn files(&self) -> &BTreeSet<PathBuf> {
        &self.files
    }

    fn all_files(&self, files: &Files) -> BTreeSet<PathBuf> {
        let named = P::named_files(&self.config, files);
        self.files.iter().cloned().chain(named).collect()
    }

    async fn connect(
        &self,
        files: &Files,
        previous: Option<&dyn Backend>,
    ) -> Result<Arc<dyn Backend>, Error> {
        let previous = previous.and_then(|backend| backend.as_any().downcast_ref::<P>());
        Ok(Arc::new(P::connect(&self.config, files, previous).await?))
    }
}

#[async_trait]
impl<P: Provider> Backend for P {
    async fn key_id(&self) -> Result<KeyId, Error> {
        Provider::key_id(self).await
    }

    async fn encrypt(&self, id: &KeyId, text: &[u8], call: &Call<'_>) -> Result<Sealed, Error> {
        Provider::encrypt(self, id, text, call).await
    }

    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        Provider::encrypt_current(self, known, plaintext, call).await
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        Provider::decrypt(self, sealed, call).await
    }

    async fn verify(&self, sealed: &Sealed, call: &Call<'_>) -> Result<(Secret, KeyId), Error> {
        Provider::verify(self, sealed, call).await
    }

    async fn close(&self) {
        Provider::close(self).await;
    }

    fn expiry(&self) -> Option<SystemTime> {
        Provider::expiry(self)
    }

    fn deletion(&self) -> Deletion {
        Provider::deletion(self)
    }

    fn note(&self) -> Option<String> {
        Provider::note(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
