//! Mutual TLS between the shim, the socket proxy and whoever reads the admin endpoints.
//!
//! TLS 1.3 and nothing older, on aws-lc-rs, with the post-quantum hybrid X25519MLKEM768 as the
//! first choice of key exchange. Both sides show a certificate, always. There is no resumption:
//! connections live long, and a ticket would outlive the trust under which it was given.
//!
//! It refuses to verify less than everything: there is no switch for that. The one invariant: **a
//! change of files that cannot be used never takes the place of an identity that can**.

mod files;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use sidekey_core::certificate::Certificate;
use sidekey_core::{Error, Files, Kind, Subscription, Watcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use files::Loaded;
pub use refusal::{Reason, Refusal};

/// Connections whose clients have not shown who they are, at each address.
pub(crate) const MAX_STRANGERS: usize = 64;
/// A handshake takes a few round trips; whoever needs longer is not there or means harm.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed handshake the peer gets this long, and so many bytes, to read why.
const LINGER: (Duration, u64) = (Duration::from_millis(500), 64 * 1024);
/// A peer that is gone without a word is found out: first probe, between probes, how many.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);
/// Sent and not acknowledged for this long, in milliseconds, means that the way is cut. Kernels
/// acknowledge, however slow the plugin is; and of kube-apiserver's 3 s enough must be left for a
/// client to ask elsewhere.
const UNACKNOWLEDGED_BY_SERVER: u32 = 1_000;
const UNACKNOWLEDGED_BY_CLIENT: u32 = 15_000;

/// Where certificates are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TlsFiles {
    /// Who signs the peers' certificates; several may stand in one file.
    pub ca: PathBuf,
    /// Our certificate, with those between it and the CA.
    pub cert: PathBuf,
    /// The key of our certificate.
    pub key: PathBuf,
}

/// What is spoken inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// KMS v2.
    Http2,
    /// The admin endpoints.
    Http1,
}

/// Who called, as the certificate says.
#[derive(Clone, Debug)]
pub struct TlsPeer {
    /// DNS names, URIs (SPIFFE) and IP addresses, in the form that
    /// [`identity`](sidekey_core::certificate::identity) gives.
    pub sans: Vec<String>,
    /// When its certificate expires.
    pub expires: SystemTime,
    chain: Vec<CertificateDer<'static>>,
}

/// Who serves a connection of ours.
pub struct Server {
    identity: Arc<Identity>,
    name: ServerName<'static>,
    chain: Vec<CertificateDer<'static>>,
    /// The state of our files under which it was last verified.
    verified: AtomicU64,
}

/// Our certificate and whom we trust, swapped as a whole when the files change.
pub struct Identity {
    files: Mutex<TlsFiles>,
    /// Tells the follower that other files are to be watched, or none any more.
    moved: Arc<Notify>,
    /// Nothing until the files can be used for the first time.
    loaded: ArcSwapOption<Loaded>,
    generation: watch::Sender<u64>,
    succeeded: AtomicU64,
    failed: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Identity {
    /// Reads and checks the files. An expired certificate is taken with a warning: it may be all
    /// there is, and whoever replaces it should find a running process.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, Error> {
        let loaded = Loaded::read(&files)?;
        if loaded.leaf.not_after <= SystemTime::now() {
            tracing::warn!(certificate = %files.cert.display(), expired = %loaded.expiry_text(),
                "our certificate has expired: peers will refuse it until it is replaced");
        }
        Ok(Self::of(files, Some(loaded), None))
    }

    /// An identity with files that cannot be used: nobody is connected with it, until whoever
    /// [follows](Self::follow) them finds that they can.
    pub(crate) fn waiting(files: TlsFiles, error: &Error) -> Arc<Self> {
        Self::of(files, None, Some(error.report()))
    }

    fn of(files: TlsFiles, loaded: Option<Loaded>, error: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            files: Mutex::new(files),
            moved: Arc::default(),
            loaded: ArcSwapOption::new(loaded.map(Arc::new)),
            generation: watch::Sender::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            error: Mutex::new(error),
        })
    }

    /// Takes the files over whenever they change, for as long as it is polled and the identity is
    /// in use. What changed since [`load`](Self::load) is noticed too.
    pub fn follow(self: &Arc<Self>, watcher: &Watcher) -> impl Future<Output = ()> + Send + use<> {
        let (this, moved) = (Arc::downgrade(self), self.moved.clone());
        let mut subscription = watcher.subscribe(BTreeSet::new());
        async move {
            while Self::aim(&this, &mut subscription) {
                let files = tokio::select! {
                    files = subscription.changed() => files,
                    () = moved.notified() => continue,
                };
                let Some(this) = this.upgrade() else { return };
                let paths = this.files.lock().clone();
                if paths.set() == *subscription.paths() {
                    this.take_over(&paths, files);
                }
            }
        }
    }

    /// Uses other files from now on, if they can be used.
    pub fn move_to(&self, files: TlsFiles) -> Result<(), Error> {
        let mut current = self.files.lock();
        if *current == files {
            return Ok(());
        }
        let loaded = self.no_worse(Loaded::read(&files)?)?;
        *current = files;
        drop(current);
        self.swap(loaded);
        self.moved.notify_one();
        Ok(())
    }

    /// When our certificate expires, if there is one.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.loaded.load().as_ref().map(|loaded| loaded.leaf.not_after)
    }

    /// The names in our certificate.
    pub fn names(&self) -> Vec<String> {
        self.loaded.load().as_ref().map(|loaded| loaded.leaf.identities()).unwrap_or_default()
    }

    /// What is in use, or why there is nothing.
    fn loaded(&self) -> Result<Arc<Loaded>, Error> {
        self.loaded.load_full().ok_or_else(|| {
            let why = self.last_error().unwrap_or_default();
            let text = format!("our certificates cannot be used: {why}");
            Error::new(Kind::Unavailable, text)
                .with_hint("correct the files: they are taken over as soon as they can be used")
        })
    }

    /// How often changed files were taken over, and how often they were refused.
    pub fn reloads(&self) -> (u64, u64) {
        (self.succeeded.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Why the files as they are now are not in use.
    pub fn last_error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// Opens TLS with a server that must have `server_name`, a DNS name or an IP address, in its
    /// certificate. A server that does not like *our* certificate says so only in its first
    /// answer: that is how TLS 1.3 is.
    pub async fn connect(
        &self,
        tcp: TcpStream,
        server_name: &str,
    ) -> Result<client::TlsStream<TcpStream>, Error> {
        let name = ServerName::try_from(server_name.to_owned()).map_err(|_| {
            Error::new(Kind::Config, format!("{server_name:?} is no DNS name and no IP address"))
        })?;
        tune(&tcp, UNACKNOWLEDGED_BY_SERVER);
        let connector = TlsConnector::from(self.loaded()?.client.clone());
        match timeout(HANDSHAKE_TIMEOUT, connector.connect(name, tcp)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Refusal::by_us(error, &format!("TLS with {server_name}")).error),
            Err(_) => Err(Error::new(Kind::Unavailable, format!("no TLS from {server_name}"))
                .with_hint("see whether a Sidekey proxy listens there")),
        }
    }

    /// Who is at the other end of a connection that [`connect`](Self::connect) made.
    pub fn server(
        self: &Arc<Self>,
        stream: &client::TlsStream<TcpStream>,
        server_name: &str,
    ) -> Option<Server> {
        let chain = stream.get_ref().1.peer_certificates()?.to_vec();
        let name = ServerName::try_from(server_name.to_owned()).ok()?;
        // Not yet under any: the files may have changed during the handshake.
        let verified = AtomicU64::new(u64::MAX);
        Some(Server { identity: self.clone(), name, chain, verified })
    }

    /// Opens TLS with a client, which must show a certificate that our CA signed.
    pub async fn accept(
        &self,
        tcp: TcpStream,
        protocol: Protocol,
    ) -> Result<(server::TlsStream<TcpStream>, TlsPeer), Refusal> {
        tune(&tcp, UNACKNOWLEDGED_BY_CLIENT);
        let loaded = self.loaded().map_err(|error| Refusal { reason: Reason::Closed, error })?;
        let config = match protocol {
            Protocol::Http2 => loaded.http2.clone(),
            Protocol::Http1 => loaded.http1.clone(),
        };
        let accepting = TlsAcceptor::from(config).accept(tcp).into_fallible();
        let stream = match timeout(HANDSHAKE_TIMEOUT, accepting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err((error, tcp))) => {
                linger(tcp).await;
                return Err(Refusal::by_us(error, "TLS with a client"));
            }
            Err(_) => return Err(Refusal::timeout(HANDSHAKE_TIMEOUT)),
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let peer = TlsPeer::of(chain).ok_or_else(Refusal::unreadable)?;
        Ok((stream, peer))
    }

    /// Whether the peer's certificate would be accepted now: not expired, its CA not removed.
    pub fn trusts(&self, peer: &TlsPeer) -> bool {
        self.trusts_at(peer, SystemTime::now())
    }

    /// Ends when the peer's certificate would no longer be accepted.
    pub async fn distrusted(&self, peer: &TlsPeer) {
        self.distrusted_by(peer, SystemTime::now).await;
    }

    fn trusts_at(&self, peer: &TlsPeer, now: SystemTime) -> bool {
        let Some((leaf, between)) = peer.chain.split_first() else { return false };
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(since);
        let loaded = self.loaded.load();
        let clients = loaded.as_ref().map(|loaded| &loaded.clients);
        clients.is_some_and(|clients| clients.verify_client_cert(leaf, between, now).is_ok())
    }

    async fn distrusted_by(&self, peer: &TlsPeer, clock: impl Fn() -> SystemTime) {
        let mut generation = self.generation.subscribe();
        while self.trusts_at(peer, clock()) {
            let left = peer.expires.duration_since(clock()).unwrap_or_default();
            // A little more, so that the second in which it expires is over.
            let expired = tokio::time::sleep(left.min(RECHECK) + Duration::from_secs(1));
            tokio::select! {
                () = expired => {}
                changed = generation.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Watches the files in use, if the identity is; what was read counts as known.
    fn aim(this: &Weak<Self>, subscription: &mut Subscription) -> bool {
        let Some(this) = this.upgrade() else { return false };
        let files = this.files.lock();
        let paths = files.set();
        if *subscription.paths() != paths {
            subscription.replace(paths);
            if let Some(loaded) = &*this.loaded.load() {
                subscription.told(loaded.digest);
            }
        }
        true
    }

    fn take_over(&self, paths: &TlsFiles, files: Result<Files, Error>) {
        let loaded = files.and_then(|files| Loaded::parse(paths, &files));
        match loaded.and_then(|loaded| self.no_worse(loaded)) {
            Ok(loaded) => {
                tracing::info!(certificate = %paths.cert.display(), expires = %loaded.expiry_text(),
                    "new certificates are in use");
                self.swap(loaded);
                self.succeeded.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let error = error.report();
                let in_use = if self.expiry().is_some() { "the last good ones" } else { "none" };
                tracing::warn!(error, in_use, "certificates refused");
                *self.error.lock() = Some(error);
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// An expired certificate does not replace one that is good.
    fn no_worse(&self, new: Loaded) -> Result<Loaded, Error> {
        let now = SystemTime::now();
        if new.leaf.not_after <= now && self.expiry() > Some(now) {
            let text = format!("the new certificate has expired ({})", new.expiry_text());
            return Err(Error::new(Kind::Config, text).with_hint("issue a new one"));
        }
        Ok(new)
    }

    fn swap(&self, loaded: Loaded) {
        self.loaded.store(Some(Arc::new(loaded)));
        *self.error.lock() = None;
        self.generation.send_modify(|generation| *generation += 1);
    }
}

/// Timers know nothing of a clock that was set: it is read again after this time.
const RECHECK: Duration = Duration::from_secs(30);

impl Server {
    /// Whether its certificate would be accepted now. It is verified again when our files have
    /// changed, and not when it expires: whoever renews it does so for new connections.
    pub fn is_trusted(&self) -> bool {
        let generation = *self.identity.generation.borrow();
        if self.verified.load(Ordering::Relaxed) == generation {
            return true;
        }
        let Some((leaf, between)) = self.chain.split_first() else { return false };
        let Ok(loaded) = self.identity.loaded() else { return false };
        let (servers, now) = (&loaded.servers, UnixTime::now());
        let trusted = servers.verify_server_cert(leaf, between, &self.name, &[], now).is_ok();
        if trusted {
            self.verified.store(generation, Ordering::Relaxed);
        }
        trusted
    }
}

impl TlsFiles {
    fn all(&self) -> [&Path; 3] {
        [&self.ca, &self.cert, &self.key]
    }

    fn set(&self) -> BTreeSet<PathBuf> {
        self.all().map(Path::to_owned).into()
    }
}

impl TlsPeer {
    fn of(chain: Vec<CertificateDer<'static>>) -> Option<Self> {
        let leaf = Certificate::parse(chain.first()?).ok()?;
        Some(Self { sans: leaf.identities(), expires: leaf.not_after, chain })
    }
}

impl Drop for Identity {
    /// Ends what follows the files.
    fn drop(&mut self) {
        self.moved.notify_one();
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("files", &*self.files.lock()).finish_non_exhaustive()
    }
}

/// Small answers at once, and no waiting for a peer that is gone. None of it is needed for
/// correctness, so that failure is no reason to give up.
fn tune(tcp: &TcpStream, unacknowledged: u32) {
    use rustix::net::sockopt;
    let fd = tcp.as_fd();
    let (idle, between, count) = KEEPALIVE;
    let result = tcp
        .set_nodelay(true)
        .and_then(|()| Ok(sockopt::set_socket_keepalive(fd, true)?))
        .and_then(|()| Ok(sockopt::set_tcp_keepidle(fd, idle)?))
        .and_then(|()| Ok(sockopt::set_tcp_keepintvl(fd, between)?))
        .and_then(|()| Ok(sockopt::set_tcp_keepcnt(fd, count)?))
        .and_then(|()| Ok(sockopt::set_tcp_user_timeout(fd, unacknowledged)?));
    if let Err(error) = result {
        tracing::debug!(%error, "cannot tune a connection");
    }
}

/// Closing with unread bytes resets the connection, and the reset may overtake the alert that
/// tells the peer what is wrong with its certificate.
async fn linger(mut tcp: TcpStream) {
    let (time, bytes) = LINGER;
    let reading = async {
        tcp.shutdown().await?;
        tokio::io::copy(&mut tcp.take(bytes), &mut tokio::io::sink()).await
    };
    let _ = timeout(time, reading).await;
}
