//! The way out through an HTTP proxy, by CONNECT, as `HTTPS_PROXY` and `NO_PROXY` say.
//!
//! Only TLS goes that way: what is asked in clear (the instance's metadata, a test endpoint) is
//! near, and none of a proxy's business.

use std::io;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use sidekey_core::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest answer to CONNECT.
const MAX_HEAD: usize = 8 * 1024;

/// A proxy and the hosts that are reached without it.
pub(crate) struct Proxy {
    /// Empty for one that cannot be used.
    pub(crate) host: String,
    pub(crate) port: u16,
    authorization: Option<Secret>,
    direct: Vec<String>,
}

impl Proxy {
    /// Reads a proxy's URL and a list of hosts to reach without it.
    pub(crate) fn parse(url: &str, direct: &str) -> Option<Self> {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = url.parse().ok()?;
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let user = uri.authority()?.as_str().rsplit_once('@').map(|(user, _)| decoded(user));
        let authorization =
            user.map(|user| Secret::new(format!("Basic {}", STANDARD.encode(user)).into_bytes()));
        let (host, port) = (uri.host()?.to_owned(), uri.port_u16().unwrap_or(80));
        Some(Self { host, port, authorization, direct: entries(direct) })
    }

    /// In the place of one that is of another kind or written wrongly: what must go through it
    /// fails and says so, for going past it in silence would be worse; what need not, does not.
    pub(crate) fn unusable(direct: &str) -> Self {
        Self { host: String::new(), port: 0, authorization: None, direct: entries(direct) }
    }

    /// Whether `host` is reached through it.
    pub(crate) fn serves(&self, host: &str, port: u16) -> bool {
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let address: Option<IpAddr> = host.parse().ok();
        if address.is_some_and(|address| address.is_loopback()) || host == "localhost" {
            return false;
        }
        !self.direct.iter().any(|entry| covers(entry, &host, port, address))
    }

    /// Asks for a tunnel to `host`.
    pub(crate) async fn tunnel(
        &self,
        mut stream: TcpStream,
        host: &str,
        port: u16,
    ) -> io::Result<TcpStream> {
        let mut request =
            format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.expose());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let request = Secret::new(request);
        stream.write_all(request.expose()).await?;
        let mut head = Vec::with_capacity(256);
        // A byte at a time: what follows the head belongs to the tunnel.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_HEAD {
                return Err(io::Error::other("the proxy's answer is too long"));
            }
            head.push(stream.read_u8().await?);
        }
        let status = String::from_utf8_lossy(&head);
        let line = status.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(io::Error::other(format!("the proxy refused the tunnel: {line}"))),
        }
    }
}

fn entries(direct: &str) -> Vec<String> {
    let entries = direct.split(',').map(|entry| entry.trim().to_ascii_lowercase());
    entries.filter(|entry| !entry.is_empty()).collect()
}

/// One entry of `NO_PROXY`: a host and what is below it, an address, a range, or everything.
fn covers(entry: &str, host: &str, port: u16, address: Option<IpAddr>) -> bool {
    if entry == "*" {
        return true;
    }
    if let (Some((range, bits)), Some(address)) = (entry.split_once('/'), address) {
        return within(range, bits, address).unwrap_or(false);
    }
    let (name, wanted) = match entry.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') => (name, digits.parse().ok()),
        _ => (entry, None),
    };
    let name = name.trim_start_matches('*').trim_start_matches('.');
    let below = host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    (host == name || below) && wanted.is_none_or(|wanted: u16| wanted == port)
}

fn within(range: &str, bits: &str, address: IpAddr) -> Option<bool> {
    let bits: u32 = bits.parse().ok()?;
    let (range, address, width) = match (range.parse().ok()?, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (u128::from(a.to_bits()), u128::from(b.to_bits()), 32_u32)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return Some(false),
    };
    let shift = width.checked_sub(bits)?;
    Some(range.checked_shr(shift).unwrap_or(0) == address.checked_shr(shift).unwrap_or(0))
}

/// `%40` and the like, as they stand in URLs.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let mut ahead = bytes.clone();
        let pair = (byte == b'%').then(|| Some([ahead.next()?, ahead.next()?])).flatten();
        let digits = pair.and_then(|pair| u8::from_str_radix(str::from_utf8(&pair).ok()?, 16).ok());
        match digits {
            Some(value) => {
                out.push(value);
                bytes = ahead;
            }
            None => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_as_they_are_written() {
        let proxy = Proxy::parse("http://user:p%40ss@proxy.corp:3128", "").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.corp", 3128));
        let header = proxy.authorization.unwrap();
        assert_eq!(header.as_text(), Some("Basic dXNlcjpwQHNz"));
        assert_eq!(Proxy::parse("proxy:8080", "").unwrap().port, 8080);
        for bad in ["", "socks5://proxy:1080", "https://proxy", "http://"] {
            assert!(Proxy::parse(bad, "").is_none(), "{bad}");
        }
    }

    #[test]
    fn hosts_on_the_list_and_near_ones_are_reached_directly() {
        let list = ".internal, kms.local:8443,10.0.0.0/8,*.svc , fd00::/8,vpce.amazonaws.com";
        let proxy = Proxy::parse("http://proxy:3128", list).unwrap();
        for near in ["a.internal", "10.1.2.3", "x.svc", "fd00::1", "vpce.amazonaws.com"] {
            assert!(!proxy.serves(near, 443), "{near}");
        }
        for near in ["localhost", "127.0.0.1", "[::1]", "a.vpce.amazonaws.com"] {
            assert!(!proxy.serves(near, 443), "{near}");
        }
        for far in ["kms.us-east-1.amazonaws.com", "11.0.0.1", "kms.local", "notvpce.amazonaws.com"]
        {
            assert!(proxy.serves(far, 443), "{far}");
        }
        assert!(!proxy.serves("kms.local", 8443));
        assert!(!Proxy::parse("http://proxy", "*").unwrap().serves("anything", 443));
    }

    /// What comes of a tunnel through a proxy that answers with `answer`, and what it was asked.
    async fn tunnel(answer: &'static [u8]) -> (io::Result<TcpStream>, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let proxy = Proxy::parse("http://user:pass@proxy:3128", "").unwrap();
        let tunnel = proxy.tunnel(stream, "kms.us-east-1.amazonaws.com", 443).await;
        (tunnel, serving.await.unwrap())
    }

    #[tokio::test]
    async fn a_tunnel_begins_right_after_the_proxys_answer() {
        let answer = b"HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\nhello";
        let (tunnel, asked) = tunnel(answer).await;
        assert!(asked.starts_with("CONNECT kms.us-east-1.amazonaws.com:443 HTTP/1.1\r\n"));
        assert!(asked.contains("\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{asked}");
        let mut first = [0; 5];
        tunnel.unwrap().read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"hello");
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_or_talks_nonsense_is_an_error_that_says_so() {
        let (refused, _) = tunnel(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("407") && !error.contains("dXNlcjpwYXNz"), "{error}");
        assert!(tunnel(b"").await.0.is_err());
        assert!(tunnel(&[b'x'; 10_000]).await.0.is_err());
    }
}
