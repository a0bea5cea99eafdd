//! A client of etcd's v3 API: just what counting needs, and nothing that writes.
//!
//! It speaks gRPC over the same lean HTTP/2 connection as the sidecars. All reads are
//! linearizable; a member that does not answer is passed over for the next one; answers of
//! another cluster are refused.

mod access;
mod messages;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http::uri::PathAndQuery;
use prost::Message;
use rustls::pki_types::ServerName;
use sidekey_core::client::{self, Connection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

pub use access::Access;
use access::{Endpoint, Resolved};
use messages::{AuthenticateRequest, AuthenticateResponse};
pub use messages::{Header, KeyValue, RangeRequest, RangeResponse};

use crate::Error;

/// How often all members are tried before it is given up.
const ROUNDS: usize = 3;
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(500);
/// How far a member may be ahead of us: enough for a distant one, and no burden.
const WINDOW: u32 = 1024 * 1024;
/// Answers but pages are small.
const SMALL: usize = 64 * 1024;
/// A key that need not exist, for questions that are not about keys.
const ANY_KEY: &[u8] = b"compact_rev_key";

/// A cluster of etcd. Nothing is asked before the first call.
#[derive(Debug)]
pub struct Etcd {
    access: Resolved,
    member: usize,
    session: Option<Session>,
    cluster: Option<ClusterId>,
}

/// The number that etcd gives to a cluster when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

/// Why a question has no answer.
#[derive(Debug)]
pub enum Trouble {
    /// The revision that was asked for is gone.
    Compacted,
    /// The answer is larger than the caller takes.
    TooLarge,
    /// Anything else, which asking again does not change.
    Failed(Error),
}

/// One connection, and what proves who we are on it.
#[derive(Debug)]
struct Session {
    connection: Connection,
    origin: Uri,
    token: Option<MetadataValue<Ascii>>,
}

/// What one member made of a request.
enum Refusal {
    /// Another member may do better.
    Away(String),
    /// The token has expired.
    Expired,
    Trouble(Trouble),
}

impl Etcd {
    /// Reads flags, variables and files; nothing is asked yet.
    pub fn new(access: &Access) -> Result<Self, Error> {
        let access = access.resolve(&|name| std::env::var(name).ok())?;
        Ok(Self { access, member: 0, session: None, cluster: None })
    }

    /// The cluster, once it has answered.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// The members that are asked.
    pub fn endpoints(&self) -> Vec<String> {
        self.access.endpoints.iter().map(ToString::to_string).collect()
    }

    /// Keys and values; an answer of more than `most` bytes is refused unread.
    pub async fn range(
        &mut self,
        request: RangeRequest,
        most: usize,
    ) -> Result<(Header, RangeResponse), Trouble> {
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
        let answer: RangeResponse = self.call(&path, request, most).await?;
        let header = answer.header.unwrap_or_default();
        let cluster = ClusterId(header.cluster_id);
        match self.cluster {
            Some(known) if known != cluster => {
                let endpoint = &self.access.endpoints[self.member];
                let what =
                    format!("{endpoint} belongs to cluster {cluster}, others to cluster {known}");
                Err(Trouble::Failed(Error::failed(what).hint("give members of one cluster")))
            }
            _ => {
                self.cluster = Some(cluster);
                Ok((header, answer))
            }
        }
    }

    /// The store's revision now.
    pub async fn revision(&mut self) -> Result<i64, Error> {
        let request = RangeRequest { key: Bytes::from_static(ANY_KEY), ..Default::default() };
        let answer = self.range(RangeRequest { count_only: true, ..request }, SMALL).await;
        Ok(answer.map_err(Trouble::into_error)?.0.revision)
    }

    /// Whether etcd has compacted past that revision: then it can be asked of it no more.
    pub async fn has_compacted(&mut self, revision: i64) -> Result<bool, Error> {
        let key = Bytes::from_static(ANY_KEY);
        let request = RangeRequest { key, revision, count_only: true, ..Default::default() };
        match self.range(request, SMALL).await {
            Ok(_) => Ok(false),
            Err(Trouble::Compacted) => Ok(true),
            Err(trouble) => Err(trouble.into_error()),
        }
    }

    async fn call<Q, A>(
        &mut self,
        path: &PathAndQuery,
        request: Q,
        most: usize,
    ) -> Result<A, Trouble>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut reasons = vec![String::new(); self.access.endpoints.len()];
        for round in 0..ROUNDS {
            if round > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            for _ in 0..self.access.endpoints.len() {
                match self.attempt(path, request.clone(), most).await {
                    Ok(answer) => return Ok(answer),
                    Err(Refusal::Trouble(trouble)) => return Err(trouble),
                    Err(Refusal::Expired) => self.session = None,
                    Err(Refusal::Away(reason)) => {
                        reasons[self.member] = reason;
                        self.session = None;
                        self.member = (self.member + 1) % self.access.endpoints.len();
                    }
                }
            }
        }
        let each = self.access.endpoints.iter().zip(&reasons);
        let each: Vec<String> = each.map(|(endpoint, why)| format!("{endpoint}: {why}")).collect();
        Err(Trouble::Failed(
            Error::failed(format!("no member of etcd answers ({})", each.join("; ")))
                .hint("check --endpoints, --cacert, --cert and --key: they are what etcdctl takes"),
        ))
    }

    /// Asks the present member once.
    async fn attempt<Q, A>(
        &mut self,
        path: &PathAndQuery,
        request: Q,
        most: usize,
    ) -> Result<A, Refusal>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let session = match &self.session {
            Some(session) if !session.connection.is_closed() => session,
            _ => {
                let session = Session::open(&self.access, &self.access.endpoints[self.member]);
                self.session.insert(session.await?)
            }
        };
        session.ask(path.clone(), request, most, self.access.command_timeout).await
    }
}

impl Session {
    async fn open(access: &Resolved, endpoint: &Endpoint) -> Result<Self, Refusal> {
        let opened = timeout(access.dial_timeout, dial(access, endpoint)).await;
        let connection = opened
            .map_err(|_| Refusal::Away(format!("no connection in {:?}", access.dial_timeout)))?
            .map_err(Refusal::Away)?;
        let origin = endpoint.to_string().parse();
        let origin = origin.map_err(|error| Refusal::Away(format!("not an address: {error}")))?;
        let mut session = Self { connection, origin, token: None };
        if let Some(user) = &access.user {
            let request =
                AuthenticateRequest { name: user.name.clone(), password: user.password.clone() };
            let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
            let answer: AuthenticateResponse =
                session.ask(path, request, SMALL, access.command_timeout).await?;
            let token = answer.token.parse().map_err(|_| {
                Refusal::Away("its token for the user cannot be sent back".to_owned())
            })?;
            session.token = Some(token);
        }
        Ok(session)
    }

    async fn ask<Q, A>(
        &self,
        path: PathAndQuery,
        request: Q,
        most: usize,
        patience: Duration,
    ) -> Result<A, Refusal>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc =
            tonic::client::Grpc::with_origin(self.connection.clone(), self.origin.clone())
                .max_decoding_message_size(most);
        let mut request = Request::new(request);
        request.set_timeout(patience);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        let asked = grpc.unary(request, path, ProstCodec::<Q, A>::default());
        match timeout(patience, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(refusal(&status)),
            Err(_) => Err(Refusal::Away(format!("no answer in {patience:?}"))),
        }
    }
}

impl Trouble {
    /// For those who cannot do anything about it.
    pub fn into_error(self) -> Error {
        match self {
            Self::Compacted => Error::failed("etcd has compacted the revision that was asked for")
                .hint("ask again"),
            Self::TooLarge => Error::failed("etcd's answer is too large"),
            Self::Failed(error) => error,
        }
    }
}

impl fmt::Display for ClusterId {
    /// As etcdctl shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

async fn dial(access: &Resolved, endpoint: &Endpoint) -> Result<Connection, String> {
    let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    match &access.tls {
        Some(tls) if endpoint.tls => {
            let name = ServerName::try_from(endpoint.host.clone());
            let name = name.map_err(|_| "its name cannot stand in a certificate".to_owned())?;
            let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
            speak(stream.map_err(|error| format!("TLS: {error}"))?).await
        }
        _ => speak(stream).await,
    }
}

async fn speak<T>(stream: T) -> Result<Connection, String>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let opened = client::connection(stream, WINDOW).await;
    opened.map_err(|error| format!("it does not speak HTTP/2: {error}"))
}

/// etcd tells its refusals apart by their text alone.
fn refusal(status: &Status) -> Refusal {
    let (code, text) = (status.code(), status.message());
    if code == Code::OutOfRange && text.contains("required revision has been compacted") {
        return Refusal::Trouble(Trouble::Compacted);
    }
    // Not etcd's, but that of our own limit.
    if code == Code::OutOfRange && !text.starts_with("etcdserver:") {
        return Refusal::Trouble(Trouble::TooLarge);
    }
    if code == Code::Unauthenticated && text.contains("invalid auth token") {
        return Refusal::Expired;
    }
    let said = cause(status);
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Aborted
        | Code::Internal
        | Code::ResourceExhausted => Refusal::Away(said),
        Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument => {
            let error = Error::failed(format!("etcd refuses: {said}"));
            Refusal::Trouble(Trouble::Failed(error.hint(
                "etcd's user or certificate needs the right to read: see --user, --cert and --prefix",
            )))
        }
        _ => Refusal::Trouble(Trouble::Failed(Error::failed(format!("etcd refuses: {said}")))),
    }
}

/// What a broken connection says is in its causes alone.
fn cause(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        next = error.source();
    }
    if text.is_empty() { format!("{:?}", status.code()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcds_refusals_are_told_apart() {
        let of = |code, text: &str| refusal(&Status::new(code, text));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert!(matches!(of(Code::OutOfRange, compacted), Refusal::Trouble(Trouble::Compacted)));
        let future = "etcdserver: mvcc: required revision is a future revision";
        assert!(matches!(of(Code::OutOfRange, future), Refusal::Trouble(Trouble::Failed(_))));
        let large = "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes";
        assert!(matches!(of(Code::OutOfRange, large), Refusal::Trouble(Trouble::TooLarge)));
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), Refusal::Away(_)));
        let expired = "etcdserver: invalid auth token";
        assert!(matches!(of(Code::Unauthenticated, expired), Refusal::Expired));
        let denied = of(Code::PermissionDenied, "etcdserver: permission denied");
        assert!(matches!(denied, Refusal::Trouble(Trouble::Failed(_))));
    }
}
