//! What an answer of Vault means.
//!
//! The code decides, never the text: texts differ between versions and vendors. They are shown to
//! people, bounded, because they say best what is wrong.

use http::StatusCode;
use serde::Deserialize;
use sidekey_core::{Error, Kind};

use crate::server::Answer;

/// As much of Vault's own words as helps.
const MAX_TEXT: usize = 300;

/// Not in any standard: what Vault's own health endpoint answers on a secondary for disaster
/// recovery, and on a performance standby. A balancer may pass it on.
const DISASTER_SECONDARY: u16 = 472;
const PERFORMANCE_STANDBY: u16 = 473;

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<String>,
}

/// Whether the code speaks of the server alone, so that another one may do better: sealed, not
/// set up, in maintenance, without an active server behind it (which is a 500).
pub(crate) fn is_of_the_server(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502..=504 | DISASTER_SECONDARY | PERFORMANCE_STANDBY)
}

/// Reads a good answer.
pub(crate) fn read<'a, T: Deserialize<'a>>(answer: &'a Answer, of: &str) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        // The text of the error may quote what it stumbled over.
        let text = format!("{of}: the answer cannot be read (line {})", error.line());
        Error::new(Kind::Bug, text).with_hint("see whether the address is one of a Vault server")
    })
}

/// Makes an error of a bad answer, when nothing is known but its code.
pub(crate) fn refused(answer: &Answer, of: &str) -> Error {
    let status = answer.status;
    let (kind, hint) = match status.as_u16() {
        400 => (Kind::Config, "check the configuration of the key"),
        401 | 403 => (Kind::Denied, "check the policy of the token, and the namespace"),
        404 => (Kind::KeyState, "check namespace, mount and name"),
        405 => (Kind::Config, "see whether a transit engine is mounted there"),
        408 => (Kind::Timeout, "the server waited too long for the request"),
        412 => (Kind::Unavailable, "a replica does not know our token yet"),
        413 | 414 | 431 => (Kind::Bug, "the server takes shorter requests only"),
        429 => (Kind::Throttled, "raise the rate limit quota of the mount"),
        503 => (Kind::Unavailable, "the server may be sealed: see `status` on it"),
        DISASTER_SECONDARY => (Kind::Unavailable, "this cluster is a standby for disasters"),
        500..=599 | PERFORMANCE_STANDBY => (Kind::Unavailable, "see the log of the server"),
        _ => (Kind::Bug, "see whether the address is one of a Vault server"),
    };
    error(kind, answer, of).with_hint(hint)
}

/// Makes an error of `kind` with what Vault has to say.
pub(crate) fn error(kind: Kind, answer: &Answer, of: &str) -> Error {
    let status = answer.status.as_u16();
    let said = said(answer);
    let colon = if said.is_empty() { "" } else { ": " };
    Error::new(kind, format!("{of}: Vault answered {status}{colon}{said}"))
}

/// Vault's own words, on one line; those of another server, if they are plain text.
fn said(answer: &Answer) -> String {
    let text = match serde_json::from_slice::<Errors>(&answer.body) {
        Ok(list) => list.errors.join("; "),
        Err(_) => match std::str::from_utf8(&answer.body) {
            Ok(text) if !text.trim_start().starts_with(['<', '{', '[']) => text.to_owned(),
            _ => String::new(),
        },
    };
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    words.join(" ").chars().take(MAX_TEXT).collect()
}
