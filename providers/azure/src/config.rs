//! One key of the configuration: `kek`, `settings` and `credentials`.

use std::path::PathBuf;

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::{Error, Files, Kind};
use sidekey_rest::files::check_absolute;
use sidekey_rest::{Address, Proxy, tls};

use crate::cloud::{Base, Cloud};
use crate::dropin::azure_json::AzureJson;
use crate::dropin::format::Format;
use crate::kek::{Kek, is_word};

/// Where a machine or pod is handed tokens for its managed identity.
const METADATA: &str = "http://169.254.169.254";

/// One key of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(crate) kek: Which,
    pub(crate) settings: Settings,
    pub(crate) credentials: Credentials,
}

/// Which KEK it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Which {
    /// A URL, or a name in the cloud of `settings`.
    vault: Option<String>,
    managed_hsm: bool,
    key: Option<String>,
    pub(crate) version: Option<String>,
}

/// How it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    pub(crate) cloud: Option<String>,
    pub(crate) format: Format,
    pub(crate) former_versions: Vec<String>,
    endpoint: Option<String>,
    authority: Option<String>,
    resource: Option<String>,
    metadata_endpoint: Option<String>,
    /// Where everything is sent, with the name of the host before the path.
    gateway: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) proxy: Option<String>,
    allow_plaintext: bool,
}

/// Who we are, by files alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    pub(crate) tenant_id: Option<String>,
    pub(crate) client_id: Option<String>,
    pub(crate) client_secret_file: Option<PathBuf>,
    pub(crate) certificate_file: Option<PathBuf>,
    pub(crate) federated_token_file: Option<PathBuf>,
    pub(crate) managed_identity: bool,
    /// One identity as ARO's data plane hands it out.
    pub(crate) identity_file: Option<PathBuf>,
    /// The file of the replaced plugins.
    pub(crate) azure_json_file: Option<PathBuf>,
}

/// Where everything is, once all files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The vault's URL as given, without a slash at its end.
    vault: String,
    /// Its host.
    pub(crate) host: String,
    /// Where the vault is asked.
    pub(crate) endpoint: Address,
    pub(crate) authority: Base,
    pub(crate) metadata: Address,
    /// For what tokens are asked.
    pub(crate) resource: String,
    /// In the place of both the vault and the authority.
    pub(crate) gateway: Option<Address>,
}

impl Config {
    /// Every mistake that types cannot express.
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.within("kek", |problems| self.kek.check(problems));
        let pinned = self.kek.version.is_some();
        problems.within("settings", |problems| self.settings.check(pinned, problems));
        problems.within("credentials", |problems| self.credentials.check(problems));
        if let Some(vault) = &self.kek.vault
            && is_word(vault)
            && self.credentials.azure_json_file.is_none()
            && Cloud::named(self.settings.cloud.as_deref().unwrap_or_default()).is_none()
        {
            problems.add("settings.cloud", "is not known: write kek.vault as a URL");
        }
    }

    /// The files that a client is made of.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let files = self.credentials.paths().into_iter().filter_map(|(_, path)| path.clone());
        files.chain(tls::bundle(self.settings.ca_file.as_deref())).collect()
    }

    /// Where everything is.
    pub(crate) fn place(&self, files: &Files) -> Result<Place, Error> {
        let Self { kek, settings, credentials } = self;
        let json = credentials.azure_json_file.as_deref();
        let json = json.map(|path| AzureJson::read(path, files)).transpose()?;
        let named = match json.as_ref().filter(|_| settings.cloud.is_none()) {
            Some(json) => Some(json.cloud(files)?),
            None => Cloud::named(settings.cloud.as_deref().unwrap_or_default()),
        };
        let (vault, host) = kek.vault(named.as_ref())?;
        let cloud = Cloud::of_host(&host)
            .or_else(|| named.filter(|cloud| cloud.domain_of(&host).is_some()));
        let missing = |field: &str| {
            let text = format!("the cloud of {host} is not known: set settings.{field}");
            Error::new(Kind::Config, text)
        };
        let authority =
            settings.authority.clone().or_else(|| Some(cloud.as_ref()?.authority.clone()));
        let authority = authority.ok_or_else(|| missing("authority"))?;
        let authority = Base::parse(&authority).ok_or_else(|| {
            Error::new(Kind::Config, format!("{authority:?} is no URL of an authority"))
        })?;
        let of_cloud = || {
            let cloud = cloud.as_ref()?;
            let domain = || Some(format!("https://{}", cloud.domain_of(&host)?));
            cloud.resource.clone().or_else(domain)
        };
        let resource = settings.resource.clone().or_else(of_cloud);
        let resource = resource.ok_or_else(|| missing("resource"))?;
        let address = |text: &Option<String>, other: &str| {
            let text = text.as_deref().unwrap_or(other);
            Address::parse(text).map_err(|why| Error::new(Kind::Config, why))
        };
        Ok(Place {
            endpoint: address(&settings.endpoint, &vault)?,
            metadata: address(&settings.metadata_endpoint, METADATA)?,
            gateway: settings.gateway.as_deref().map(|text| address(&None, text)).transpose()?,
            vault,
            host,
            authority,
            resource,
        })
    }
}

impl Place {
    /// The key of `config`, in this vault.
    pub(crate) fn kek(&self, config: &Config) -> Result<Kek, Error> {
        let key = config.kek.key.clone();
        let key = key.ok_or_else(|| Error::new(Kind::Config, "kek.key is not set"))?;
        Ok(Kek::new(self.vault.clone(), key))
    }
}

impl Which {
    fn check(&self, problems: &mut Problems) {
        if let Some(vault) = problems.require("vault", &self.vault)
            && !is_word(vault)
            && host_of(vault).is_none()
        {
            problems.add("vault", "is neither a vault's name nor https://host of one");
        }
        if let Some(key) = problems.require("key", &self.key)
            && !is_word(key)
        {
            problems.add("key", "is no name of a key: write letters, digits and -");
        }
        if self.version.as_deref().is_some_and(|version| !is_word(version)) {
            problems.add("version", "is no version of a key");
        }
    }

    /// Its URL as given, and its host.
    fn vault(&self, cloud: Option<&Cloud>) -> Result<(String, String), Error> {
        let vault = self.vault.as_deref().unwrap_or_default();
        if let Some(host) = host_of(vault) {
            return Ok((vault.trim_end_matches('/').to_owned(), host));
        }
        let bad = |text: &str| Error::new(Kind::Config, text.to_owned());
        let cloud = cloud.ok_or_else(|| bad("the cloud is not known"))?;
        let domain = match self.managed_hsm {
            true => cloud.hsms.as_ref().ok_or_else(|| bad("this cloud has no Managed HSM"))?,
            false => &cloud.vaults,
        };
        Ok((format!("https://{vault}.{domain}"), format!("{vault}.{domain}").to_ascii_lowercase()))
    }
}

/// The host of a vault's URL.
fn host_of(url: &str) -> Option<String> {
    match Address::parse(url) {
        Ok(address @ Address::Tcp { tls: true, .. }) => Some(address.authority()),
        _ => None,
    }
}

impl Settings {
    fn check(&self, pinned: bool, problems: &mut Problems) {
        let urls = [
            ("endpoint", &self.endpoint),
            ("metadataEndpoint", &self.metadata_endpoint),
            ("gateway", &self.gateway),
        ];
        for (field, url) in urls {
            if let Some(url) = url {
                Address::check(field, url, self.allow_plaintext, problems);
            }
        }
        match self.authority.as_deref().map(Base::parse) {
            Some(None) => problems.add("authority", "is no URL: write https://host"),
            Some(Some(base)) => {
                base.address.check_exposed("authority", self.allow_plaintext, problems)
            }
            None => {}
        }
        if self.format != Format::Own && !pinned {
            problems.add(
                "format",
                "names no version beside the data: set kek.version, or leave it out",
            );
        }
        for version in self.former_versions.iter().filter(|version| !is_word(version)) {
            problems.add("formerVersions", &format!("{version:?} is no version of a key"));
        }
        if self.proxy.as_deref().is_some_and(|url| !Proxy::is_usable(url)) {
            problems.add("proxy", "is no proxy: write http://host:port");
        } else if self.proxy.as_deref().is_some_and(|url| url.contains('@')) {
            // Settings are logged.
            problems.add("proxy", "holds a password: set HTTPS_PROXY in its place");
        }
        check_absolute(&[("caFile", self.ca_file.as_deref())], problems);
    }
}

impl Credentials {
    fn check(&self, problems: &mut Problems) {
        check_absolute(&self.paths().map(|(field, path)| (field, path.as_deref())), problems);
        let mut ways: Vec<_> = self
            .paths()
            .into_iter()
            .filter(|(_, path)| path.is_some())
            .map(|(field, _)| field)
            .collect();
        ways.extend(self.managed_identity.then_some("managedIdentity"));
        match ways.as_slice() {
            [] => problems.add("", "names no way to log in: set clientSecretFile, certificateFile, federatedTokenFile, identityFile or managedIdentity"),
            [first, others @ ..] => {
                for other in others {
                    problems.add(other, &format!("and {first} exclude each other"));
                }
            }
        }
        if matches!(ways[..], ["clientSecretFile" | "certificateFile" | "federatedTokenFile"]) {
            for (field, value) in [("tenantId", &self.tenant_id), ("clientId", &self.client_id)] {
                problems.require(field, value);
            }
        }
        let word =
            |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
        for (field, value) in [("tenantId", &self.tenant_id), ("clientId", &self.client_id)] {
            if value.as_deref().is_some_and(|value| value.is_empty() || !word(value)) {
                problems.add(field, "is neither a GUID nor a domain");
            }
        }
    }

    /// Its files, by their fields.
    fn paths(&self) -> [(&'static str, &Option<PathBuf>); 5] {
        [
            ("clientSecretFile", &self.client_secret_file),
            ("certificateFile", &self.certificate_file),
            ("federatedTokenFile", &self.federated_token_file),
            ("identityFile", &self.identity_file),
            ("azureJsonFile", &self.azure_json_file),
        ]
    }
}

#[cfg(test)]
mod tests;
