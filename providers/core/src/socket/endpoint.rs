//! Where a KMS v2 plugin listens: a path or an abstract name.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;

use crate::socket::{Peer, accepted_uids};
use crate::{Error, Kind};

/// Longest socket path that Linux can bind, without the closing NUL.
pub(crate) const MAX_PATH: usize = 107;

/// A unix socket, written `unix:///path`, `/path` or `unix:///@name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// A socket in the file system, guarded by its mode and directory.
    Path(PathBuf),
    /// A Linux abstract socket, guarded by the peer's uid alone.
    Abstract(String),
}

/// Why a text is no endpoint.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    /// Another scheme, a relative path or nothing at all.
    #[error(
        "{0:?} is not a unix socket: write unix:///path/to.sock, /path/to.sock or unix:///@name"
    )]
    Form(String),
    /// Too long for the kernel.
    #[error("socket path {0:?} is longer than the {MAX_PATH} bytes that Linux allows")]
    TooLong(String),
}

impl Endpoint {
    /// The path of a socket in the file system.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Abstract(_) => None,
        }
    }

    /// Connects as kube-apiserver does.
    pub async fn connect(&self) -> std::io::Result<UnixStream> {
        UnixStream::from_std(self.knock()?.into())
    }

    /// Connects without ever waiting: a full queue is an answer, too.
    pub(crate) fn knock(&self) -> Result<OwnedFd, Errno> {
        let address = match self {
            Self::Path(path) => SocketAddrUnix::new(path)?,
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(socket)
    }

    /// Refuses a connection whose server runs under none of these uids; our own and root if there
    /// are none. The kernel tells the uid that the server had when it began to listen.
    ///
    /// Whoever may write to the directory of a socket can put his own in its place, and would be
    /// handed keys: those who send any check this before the first byte.
    pub(crate) fn check_server(
        &self,
        stream: &UnixStream,
        server_uids: &[u32],
    ) -> Result<(), Error> {
        let accepted = accepted_uids(server_uids);
        let found = Peer::of(stream).map_err(|error| {
            Error::new(Kind::Denied, format!("cannot learn who serves {self}")).with_source(error)
        })?;
        if accepted.contains(&found.uid) {
            return Ok(());
        }
        let uid = found.uid;
        let text = format!("{self} is served by uid {uid}, and the uids accepted are {accepted:?}");
        Err(Error::new(Kind::Denied, text).with_hint(format!(
            "if that plugin is meant, name {uid} in serverUids (of the key in the shim's file, at the top of the proxy's) or --server-uids"
        )))
    }

    /// The socket address to bind or to connect to.
    pub(crate) fn address(&self) -> std::io::Result<std::os::unix::net::SocketAddr> {
        use std::os::linux::net::SocketAddrExt;
        match self {
            Self::Path(path) => std::os::unix::net::SocketAddr::from_pathname(path),
            Self::Abstract(name) => std::os::unix::net::SocketAddr::from_abstract_name(name),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        let name = path.strip_prefix("/@").or_else(|| path.strip_prefix('@'));
        let bad = || EndpointError::Form(text.to_owned());
        if path.bytes().any(|b| b == 0) {
            return Err(bad());
        }
        // The kernel counts what is behind the sign of an abstract name, however that is written.
        if name.unwrap_or(path).len() > MAX_PATH {
            return Err(EndpointError::TooLong(text.to_owned()));
        }
        match name {
            Some("") => Err(bad()),
            Some(name) => Ok(Self::Abstract(name.to_owned())),
            None if path.len() > 1 && path.starts_with('/') && !path.ends_with('/') => {
                Ok(Self::Path(PathBuf::from(path)))
            }
            None => Err(bad()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "unix://{}", path.display()),
            Self::Abstract(name) => write!(f, "unix:///@{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn endpoints_are_read_as_kube_apiserver_writes_them() {
        let path = |text: &str| Ok(Endpoint::Path(text.into()));
        assert_eq!("unix:///run/kms.sock".parse(), path("/run/kms.sock"));
        assert_eq!("/run/kms.sock".parse(), path("/run/kms.sock"));
        assert_eq!("unix:///@kms".parse(), Ok(Endpoint::Abstract("kms".into())));
        let long = format!("unix:///{}", "x".repeat(MAX_PATH));
        for bad in ["", "/", "unix://", "unix:///@", "kms.sock", "tcp://x", "/run/", "/a\0b", &long]
        {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_abstract_name_may_be_as_long_as_a_path_in_either_form() {
        let name = "x".repeat(MAX_PATH);
        for text in [format!("@{name}"), format!("/@{name}"), format!("unix:///@{name}")] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint, Endpoint::Abstract(name.clone()));
            assert!(endpoint.address().is_ok(), "the kernel takes it");
            assert!(format!("{text}x").parse::<Endpoint>().is_err());
        }
    }

    /// What the kernel tells a client of a server that began to listen under this uid.
    async fn served_by(uid: u32, directory: &Path) -> (Endpoint, UnixStream) {
        let path = directory.join(format!("{uid}.sock"));
        let socket = path.clone();
        // The uid of one thread, which ends with it.
        let listening = std::thread::spawn(move || {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            std::os::unix::net::UnixListener::bind(socket).unwrap()
        });
        let _listener = listening.join().unwrap();
        let endpoint = Endpoint::Path(path);
        let stream = endpoint.connect().await.unwrap();
        (endpoint, stream)
    }

    #[tokio::test]
    async fn a_server_is_known_by_its_uid_and_strangers_are_refused_by_name() {
        use std::os::unix::fs::PermissionsExt;
        assert!(rustix::process::geteuid().is_root(), "run it as root: it must change its uid");
        let directory = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let (endpoint, stream) = served_by(4242, directory.path()).await;
        endpoint.check_server(&stream, &[4242]).unwrap();
        endpoint.check_server(&stream, &[7, 4242]).unwrap();
        for (given, accepted) in [(&[][..], "are [0]"), (&[0, 7], "[0, 7]")] {
            let error = endpoint.check_server(&stream, given).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
            let report = error.report();
            for part in [&endpoint.to_string(), "by uid 4242", accepted, "serverUids"] {
                assert!(report.contains(part), "{part} is not in {report}");
            }
        }
        let (endpoint, stream) = served_by(0, directory.path()).await;
        endpoint.check_server(&stream, &[]).unwrap();
        endpoint.check_server(&stream, &[4242]).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_the_same(text in "(unix://)?/?@?.{0,120}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }
    }
}
