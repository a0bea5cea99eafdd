//! Where a Vault server is: `https://host:port`, `http://host:port` or the socket of an agent,
//! `unix:///path`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use http::Uri;
use http::uri::Authority;

/// The ports that no address needs to name.
const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// One server, or what stands before several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// Over TCP, with TLS or without.
    Tcp {
        /// With TLS.
        tls: bool,
        /// A name or an IP address, without brackets, in lower case.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Vault agent or proxy on this machine.
    Unix(PathBuf),
}

impl Address {
    /// Reads an address; the error says what would be right.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let form = || {
            format!("{text:?} is no address: write https://host:8200, or unix:///path of an agent")
        };
        if let Some(path) = text.strip_prefix("unix://") {
            let sound = path.starts_with('/') && !path.contains('\0') && path.len() <= 107;
            return if sound { Ok(Self::Unix(path.into())) } else { Err(form()) };
        }
        if text.contains('@') {
            // Not shown: it may hold a password.
            return Err("holds a user's name: write https://host:8200 only".into());
        }
        let uri: Uri = text.parse().map_err(|_| form())?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(format!("{text:?} has a path: write scheme, host and port only"));
        }
        Self::of(&uri).ok_or_else(form)
    }

    /// Where a URI leads, if it is one of a server; its path does not matter.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        // What is no port is none to the parser of the URI.
        let port = match (authority.as_str().strip_prefix(authority.host())?, tls) {
            ("", true) => HTTPS_PORT,
            ("", false) => HTTP_PORT,
            (port, _) => port.strip_prefix(':')?.parse().ok().filter(|port| *port > 0)?,
        };
        Some(Self::Tcp { tls, host: host(authority)?, port })
    }

    /// Whether it is spoken to in TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    /// Whether plain text could leave this machine.
    pub(crate) fn is_exposed(&self) -> bool {
        match self {
            Self::Tcp { tls: false, host, .. } => {
                let local = host.parse::<IpAddr>().map(|ip| ip.is_loopback());
                !local.unwrap_or(host == "localhost")
            }
            _ => false,
        }
    }

    /// What goes into the `Host` header.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".into(),
            Self::Tcp { tls, host, port } => {
                let bracketed = host.parse::<Ipv6Addr>().map(|_| format!("[{host}]"));
                let host = bracketed.unwrap_or_else(|_| host.clone());
                match (tls, port) {
                    (true, &HTTPS_PORT) | (false, &HTTP_PORT) => host,
                    _ => format!("{host}:{port}"),
                }
            }
        }
    }
}

fn host(authority: &Authority) -> Option<String> {
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().ok().map(|ip| ip.to_string()),
        None if host.is_empty() => None,
        None => Some(host.to_ascii_lowercase()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { tls, .. } => {
                write!(f, "http{}://{}", if *tls { "s" } else { "" }, self.authority())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for (text, shown) in [
            ("https://Vault.Example:8200", "https://vault.example:8200"),
            ("https://vault.example/", "https://vault.example"),
            ("http://127.0.0.1:8200", "http://127.0.0.1:8200"),
            ("https://[2001:DB8::1]:8200", "https://[2001:db8::1]:8200"),
            ("unix:///run/agent.sock", "unix:///run/agent.sock"),
        ] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()), Ok(shown.into()));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "vault:8200",
            "vault.example",
            "https://",
            "https://:8200",
            "https://user:pw@vault:8200",
            "https://vault:8200/v1",
            "https://vault:8200/?x",
            "https://vault:99999",
            "https://[::g]:1",
            "ftp://vault",
            "unix://relative",
        ] {
            let error = Address::parse(text).expect_err(text);
            assert!(!error.contains("pw"), "{error}");
        }
    }

    #[test]
    fn only_plain_text_that_leaves_the_machine_is_exposed() {
        let exposed = |text: &str| Address::parse(text).unwrap().is_exposed();
        assert!(exposed("http://vault:8200"));
        assert!(exposed("http://10.0.0.1"));
        assert!(!exposed("http://127.0.0.1:8200"));
        assert!(!exposed("http://[::1]:8200"));
        assert!(!exposed("http://localhost:8200"));
        assert!(!exposed("https://vault:8200"));
        assert!(!exposed("unix:///run/agent.sock"));
    }
}
