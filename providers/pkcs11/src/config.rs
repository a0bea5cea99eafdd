//! `kek`, `settings` and `credentials` of one key.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sidekey_core::config::{Problems, parse_duration};
use sidekey_core::{Error, Files, Kind, Secret};
use sidekey_rest::files::{check_absolute, password};

use crate::dropin::form::{Form, Format};
use crate::dropin::given::given;
use crate::library::Token;
use crate::object::{Algorithm, Selector};

/// Longest label that we look for; tokens' own have 32 bytes, those of keys what the token likes.
const MAX_LABEL: usize = 255;
const SESSIONS: usize = 4;
/// More at once than any HSM is made for from one client.
const MAX_SESSIONS: usize = 64;
/// Longer than libraries wait for a network of their own.
const HANG_LIMIT: Duration = Duration::from_secs(120);
const SHORTEST_LIMIT: Duration = Duration::from_secs(10);

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(crate) kek: Kek,
    pub(crate) settings: Settings,
    credentials: Credentials,
}

/// Which key it is, whatever the way to its token.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Kek {
    token_label: Option<String>,
    token_serial: Option<String>,
    slot: Option<u64>,
    key_label: Option<String>,
    key_id: Option<String>,
    algorithm: Algorithm,
}

/// How it is reached and used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    pub(crate) library: Option<PathBuf>,
    iv_from_token: bool,
    max_sessions: Option<usize>,
    hang_limit: Option<String>,
    format: Format,
    hmac_label: Option<String>,
    hmac_id: Option<String>,
    read_without_integrity: bool,
    pub(crate) older_keks: Vec<Config>,
}

/// What we log in with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    pin_file: Option<PathBuf>,
    /// Which of the PINs it is that were given on the command line.
    given: Option<usize>,
}

impl Config {
    /// Reports every mistake.
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.within("kek", |problems| self.kek.check(problems));
        problems.within("settings", |problems| self.settings.check(problems));
        problems.within("credentials", |problems| {
            let Credentials { pin_file, given: number } = &self.credentials;
            check_absolute(&[("pinFile", pin_file.as_deref())], problems);
            if number.is_some_and(|number| given(number).is_none()) {
                problems.add("given", "is for a PIN of the command line: name a file instead");
            }
        });
    }

    /// Everything that a client is made of; libraries are not read anew.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let older = self.settings.older_keks.iter().flat_map(Self::files);
        self.credentials.pin_file.iter().cloned().chain(older).collect()
    }

    /// Without one, a token may ask for it at a keypad of its own.
    pub(crate) fn pin(&self, files: &Files) -> Result<Option<Secret>, Error> {
        let Credentials { pin_file, given: number } = &self.credentials;
        match (pin_file, number.and_then(given)) {
            (_, Some(secret)) => Ok(Some(secret)),
            // As it was written: any change of the file is a reason to try it once more.
            (Some(path), None) => {
                password(files, Some(path))?;
                Ok(Some(files.secret(path)?.clone()))
            }
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn selector(&self) -> Result<Selector, Error> {
        let bad = || Error::new(Kind::Config, "kek.keyId is not written in hex");
        let id = self.kek.key_id.as_deref().map(|text| unhex(text).ok_or_else(bad)).transpose()?;
        let label = self.kek.key_label.clone();
        Ok(Selector {
            algorithm: self.kek.algorithm,
            label,
            id,
            iv_from_token: self.settings.iv_from_token,
        })
    }

    /// What the replaced plugin wrote, and in which form we write.
    pub(crate) fn form(&self) -> Form {
        let Settings { format, hmac_label, hmac_id, read_without_integrity, .. } = &self.settings;
        Form {
            format: *format,
            hmac_label: hmac_label.clone(),
            hmac_id: hmac_id.as_deref().and_then(unhex),
            read_without_integrity: *read_without_integrity,
        }
    }
}

impl Kek {
    pub(crate) fn token(&self) -> Token {
        let Self { token_label: label, token_serial: serial, slot, .. } = self.clone();
        Token { label, serial, slot }
    }

    fn check(&self, problems: &mut Problems) {
        if self.token() == Token::default() {
            problems.add("tokenLabel", "is required, or tokenSerial or slot");
        }
        if self.key_label.is_none() && self.key_id.is_none() {
            problems.add("keyLabel", "is required, or keyId");
        }
        let Self { token_label, token_serial, key_label, key_id, .. } = self;
        let texts =
            [("tokenLabel", token_label), ("tokenSerial", token_serial), ("keyLabel", key_label)];
        check_texts(&texts, ("keyId", key_id), problems);
    }
}

impl Settings {
    pub(crate) fn sessions(&self) -> usize {
        self.max_sessions.unwrap_or(SESSIONS)
    }

    pub(crate) fn hang_limit(&self) -> Duration {
        self.hang_limit.as_deref().and_then(|text| parse_duration(text).ok()).unwrap_or(HANG_LIMIT)
    }

    fn check(&self, problems: &mut Problems) {
        problems.require("library", &self.library);
        check_absolute(&[("library", self.library.as_deref())], problems);
        if !(1..=MAX_SESSIONS).contains(&self.sessions()) {
            problems.add("maxSessions", "must be 1 to 64");
        }
        match self.hang_limit.as_deref().map(parse_duration) {
            Some(Err(error)) => problems.add("hangLimit", &error.to_string()),
            Some(Ok(limit)) if limit < SHORTEST_LIMIT => {
                problems.add("hangLimit", "must be at least 10s")
            }
            _ => {}
        }
        check_texts(&[("hmacLabel", &self.hmac_label)], ("hmacId", &self.hmac_id), problems);
        for (index, older) in self.older_keks.iter().enumerate() {
            problems.within(&format!("olderKeks[{index}]"), |problems| {
                if !older.settings.older_keks.is_empty() {
                    problems.add("settings.olderKeks", "belongs to the key that has this one");
                }
                older.check(problems);
            });
        }
    }
}

/// Reports names that nothing can have, and an id that is not written in hex.
fn check_texts(
    texts: &[(&str, &Option<String>)],
    (field, id): (&str, &Option<String>),
    problems: &mut Problems,
) {
    let wrong = |text: &String| text.is_empty() || text.len() > MAX_LABEL;
    for (field, _) in texts.iter().filter(|(_, text)| text.as_ref().is_some_and(wrong)) {
        problems.add(field, "must have 1 to 255 bytes");
    }
    if id.as_deref().is_some_and(|text| unhex(text).is_none()) {
        problems.add(field, "is not a CKA_ID in hex: pkcs11-tool --list-objects shows it");
    }
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().iter().map(|byte| char::from(*byte).to_digit(16));
    let digits: Vec<u32> = digits.collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| u8::try_from(pair.first()? * 16 + pair.get(1)?).ok());
    bytes.collect::<Option<Vec<u8>>>().filter(|bytes| !bytes.is_empty())
}
