//! Calls with a leased token, which goes into a header.

use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderValue};
use http::{HeaderMap, StatusCode};
use sidekey_core::Error;
use tokio::time::Instant;

use crate::address::Address;
use crate::http::{Answer, Http, Request};
use crate::lease::{Lease, Source};

/// A token as fresh as this is not replaced: it is refused for another reason.
const YOUNG: Duration = Duration::from_secs(30);

impl<S: Source<Item = HeaderValue>> Lease<S> {
    /// Asks with the token. If that is refused (401), it is replaced and the question asked once more.
    pub async fn ask(
        &self,
        http: &Http,
        address: &Address,
        mut request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let token = self.get(deadline).await?;
        sign(&mut request.headers, &token.item);
        let answer = http.ask(address, request.clone(), deadline).await?;
        if answer.status != StatusCode::UNAUTHORIZED || token.since.elapsed() < YOUNG {
            return Ok(answer);
        }
        tracing::info!(%address, "the token is refused: logging in again");
        sign(&mut request.headers, &self.replace(&token, deadline).await?.item);
        http.ask(address, request, deadline).await
    }
}

fn sign(headers: &mut HeaderMap, token: &HeaderValue) {
    headers.insert(AUTHORIZATION, token.clone());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use http::Method;
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
        let ask = async || {
            let deadline = Instant::now() + Duration::from_secs(30);
            let request = Request::new(Method::GET, "/");
            lease.ask(&http, &address, request, deadline).await.unwrap().status.as_u16()
        };
        assert_eq!((ask().await, fake.seen().len()), (401, 1), "another would be refused too");
        tokio::time::pause();
        tokio::time::advance(YOUNG).await;
        tokio::time::resume();
        assert_eq!((ask().await, fake.seen().len()), (200, 3));
        assert_eq!((ask().await, fake.seen().len()), (200, 4));
    }
}
