//! Connections to one server: kept, bounded, and given up when they are no good any more.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidekey_core::{Error, Kind};
use sidekey_rest::Address;
use sidekey_rest::stream::{Dialer, Stream};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::protocol::{Version, tag};

/// Shorter than any server or balancer waits before it closes, and longer than from one probe to
/// the next.
const IDLE: Duration = Duration::from_secs(60);
/// Far more than any answer has that we ask for.
const MAX_ANSWER: usize = 64 * 1024;
/// Tag, type and length.
const HEADER: usize = 8;

/// One server.
pub(crate) struct Server {
    pub(crate) address: Address,
    version: Mutex<Option<Version>>,
    /// Newest last.
    kept: Mutex<Vec<(Stream, Instant)>>,
}

/// Somebody who waits for an answer on a kept connection: who waits in vain, or finds it broken,
/// does not trust the others either.
struct Waiting<'a>(Option<&'a Server>);

impl Server {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, version: Mutex::default(), kept: Mutex::default() }
    }

    /// Sends a request and reads the answer, both whole. It is sent again if it met a kept
    /// connection that had gone stale.
    pub(crate) async fn exchange(
        &self,
        dialer: &Dialer,
        request: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        if let Some(mut stream) = self.take() {
            let mut waiting = Waiting(Some(self));
            match exchange(&mut stream, request).await {
                Ok(answer) => {
                    waiting.0 = None;
                    return self.finished(stream, answer);
                }
                Err(error) => {
                    tracing::debug!(server = self.name(), %error, "a kept connection had gone stale");
                }
            }
        }
        let mut stream = dialer.open(&self.address).await?;
        let answer = exchange(&mut stream, request)
            .await
            .map_err(|error| dialer.broken(&self.address, "the connection broke", error.into()))?;
        self.finished(stream, answer)
    }

    /// What is spoken with it, once it has said so.
    pub(crate) fn version(&self) -> Option<Version> {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn speaks(&self, version: Option<Version>) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
    }

    pub(crate) fn name(&self) -> String {
        self.address.authority()
    }

    /// Keeps the connection, unless what came is no answer.
    fn finished(
        &self,
        stream: Stream,
        answer: Option<Zeroizing<Vec<u8>>>,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let answer = answer.ok_or_else(|| {
            let text = format!("{}: the answer is none of KMIP's, or too long", self.name());
            Error::new(Kind::Unavailable, text).with_hint("see whether it is a KMIP server")
        })?;
        self.kept().push((stream, Instant::now()));
        Ok(answer)
    }

    fn take(&self) -> Option<Stream> {
        let mut kept = self.kept();
        kept.retain(|(_, since)| since.elapsed() < IDLE);
        kept.pop().map(|(stream, _)| stream)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(Stream, Instant)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.0 {
            server.kept().clear();
        }
    }
}

/// The bytes of an answer; none if what comes is no answer.
async fn exchange(stream: &mut Stream, request: &[u8]) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    stream.send(request).await?;
    let mut head = [0; HEADER];
    stream.fill(&mut head).await?;
    let [begin @ .., a, b, c, d] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if u32::from_be_bytes(begin) != tag::RESPONSE_MESSAGE << 8 | 1 || length > MAX_ANSWER {
        return Ok(None);
    }
    let mut answer = Zeroizing::new(vec![0; HEADER + length]);
    answer[..HEADER].copy_from_slice(&head);
    stream.fill(&mut answer[HEADER..]).await?;
    Ok(Some(answer))
}
