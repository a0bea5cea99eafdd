//! What a profile says of the token file that it takes its role by, as HyperShift's does, by the
//! SDK's own reading of it: such a file is watched like the others.

use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use aws_config::profile::ProfileSet;
use aws_runtime::env_config::file::EnvConfigFiles;
use aws_types::os_shim_internal::{Env, Fs};

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

/// All profiles, and the name of the one in use.
pub(crate) struct Profiles(ProfileSet, String);

impl Profiles {
    /// Reads what is in memory, so that nothing is waited for. What the SDK cannot read it will
    /// refuse itself, and say why.
    pub(crate) fn new(contents: &EnvConfigFiles, name: &str) -> Option<Self> {
        let (fs, env) = (Fs::real(), Env::from_slice(&[]));
        let name = name.to_owned();
        let load = pin!(aws_config::profile::load(&fs, &env, contents, Some(name.clone().into())));
        match load.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(profiles)) => Some(Self(profiles, name)),
            _ => None,
        }
    }

    /// The token files that the profile needs, by itself and by the profiles that it builds on.
    pub(crate) fn token_files(&self) -> Vec<PathBuf> {
        let first = self.0.get_profile(&self.1);
        let chain = std::iter::successors(first, |profile| {
            self.0.get_profile(profile.get("source_profile")?)
        });
        let files = chain.take(MAX_CHAIN).filter_map(|profile| {
            profile.get("web_identity_token_file").map(PathBuf::from).filter(|p| p.is_absolute())
        });
        let mut files: Vec<_> = files.collect();
        files.dedup();
        files
    }

    /// The role that the profile itself takes with a token.
    pub(crate) fn web_identity(&self) -> Option<WebIdentity> {
        let profile = self.0.get_profile(&self.1)?;
        let token_file = PathBuf::from(profile.get("web_identity_token_file")?);
        let role_arn = profile.get("role_arn")?.to_owned();
        let session_name = profile.get("role_session_name").map(str::to_owned);
        let alone = profile.get("source_profile").is_none() && token_file.is_absolute();
        alone.then_some(WebIdentity { role_arn, token_file, session_name })
    }

    /// Whether the SDK would take credentials from it.
    pub(crate) fn has_credentials(&self) -> bool {
        let profile = self.0.get_profile(&self.1);
        profile.is_some_and(|profile| SOURCES.iter().any(|name| profile.get(name).is_some()))
    }
}

#[cfg(test)]
mod tests {
    use aws_runtime::env_config::file::EnvConfigFileKind;

    use super::*;

    fn profiles(config: &str, shared: &str, profile: &str) -> Profiles {
        let contents = EnvConfigFiles::builder()
            .with_contents(EnvConfigFileKind::Config, config)
            .with_contents(EnvConfigFileKind::Credentials, shared)
            .build();
        Profiles::new(&contents, profile).unwrap()
    }

    fn files(config: &str, shared: &str, profile: &str) -> Vec<String> {
        let found = profiles(config, shared, profile).token_files();
        found.into_iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_token_file_of_hypershifts_credentials_is_found() {
        let text = "[default]\nrole_arn = arn:aws:iam::1:role/kms\n\
            web_identity_token_file = /var/run/secrets/openshift/serviceaccount/token\n\
            sts_regional_endpoints = regional\nregion = us-east-1";
        let expected = ["/var/run/secrets/openshift/serviceaccount/token"];
        assert_eq!(files("", text, "default"), expected);
        let identity = profiles("", text, "default").web_identity();
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
