//! The little that must be known of profile files before the SDK reads them: whether the profile
//! in use takes its role by a token file, as HyperShift's does. Such a file is watched like the
//! others, and the token is taken from the same reading of all files, never half-written.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Longest chain of `source_profile`.
const MAX_CHAIN: usize = 8;

/// Settings that make the SDK take credentials from a profile.
const SOURCES: [&str; 6] = [
    "aws_access_key_id",
    "role_arn",
    "credential_process",
    "sso_session",
    "sso_start_url",
    "credential_source",
];

/// A role that is taken with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebIdentity {
    pub(crate) role_arn: String,
    pub(crate) token_file: PathBuf,
    pub(crate) session_name: Option<String>,
}

/// The settings of each profile, by its name.
pub(crate) struct Profiles<'a>(BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>);

impl<'a> Profiles<'a> {
    /// Reads both files; what is in neither is as good as an empty one.
    pub(crate) fn new(config: &'a str, shared: &'a str) -> Self {
        let mut profiles = Self(BTreeMap::new());
        profiles.read(config, true);
        profiles.read(shared, false);
        profiles
    }

    /// The token files that `profile` needs, by itself and by the profiles that it builds on.
    pub(crate) fn token_files(&self, profile: &str) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut name = profile;
        for _ in 0..MAX_CHAIN {
            let Some(profile) = self.0.get(name) else { break };
            files.extend(profile.get("web_identity_token_file").map(PathBuf::from));
            match profile.get("source_profile") {
                Some(source) if *source != name => name = source,
                _ => break,
            }
        }
        files.retain(|path| path.is_absolute());
        files
    }

    /// The role that `profile` itself takes with a token.
    pub(crate) fn web_identity(&self, profile: &str) -> Option<WebIdentity> {
        let profile = self.0.get(profile)?;
        let token_file = PathBuf::from(*profile.get("web_identity_token_file")?);
        let role_arn = (*profile.get("role_arn")?).to_owned();
        let session_name = profile.get("role_session_name").map(|name| (*name).to_owned());
        let alone = !profile.contains_key("source_profile") && token_file.is_absolute();
        alone.then_some(WebIdentity { role_arn, token_file, session_name })
    }

    /// Whether the SDK would take credentials from `profile`.
    pub(crate) fn has_credentials(&self, profile: &str) -> bool {
        let profile = self.0.get(profile);
        profile.is_some_and(|profile| SOURCES.iter().any(|name| profile.contains_key(name)))
    }

    /// Later files win, as they do in the SDK.
    fn read(&mut self, text: &'a str, is_config: bool) {
        let mut section: Option<&str> = None;
        for line in text.lines() {
            if line.starts_with([' ', '\t']) {
                // A nested setting: none that matters here.
                continue;
            }
            let line = line.trim();
            if let Some(title) = line.strip_prefix('[') {
                section = title.split_once(']').and_then(|(title, _)| name(title, is_config));
            } else if let (Some(section), Some((key, value))) = (section, line.split_once('=')) {
                let comment = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark));
                let value = comment.min().map_or(value, |end| &value[..end]);
                self.0.entry(section).or_default().insert(key.trim(), value.trim());
            }
        }
    }
}

/// `[profile x]` in the config file, `[x]` in the credentials file, `[default]` in both.
fn name(title: &str, is_config: bool) -> Option<&str> {
    let title = title.trim();
    match title.strip_prefix("profile").filter(|rest| rest.starts_with([' ', '\t'])) {
        Some(name) => Some(name.trim()),
        None if is_config && title != "default" => None,
        None => Some(title),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(config: &str, shared: &str, profile: &str) -> Vec<String> {
        let found = Profiles::new(config, shared).token_files(profile);
        found.into_iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_token_file_of_hypershifts_credentials_is_found() {
        let text = "[default]\nrole_arn = arn:aws:iam::1:role/kms\n\
            web_identity_token_file = /var/run/secrets/openshift/serviceaccount/token\n\
            sts_regional_endpoints = regional\nregion = us-east-1";
        let expected = ["/var/run/secrets/openshift/serviceaccount/token"];
        assert_eq!(files("", text, "default"), expected);
        let identity = Profiles::new("", text).web_identity("default");
        let identity = identity.map(|identity| (identity.role_arn, identity.token_file));
        assert_eq!(identity, Some(("arn:aws:iam::1:role/kms".to_owned(), expected[0].into())));
    }

    #[test]
    fn only_the_profile_in_use_and_its_sources_count() {
        let config = "[profile a]\nsource_profile = b\n[profile b]\n\
            web_identity_token_file = /b # the minter's\n[profile c]\nweb_identity_token_file=/c ; x\n\
            [services x]\nweb_identity_token_file=/x\n[loop]\n";
        assert_eq!(files(config, "", "a"), ["/b"]);
        assert_eq!(files(config, "", "c"), ["/c"]);
        assert!(files(config, "", "services x").is_empty());
        assert!(files(config, "[default]\naws_access_key_id=x", "default").is_empty());
    }

    #[test]
    fn profiles_that_name_each_other_end() {
        let config = "[profile a]\nsource_profile=b\n[profile b]\nsource_profile=a\n";
        assert!(files(config, "", "a").is_empty());
    }
}
