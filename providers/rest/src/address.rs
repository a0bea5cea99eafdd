//! Where a server is: `https://host:port`, `http://host:port`, or a socket, `unix:///path`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use http::Uri;
use http::uri::Authority;
use sidekey_core::config::Problems;

const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// One server, or what stands before several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Over TCP, with TLS or without.
    Tcp {
        /// With TLS.
        tls: bool,
        /// A name or an IP address, without brackets, in lower case.
        host: String,
        /// The port.
        port: u16,
    },
    /// A process on this machine.
    Unix(PathBuf),
}

impl Address {
    /// Reads an address; the error says what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is no address: write https://host[:port], or unix:///path of an agent"
            )
        };
        if let Some(path) = text.strip_prefix("unix://") {
            let sound = path.starts_with('/') && !path.contains('\0') && path.len() <= 107;
            return if sound { Ok(Self::Unix(path.into())) } else { Err(form()) };
        }
        if text.contains('@') {
            // Not shown: it may hold a password.
            return Err("holds a user's name: write https://host[:port] only".into());
        }
        let uri: Uri = text.parse().map_err(|_| form())?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(format!("{text:?} has a path: write scheme, host and port only"));
        }
        Self::of(&uri).ok_or_else(form)
    }

    /// Where a URI leads, if it is one of a server; its path does not matter.
    pub fn of(uri: &Uri) -> Option<Self> {
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
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    /// Whether plain text could leave this machine.
    pub fn is_exposed(&self) -> bool {
        match self {
            Self::Tcp { tls: false, host, .. } => {
                let local = host.parse::<IpAddr>().map(|ip| ip.is_loopback());
                !local.unwrap_or(host == "localhost")
            }
            _ => false,
        }
    }

    /// Reports a text that is no address, or one whose plain text could leave this machine, unless
    /// that is `allowed`.
    pub fn check(field: &str, text: &str, allowed: bool, problems: &mut Problems) {
        match Self::parse(text) {
            Err(why) => problems.add(field, &why),
            Ok(address) => address.check_exposed(field, allowed, problems),
        }
    }

    /// Reports an address whose plain text could leave this machine, unless that is `allowed`.
    pub fn check_exposed(&self, path: &str, allowed: bool, problems: &mut Problems) {
        if self.is_exposed() && !allowed {
            let text = "is plain HTTP to another machine: write https://, or set \
                        settings.allowPlaintext if something else protects the way";
            problems.add(path, text);
        }
    }

    /// What goes into the `Host` header.
    pub fn authority(&self) -> String {
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
    fn plain_text_leaves_the_machine_only_where_that_is_allowed() {
        let problems = |text: &str, allowed| {
            let mut problems = Problems::default();
            let address = Address::parse(text).unwrap();
            address.check_exposed("settings.endpoint", allowed, &mut problems);
            problems.iter().count()
        };
        for exposed in ["http://vault:8200", "http://10.0.0.1"] {
            assert_eq!((problems(exposed, false), problems(exposed, true)), (1, 0), "{exposed}");
        }
        for near in [
            "http://127.0.0.1:8200",
            "http://[::1]:8200",
            "http://localhost:8200",
            "https://vault:8200",
            "unix:///run/agent.sock",
        ] {
            assert_eq!(problems(near, false), 0, "{near}");
        }
    }
}
