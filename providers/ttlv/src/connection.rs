//! Connections to one server: kept, and given up when they are no good any more.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidekey_core::{Error, Kind};
use sidekey_rest::Address;
use sidekey_rest::stream::{Dialer, Stream};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::codec::{Item, Value};
use crate::protocol::{Operation, VERSIONS, payload, request, tag, version};

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
    /// Newest last; with the version that is spoken, and since when nobody uses it.
    kept: Mutex<Vec<(Stream, i32, Instant)>>,
}

/// Somebody who waits for an answer on a kept connection: who waits in vain, or finds it broken,
/// does not trust the others either.
struct Waiting<'a>(Option<&'a Server>);

impl Server {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, kept: Mutex::default() }
    }

    /// The answer to what `ask` makes for a version. It is sent again if it met a kept connection
    /// that had gone stale.
    pub(crate) async fn ask(
        &self,
        dialer: &Dialer,
        ask: &(dyn Fn(i32) -> Result<Zeroizing<Vec<u8>>, Error> + Sync),
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        if let Some((mut stream, minor)) = self.take() {
            let request = ask(minor)?;
            let mut waiting = Waiting(Some(self));
            match exchange(&mut stream, &request).await {
                Ok(answer) => {
                    waiting.0 = None;
                    self.kept().push((stream, minor, Instant::now()));
                    return Ok(answer);
                }
                Err(error) => tracing::debug!(%error, "a kept connection had gone stale"),
            }
        }
        let broken = |error: io::Error| dialer.broken(&self.address, "no answer", error.into());
        let mut stream = dialer.open(&self.address).await?;
        let ours = VERSIONS.map(version);
        let ours = ours.each_ref().map(|one| (tag::PROTOCOL_VERSION, Value::Structure(one)));
        let discover = request(VERSIONS[2], Operation::DiscoverVersions, &ours);
        let minor = self.best(&exchange(&mut stream, &discover).await.map_err(broken)?)?;
        let answer = exchange(&mut stream, &ask(minor)?).await.map_err(broken)?;
        self.kept().push((stream, minor, Instant::now()));
        Ok(answer)
    }

    /// The best version that both speak.
    fn best(&self, answer: &[u8]) -> Result<i32, Error> {
        let name = self.address.authority();
        let told = payload(answer, Operation::DiscoverVersions, &name)?;
        let number = |item: Item<'_>, tag| item.find(tag).and_then(Item::number);
        let [major, minor] = [tag::PROTOCOL_VERSION_MAJOR, tag::PROTOCOL_VERSION_MINOR];
        let told = told.items().map(|item| (number(item, major), number(item, minor)));
        let told: Vec<_> = told.collect();
        let speaks = |minor: &i32| told.contains(&(Some(1), Some(*minor as u32)));
        VERSIONS.into_iter().find(speaks).ok_or_else(|| {
            Error::new(Kind::Config, format!("{name}: it speaks none of KMIP 1.2 to 1.4"))
        })
    }

    fn take(&self) -> Option<(Stream, i32)> {
        let mut kept = self.kept();
        kept.retain(|(_, _, since)| since.elapsed() < IDLE);
        kept.pop().map(|(stream, minor, _)| (stream, minor))
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(Stream, i32, Instant)>> {
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

/// Sends a request, and reads the whole answer.
async fn exchange(stream: &mut Stream, request: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
    stream.send(request).await?;
    let mut head = [0; HEADER];
    stream.fill(&mut head).await?;
    let [begin @ .., a, b, c, d] = head;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    // A structure.
    if u32::from_be_bytes(begin) != tag::RESPONSE_MESSAGE << 8 | 1 || length > MAX_ANSWER {
        return Err(io::Error::other("what came is none of KMIP's, or too long"));
    }
    let mut answer = Zeroizing::new(vec![0; HEADER + length]);
    answer[..HEADER].copy_from_slice(&head);
    stream.fill(&mut answer[HEADER..]).await?;
    Ok(answer)
}
