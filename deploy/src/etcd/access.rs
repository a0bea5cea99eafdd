//! Where etcd is and how one proves oneself to it: etcdctl's flags and variables.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::Error;

/// etcd's own port.
const PORT: u16 = 2379;

/// How etcd is reached, in etcdctl's words.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "etcd, as etcdctl takes it")]
pub struct Access {
    /// Members of etcd, tried in turn [env: ETCDCTL_ENDPOINTS] [default: 127.0.0.1:2379]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// CA of the members' certificates [env: ETCDCTL_CACERT] [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Certificate to show [env: ETCDCTL_CERT]
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its private key [env: ETCDCTL_KEY]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// User; the password comes from a file or from ETCDCTL_PASSWORD [env: ETCDCTL_USER]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File with the user's password
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// How long a member may take to take a connection [env: ETCDCTL_DIAL_TIMEOUT] [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub dial_timeout: Option<Duration>,
    /// How long a member may take to answer [env: ETCDCTL_COMMAND_TIMEOUT] [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub command_timeout: Option<Duration>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

/// A user and its password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

/// All of it, read and checked.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) user: Option<User>,
    pub(super) dial_timeout: Duration,
    pub(super) command_timeout: Duration,
}

impl Access {
    /// Reads what flags leave open from variables, and all files.
    pub(super) fn resolve(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Resolved, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |flag: &Option<PathBuf>, name| {
            flag.clone().or_else(|| variable(name).map(PathBuf::from))
        };
        let duration = |flag: Option<Duration>, name, default| match (flag, variable(name)) {
            (Some(given), _) => Ok(given),
            (None, Some(text)) => humantime::parse_duration(&text)
                .map_err(|error| Error::usage(format!("{name} is no duration")).because(error)),
            (None, None) => Ok(Duration::from_secs(default)),
        };
        let (cacert, cert, key) = (
            path(&self.cacert, "ETCDCTL_CACERT"),
            path(&self.cert, "ETCDCTL_CERT"),
            path(&self.key, "ETCDCTL_KEY"),
        );
        let with_tls = cacert.is_some() || cert.is_some() || key.is_some();
        let texts = match self.endpoints.as_slice() {
            [] => variable("ETCDCTL_ENDPOINTS").unwrap_or_else(|| format!("127.0.0.1:{PORT}")),
            given => given.join(","),
        };
        let endpoints = endpoints(&texts, with_tls)?;
        let tls = match endpoints.iter().any(|endpoint| endpoint.tls) {
            true => Some(Arc::new(client_config(cacert.as_deref(), cert, key)?)),
            false if with_tls => {
                return Err(Error::usage("certificates are given for endpoints without TLS")
                    .hint("write the endpoints with https://"));
            }
            false => None,
        };
        Ok(Resolved {
            endpoints,
            tls,
            user: self.user(&variable)?,
            dial_timeout: duration(self.dial_timeout, "ETCDCTL_DIAL_TIMEOUT", 2)?,
            command_timeout: duration(self.command_timeout, "ETCDCTL_COMMAND_TIMEOUT", 30)?,
        })
    }

    fn user(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<User>, Error> {
        if self.user.as_ref().is_some_and(|user| user.contains(':')) {
            return Err(Error::usage("--user holds a password, which others can see there")
                .hint("give it with --password-file or in ETCDCTL_PASSWORD"));
        }
        let Some(text) = self.user.clone().or_else(|| variable("ETCDCTL_USER")) else {
            return Ok(None);
        };
        let (name, inline) = match text.split_once(':') {
            Some((name, password)) => (name.to_owned(), Some(password.to_owned())),
            None => (text, None),
        };
        let password = match &self.password_file {
            Some(path) => Some(read(path)?),
            None => inline.or_else(|| variable("ETCDCTL_PASSWORD")),
        };
        let password = password.ok_or_else(|| {
            Error::usage(format!("user {name} has no password"))
                .hint("give it with --password-file or in ETCDCTL_PASSWORD")
        })?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        Ok(Some(User { name, password }))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("User").field(&self.name).finish()
    }
}

/// All that are wrong are told at once.
fn endpoints(texts: &str, with_tls: bool) -> Result<Vec<Endpoint>, Error> {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for text in texts.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        match endpoint(text, with_tls) {
            Some(endpoint) => found.push(endpoint),
            None => wrong.push(format!("{text:?}")),
        }
    }
    if !wrong.is_empty() {
        return Err(Error::usage(format!("not endpoints of etcd: {}", wrong.join(", ")))
            .hint("write them as https://HOST:PORT"));
    }
    if found.is_empty() {
        return Err(Error::usage("no endpoint of etcd is given"));
    }
    Ok(found)
}

fn endpoint(text: &str, with_tls: bool) -> Option<Endpoint> {
    let (tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return None,
        None => (with_tls, text),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let uri: Uri = format!("http://{authority}").parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let bare = uri.path() == "/" && uri.query().is_none() && !authority.contains('@');
    // A port that is no port is not passed over in silence.
    let has_port = authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    (bare && has_port == uri.port_u16().is_some() && !host.is_empty()).then(|| Endpoint {
        tls,
        host: host.to_owned(),
        port: uri.port_u16().unwrap_or(PORT),
    })
}

fn client_config(
    cacert: Option<&Path>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::failed("cannot set TLS up").because(error))?
        .with_root_certificates(roots(cacert)?);
    let mut config = match (cert, key) {
        (Some(cert), Some(key)) => {
            let unusable = |error| unusable(&cert, "and its key cannot be used", error);
            let key = PrivateKeyDer::from_pem_slice(read(&key)?.as_bytes())
                .map_err(|error| self::unusable(&key, "holds no private key", error))?;
            builder.with_client_auth_cert(certificates(&cert)?, key).map_err(unusable)?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(Error::usage("--cert and --key belong together: one is missing")),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn roots(cacert: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match cacert {
        Some(path) => {
            for certificate in certificates(path)? {
                let added = roots.add(certificate);
                added.map_err(|error| unusable(path, "holds no usable certificate", error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::usage("the system trusts no CA").hint("give one with --cacert"));
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(path)?;
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(Error::usage(format!("{} holds no certificate", path.display()))
            .hint("write it as PEM, with BEGIN CERTIFICATE")),
        Err(error) => Err(unusable(path, "is not PEM", error)),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("cannot read {}", path.display())).because(error))
}

fn unusable(
    path: &Path,
    what: &str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::usage(format!("{} {what}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn endpoints_are_read_as_etcdctl_reads_them() {
        let show = |text: &str, tls| {
            let found = endpoints(text, tls).unwrap();
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(show("127.0.0.1:2379", false), "http://127.0.0.1:2379");
        assert_eq!(show("etcd-0:2379, etcd-1", true), "https://etcd-0:2379 https://etcd-1:2379");
        assert_eq!(show("http://a:1,https://[::1]:2/", true), "http://a:1 https://[::1]:2");
        for text in ["", "ftp://a", "a b", "https://", "http://u@a:1", "http://a:1/path", "a:99999"]
        {
            let error = endpoints(text, false).unwrap_err();
            assert_eq!(error.exit(), crate::Exit::Usage, "{text}");
        }
        let all = endpoints("ftp://a,b,unix:///c", false).unwrap_err().report();
        assert!(all.contains("ftp://a") && all.contains("unix:///c"), "{all}");
    }

    #[test]
    fn variables_fill_what_flags_leave_open() {
        let variable = |name: &str| {
            let value = match name {
                "ETCDCTL_ENDPOINTS" => "http://a:1,http://b:2",
                "ETCDCTL_USER" => "root:from-variable",
                "ETCDCTL_DIAL_TIMEOUT" => "7s",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let resolved = Access::default().resolve(&variable).unwrap();
        assert_eq!(resolved.endpoints.len(), 2);
        assert_eq!(resolved.dial_timeout, Duration::from_secs(7));
        let user = resolved.user.unwrap();
        assert_eq!((user.name.as_str(), user.password.as_str()), ("root", "from-variable"));
        assert!(!format!("{user:?}").contains("from-variable"));
        let flags = Access { endpoints: vec!["http://c:3".into()], ..Access::default() };
        assert_eq!(flags.resolve(&variable).unwrap().endpoints[0].host, "c");
    }

    #[test]
    fn passwords_are_not_taken_from_the_command_line() {
        let access = Access { user: Some("root:secret-word".into()), ..Access::default() };
        let error = access.resolve(&nothing).unwrap_err();
        assert!(!error.report().contains("secret-word"), "{}", error.report());
        let access = Access { user: Some("root".into()), ..Access::default() };
        assert!(access.resolve(&nothing).unwrap_err().report().contains("no password"));
    }

    #[test]
    fn half_a_pair_of_certificate_and_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.crt");
        std::fs::write(&ca, "nothing of worth").unwrap();
        let access = Access { cacert: Some(ca), ..Access::default() };
        let error = access.resolve(&nothing).unwrap_err().report();
        assert!(error.contains("holds no certificate"), "{error}");
        let access = Access { cert: Some("x".into()), ..Access::default() };
        assert!(access.resolve(&nothing).is_err());
    }
}
