//! Calls with a leased token, which goes into a header.

use std::time::Duration;

use http::Method;
use http::header::{AUTHORIZATION, HeaderValue};
use sidekey_core::{Error, Kind};
use tokio::time::Instant;

use crate::address::Address;
use crate::http::{Answer, Http, Request};
use crate::lease::{Lease, Source};

/// A token as fresh as this is not replaced: it is refused for another reason.
const YOUNG: Duration = Duration::from_secs(30);

/// Whether an answer says that the token was not good enough, in the vendor's own way.
type Refuses = fn(&Answer) -> bool;

impl<S: Source<Item = HeaderValue>> Lease<S> {
    /// Asks with the token. If that is refused, it is replaced. What encrypts and decrypts (POST)
    /// ends there with an error that says so, because a key in core then makes its next attempt; what
    /// looks is asked once more here.
    pub async fn ask(
        &self,
        http: &Http,
        address: &Address,
        request: Request,
        deadline: Instant,
        refuses: Refuses,
    ) -> Result<Answer, Error> {
        let again = (request.method != Method::POST).then(|| request.clone());
        match (self.attempt(http, address, request, deadline, refuses).await, again) {
            (Err(error), Some(request)) if error.is_mended() => {
                self.attempt(http, address, request, deadline, refuses).await
            }
            (done, _) => done,
        }
    }

    async fn attempt(
        &self,
        http: &Http,
        address: &Address,
        mut request: Request,
        deadline: Instant,
        refuses: Refuses,
    ) -> Result<Answer, Error> {
        let token = self.get(deadline).await?;
        request.headers.insert(AUTHORIZATION, token.item.clone());
        let answer = http.ask(address, request, deadline).await?;
        if !refuses(&answer) || token.since.elapsed() < YOUNG {
            return Ok(answer);
        }
        tracing::info!(%address, "the token is refused: logging in again");
        self.replace(&token, deadline).await?;
        let text = "the token was refused, and there is another one now";
        Err(Error::new(Kind::Unavailable, text).mended())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use sidekey_core::Files;
    use sidekey_core::tls::Unusable;

    use super::*;
    use crate::http::{Limits, Proxy};
    use crate::lease::Grant;
    use crate::testing::{Fake, Reply};
    use crate::tls::Trust;

    /// Gives the tokens 0, 1, 2 …
    #[derive(Default)]
    struct Numbers(AtomicU64);

    impl Source for Numbers {
        type Item = HeaderValue;

        async fn fetch(&self, _: Instant) -> Result<Grant<HeaderValue>, Error> {
            let item = HeaderValue::from(self.0.fetch_add(1, Ordering::Relaxed));
            Ok(Grant { item, life: None })
        }
    }

    #[tokio::test]
    async fn a_refused_token_is_replaced_once_unless_it_is_fresh() {
        let fake = Fake::http(|seen| {
            let status = if seen.headers[AUTHORIZATION] == "0" { 401 } else { 200 };
            Reply::json(status, &serde_json::json!({}))
        })
        .await;
        let files = Files::read([]).unwrap();
        let trust = Trust::new(None, Unusable::Refuse, None, &files, "caFile").unwrap();
        let http = Http::new(&trust, Proxy::default(), Limits::default());
        let address = Address::parse(&fake.url()).unwrap();
        let lease = Lease::new(Numbers::default(), [7; 32], Duration::ZERO);
        let refused = |answer: &Answer| answer.status == 401;
        let asked = async |method| {
            let deadline = Instant::now() + Duration::from_secs(30);
            lease.ask(&http, &address, Request::new(method, "/"), deadline, refused).await
        };
        let ask = async || asked(Method::GET).await.unwrap().status.as_u16();
        assert_eq!((ask().await, fake.seen().len()), (401, 1), "another would be refused too");
        tokio::time::pause();
        tokio::time::advance(YOUNG).await;
        tokio::time::resume();
        assert_eq!((ask().await, fake.seen().len()), (200, 3));
        assert_eq!((ask().await, fake.seen().len()), (200, 4));
        fake.answer(Reply::json(401, &serde_json::json!({})));
        tokio::time::pause();
        tokio::time::advance(YOUNG).await;
        tokio::time::resume();
        let error = asked(Method::POST).await.err().unwrap();
        assert_eq!((error.is_mended(), fake.seen().len()), (true, 5), "core repeats that");
    }
}
