//! One key and its way into the library: calls on threads of their own, which are waited for as
//! long as the caller waits, and no call is waited for for ever.

use std::sync::Arc;
use std::time::Duration;

use cryptoki::object::Attribute;
use parking_lot::Mutex;
use sidekey_core::{Error, Files, KeyId, Kind, Sealed, Secret};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::codes::{self, found};
use crate::config::Config;
use crate::dropin::form::{self, Form};
use crate::key::Key;
use crate::library::{Library, Link, Token};
use crate::object::{Object, Selector};

/// One key.
pub(crate) struct Client {
    library: Arc<Library>,
    token: Token,
    pub(crate) keys: Selector,
    pub(crate) form: Form,
    pin: Option<Secret>,
    turns: Arc<Semaphore>,
    hang_limit: Duration,
    /// The key that was seen last to write.
    seen: Mutex<Option<Object>>,
    /// What was read last, and the CKA_ID of its key.
    opened: Mutex<Option<(Vec<u8>, Sealed)>>,
}

impl Client {
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        let settings = &config.settings;
        let missing = || Error::new(Kind::Config, "settings.library is not set");
        Ok(Arc::new(Self {
            library: Library::of(settings.library.as_deref().ok_or_else(missing)?),
            token: config.kek.token(),
            keys: config.selector()?,
            form: config.form(),
            pin: config.pin(files)?,
            turns: Arc::new(Semaphore::new(settings.sessions())),
            hang_limit: settings.hang_limit(),
            seen: Mutex::default(),
            opened: Mutex::default(),
        }))
    }

    /// Does `work` in a session. A library that does not come back from it in time never will:
    /// what it holds is lost to this process, and so the process ends, for its supervisor to start
    /// a new one.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        deadline: Instant,
        work: impl FnOnce(&Self, &mut Link) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = timeout_at(deadline, self.turns.clone().acquire_owned()).await;
        let turn = turn.map_err(|_| found(&self.token, codes::BUSY))?;
        let (client, (answer, answered)) = (self.clone(), oneshot::channel());
        let call = spawn_blocking(move || {
            let _turn = turn;
            let worked =
                client.library.with(&client.token, client.pin.as_ref(), |link| work(&client, link));
            // Whoever asked may have gone.
            let _ = answer.send(worked);
        });
        let (client, limit) = (self.clone(), self.hang_limit);
        tokio::spawn(async move {
            if timeout(limit, call).await.is_err() {
                tracing::error!(token = %client.token, limit = ?limit, "the PKCS#11 library does not return from a call: this process ends, to be started again");
                std::process::abort();
            }
        });
        match timeout_at(deadline, answered).await {
            Ok(Ok(worked)) => worked,
            Ok(Err(_)) => Err(found(&self.token, codes::PANIC)),
            Err(_) => Err(found(&self.token, codes::LATE)),
        }
    }

    /// The key that new data is wrapped with.
    pub(crate) fn newest(&self, link: &mut Link) -> Result<Object, Error> {
        let newest = self.keys.newest(link)?;
        let before = self.seen.lock().replace(newest.clone());
        if newest.has(&Attribute::Extractable(true))
            && before.is_none_or(|before| before.id != newest.id)
        {
            tracing::warn!(key = %self.keys, "the key is extractable: whoever logs in to the token can take it away");
        }
        Ok(newest)
    }

    /// Reads; `None` if no key here has written it.
    pub(crate) fn open(&self, link: &mut Link, asked: Sealed) -> Result<Option<Secret>, Error> {
        let Some(object) = self.keys.named(link, &asked.key_id)? else { return Ok(None) };
        let key = Key { keys: &self.keys, link, object: &object };
        let before = || {
            let opened = self.opened.lock().clone().filter(|(id, _)| *id == object.id);
            opened.map(|(_, sealed)| form::open(&self.form, &key, &sealed).is_ok())
        };
        match form::open(&self.form, &key, &asked) {
            Ok(plaintext) => {
                *self.opened.lock() = Some((object.id.clone(), asked));
                Ok(Some(plaintext))
            }
            Err(error) => match key.judge(error, before) {
                // Another key has taken its CKA_ID.
                error if error.kind() == Kind::Corrupt && !object.is_named(&asked.key_id) => {
                    Ok(None)
                }
                error => Err(error),
            },
        }
    }

    /// Whether the last that was read is of that key_id.
    pub(crate) fn has_opened(&self, key_id: &KeyId) -> bool {
        self.opened.lock().as_ref().is_some_and(|(_, sealed)| sealed.key_id == *key_id)
    }

    /// For `/status`.
    pub(crate) fn note(&self) -> String {
        let seen = self.seen.lock();
        let can_leave =
            seen.as_ref().is_some_and(|object| object.has(&Attribute::Extractable(true)));
        let extractable = if can_leave { ", which is extractable" } else { "" };
        format!("{}{extractable}, on {}", self.keys, self.token)
    }
}
