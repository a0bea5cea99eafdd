//! A token and its life.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderValue;
use sidekey_core::{Error, Kind, jitter};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::server::Request;

/// So long after a login a replica may not have heard of it.
const FRESH: Duration = Duration::from_secs(60);

/// What a login gave.
#[derive(Debug)]
pub(crate) struct Token {
    /// As it is sent.
    pub(crate) header: HeaderValue,
    /// The state of the cluster that knows it, where it says so.
    pub(crate) index: Option<HeaderValue>,
    /// Whether its life can be drawn out.
    pub(crate) renewable: bool,
    /// When it was given or renewed.
    pub(crate) given: Instant,
    /// None: it does not expire.
    pub(crate) life: Option<Duration>,
    /// The life that it had at first.
    pub(crate) whole: Option<Duration>,
    /// When it ends, for people.
    pub(crate) expires: Option<SystemTime>,
    /// When to renew it: spread, so that a fleet does not come in step.
    pub(crate) due: Option<Instant>,
}

impl Token {
    /// One that lives so many seconds; 0 for ever.
    pub(crate) fn new(header: HeaderValue, seconds: u64) -> Self {
        // Nothing that counts lives longer than a century.
        let life = (seconds > 0).then(|| Duration::from_secs(seconds.min(100 * 365 * 86_400)));
        Self {
            header,
            index: None,
            renewable: false,
            given: Instant::now(),
            life,
            whole: life,
            expires: life.map(|life| SystemTime::now() + life),
            due: life.map(|life| Instant::now() + jitter(life * 2 / 3)),
        }
    }

    /// Puts it on a request. The state of the cluster goes with it only while it is fresh: a
    /// cluster that was restored from a snapshot may never come to that state again, and would
    /// refuse everything (412) for as long as the token lives.
    pub(crate) fn sign(&self, request: &mut Request) {
        request.token = Some(self.header.clone());
        request.index = self.index.clone().filter(|_| self.given.elapsed() < FRESH);
    }

    /// What is left of its life.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.life.map(|life| life.saturating_sub(self.given.elapsed()))
    }

    /// Whether it has expired.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Renewed, but cut short: its longest life comes to an end.
    pub(crate) fn is_nearly_over(&self) -> bool {
        match (self.life, self.whole) {
            (Some(life), Some(whole)) => life < whole / 2,
            _ => false,
        }
    }
}

/// A token as it is sent: wiped when the last copy is gone, and never shown.
pub(crate) fn header(token: &str) -> Result<HeaderValue, Error> {
    let bytes = Bytes::from_owner(Zeroizing::new(token.as_bytes().to_vec()));
    let mut header = HeaderValue::from_maybe_shared(bytes)
        .map_err(|_| Error::new(Kind::Config, "the token holds characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_state_of_the_cluster_is_asked_for_while_the_token_is_fresh() {
        let mut token = Token::new(HeaderValue::from_static("t"), 3600);
        token.index = Some(HeaderValue::from_static("state"));
        let signed = |token: &Token| {
            let (method, path) = (http::Method::GET, String::new());
            let (body, namespace) = (Bytes::new(), None);
            let mut request =
                Request { method, path, body, namespace, token: None, index: None, once: false };
            token.sign(&mut request);
            assert!(request.token.is_some());
            request.index
        };
        assert_eq!(signed(&token), token.index);
        tokio::time::advance(FRESH).await;
        assert_eq!(signed(&token), None);
    }
}
