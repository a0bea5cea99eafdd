//! What a plugin knows from a start to its end, and the connections of that time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tonic::Status;

use super::Defect;
use super::store::{Key, Store};

/// One life of the plugin, from a start to kill -9.
pub(crate) struct Life {
    pub(crate) store: Store,
    pub(crate) defect: Option<Defect>,
    /// How many lives came before.
    pub(crate) generation: usize,
    pub(crate) crash: Notify,
    pub(crate) calls: Arc<AtomicU64>,
    /// How many connections were lost before they spoke.
    pub(crate) lost: AtomicUsize,
    pub(crate) stumble: AtomicBool,
    /// The versions at the start, and those that Status has seen.
    at_start: usize,
    known: Mutex<(u64, Vec<Key>)>,
    pub(crate) seen: AtomicUsize,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) last: Mutex<Bytes>,
    pub(crate) made: Mutex<HashMap<Bytes, Made>>,
}

/// What is remembered of a ciphertext.
pub(crate) struct Made {
    pub(crate) by: Arc<Connection>,
    pub(crate) uses: usize,
    pub(crate) plaintext: Option<Bytes>,
}

/// One connection of a life.
pub(crate) struct Connection {
    pub(crate) closed: watch::Sender<bool>,
    pub(crate) statuses: AtomicUsize,
}

impl Life {
    pub(crate) fn new(
        store: Store,
        defect: Option<Defect>,
        generation: usize,
        calls: Arc<AtomicU64>,
    ) -> Self {
        let at_start = store.keys().len();
        Self {
            store,
            defect,
            generation,
            crash: Notify::new(),
            calls,
            lost: AtomicUsize::new(0),
            stumble: AtomicBool::new(false),
            at_start,
            known: Mutex::default(),
            seen: AtomicUsize::new(at_start),
            in_flight: AtomicUsize::new(0),
            last: Mutex::default(),
            made: Mutex::default(),
        }
    }

    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// The end of this life; whoever waits for an answer waits in vain.
    pub(crate) async fn crash(&self) -> ! {
        self.crash.notify_one();
        std::future::pending::<std::convert::Infallible>().await;
        unreachable!("a pending future never ends")
    }

    /// The versions in the file, which is read again when it has grown.
    pub(crate) fn stored(&self) -> Vec<Key> {
        let mut known = self.known.lock().unwrap();
        let length = self.store.length();
        if known.0 != length {
            *known = (length, self.store.keys());
        }
        known.1.clone()
    }

    /// The usable versions, the oldest first.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys = self.stored();
        if self.has(Defect::ReusesKeyId) && keys.len() > 2 {
            keys[2].id = keys[0].id.clone();
        }
        for key in &mut keys {
            if self.has(Defect::LongKeyId) {
                key.id.push_str(&"x".repeat(1025));
            }
            if self.has(Defect::RestartMovesKeyId) && self.generation > 0 {
                key.id.push_str("-restarted");
            }
            if self.has(Defect::ForgetsKey) && self.generation > 0 {
                key.secret[0] ^= 1;
            }
        }
        if self.has(Defect::LoadsNewestOnly) {
            keys.retain(|key| key.version >= self.at_start);
        }
        keys
    }

    /// The version that Status announces.
    pub(crate) fn announced(&self) -> Key {
        let mut keys = self.keys();
        let latest = keys.pop().unwrap();
        let oldest = keys.into_iter().next();
        if self.has(Defect::IgnoresRotation) { oldest.unwrap_or(latest) } else { latest }
    }

    /// The versions that a key_id may mean.
    pub(crate) fn named(&self, key_id: &str) -> Result<Vec<Key>, Status> {
        let mut name = match key_id.strip_prefix("sidekey/").map(|rest| rest.split_once('/')) {
            None => key_id,
            Some(Some((_, name))) => name,
            Some(None) => return Err(Status::invalid_argument("the prefix has no end")),
        };
        if self.has(Defect::AliasKeyId) {
            name = name.strip_suffix("-alias").unwrap_or(name);
        }
        let strange = !name.contains("test-kms") && !name.contains("versions");
        let guess = match self.defect {
            Some(Defect::EmptyKeyId) => key_id.is_empty(),
            Some(Defect::LongKeyIdAccepted) => key_id.len() > 1024,
            Some(Defect::UnknownKeyId) => strange && (1..=1024).contains(&key_id.len()),
            _ => false,
        };
        let short = |id: &str| id.chars().rev().skip(1).collect::<String>();
        let same = |key: &Key| match self.defect {
            Some(Defect::SloppyKeyId) => short(&key.id) == short(name),
            Some(Defect::RestartMovesKeyId) => {
                key.id.trim_end_matches("-restarted") == name.trim_end_matches("-restarted")
            }
            _ => key.id == name,
        };
        let keys: Vec<Key> = self.keys().into_iter().filter(|key| guess || same(key)).collect();
        if keys.is_empty() { Err(Status::not_found("unknown key_id")) } else { Ok(keys) }
    }

    /// Whether the ciphertext was made in this life, or may have been made in one before.
    pub(crate) fn made(&self, ciphertext: &[u8]) -> bool {
        self.generation > 0 || self.made.lock().unwrap().contains_key(ciphertext)
    }

    /// Whether the bytes have anything to do with a ciphertext that was made in this life.
    pub(crate) fn related(&self, ciphertext: &[u8]) -> bool {
        let made = self.made.lock().unwrap();
        if self.generation > 0 {
            return true;
        }
        let head = &ciphertext[..ciphertext.len().min(8)];
        let tail = &ciphertext[ciphertext.len().saturating_sub(8)..];
        made.keys().any(|known| known.starts_with(head) || known.ends_with(tail))
    }
}

impl Connection {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { closed: watch::Sender::new(false), statuses: AtomicUsize::new(0) })
    }

    /// Whether it closes within a moment.
    pub(crate) async fn closes(&self) -> bool {
        let mut closed = self.closed.subscribe();
        let wait = closed.wait_for(|closed| *closed);
        tokio::time::timeout(Duration::from_millis(500), wait).await.is_ok()
    }
}
