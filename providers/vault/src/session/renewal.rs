//! Keeps the token of a session alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use sidekey_core::{Error, Kind, jitter};
use tokio::time::Instant;

use super::{BACKGROUND, Login, Session, held};
use crate::answer;
use crate::auth::Auth;
use crate::token::Token;

/// The longest wait after a renewal that failed.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The shortest, whatever the life of a token.
const MIN_BACKOFF: Duration = Duration::from_secs(1);

impl Session {
    /// Has the token renewed in time, for as long as the session is in use. One task does it; what
    /// an earlier token had is ended.
    pub(super) fn keep_alive(self: &Arc<Self>, token: &Token) {
        let due = token.due;
        let task =
            due.map(|due| tokio::spawn(keep_alive(Arc::downgrade(self), due)).abort_handle());
        let old = std::mem::replace(&mut *held(&self.renewal), task);
        if let Some(old) = old {
            old.abort();
        }
    }

    /// Renews the token, or logs in again where that is better; says when to come back, if ever.
    async fn renew(self: &Arc<Self>) -> Option<Instant> {
        match self.try_renew(Instant::now() + BACKGROUND).await {
            Ok(next) => next,
            Err(error) => {
                let left = held(&self.token).as_ref().and_then(|token| token.left());
                tracing::warn!(method = self.auth.name(), kind = %error.kind(), error = %error.report(),
                    ?left, "the token cannot be renewed");
                let left = left.filter(|left| !left.is_zero()).unwrap_or(MAX_BACKOFF * 4);
                Some(Instant::now() + jitter((left / 4).clamp(MIN_BACKOFF, MAX_BACKOFF)))
            }
        }
    }

    async fn try_renew(self: &Arc<Self>, deadline: Instant) -> Result<Option<Instant>, Error> {
        let _one = self.lock(deadline).await?;
        let Some(token) = held(&self.token).clone() else { return Ok(None) };
        if token.due.is_none_or(|due| due > Instant::now()) {
            return Ok(token.due);
        }
        let renewed = match token.renewable && !token.is_over() {
            true => self.renewed(&token, deadline).await.map(Some),
            false => Ok(None),
        };
        let can_log_in = !matches!(self.auth, Auth::Token(_));
        match renewed {
            Ok(Some(renewed)) if !renewed.is_nearly_over() => Ok(self.take(renewed)),
            Err(error) if error.kind().is_transient() || !can_log_in => Err(error),
            _ if can_log_in => {
                let new = self.login(deadline).await?;
                tracing::info!(method = self.auth.name(), life = ?new.life, "logged in to Vault again");
                let due = self.take(new);
                self.revoke(&token);
                Ok(due)
            }
            last => {
                let last = last.ok().flatten();
                let left = last.as_ref().unwrap_or(&token).left();
                tracing::warn!(
                    ?left,
                    "the token cannot be renewed any more: write a new one into its file, a periodic one if possible"
                );
                last.and_then(|last| self.take(last));
                Ok(None)
            }
        }
    }

    /// Uses a token from now on; says when it is due.
    fn take(&self, token: Token) -> Option<Instant> {
        tracing::debug!(life = ?token.life, "token renewed");
        let due = token.due;
        *held(&self.token) = Some(Arc::new(token));
        due
    }

    async fn renewed(&self, token: &Token, deadline: Instant) -> Result<Token, Error> {
        let of = "renewal of the token";
        let body = Bytes::from_static(b"{}");
        let mut request = self.envelope(Method::POST, "auth/token/renew-self", body);
        token.sign(&mut request);
        let answer = self.client.ask(&request, deadline).await?;
        match answer.status.as_u16() {
            200 => {}
            400 | 403 => return Err(answer::error(Kind::Denied, &answer, of)),
            _ => return Err(answer::refused(&answer, of)),
        }
        let granted: Login<'_> = answer::read(&answer, of)?;
        let granted = granted.auth.filter(|granted| granted.lease_duration > 0);
        let granted = granted
            .ok_or_else(|| Error::new(Kind::Denied, format!("{of}: its longest life is over")))?;
        let mut renewed = Token::new(token.header.clone(), granted.lease_duration);
        renewed.renewable = granted.renewable;
        renewed.whole = token.whole;
        renewed.index = answer.index.clone().or_else(|| token.index.clone());
        Ok(renewed)
    }
}

async fn keep_alive(session: Weak<Session>, mut due: Instant) {
    loop {
        tokio::time::sleep_until(due).await;
        let Some(session) = session.upgrade() else { return };
        match session.renew().await {
            Some(next) => due = next,
            None => return,
        }
    }
}
