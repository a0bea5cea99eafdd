//! One key of the configuration: `kek`, `settings` and `credentials`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sidekey_core::Files;
use sidekey_core::config::{Problems, fields, parse_duration};
use sidekey_rest::files::check_absolute;
use sidekey_rest::{Address, Proxy};

use crate::arn::KeyName;
use crate::dropin::environment::Environment;
use crate::profile::Profiles;
use crate::sources;

/// AWS allows no larger one, and it is part of every call.
const MAX_CONTEXT: usize = 8 * 1024;
/// Longest wait for a connection: the next address, or the next try, may be better.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// One key of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    kek: Option<Kek>,
    settings: Option<Settings>,
    credentials: Option<Credentials>,
}

/// Which KEK it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Kek {
    key: Option<String>,
    region: Option<String>,
    encryption_context: Option<BTreeMap<String, Option<String>>>,
}

/// How it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    pub(crate) endpoint: Option<String>,
    pub(crate) sts_endpoint: Option<String>,
    pub(crate) fips: Option<bool>,
    pub(crate) dualstack: Option<bool>,
    pub(crate) source_arn: Option<String>,
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) proxy: Option<String>,
    #[serde(deserialize_with = "fields::text")]
    connect_timeout: Option<String>,
    #[serde(deserialize_with = "fields::text")]
    attempt_timeout: Option<String>,
    pub(crate) retry_tokens: Option<u32>,
    allow_plaintext: Option<bool>,
}

/// Who we are, by files alone; without any of it, the SDK's own chain decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    pub(crate) shared_credentials_file: Option<PathBuf>,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) profile: Option<String>,
    pub(crate) role_arn: Option<String>,
    pub(crate) session_name: Option<String>,
    pub(crate) external_id: Option<String>,
    pub(crate) web_identity_token_file: Option<PathBuf>,
    pub(crate) access_key_id_file: Option<PathBuf>,
    pub(crate) secret_access_key_file: Option<PathBuf>,
    pub(crate) session_token_file: Option<PathBuf>,
}

impl Config {
    /// Every mistake that types cannot express.
    pub(crate) fn check(&self, problems: &mut Problems) {
        let kek = self.kek.clone().unwrap_or_default();
        if let Some(text) = problems.require("kek.key", &kek.key) {
            kek.check_key(text, problems);
        }
        let context = kek.encryption_context.iter().flatten();
        if context.map(|(k, v)| k.len() + v.as_ref().map_or(0, String::len)).sum::<usize>()
            > MAX_CONTEXT
        {
            problems.add("kek.encryptionContext", "is larger than 8 KiB");
        }
        for (name, value) in kek.encryption_context.iter().flatten() {
            if value.is_none() {
                let path = format!("kek.encryptionContext.{name}");
                problems.add(&path, "is not text: put numbers in quotes");
            }
        }
        self.settings().check(problems);
        self.credentials().check(problems);
    }

    /// The files that a client is made of.
    pub(crate) fn files(&self, environment: &Environment) -> Vec<PathBuf> {
        let mut files = self.credential_files(environment);
        files.extend(self.ca_bundle(environment));
        files
    }

    /// Those that credentials are made of.
    pub(crate) fn credential_files(&self, environment: &Environment) -> Vec<PathBuf> {
        let credentials = self.credentials();
        if credentials.is_chain() {
            return environment.credential_files();
        }
        let files = credentials.paths().into_iter().filter_map(|(_, path)| path.clone());
        files.collect()
    }

    /// The token files that the profile in use names.
    pub(crate) fn named_files(&self, files: &Files, environment: &Environment) -> Vec<PathBuf> {
        let profiles = self.profiles(files, environment);
        profiles.map(|profiles| profiles.token_files()).unwrap_or_default()
    }

    /// The profiles, where they count.
    pub(crate) fn profiles(&self, files: &Files, environment: &Environment) -> Option<Profiles> {
        let credentials = self.credentials();
        if credentials.has_files() {
            let contents = sources::profile_files(&credentials, files);
            return Profiles::new(&contents, credentials.profile.as_deref().unwrap_or("default"));
        }
        if !credentials.is_chain() || environment.has_static_keys() {
            return None;
        }
        let absolute = |path: PathBuf| std::path::absolute(path).ok();
        let both = [environment.config_file(), environment.shared_file()];
        let [config, shared] = both.map(|path| path.and_then(absolute));
        let contents = sources::contents((config.as_ref(), shared.as_ref()), files);
        Profiles::new(&contents, environment.profile().as_deref().unwrap_or("default"))
    }

    /// The key, as it is named.
    pub(crate) fn key(&self) -> Option<KeyName> {
        KeyName::parse(self.kek.as_ref()?.key.as_deref()?)
    }

    /// The region that the key itself, or the setting, tells.
    pub(crate) fn region(&self) -> Option<String> {
        let set = self.kek.as_ref().and_then(|kek| kek.region.clone());
        set.or_else(|| self.key()?.region().map(str::to_owned))
    }

    /// What every ciphertext is bound to.
    pub(crate) fn encryption_context(&self) -> HashMap<String, String> {
        let context = self.kek.as_ref().and_then(|kek| kek.encryption_context.clone());
        let context = context.unwrap_or_default().into_iter();
        context.filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// `settings`, or none of them.
    pub(crate) fn settings(&self) -> Settings {
        self.settings.clone().unwrap_or_default()
    }

    /// `credentials`, or none of them.
    pub(crate) fn credentials(&self) -> Credentials {
        self.credentials.clone().unwrap_or_default()
    }

    /// The CA bundle, by whomever it is named.
    pub(crate) fn ca_bundle(&self, environment: &Environment) -> Option<PathBuf> {
        self.settings().ca_bundle.or_else(|| environment.ca_bundle())
    }
}

impl Kek {
    fn check_key(&self, text: &str, problems: &mut Problems) {
        let Some(name) = KeyName::parse(text) else {
            let text = "is no key: write its ARN, its id, alias/name or an alias's ARN";
            return problems.add("kek.key", text);
        };
        let own = name.region().filter(|_| !name.is_multi_region());
        if let (Some(own), Some(set)) = (own, &self.region)
            && own != set
        {
            let text = format!("is {set:?}, but the key lies in {own:?}");
            problems.add("kek.region", &text);
        }
    }
}

impl Settings {
    fn check(&self, problems: &mut Problems) {
        let urls = [("endpoint", &self.endpoint), ("stsEndpoint", &self.sts_endpoint)];
        for (field, url) in urls {
            let path = format!("settings.{field}");
            match url.as_deref().map(Address::parse) {
                Some(Ok(Address::Unix(_)) | Err(_)) => {
                    problems.add(&path, "is no URL: write https://host[:port]");
                }
                Some(Ok(address)) => {
                    address.check_exposed(&path, self.allows_plaintext(), problems);
                }
                None => {}
            }
        }
        if self.source_arn.is_some() && self.source_account().is_none() {
            problems.add("settings.sourceArn", "is no ARN with an account in it");
        }
        let proxy = self.proxy.as_deref();
        if proxy.is_some_and(|url| !Proxy::is_usable(url)) {
            problems.add("settings.proxy", "is no proxy: write http://host:port");
        } else if proxy.is_some_and(|url| url.contains('@')) {
            // Settings are logged.
            problems.add("settings.proxy", "holds a password: set HTTPS_PROXY in its place");
        }
        check_absolute(&[("settings.caBundle", self.ca_bundle.as_deref())], problems);
        for (field, text) in [
            ("settings.connectTimeout", &self.connect_timeout),
            ("settings.attemptTimeout", &self.attempt_timeout),
        ] {
            fields::duration(field, text.as_deref(), 1, problems);
        }
    }

    /// The account in `sourceArn`.
    pub(crate) fn source_account(&self) -> Option<&str> {
        let mut parts = self.source_arn.as_deref()?.split(':');
        let (arn, account) = (parts.next()?, parts.nth(3)?);
        parts.next()?;
        let digits = !account.is_empty() && account.bytes().all(|b| b.is_ascii_digit());
        (arn == "arn" && digits).then_some(account)
    }

    /// Whether plain HTTP may leave this machine.
    pub(crate) fn allows_plaintext(&self) -> bool {
        self.allow_plaintext.unwrap_or(false)
    }

    /// How long to wait for a connection.
    pub(crate) fn connect_timeout(&self) -> Duration {
        time(&self.connect_timeout).unwrap_or(CONNECT_TIMEOUT)
    }

    /// How long one try may take, if that is set.
    pub(crate) fn attempt_timeout(&self) -> Option<Duration> {
        time(&self.attempt_timeout)
    }
}

impl Credentials {
    fn check(&self, problems: &mut Problems) {
        problems.within("credentials", |problems| {
            check_absolute(&self.paths().map(|(field, path)| (field, path.as_deref())), problems);
            let ways = [
                ("sharedCredentialsFile", self.has_files()),
                ("accessKeyIdFile", self.access_key_id_file.is_some()),
                ("webIdentityTokenFile", self.web_identity_token_file.is_some()),
            ];
            let ways: Vec<_> = ways.iter().filter(|(_, used)| *used).collect();
            for (field, _) in ways.iter().skip(1) {
                problems.add(field, &format!("and {} exclude each other", ways[0].0));
            }
            self.check_pairs(problems);
        });
    }

    fn check_pairs(&self, problems: &mut Problems) {
        let pairs = [
            ("roleArn", self.role_arn.is_none() && self.web_identity_token_file.is_some()),
            (
                "secretAccessKeyFile",
                self.secret_access_key_file.is_none() && self.access_key_id_file.is_some(),
            ),
            (
                "accessKeyIdFile",
                self.access_key_id_file.is_none()
                    && (self.secret_access_key_file.is_some() || self.session_token_file.is_some()),
            ),
            ("sharedCredentialsFile", self.profile.is_some() && !self.has_files()),
        ];
        for (field, _) in pairs.into_iter().filter(|(_, missing)| *missing) {
            problems.add(field, "is required with what else is given");
        }
        let orphans = [("sessionName", &self.session_name), ("externalId", &self.external_id)];
        for (field, _) in orphans.into_iter().filter(|(_, value)| value.is_some()) {
            if self.role_arn.is_none() {
                problems.add(field, "has no meaning without roleArn");
            }
        }
    }

    /// Its files, by their fields.
    fn paths(&self) -> [(&'static str, &Option<PathBuf>); 6] {
        [
            ("sharedCredentialsFile", &self.shared_credentials_file),
            ("configFile", &self.config_file),
            ("webIdentityTokenFile", &self.web_identity_token_file),
            ("accessKeyIdFile", &self.access_key_id_file),
            ("secretAccessKeyFile", &self.secret_access_key_file),
            ("sessionTokenFile", &self.session_token_file),
        ]
    }

    /// Whether profiles come from files that are named here.
    pub(crate) fn has_files(&self) -> bool {
        self.shared_credentials_file.is_some() || self.config_file.is_some()
    }

    /// Whether the SDK's own chain is the source.
    pub(crate) fn is_chain(&self) -> bool {
        !self.has_files()
            && self.access_key_id_file.is_none()
            && self.web_identity_token_file.is_none()
    }
}

/// What [`Settings::check`] has found sound.
fn time(text: &Option<String>) -> Option<Duration> {
    text.as_deref().and_then(|text| parse_duration(text).ok())
}

#[cfg(test)]
mod tests;
