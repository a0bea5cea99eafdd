//! Where a KMS v2 plugin listens: a path or an abstract name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longest socket path that Linux can bind, without the closing NUL.
const MAX_PATH: usize = 107;

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
    pub async fn connect(&self) -> std::io::Result<tokio::net::UnixStream> {
        match self {
            Self::Path(path) => tokio::net::UnixStream::connect(path).await,
            Self::Abstract(name) => {
                // Not the standard library's way: that would wait, and everybody with it, until
                // a full queue has room.
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
                let socket = rustix::net::socket_with(family, kind, flags, None)?;
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
                rustix::net::connect(&socket, &address)?;
                tokio::net::UnixStream::from_std(socket.into())
            }
        }
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

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_the_same(text in "(unix://)?/?@?.{0,120}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }
    }
}
