//! Tokens of the control plane's own service accounts, which providers log in with.
//!
//! The defaults are those of HyperShift's token minter.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sidekey_core::config::{Problems, parse_duration};

use super::parse::is_label;
use super::raw::{RawAccount, RawSpec, RawToken};
use super::{Key, SecretEncryption, names};

/// What the API server makes a token's life to at least.
const SHORTEST: u64 = 600;
/// The longest path of a file.
const MAX_PATH: usize = 512;
/// The longest audience.
const MAX_AUDIENCE: usize = 1024;

/// A token that a vendor's provider reads, minted beside it by the API server that it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// Whose provider reads it: the type of keys.
    #[serde(rename = "type")]
    pub vendor: String,
    /// Where it reads it.
    pub file: String,
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

impl Token {
    /// As HyperShift has it, for this vendor's provider.
    pub fn of(vendor: &str) -> Self {
        Self {
            vendor: vendor.to_owned(),
            file: "/var/run/secrets/openshift/serviceaccount/token".to_owned(),
            audience: "openshift".to_owned(),
            service_account: Account {
                namespace: "kube-system".to_owned(),
                name: "kms-provider".to_owned(),
            },
            expiry: "1h".to_owned(),
        }
    }

    /// The directory that the file is in: it holds nothing else.
    pub fn directory(&self) -> &str {
        self.file.rsplit_once('/').map_or("", |(directory, _)| directory)
    }
}

/// The tokens that keys log in with, as far as the keys tell: their files. One among the keys' own
/// files is nobody's to mint.
pub fn told_tokens<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Vec<Token> {
    let told = keys.into_iter().filter_map(|key| {
        let file = key.credentials["webIdentityTokenFile"].as_str()?;
        let file = Some(file).filter(|file| wrong_path(file).is_none())?;
        Some(Token { file: file.to_owned(), ..Token::of(&key.vendor) })
    });
    told.collect()
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
    let default = Token::of(vendor);
    let RawAccount { namespace, name } = raw.service_account.clone().unwrap_or_default();
    let token = Token {
        file: raw.file.clone().unwrap_or(default.file),
        audience: raw.audience.clone().unwrap_or(default.audience),
        service_account: Account {
            namespace: namespace.unwrap_or(default.service_account.namespace),
            name: name.unwrap_or(default.service_account.name),
        },
        expiry: raw.expiry.clone().unwrap_or(default.expiry),
        vendor: default.vendor,
    };
    check(&token, problems);
    Some(token)
}

fn check(token: &Token, problems: &mut Problems) {
    if let Some(wrong) = wrong_path(&token.file) {
        problems.add("file", wrong);
    }
    if token.audience.is_empty() || token.audience.len() > MAX_AUDIENCE {
        problems.add("audience", &format!("must have 1 to {MAX_AUDIENCE} characters"));
    }
    let Account { namespace, name } = &token.service_account;
    if !is_label(namespace) {
        problems.add("serviceAccount.namespace", "is no name of a namespace");
    }
    if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        problems.add("serviceAccount.name", "is no name of an object");
    }
    match parse_duration(&token.expiry) {
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
