//! `kek`, `settings` and `credentials` of one key.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::config::fields::{duration, text};

use crate::address::Address;
use crate::tls::{self, Pair};

/// More servers than a cluster has.
const MAX_ADDRESSES: usize = 16;
/// Longest name of a mount, key, role or namespace.
const MAX_NAME: usize = 512;

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(crate) kek: Option<RawKek>,
    pub(crate) settings: Option<Settings>,
    pub(crate) credentials: Option<Credentials>,
}

/// Which key it is, wherever its cluster can be reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawKek {
    namespace: Option<String>,
    mount: Option<String>,
    key: Option<String>,
    key_path: Option<String>,
}

/// How the cluster is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    address: Option<String>,
    addresses: Option<Vec<String>>,
    auth_namespace: Option<String>,
    tls: Option<Tls>,
    #[serde(deserialize_with = "text")]
    connect_timeout: Option<String>,
    #[serde(deserialize_with = "text")]
    request_timeout: Option<String>,
    /// Whether data without associated data, of vault-kubernetes-kms, is read.
    pub(crate) legacy_data: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Tls {
    ca_file: Option<PathBuf>,
    server_name: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// How the provider proves who it is: exactly one of these.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    pub(crate) app_role: Option<AppRole>,
    pub(crate) kubernetes: Option<Jwt>,
    pub(crate) jwt: Option<Jwt>,
    pub(crate) cert: Option<Cert>,
    pub(crate) userpass: Option<Userpass>,
    pub(crate) token: Option<TokenFile>,
    pub(crate) agent: Option<Agent>,
}

/// AppRole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AppRole {
    pub(crate) mount: Option<String>,
    /// It is no secret, so it may stand here.
    pub(crate) role_id: Option<String>,
    pub(crate) role_id_file: Option<PathBuf>,
    pub(crate) secret_id_file: Option<PathBuf>,
    /// A token that the secret-id is wrapped in.
    pub(crate) wrapped_secret_id_file: Option<PathBuf>,
    /// The secret-id was given on the command line.
    pub(crate) given: Option<bool>,
}

/// A signed token of another system: a service account's, say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Jwt {
    pub(crate) mount: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

/// A TLS certificate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Cert {
    pub(crate) mount: Option<String>,
    pub(crate) role: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// A name and a password.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Userpass {
    pub(crate) mount: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    /// The password was given on the command line.
    pub(crate) given: Option<bool>,
}

/// A token that somebody else keeps.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TokenFile {
    pub(crate) file: Option<PathBuf>,
    /// The token was given on the command line.
    pub(crate) given: Option<bool>,
}

/// A Vault agent or proxy that adds its own token.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Agent {}

/// Which key, in the one way to write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kek {
    /// Without slashes at its ends; empty for the root.
    pub(crate) namespace: String,
    pub(crate) mount: String,
    pub(crate) key: String,
}

impl Config {
    /// Reports every mistake.
    pub(crate) fn check(&self, problems: &mut Problems) {
        let kek = self.kek.clone().unwrap_or_default();
        problems.within("kek", |problems| kek.check(problems));
        let settings = self.settings.clone().unwrap_or_default();
        problems.within("settings", |problems| settings.check(problems));
        let credentials = self.credentials.clone().unwrap_or_default();
        problems.within("credentials", |problems| credentials.check(problems));
        let plain = !self.addresses().iter().any(Address::is_tls);
        if plain && (credentials.cert.is_some() || settings.pair().is_some()) {
            problems.add("settings.addresses", "must be https where a certificate is shown");
        }
        if self.addresses().iter().any(Address::is_tls) && self.bundle().is_none() {
            problems.add("settings.tls.caFile", "is required: this system trusts no CA");
        }
    }

    /// Everything that a client is made of.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = self.credentials.as_ref().map(Credentials::files).unwrap_or_default();
        if self.addresses().iter().any(Address::is_tls) {
            files.extend(self.bundle());
            files.extend(self.pair().into_iter().flat_map(|pair| [pair.cert, pair.key]));
        }
        files
    }

    /// The key, if the configuration is sound.
    pub(crate) fn kek(&self) -> Option<Kek> {
        self.kek.as_ref()?.kek()
    }

    /// The servers, as far as they can be read.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let settings = self.settings.as_ref();
        let texts = settings.map(Settings::texts).unwrap_or_default();
        texts.iter().filter_map(|text| Address::parse(text).ok()).collect()
    }

    /// The namespace to log in to.
    pub(crate) fn auth_namespace(&self) -> String {
        let own = self.settings.as_ref().and_then(|settings| settings.auth_namespace.as_deref());
        let kek = || self.kek.as_ref().and_then(|kek| kek.namespace.as_deref());
        bare(own.or_else(kek).unwrap_or_default()).to_owned()
    }

    /// The CA bundle to trust.
    pub(crate) fn bundle(&self) -> Option<PathBuf> {
        self.own_bundle().or_else(tls::system_bundle)
    }

    /// The CA bundle that was chosen for these servers.
    pub(crate) fn own_bundle(&self) -> Option<PathBuf> {
        self.settings.as_ref()?.tls.as_ref()?.ca_file.clone()
    }

    /// The name that every server's certificate is for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.settings.as_ref()?.tls.as_ref()?.server_name.as_deref()
    }

    /// The certificate to show.
    pub(crate) fn pair(&self) -> Option<Pair> {
        let cert = self.credentials.as_ref().and_then(|credentials| credentials.cert.as_ref());
        cert.and_then(Cert::pair).or_else(|| self.settings.as_ref()?.pair())
    }

    /// Times for a connection and for an answer, while there is another server to ask.
    pub(crate) fn timeouts(&self) -> (Duration, Duration) {
        let settings = self.settings.clone().unwrap_or_default();
        settings.timeouts(&mut Problems::default())
    }
}

impl RawKek {
    fn check(&self, problems: &mut Problems) {
        check_path("namespace", self.namespace.as_deref().map(bare), problems);
        match (&self.key_path, &self.key) {
            (Some(_), Some(_)) => problems.add("keyPath", "excludes key and mount"),
            (Some(_), None) if self.mount.is_some() => {
                problems.add("keyPath", "excludes key and mount");
            }
            (Some(path), None) => {
                if split(path).is_none_or(|(mount, key)| !is_path(mount) || !is_name(key)) {
                    problems.add("keyPath", "is not of the form <mount>/keys/<key>");
                }
            }
            (None, Some(key)) if !is_name(key) => problems.add("key", NO_NAME),
            (None, Some(_)) => {}
            (None, None) => problems.add("key", "is required (or keyPath)"),
        }
        check_path("mount", self.mount.as_deref().map(bare), problems);
    }

    fn kek(&self) -> Option<Kek> {
        let (mount, key) = match &self.key_path {
            Some(path) => split(path)?,
            None => (self.mount.as_deref().unwrap_or("transit"), self.key.as_deref()?),
        };
        let namespace = bare(self.namespace.as_deref().unwrap_or_default()).to_owned();
        Some(Kek { namespace, mount: bare(mount).to_owned(), key: key.to_owned() })
    }
}

impl Settings {
    fn check(&self, problems: &mut Problems) {
        let texts = self.texts();
        if self.address.is_some() && self.addresses.is_some() {
            problems.add("address", "excludes addresses");
        }
        match texts.len() {
            0 => problems.add("address", "is required (or addresses)"),
            n if n > MAX_ADDRESSES => {
                problems.add("addresses", &format!("has {n} servers, at most {MAX_ADDRESSES}"));
            }
            _ => {}
        }
        for (index, text) in texts.iter().enumerate() {
            if let Err(why) = Address::parse(text) {
                let path = if self.address.is_some() { "address" } else { "addresses" };
                let index =
                    if self.address.is_some() { String::new() } else { format!("[{index}]") };
                problems.add(&format!("{path}{index}"), &why);
            }
        }
        check_path("authNamespace", self.auth_namespace.as_deref().map(bare), problems);
        let tls = self.tls.clone().unwrap_or_default();
        problems.within("tls", |problems| tls.check(problems));
        self.timeouts(problems);
    }

    fn timeouts(&self, problems: &mut Problems) -> (Duration, Duration) {
        (
            duration("connectTimeout", self.connect_timeout.as_deref(), 1, problems),
            duration("requestTimeout", self.request_timeout.as_deref(), 2, problems),
        )
    }

    fn texts(&self) -> Vec<String> {
        self.address.iter().chain(self.addresses.iter().flatten()).cloned().collect()
    }

    fn pair(&self) -> Option<Pair> {
        let tls = self.tls.as_ref()?;
        pair(tls.cert_file.as_ref(), tls.key_file.as_ref())
    }
}

impl Tls {
    fn check(&self, problems: &mut Problems) {
        check_file("caFile", self.ca_file.as_deref(), problems);
        check_file("certFile", self.cert_file.as_deref(), problems);
        check_file("keyFile", self.key_file.as_deref(), problems);
        if self.key_file.is_some() && self.cert_file.is_none() {
            problems.add("certFile", "is required with keyFile");
        }
        let named = self.server_name.as_deref();
        if named.is_some_and(|name| rustls::pki_types::ServerName::try_from(name).is_err()) {
            problems.add("serverName", "is no DNS name and no IP address");
        }
    }
}

impl Cert {
    fn pair(&self) -> Option<Pair> {
        pair(self.cert_file.as_ref(), self.key_file.as_ref())
    }
}

/// The key may stand in the file of its certificate, as kubelet writes it.
fn pair(cert: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<Pair> {
    let cert = cert?.clone();
    Some(Pair { key: key.unwrap_or(&cert).clone(), cert })
}

impl Credentials {
    fn check(&self, problems: &mut Problems) {
        let count = [
            self.app_role.is_some(),
            self.kubernetes.is_some(),
            self.jwt.is_some(),
            self.cert.is_some(),
            self.userpass.is_some(),
            self.token.is_some(),
            self.agent.is_some(),
        ];
        if count.iter().filter(|set| **set).count() != 1 {
            let text =
                "needs exactly one of appRole, kubernetes, jwt, cert, userpass, token, agent";
            problems.add("", text);
        }
        if let Some(role) = &self.app_role {
            problems.within("appRole", |problems| role.check(problems));
        }
        for (name, jwt) in [("kubernetes", &self.kubernetes), ("jwt", &self.jwt)] {
            if let Some(jwt) = jwt {
                problems.within(name, |problems| jwt.check(problems));
            }
        }
        if let Some(cert) = &self.cert {
            problems.within("cert", |problems| {
                check_path("mount", cert.mount.as_deref().map(bare), problems);
                check_required("certFile", cert.cert_file.as_deref(), problems);
                check_file("keyFile", cert.key_file.as_deref(), problems);
            });
        }
        if let Some(user) = &self.userpass {
            problems.within("userpass", |problems| user.check(problems));
        }
        if let Some(token) = &self.token {
            problems.within("token", |problems| {
                check_given("file", token.file.as_deref(), token.given, problems);
            });
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let role = self.app_role.iter().flat_map(|role| {
            [&role.role_id_file, &role.secret_id_file, &role.wrapped_secret_id_file]
        });
        let jwt = self.kubernetes.iter().chain(&self.jwt).map(|jwt| &jwt.token_file);
        let user = self.userpass.iter().map(|user| &user.password_file);
        let token = self.token.iter().map(|token| &token.file);
        role.chain(jwt).chain(user).chain(token).flatten().cloned().collect()
    }
}

impl AppRole {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", self.mount.as_deref().map(bare), problems);
        match (&self.role_id, &self.role_id_file) {
            (None, None) => problems.add("roleIdFile", "is required (or roleId)"),
            (Some(_), Some(_)) => problems.add("roleIdFile", "excludes roleId"),
            (Some(id), None) if id.trim().is_empty() => problems.add("roleId", "is empty"),
            _ => {}
        }
        check_file("roleIdFile", self.role_id_file.as_deref(), problems);
        check_file("secretIdFile", self.secret_id_file.as_deref(), problems);
        check_file("wrappedSecretIdFile", self.wrapped_secret_id_file.as_deref(), problems);
        if self.secret_id_file.is_some() && self.wrapped_secret_id_file.is_some() {
            problems.add("wrappedSecretIdFile", "excludes secretIdFile");
        }
        if self.given == Some(true) && !crate::given::is_given() {
            problems.add("given", ONLY_FLAGS);
        }
    }
}

impl Jwt {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", self.mount.as_deref().map(bare), problems);
        if self.role.as_deref().is_none_or(|role| role.trim().is_empty()) {
            problems.add("role", "is required");
        }
        check_required("tokenFile", self.token_file.as_deref(), problems);
    }
}

impl Userpass {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", self.mount.as_deref().map(bare), problems);
        match self.username.as_deref() {
            None => problems.add("username", "is required"),
            Some(name) if !is_name(name) => problems.add("username", NO_NAME),
            Some(_) => {}
        }
        check_given("passwordFile", self.password_file.as_deref(), self.given, problems);
    }
}

const NO_NAME: &str = "may hold letters, digits, - _ and . only";
const ONLY_FLAGS: &str = "is for secrets on the command line: name a file instead";

fn check_given(field: &str, path: Option<&Path>, given: Option<bool>, problems: &mut Problems) {
    match given {
        Some(true) if crate::given::is_given() => {}
        Some(true) => problems.add("given", ONLY_FLAGS),
        _ => check_required(field, path, problems),
    }
}

fn check_required(field: &str, path: Option<&Path>, problems: &mut Problems) {
    if path.is_none() {
        problems.add(field, "is required");
    }
    check_file(field, path, problems);
}

fn check_file(field: &str, path: Option<&Path>, problems: &mut Problems) {
    if path.is_some_and(|path| !path.is_absolute()) {
        problems.add(field, "must be an absolute path");
    }
}

fn check_path(field: &str, path: Option<&str>, problems: &mut Problems) {
    if path.is_some_and(|path| !path.is_empty() && !is_path(path)) {
        problems.add(field, "may hold letters, digits, - _ . and / only");
    }
}

/// What Vault takes for a name: nothing in it needs escaping in a path.
fn is_name(name: &str) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.bytes().all(sound)
        && !name.starts_with('.')
        && !name.ends_with('.')
}

fn is_path(path: &str) -> bool {
    path.len() <= MAX_NAME && bare(path).split('/').all(is_name)
}

/// `<mount>/keys/<key>`, as OpenShift and vault-kube-kms write it.
fn split(path: &str) -> Option<(&str, &str)> {
    bare(path).rsplit_once("/keys/")
}

/// Without the slashes at its ends, which mean nothing to Vault.
pub(crate) fn bare(path: &str) -> &str {
    path.trim_matches('/')
}
