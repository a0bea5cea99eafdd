//! Where generics end: one provider's types behind two small object-safe traits.

use std::any::Any;
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use crate::files::Files;
use crate::{Call, Deletion, Error, KeyId, Provider, Sealed, Secret};

/// A boxed answer.
pub(crate) struct Answer<'a, T>(Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>);

/// A client of any provider.
pub(crate) trait Backend: Send + Sync {
    fn key_id(&self) -> Answer<'_, KeyId>;
    fn encrypt<'a>(
        &'a self,
        key_id: &'a KeyId,
        plaintext: &'a [u8],
        call: &'a Call<'a>,
    ) -> Answer<'a, Sealed>;
    fn encrypt_current<'a>(
        &'a self,
        known: &'a KeyId,
        plaintext: &'a [u8],
        call: &'a Call<'a>,
    ) -> Answer<'a, Sealed>;
    fn decrypt<'a>(&'a self, sealed: &'a Sealed, call: &'a Call<'a>) -> Answer<'a, Secret>;
    fn verify<'a>(&'a self, sealed: &'a Sealed, call: &'a Call<'a>) -> Answer<'a, (Secret, KeyId)>;
    fn close(&self) -> Answer<'_, ()>;
    fn expiry(&self) -> Option<SystemTime>;
    fn deletion(&self) -> Deletion;
    fn note(&self) -> Option<String>;
    fn as_any(&self) -> &dyn Any;
}

/// Makes clients of one configured key.
pub(crate) trait Connector: Send + Sync {
    /// The files that a client is made of.
    fn files(&self) -> &BTreeSet<PathBuf>;
    /// Those, and what their content names.
    fn all_files(&self, files: &Files) -> BTreeSet<PathBuf>;
    /// Makes a client.
    fn connect<'a>(
        &'a self,
        files: &'a Files,
        previous: Option<&'a dyn Backend>,
    ) -> Answer<'a, Arc<dyn Backend>>;
}

/// The connector of a provider.
pub(crate) struct Typed<P: Provider> {
    config: P::Config,
    files: BTreeSet<PathBuf>,
}

impl<T> Future for Answer<'_, T> {
    type Output = Result<T, Error>;

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<P: Provider> Typed<P> {
    pub(crate) fn new(config: P::Config) -> Self {
        let files = P::files(&config).into_iter().collect();
        Self { config, files }
    }
}

impl<P: Provider> Connector for Typed<P> {
    fn files(&self) -> &BTreeSet<PathBuf> {
        &self.files
    }

    fn all_files(&self, files: &Files) -> BTreeSet<PathBuf> {
        let named = P::named_files(&self.config, files);
        self.files.iter().cloned().chain(named).collect()
    }

    fn connect<'a>(
        &'a self,
        files: &'a Files,
        previous: Option<&'a dyn Backend>,
    ) -> Answer<'a, Arc<dyn Backend>> {
        Answer(Box::pin(async move {
            let previous = previous.and_then(|backend| backend.as_any().downcast_ref::<P>());
            let client = P::connect(&self.config, files, previous).await?;
            Ok(Arc::new(client) as Arc<dyn Backend>)
        }))
    }
}

impl<P: Provider> Backend for P {
    fn key_id(&self) -> Answer<'_, KeyId> {
        Answer(Box::pin(Provider::key_id(self)))
    }

    fn encrypt<'a>(
        &'a self,
        key_id: &'a KeyId,
        plaintext: &'a [u8],
        call: &'a Call<'a>,
    ) -> Answer<'a, Sealed> {
        Answer(Box::pin(Provider::encrypt(self, key_id, plaintext, call)))
    }

    fn encrypt_current<'a>(
        &'a self,
        known: &'a KeyId,
        plaintext: &'a [u8],
        call: &'a Call<'a>,
    ) -> Answer<'a, Sealed> {
        Answer(Box::pin(Provider::encrypt_current(self, known, plaintext, call)))
    }

    fn decrypt<'a>(&'a self, sealed: &'a Sealed, call: &'a Call<'a>) -> Answer<'a, Secret> {
        Answer(Box::pin(Provider::decrypt(self, sealed, call)))
    }

    fn verify<'a>(&'a self, sealed: &'a Sealed, call: &'a Call<'a>) -> Answer<'a, (Secret, KeyId)> {
        Answer(Box::pin(Provider::verify(self, sealed, call)))
    }

    fn close(&self) -> Answer<'_, ()> {
        Answer(Box::pin(async {
            Provider::close(self).await;
            Ok(())
        }))
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
