//! What providers log in with and no Secret holds: files that are made anew where a pod runs.
//!
//! Most are tokens of the control plane's own service accounts, minted by the API server that is
//! served; the defaults are those of HyperShift's token minter. Others come from kubelet (a token of
//! the pod's own account) or from a secrets store, as HyperShift has it for IBM and for managed Azure.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sidekey_core::config::{Problems, parse_duration};

use super::parse::is_label;
use super::raw::{RawAccount, RawSpec, RawToken};
use super::vendors::{self, LoginFile};
use super::{Key, SecretEncryption, names};

/// What the API server makes a token's life to at least.
const SHORTEST: u64 = 600;
/// Where HyperShift's minter writes.
const MINTED_FILE: &str = "/var/run/secrets/openshift/serviceaccount/token";
/// The directories of what HyperShift's own plugins log in with.
const HYPERSHIFT: [&str; 3] =
    ["/var/run/secrets/openshift/serviceaccount", "/etc/pod-identity-token", "/mnt/certs"];
/// As HyperShift asks kubelet.
const POD_EXPIRY: &str = "15m";
/// What HyperShift's control planes have of Azure's secrets store.
const AZURE_CLASS: &str = "managed-azure-kms";
/// The longest path of a file.
const MAX_PATH: usize = 512;
/// The longest audience.
const MAX_AUDIENCE: usize = 1024;

/// A token that a vendor's provider reads, made for it where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Whose provider reads it: the type of keys.
    #[serde(rename = "type")]
    pub vendor: String,
    /// Where it reads it.
    pub file: String,
    /// Who makes it.
    #[serde(flatten)]
    pub source: TokenSource,
}

/// Who makes a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", untagged)]
pub enum TokenSource {
    /// The driver of a secrets store.
    #[serde(rename_all = "camelCase")]
    SecretsStore {
        /// The SecretProviderClass that says what of the store.
        secret_provider_class: String,
    },
    /// kubelet, for the account of the pod.
    #[serde(rename_all = "camelCase")]
    Pod {
        /// What is asked of it.
        pod_token: PodToken,
    },
    /// The API server that is served, asked by a container beside the provider.
    Minted(Minted),
}

/// A token of the pod's own service account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodToken {
    /// Whom it is for; the API server itself if nobody is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// How long a token is asked for.
    pub expiry: String,
}

/// A token of a service account of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Minted {
    /// Whom the token is for.
    pub audience: String,
    /// Whose token it is.
    pub service_account: Account,
    /// How long a token is asked for.
    pub expiry: String,
}

/// A service account of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its namespace there.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Minted {
    /// As HyperShift's minter has it.
    fn hypershift() -> Self {
        let (namespace, name) = ("kube-system".to_owned(), "kms-provider".to_owned());
        Self {
            audience: "openshift".to_owned(),
            service_account: Account { namespace, name },
            expiry: "1h".to_owned(),
        }
    }
}

impl Token {
    /// As HyperShift's minter has it, for this vendor's provider.
    pub fn of(vendor: &str) -> Self {
        Self {
            vendor: vendor.to_owned(),
            file: MINTED_FILE.to_owned(),
            source: TokenSource::Minted(Minted::hypershift()),
        }
    }

    /// The token that a key logs in with, as far as the key tells: its file. Who makes it is as
    /// HyperShift has it for that vendor.
    pub fn told(key: &Key) -> Option<Self> {
        let (file, source) = vendors::login_file(key)?;
        let source = match source {
            LoginFile::Minted => TokenSource::Minted(Minted::hypershift()),
            LoginFile::Pod => {
                let expiry = POD_EXPIRY.to_owned();
                TokenSource::Pod { pod_token: PodToken { audience: None, expiry } }
            }
            LoginFile::SecretsStore => {
                TokenSource::SecretsStore { secret_provider_class: AZURE_CLASS.to_owned() }
            }
        };
        // One among the key's own files is nobody's to make.
        wrong_path(file).is_none().then(|| Self {
            vendor: key.vendor.clone(),
            file: file.to_owned(),
            source,
        })
    }

    /// Whether it is where HyperShift's own plugins read theirs.
    pub fn is_hypershifts(&self) -> bool {
        HYPERSHIFT.contains(&self.directory())
    }

    /// What is minted, if it is.
    pub fn minted(&self) -> Option<&Minted> {
        match &self.source {
            TokenSource::Minted(minted) => Some(minted),
            _ => None,
        }
    }

    /// The directory that the file is in: it holds nothing else.
    pub fn directory(&self) -> &str {
        self.file.rsplit_once('/').map_or("", |(directory, _)| directory)
    }

    /// The file's name in its directory.
    pub fn file_name(&self) -> &str {
        self.file.rsplit_once('/').map_or(self.file.as_str(), |(_, name)| name)
    }
}

/// The tokens that keys log in with, as far as the keys tell.
pub fn told_tokens<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Vec<Token> {
    keys.into_iter().filter_map(Token::told).collect()
}

/// Which of the `known` tokens a document must keep: those of vendors of which keys are `loaded`
/// (number and vendor) that it does not name any more. Without them what those keys wrapped could
/// not be read. An error says which one it would take away by putting another in its place.
pub fn kept_tokens<'a>(
    wanted: &SecretEncryption,
    loaded: impl IntoIterator<Item = (u64, &'a str)>,
    known: &[Token],
) -> Result<Vec<Token>, String> {
    let named: BTreeSet<u64> = wanted.spec.keys.iter().map(|key| key.id.0).collect();
    let mut kept = Vec::new();
    for (id, vendor) in loaded.into_iter().filter(|(id, _)| !named.contains(id)) {
        let Some(old) = known.iter().find(|token| token.vendor == vendor) else { continue };
        match wanted.token(vendor) {
            Some(new) if new.file != old.file => {
                return Err(format!(
                    "key {id} of {vendor} is still needed and reads its token from {}: leave \
                     spec.tokens[].file as it is until that key is retired",
                    old.file
                ));
            }
            None if !kept.contains(old) => kept.push(old.clone()),
            _ => {}
        }
    }
    Ok(kept)
}

pub(super) fn tokens(raw: &RawSpec, problems: &mut Problems) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (index, entry) in raw.tokens.iter().flatten().enumerate() {
        let Some(entry) = entry else { continue };
        problems.within(&format!("tokens[{index}]"), |problems| {
            let Some(token) = token(entry, problems) else { return };
            if tokens.iter().any(|other| other.vendor == token.vendor) {
                problems.add("type", &format!("{} has another token already", token.vendor));
            }
            tokens.push(token);
        });
    }
    tokens
}

fn token(raw: &RawToken, problems: &mut Problems) -> Option<Token> {
    let vendor = problems.require("type", &raw.r#type)?;
    if !is_label(vendor) {
        problems.add("type", &format!("{vendor:?} is no provider: write aws, azure …"));
    }
    let source = source(raw, problems)?;
    let file = match &source {
        TokenSource::Minted(_) => raw.file.clone().unwrap_or_else(|| MINTED_FILE.to_owned()),
        _ => problems.require("file", &raw.file)?.clone(),
    };
    if let Some(wrong) = wrong_path(&file) {
        problems.add("file", wrong);
    }
    Some(Token { vendor: vendor.clone(), file, source })
}

fn source(raw: &RawToken, problems: &mut Problems) -> Option<TokenSource> {
    let others = [
        ("audience", raw.audience.is_some()),
        ("serviceAccount", raw.service_account.is_some()),
        ("expiry", raw.expiry.is_some()),
    ];
    let mut alone = |by: &str| {
        for (name, _) in others.iter().filter(|(_, given)| *given) {
            problems.add(name, &format!("has no meaning beside {by}"));
        }
    };
    match (&raw.secret_provider_class, &raw.pod_token) {
        (Some(_), Some(_)) => {
            problems.add("podToken", "must not be set beside secretProviderClass");
            None
        }
        (Some(class), None) => {
            alone("secretProviderClass");
            if class.is_empty() || class.len() > 253 || !class.split('.').all(is_label) {
                problems.add("secretProviderClass", "is no name of an object");
            }
            Some(TokenSource::SecretsStore { secret_provider_class: class.clone() })
        }
        (None, Some(raw)) => {
            alone("podToken");
            let expiry = raw.expiry.clone().unwrap_or_else(|| POD_EXPIRY.to_owned());
            let pod_token = PodToken { audience: raw.audience.clone(), expiry };
            problems.within("podToken", |problems| {
                check_token(pod_token.audience.as_deref(), &pod_token.expiry, problems);
            });
            Some(TokenSource::Pod { pod_token })
        }
        (None, None) => Some(TokenSource::Minted(minted(raw, problems))),
    }
}

fn minted(raw: &RawToken, problems: &mut Problems) -> Minted {
    let default = Minted::hypershift();
    let RawAccount { namespace, name } = raw.service_account.clone().unwrap_or_default();
    let minted = Minted {
        audience: raw.audience.clone().unwrap_or(default.audience),
        service_account: Account {
            namespace: namespace.unwrap_or(default.service_account.namespace),
            name: name.unwrap_or(default.service_account.name),
        },
        expiry: raw.expiry.clone().unwrap_or(default.expiry),
    };
    check_token(Some(&minted.audience), &minted.expiry, problems);
    let Account { namespace, name } = &minted.service_account;
    if !is_label(namespace) {
        problems.add("serviceAccount.namespace", "is no name of a namespace");
    }
    if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        problems.add("serviceAccount.name", "is no name of an object");
    }
    minted
}

fn check_token(audience: Option<&str>, expiry: &str, problems: &mut Problems) {
    if audience.is_some_and(|text| text.is_empty() || text.len() > MAX_AUDIENCE) {
        problems.add("audience", &format!("must have 1 to {MAX_AUDIENCE} characters"));
    }
    match parse_duration(expiry) {
        Ok(expiry) if expiry.as_secs() < SHORTEST => {
            problems.add("expiry", "is too short: API servers give tokens for 10m and longer");
        }
        Ok(_) => {}
        Err(error) => problems.add("expiry", &error),
    }
}

/// The directory is mounted into the provider, in the place of whatever is there.
fn wrong_path(file: &str) -> Option<&'static str> {
    let path = Path::new(file);
    let plain = file.split('/').skip(1).all(|part| !["", ".", ".."].contains(&part));
    let deep = path.parent().is_some_and(|parent| parent.parent().is_some());
    let ours = [names::MOUNT, names::SOCKETS, names::PROVIDER_SOCKETS, "/etc/kubernetes"];
    if !path.is_absolute() || !plain || !deep || file.len() > MAX_PATH {
        return Some("is no path: write /directory/of/its/own/token");
    }
    if ours.iter().any(|taken| path.starts_with(taken) || Path::new(taken).starts_with(path)) {
        return Some("is in a directory that is mounted already: give it one of its own");
    }
    None
}
