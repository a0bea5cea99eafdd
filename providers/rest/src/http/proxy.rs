//! The way out through an HTTP proxy, by CONNECT, as `HTTPS_PROXY` and `NO_PROXY` say.
//!
//! Only TLS goes that way: what is asked in clear (a metadata endpoint, a test server) is near, and
//! none of a proxy's business. Nor is what is on this machine.

use std::net::IpAddr;
use std::sync::Arc;

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// A proxy, perhaps none, and the hosts that are reached without it.
#[derive(Clone, Default)]
pub struct Proxy(Option<Arc<Inner>>);

struct Inner {
    matcher: Matcher,
    /// Of `host:port` in `NO_PROXY`, which the matcher does not know.
    direct: Vec<(String, u16)>,
    usable: bool,
}

impl Proxy {
    /// The proxy that is set, or that of the environment, if there is one.
    pub fn new(set: Option<&str>) -> Self {
        let variable = |names: [&str; 2]| {
            let mut values = names.iter().filter_map(|name| std::env::var(name).ok());
            values.find(|value| !value.trim().is_empty())
        };
        let url = set.map(str::to_owned).or_else(|| variable(["HTTPS_PROXY", "https_proxy"]));
        let direct = variable(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        url.map_or_else(Self::default, |url| Self::of(&url, &direct))
    }

    /// Whether a proxy is written so that it can be used: `http://host:port`.
    pub fn is_usable(url: &str) -> bool {
        let proxy = Matcher::builder().https(url.trim()).build();
        let proxy = proxy.intercept(&Uri::from_static("https://far.example"));
        proxy.is_some_and(|proxy| proxy.uri().scheme_str() == Some("http"))
    }

    pub(crate) fn of(url: &str, direct: &str) -> Self {
        let usable = Self::is_usable(url);
        // In the place of one that cannot be used: what must go through it fails and says so.
        let url = if usable { url.trim() } else { "http://unusable" };
        let entries = direct.split(',').map(|entry| entry.trim().trim_start_matches('*'));
        let ported = |entry: &str| {
            let (host, port) = entry.rsplit_once(':')?;
            let host = host.trim_start_matches('.');
            (!host.contains(':')).then_some(())?;
            Some((host.to_ascii_lowercase(), port.parse::<u16>().ok()?))
        };
        let list: Vec<_> = entries.clone().filter(|entry| ported(entry).is_none()).collect();
        let all = direct.split(',').any(|entry| entry.trim() == "*");
        let list = if all { "*".to_owned() } else { list.join(",") };
        let matcher = Matcher::builder().https(url).no(list).build();
        let direct = entries.filter_map(ported).collect();
        Self(Some(Arc::new(Inner { matcher, direct, usable })))
    }

    /// The proxy for a URI; an error if it cannot be used.
    pub(crate) fn intercept(&self, uri: &Uri) -> Result<Option<Intercept>, &'static str> {
        let (Some(inner), Some("https")) = (&self.0, uri.scheme_str()) else { return Ok(None) };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        let near = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let port = uri.port_u16().unwrap_or(443);
        let listed = |(name, of): &(String, u16)| {
            let below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
            *of == port && (host == *name || below)
        };
        if near || inner.direct.iter().any(listed) {
            return Ok(None);
        }
        let found = inner.matcher.intercept(uri);
        if found.is_some() && !inner.usable {
            // Its URL may hold a password.
            return Err("HTTPS_PROXY names no proxy that can be used: write http://host:port, or \
                        put the host in NO_PROXY");
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(proxy: &Proxy, authority: &str) -> bool {
        let uri = format!("https://{authority}/").parse().unwrap();
        proxy.intercept(&uri).unwrap().is_some()
    }

    #[test]
    fn proxies_are_read_as_they_are_written() {
        let proxy = Proxy::of("http://user:p%40ss@proxy.corp:3128", "");
        let found = proxy.intercept(&Uri::from_static("https://kms")).unwrap().unwrap();
        assert_eq!(found.uri().authority().unwrap().as_str(), "proxy.corp:3128");
        assert_eq!(found.basic_auth().unwrap(), "Basic dXNlcjpwQHNz");
        assert!(Proxy::is_usable("proxy:8080"));
        for bad in ["", "socks5://proxy:1080", "https://proxy", "http://"] {
            assert!(!Proxy::is_usable(bad), "{bad}");
        }
        assert!(!serves(&Proxy::default(), "kms"));
        let plain = Uri::from_static("http://169.254.169.254/latest");
        assert!(proxy.intercept(&plain).unwrap().is_none(), "plain HTTP is never sent there");
    }

    #[test]
    fn hosts_on_the_list_and_near_ones_are_reached_directly() {
        let list = ".internal, kms.local:8443,10.0.0.0/8,*.svc , fd00::/8,vpce.amazonaws.com";
        let proxy = Proxy::of("http://proxy:3128", list);
        for near in ["a.internal", "10.1.2.3", "x.svc", "[fd00::1]", "vpce.amazonaws.com"] {
            assert!(!serves(&proxy, near), "{near}");
        }
        for near in ["localhost", "127.0.0.1", "[::1]", "a.vpce.amazonaws.com", "kms.local:8443"] {
            assert!(!serves(&proxy, near), "{near}");
        }
        for far in ["kms.us-east-1.amazonaws.com", "11.0.0.1", "kms.local", "notvpce.amazonaws.com"]
        {
            assert!(serves(&proxy, far), "{far}");
        }
        assert!(!serves(&Proxy::of("http://proxy", "*"), "anything"));
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_never_passed_by_in_silence() {
        let proxy = Proxy::of("socks5://secret@proxy", "near.example");
        assert!(!serves(&proxy, "near.example"), "what is near needs none");
        let error = proxy.intercept(&Uri::from_static("https://kms.example")).unwrap_err();
        assert!(error.contains("HTTPS_PROXY") && !error.contains("secret"), "{error}");
    }
}
