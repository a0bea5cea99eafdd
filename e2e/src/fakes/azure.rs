//! A fake of Azure: Key Vault, Managed HSM, Microsoft Entra ID and the metadata endpoint of a machine,
//! in one server. A vault is told by the host that is asked for, or by the path before `/keys`, as a
//! gateway has it; the URLs in its answers are those of the vault.

mod entra;
mod vault;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use super::{Answer, Asked, Service};
use vault::Key;
pub use vault::KeyKind;

/// The tenant that all identities are of.
pub const TENANT: &str = "11111111-2222-3333-4444-555555555555";
/// What a client may do with keys, as the README asks for it.
pub const RIGHTS: [&str; 3] = ["get", "encrypt", "decrypt"];

/// The state of everything.
#[derive(Debug)]
pub struct Azure {
    /// The vault's host.
    host: String,
    keys: BTreeMap<String, Key>,
    clients: BTreeMap<String, Client>,
    tokens: BTreeMap<String, Token>,
    assertions: BTreeSet<String>,
    life: Duration,
    throttled: (u32, Duration),
}

/// An application or a managed identity.
#[derive(Debug, Default)]
struct Client {
    secret: Option<String>,
    /// Of other issuers, which are taken for this client.
    federated: BTreeSet<String>,
    /// In DER, with the public key in it.
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    managed: bool,
    rights: BTreeSet<String>,
}

#[derive(Debug)]
struct Token {
    client: String,
    resource: String,
    ends: SystemTime,
}

impl Azure {
    /// A vault or Managed HSM at `host`, without keys, that nobody may use.
    pub fn new(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            keys: BTreeMap::new(),
            clients: BTreeMap::new(),
            tokens: BTreeMap::new(),
            assertions: BTreeSet::new(),
            life: Duration::from_secs(3600),
            throttled: (0, Duration::ZERO),
        }
    }

    /// Makes a key, or a new version of one; tells the version.
    pub fn make(&mut self, name: &str, kind: KeyKind) -> Result<String> {
        let version = random(16)?;
        self.restore(name, &version, kind)?;
        Ok(version)
    }

    /// Puts a version there that has been before.
    pub fn restore(&mut self, name: &str, version: &str, kind: KeyKind) -> Result<()> {
        let restored = (version.to_owned(), vault::Version::new(kind)?);
        self.keys.entry(name.to_owned()).or_default().versions.push(restored);
        Ok(())
    }

    /// A new version of an RSA key.
    pub fn rotate(&mut self, name: &str) -> Result<String> {
        let old = self.keys.get(name).and_then(|key| key.versions.last());
        let kind = old.context("no such key")?.1.successor();
        self.make(name, kind)
    }

    /// Lets a version be used, or not.
    pub fn enable(&mut self, name: &str, version: &str, enabled: bool) {
        let key = self.keys.get_mut(name);
        let versions = key.into_iter().flat_map(|key| &mut key.versions);
        versions.filter(|(known, _)| known == version).for_each(|(_, one)| one.enabled = enabled);
    }

    /// Deletes a key softly, or recovers it.
    pub fn delete(&mut self, name: &str, deleted: bool) {
        self.keys.entry(name.to_owned()).or_default().deleted = deleted;
    }

    /// Destroys a key for good.
    pub fn purge(&mut self, name: &str) {
        self.keys.remove(name);
    }

    /// A client that logs in with a secret.
    pub fn secret(&mut self, client: &str, secret: &str) {
        self.client(client).secret = Some(secret.to_owned());
    }

    /// A client that logs in with a certificate, in DER.
    pub fn certificate(&mut self, client: &str, certificate: &[u8]) -> Result<()> {
        let public = entra::public_key(certificate)?;
        self.client(client).certificate = Some((certificate.to_owned(), public));
        Ok(())
    }

    /// Another issuer's token, which is good for this client until it is taken back.
    pub fn federated(&mut self, client: &str) -> Result<String> {
        let token = random(24)?;
        self.client(client).federated.insert(token.clone());
        Ok(token)
    }

    /// All such tokens have ended.
    pub fn end_federated(&mut self, client: &str) {
        self.client(client).federated.clear();
    }

    /// A managed identity of the machine.
    pub fn managed(&mut self, client: &str) {
        self.client(client).managed = true;
    }

    /// What a client may do from now on.
    pub fn allow(&mut self, client: &str, rights: &[&str]) {
        self.client(client).rights = rights.iter().map(|one| (*one).to_owned()).collect();
    }

    /// How long tokens live from now on.
    pub fn life(&mut self, life: Duration) {
        self.life = life;
    }

    /// No token that was issued is good any more.
    pub fn end_tokens(&mut self) {
        self.tokens.clear();
    }

    /// Answers the next calls of the vault with 429, and asks to be left alone for so long.
    pub fn throttle(&mut self, calls: u32, pause: Duration) {
        self.throttled = (calls, pause);
    }

    fn client(&mut self, client: &str) -> &mut Client {
        self.clients.entry(client.to_owned()).or_insert_with(|| Client {
            rights: RIGHTS.map(str::to_owned).into(),
            ..Client::default()
        })
    }

    /// The domain that the vault lies in, for which tokens are issued.
    fn resource(&self) -> String {
        let domain = self.host.split_once('.').map_or(self.host.as_str(), |(_, domain)| domain);
        format!("https://{domain}")
    }

    /// The path below the vault, however that was asked for.
    fn path<'a>(&self, asked: &'a Asked) -> &'a str {
        let behind = asked.path.strip_prefix('/').and_then(|path| path.strip_prefix(&self.host));
        behind.filter(|path| path.starts_with('/')).unwrap_or(&asked.path)
    }
}

impl Service for Azure {
    fn operation(&self, asked: &Asked) -> Option<&'static str> {
        let parts: Vec<_> = self.path(asked).split('/').skip(1).collect();
        match (asked.method.as_str(), parts.as_slice()) {
            ("POST", [_, "oauth2", "v2.0", "token"] | [_, "oauth2", "token"]) => Some("token"),
            ("GET", ["metadata", "identity", "oauth2", "token"]) => Some("metadata"),
            ("GET", [.., ".well-known", "openid-configuration"]) => Some("discovery"),
            ("GET", ["common", "discovery", "instance"]) => Some("discovery"),
            (_, ["keys", ..]) if asked.bearer().is_none() => Some("challenge"),
            ("GET", ["keys", _] | ["keys", _, _]) => Some("get"),
            ("POST", ["keys", _, _, "encrypt"] | ["keys", _, "encrypt"]) => Some("encrypt"),
            ("POST", ["keys", _, _, "decrypt"] | ["keys", _, "decrypt"]) => Some("decrypt"),
            _ => None,
        }
    }

    fn answer(&mut self, operation: &'static str, asked: &Asked) -> Answer {
        match operation {
            "token" => self.issue(asked),
            "metadata" => self.hand_out(asked),
            "discovery" => self.discover(asked),
            "challenge" => self.challenge(),
            _ => self.operate(operation, asked),
        }
    }

    fn unknown(&self, asked: &Asked) -> Answer {
        vault::refusal(404, "NotFound", None, &format!("no such path: {}", asked.path))
    }
}

fn random(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    SystemRandom::new().fill(&mut random).map_err(|_| anyhow::anyhow!("no random numbers"))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
