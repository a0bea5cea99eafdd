//! The unix listener of a key: made whole or not at all, and for known peers only.
//!
//! It refuses to remove anything but a socket on which nobody answers, and on
//! leaving removes its own socket and no other. The socket appears under its name
//! with the right mode and group from the first moment on.

pub(crate) mod connections;
pub(crate) mod endpoint;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, sleep_until};

use crate::kms::server::Incoming;
use crate::metrics::Counter;
use crate::process::telemetry::RateLimit;
use crate::{Backoff, Connections, Endpoint, Error, Kind};

mod place;
#[cfg(test)]
mod tests;

use place::BoundSocket;

/// The first and the longest pause when the system has no resources to accept.
pub(crate) const PAUSE: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// How often to see whether clients still reach us.
const CHECK: Duration = Duration::from_secs(5);

/// Who may connect, and what the socket file looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The permission bits of the socket file.
    pub mode: u32,
    /// The group of the socket file; that of the process or directory if `None`.
    pub group: Option<u32>,
    /// The uids that may connect; our own and root if empty.
    pub allowed_uids: Vec<u32>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The effective user when it connected.
    pub uid: u32,
    /// The process, unless it lives in a pid namespace that we cannot see.
    pub pid: Option<i32>,
}

/// Accepts the connections of allowed peers; its socket goes when it is dropped.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    endpoint: Endpoint,
    file: Option<SocketFile>,
    options: SocketOptions,
    allowed: Vec<u32>,
    refused: Counter,
    /// Told of a socket that was gone.
    report: Option<Connections>,
    next_check: Instant,
    refusals_logged: RateLimit,
    failures_logged: RateLimit,
}

/// A socket in the file system, known by its inode: the name may have been taken
/// by somebody else's.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self { mode: 0o660, group: None, allowed_uids: Vec::new() }
    }
}

impl Listener {
    /// Binds `endpoint`; the text that may come with the listener is a warning
    /// about its directory, for the caller to log.
    ///
    /// Must be called on the runtime that will accept.
    pub async fn bind(
        endpoint: &Endpoint,
        options: &SocketOptions,
    ) -> Result<(Self, Option<String>), Error> {
        let (listener, file, warning) = match endpoint {
            Endpoint::Path(path) => {
                let BoundSocket { listener, dev, ino, warning } =
                    place::bind(endpoint, path, options).await?;
                (listener, Some(SocketFile { path: path.clone(), dev, ino }), warning)
            }
            Endpoint::Abstract(_) => {
                let warning = format!(
                    "{endpoint} is an abstract socket, which no file mode guards: every process of \
                     this network namespace can reach it, or take its name before us; use a path"
                );
                (bind_abstract(endpoint)?, None, Some(warning))
            }
        };
        let inner = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener))
            .map_err(|error| {
                Error::new(Kind::Config, format!("cannot listen on {endpoint}")).with_source(error)
            })?;
        let allowed = accepted_uids(&options.allowed_uids);
        let listener = Self {
            inner,
            endpoint: endpoint.clone(),
            file,
            options: options.clone(),
            allowed,
            refused: Counter::default(),
            report: None,
            next_check: Instant::now() + CHECK,
            refusals_logged: RateLimit::rare(),
            failures_logged: RateLimit::rare(),
        };
        Ok((listener, warning))
    }

    /// The next connection of an allowed peer; others are closed and counted.
    ///
    /// Never ends: where the system cannot accept for want of descriptors or
    /// memory it tries again, ever more slowly. Dropping the future loses nothing.
    pub async fn accept(&self) -> (UnixStream, Peer) {
        let mut pause = PAUSE;
        loop {
            match self.inner.accept().await {
                Ok((stream, _)) => {
                    pause.reset();
                    if let Some(peer) = self.admit(&stream) {
                        return (stream, peer);
                    }
                }
                Err(error) if is_of_peer(&error) => {}
                Err(error) => {
                    if let Some(suppressed) = self.failures_logged.pass() {
                        tracing::error!(
                            endpoint = %self.endpoint, %error, suppressed,
                            "cannot accept connections; trying again"
                        );
                    }
                    sleep(pause.delay()).await;
                }
            }
        }
    }

    /// Counts refused connections there from now on.
    pub fn counting(mut self, refused: Counter) -> Self {
        self.refused = refused;
        self
    }

    /// Reports there when the socket was gone.
    pub(crate) fn report_to(&mut self, connections: Connections) {
        self.report = Some(connections);
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether a client that opens the endpoint would still reach us: somebody may
    /// have removed or replaced the socket file.
    fn is_reachable(&self) -> bool {
        self.file.as_ref().is_none_or(SocketFile::is_ours)
    }

    /// Makes the socket anew under its name. What somebody else serves there now is left alone.
    async fn remake(&mut self) {
        let made = Self::bind(&self.endpoint, &self.options).await.map(|(mut fresh, _)| {
            std::mem::swap(&mut self.inner, &mut fresh.inner);
            std::mem::swap(&mut self.file, &mut fresh.file);
        });
        if let Some(report) = &self.report {
            report.socket(&self.endpoint, &made);
        }
        let endpoint = &self.endpoint;
        match made {
            Ok(()) => tracing::warn!(%endpoint, "the socket was gone and is made anew"),
            Err(error) => {
                if let Some(suppressed) = self.failures_logged.pass() {
                    let error = error.report();
                    tracing::error!(%endpoint, error, suppressed,
                        "the socket is gone and cannot be made anew; trying again");
                }
            }
        }
    }

    /// Stops listening and removes the socket file if it is still ours.
    pub fn close(self) {}

    fn admit(&self, stream: &UnixStream) -> Option<Peer> {
        let peer = Peer::of(stream);
        if let Ok(peer) = peer
            && self.allowed.contains(&peer.uid)
        {
            return Some(peer);
        }
        self.refused.inc();
        if let Some(suppressed) = self.refusals_logged.pass() {
            let endpoint = &self.endpoint;
            match peer {
                Ok(Peer { uid, pid, .. }) => tracing::warn!(
                    %endpoint, uid, pid, suppressed, allowed = ?self.allowed,
                    "refused a connection: its uid is not allowed"
                ),
                Err(error) => tracing::warn!(
                    %endpoint, %error, suppressed,
                    "refused a connection: its uid cannot be learned"
                ),
            }
        }
        None
    }
}

impl Incoming for Listener {
    type Stream = UnixStream;
    type Peer = Peer;

    /// Sees now and then whether clients still reach us: somebody may have removed the socket.
    async fn next(&mut self) -> (UnixStream, Peer) {
        loop {
            tokio::select! {
                accepted = self.accept() => return accepted,
                () = sleep_until(self.next_check) => {}
            }
            if !self.is_reachable() {
                self.remake().await;
            }
            self.next_check = Instant::now() + CHECK;
        }
    }
}

impl Drop for Listener {
    /// Removes the file while the socket still listens: another process that
    /// wants the name takes it only when nobody answers or nothing is there, so it
    /// cannot come between our look and the removal.
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && file.is_ours()
            && let Err(error) = fs::remove_file(&file.path)
        {
            tracing::warn!(endpoint = %self.endpoint, %error, "cannot remove the socket");
        }
        if let Some(report) = &self.report {
            report.forget(&self.endpoint);
        }
    }
}

impl SocketFile {
    fn is_ours(&self) -> bool {
        // The inode cannot be another file's by chance: our socket keeps it alive.
        fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.dev, self.ino))
    }
}

/// The uids at the other end that are accepted, given those that were configured.
pub(crate) fn accepted_uids(configured: &[u32]) -> Vec<u32> {
    match configured {
        [] => match rustix::process::geteuid().as_raw() {
            0 => vec![0],
            own => vec![own, 0],
        },
        given => given.to_vec(),
    }
}

impl Peer {
    /// As the kernel tells it.
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Self> {
        let cred = stream.peer_cred()?;
        // The kernel writes 0 for a process that has no number in our namespace.
        let pid = cred.pid().filter(|pid| *pid != 0);
        Ok(Self { uid: cred.uid(), pid })
    }
}

fn bind_abstract(endpoint: &Endpoint) -> Result<std::os::unix::net::UnixListener, Error> {
    let bind = || std::os::unix::net::UnixListener::bind_addr(&endpoint.address()?);
    bind().map_err(|error| {
        if error.kind() == io::ErrorKind::AddrInUse
            && let Ok(place::SocketState::Alive(who)) = place::ask(endpoint)
        {
            return in_use(endpoint, &who);
        }
        Error::new(Kind::Config, format!("cannot listen on {endpoint}")).with_source(error)
    })
}

fn in_use(endpoint: &Endpoint, who: &str) -> Error {
    Error::new(Kind::Config, format!("cannot listen on {endpoint}: {who} answers there"))
        .with_hint("stop that process or choose another socket")
}

/// Whether accepting failed because the peer went before we came: nothing is wrong with us.
pub(crate) fn is_of_peer(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::CONNABORTED | Errno::CONNRESET | Errno::INTR))
}
