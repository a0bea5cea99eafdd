//! The configuration of the socket proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value;
use sidekey_core::Endpoint;
use sidekey_core::app::Configuration;
use sidekey_core::certificate::identity;
use sidekey_core::config::fields::{address, endpoint, server_uids};
use sidekey_core::config::{Problems, ProcessOptions, read};
use sidekey_core::kms::Operation;

use crate::tls::{self, TlsFiles};

/// A guard against a runaway generator.
const MAX_CLIENTS: usize = 1000;

/// Everything that the proxy needs to run.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// What every process has.
    pub options: ProcessOptions,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where the plugin listens.
    pub plugin: Endpoint,
    /// The uids that may serve the plugin's socket; our own and root if empty.
    pub server_uids: Vec<u32>,
    /// Who may do what.
    pub access: Access,
}

/// Who may do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever reaches the port may do everything; on loopback only.
    Plaintext,
    /// Clients show a certificate, and one of its names must be on the list.
    Mutual {
        /// Our certificate and the clients' CA.
        files: TlsFiles,
        /// The list.
        clients: Clients,
    },
}

/// Names of clients, and what each may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients(BTreeMap<String, Permissions>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Permissions([bool; 3]);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawProxyConfig {
    listen: Option<String>,
    plugin: Option<String>,
    server_uids: Option<Vec<u32>>,
    tls: Option<RawServerTls>,
    clients: Option<Vec<Option<RawClient>>>,
    plaintext: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawServerTls {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawClient {
    san: Option<String>,
    allow: Option<Vec<Option<Operation>>>,
}

impl ProxyConfig {
    /// Checks a whole document; `Err` lists every mistake in it.
    pub fn parse(document: &Value) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let problems_ = &mut problems;
        let (options, rest) = ProcessOptions::take(document, problems_);
        let raw: RawProxyConfig = read(&rest, problems_).unwrap_or_default();
        let listen = problems_
            .require("listen", &raw.listen)
            .and_then(|text| address("listen", text, problems_));
        let plugin = problems_
            .require("plugin", &raw.plugin)
            .and_then(|text| endpoint("plugin", text, problems_));
        let access = access(&raw, listen, problems_);
        let server_uids = server_uids(raw.server_uids.as_deref(), problems_);
        let config = (|| {
            let (listen, plugin, access) = (listen?, plugin?, access?);
            Some(Self { options, listen, plugin, server_uids, access })
        })();
        problems.into_result(config)
    }

    /// Looks at the files that it names; `Ok` says when our certificate expires.
    pub fn check_files(&self) -> Result<Option<SystemTime>, Problems> {
        let Access::Mutual { files, .. } = &self.access else { return Ok(None) };
        match tls::Identity::load(files.clone()) {
            Ok(identity) => Ok(identity.expiry()),
            Err(error) => Err(Problems::one("tls", &error.report())),
        }
    }
}

impl Configuration for ProxyConfig {
    fn options(&mut self) -> &mut ProcessOptions {
        &mut self.options
    }

    /// What is bound once cannot be changed while clients hold connections to it.
    fn fixed(&self) -> Vec<(&'static str, String)> {
        vec![
            ("listen", self.listen.to_string()),
            ("plaintext", (self.access == Access::Plaintext).to_string()),
            ("socket", format!("{:?}", self.options.socket)),
        ]
    }
}

fn access(
    raw: &RawProxyConfig,
    listen: Option<SocketAddr>,
    problems: &mut Problems,
) -> Option<Access> {
    if raw.plaintext.unwrap_or_default() {
        if listen.is_some_and(|listen| !listen.ip().is_loopback()) {
            let text = "plaintext is for loopback alone, because whoever reaches the port can decrypt: \
                        listen on 127.0.0.1 or [::1], or take plaintext out and give tls and clients";
            problems.add("listen", text);
        }
        for (name, given) in [("tls", raw.tls.is_some()), ("clients", raw.clients.is_some())] {
            if given {
                problems.add(name, "has no meaning with plaintext: true; drop one of them");
            }
        }
        return Some(Access::Plaintext);
    }
    let files = problems.require("tls", &raw.tls).and_then(|raw| {
        problems.within("tls", |problems| {
            let mut path = |name: &str, value: &Option<PathBuf>| {
                let path = problems.require(name, value)?;
                if !path.is_absolute() {
                    problems.add(name, &format!("{path:?} is not an absolute path"));
                }
                Some(path.clone())
            };
            let (ca, cert) = (path("ca", &raw.ca), path("cert", &raw.cert));
            let key = path("key", &raw.key);
            Some(TlsFiles { ca: ca?, cert: cert?, key: key? })
        })
    });
    let clients = clients(raw, problems);
    Some(Access::Mutual { files: files?, clients })
}

fn clients(raw: &RawProxyConfig, problems: &mut Problems) -> Clients {
    let mut clients = Clients::default();
    let Some(list) = problems.require("clients", &raw.clients) else { return clients };
    match list.len() {
        0 => problems.add("clients", "is empty: name at least one client"),
        n if n > MAX_CLIENTS => problems.add("clients", &format!("has {n}, at most {MAX_CLIENTS}")),
        _ => {}
    }
    for (index, client) in list.iter().take(MAX_CLIENTS).enumerate() {
        let Some(client) = client else { continue };
        problems.within(&format!("clients[{index}]"), |problems| {
            let mut permissions = Permissions::default();
            let allow = problems.require("allow", &client.allow).map_or(&[][..], Vec::as_slice);
            if client.allow.as_ref().is_some_and(Vec::is_empty) {
                problems.add("allow", "is empty: give some of status, encrypt, decrypt");
            }
            for operation in allow.iter().flatten() {
                permissions.0[*operation as usize] = true;
            }
            let Some(text) = problems.require("san", &client.san) else { return };
            let Some(name) = identity(text) else {
                let text = format!(
                    "{text:?} is no DNS name, URI or IP address; wildcards name nobody in particular"
                );
                problems.add("san", &text);
                return;
            };
            if clients.0.insert(name, permissions).is_some() {
                problems.add("san", &format!("{text} is on the list twice"));
            }
        });
    }
    clients
}

impl Clients {
    /// Whether one of the names may do this.
    pub fn permit(&self, names: &[String], operation: Operation) -> bool {
        let permitted = |name| self.0.get(name).is_some_and(|may| may.0[operation as usize]);
        names.iter().any(permitted)
    }

    /// Whether one of the names is on the list.
    pub fn know(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.0.contains_key(name))
    }

    /// The list, for people.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Vec<&'static str>)> {
        self.0.iter().map(|(name, permissions)| {
            let may = Operation::ALL.into_iter().filter(|one| permissions.0[*one as usize]);
            (name.as_str(), may.map(Operation::label).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(text: &str) -> Result<ProxyConfig, String> {
        let document = sidekey_core::config::document(text).unwrap();
        ProxyConfig::parse(&document).map_err(|problems| problems.to_string())
    }

    const SOUND: &str = "
listen: 0.0.0.0:8443
plugin: unix:///socket/kms.sock
tls: {ca: /c/ca.crt, cert: /c/tls.crt, key: /c/tls.key}
clients:
- {san: Shim.Example, allow: [status, encrypt, decrypt]}
- {san: 'spiffe://example/shim', allow: [status, decrypt]}
- {san: '0:0::1', allow: [status]}
";

    #[test]
    fn names_are_compared_in_one_form_and_permissions_are_kept_apart() {
        let Access::Mutual { clients, .. } = parse(SOUND).unwrap().access else {
            panic!("not mutual")
        };
        let may = |name: &str, operation| clients.permit(&[name.to_owned()], operation);
        assert!(may("shim.example", Operation::Encrypt));
        assert!(may("spiffe://example/shim", Operation::Decrypt));
        assert!(!may("spiffe://example/shim", Operation::Encrypt));
        assert!(may("::1", Operation::Status));
        assert!(!may("::1", Operation::Decrypt));
        assert!(!may("other.example", Operation::Status));
    }

    #[test]
    fn every_mistake_is_told_with_its_path() {
        let text = parse(
            "
listen: nowhere
plugin: relative.sock
tls: {ca: ca.crt, cert: /c}
clients:
- {san: '*.example', allow: [status, sign]}
- {san: a.example, allow: []}
- {san: A.example, allow: [status]}
- {allow: [status]}
- {san: b.example}
colour: red
",
        )
        .unwrap_err();
        for part in [
            "colour: unknown field",
            "clients[0].allow[1]: unknown variant",
            "listen: \"nowhere\" is no address",
            "plugin: \"relative.sock\" is not a unix socket",
            "tls.ca: \"ca.crt\" is not an absolute path",
            "tls.key: is required",
            "clients[0].san: \"*.example\" is no DNS name",
            "clients[1].allow: is empty",
            "clients[2].san: A.example is on the list twice",
            "clients[3].san: is required",
            "clients[4].allow: is required",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn plaintext_is_for_loopback_and_needs_no_list() {
        let plain =
            |listen: &str| parse(&format!("{{listen: '{listen}', plugin: /s, plaintext: true}}"));
        assert_eq!(plain("127.0.0.1:0").unwrap().access, Access::Plaintext);
        assert_eq!(plain("[::1]:0").unwrap().access, Access::Plaintext);
        for open in ["0.0.0.0:8080", "[::]:8080", "10.0.0.1:8080", ":8080", "[::ffff:127.0.0.1]:1"]
        {
            assert!(
                plain(open).unwrap_err().contains("listen: plaintext is for loopback"),
                "{open}"
            );
        }
        let both = format!("{SOUND}\nplaintext: true");
        assert!(parse(&both).unwrap_err().contains("tls: has no meaning with plaintext"));
        let neither = parse("{listen: '127.0.0.1:1', plugin: /s}").unwrap_err();
        assert!(neither.contains("tls: is required") && neither.contains("clients: is required"));
    }
}
