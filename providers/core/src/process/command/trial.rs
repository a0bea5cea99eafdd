//! Keys tried out without being served: what `check --connect` does.

use std::sync::Arc;

use tokio::time::Instant;

use crate::config::{KeySpec, ProcessConfig};
use crate::files::Files;
use crate::key::proof::{self, within};
use crate::provider::backend::Backend;
use crate::{Call, Error, KeyId, Secret};

/// What came of one key.
pub(crate) struct Trial {
    pub(crate) id: String,
    pub(crate) result: Result<(KeyId, Option<String>), Error>,
}

/// Connects every key, reads its canary, wraps and unwraps: nothing is changed at the KMS.
pub(crate) async fn try_out(config: &ProcessConfig) -> Vec<Trial> {
    let mut trials = Vec::with_capacity(config.keys.len());
    for spec in &config.keys {
        let deadline = Instant::now() + config.probe.timeout;
        let result = within(deadline, try_key(spec, deadline)).await;
        trials.push(Trial { id: spec.id.to_string(), result });
    }
    trials
}

/// A client of the key, made of its files as they are now.
pub(crate) async fn open(spec: &KeySpec) -> Result<Arc<dyn Backend>, Error> {
    let read = |paths: &std::collections::BTreeSet<std::path::PathBuf>| {
        Files::read(paths.iter().map(|path| path.as_path()))
    };
    let files = read(&spec.connector.all_files(&read(spec.connector.files())?))?;
    spec.connector.connect(&files, None).await
}

async fn try_key(spec: &KeySpec, deadline: Instant) -> Result<(KeyId, Option<String>), Error> {
    let backend = open(spec).await?;
    let result = prove(&*backend, spec, deadline).await;
    // What was taken for the trial is given back; if not, it expires by itself.
    backend.close().await;
    result
}

async fn prove(
    backend: &dyn Backend,
    spec: &KeySpec,
    deadline: Instant,
) -> Result<(KeyId, Option<String>), Error> {
    let call = Call { uid: "check", deadline };
    if let Some(canary) = &spec.canary {
        proof::reads(backend, canary, &call, None).await?;
    }
    let named = backend.key_id().await?;
    let plaintext = Secret::random(32)?;
    let encrypting = backend.encrypt(&named, plaintext.expose(), &call);
    let sealed = proof::encrypt_verified(backend, encrypting, &plaintext, &call, None).await?;
    Ok((sealed.key_id, backend.note()))
}
