//! The variables of the SDKs, as far as files and warnings depend on them; the SDK itself reads
//! the rest.

use std::path::PathBuf;

/// A look at the process's environment, or at another one in tests.
#[derive(Clone, Copy)]
pub(crate) struct Environment(fn(&str) -> Option<String>);

impl Environment {
    /// The process's own.
    pub(crate) fn process() -> Self {
        Self(|name| std::env::var(name).ok())
    }

    #[cfg(test)]
    pub(crate) fn of(variables: fn(&str) -> Option<String>) -> Self {
        Self(variables)
    }

    /// A variable that is set to something.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.0(name).filter(|value| !value.trim().is_empty())
    }

    /// Whether keys stand in the environment itself, which go before everything else.
    pub(crate) fn has_static_keys(&self) -> bool {
        self.variable("AWS_ACCESS_KEY_ID").is_some()
            && self.variable("AWS_SECRET_ACCESS_KEY").is_some()
    }

    /// The file of the profiles' credentials, if it is named or lies where it usually does.
    pub(crate) fn shared_file(&self) -> Option<PathBuf> {
        self.file("AWS_SHARED_CREDENTIALS_FILE", "credentials")
    }

    /// The file of the profiles' settings, if it is named or lies where it usually does.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        self.file("AWS_CONFIG_FILE", "config")
    }

    /// The profile in use, if it is not the default one.
    pub(crate) fn profile(&self) -> Option<String> {
        self.variable("AWS_PROFILE")
    }

    /// Other roots than the public ones. `SSL_CERT_FILE` is what Go programs obey.
    pub(crate) fn ca_bundle(&self) -> Option<PathBuf> {
        let named = self.variable("AWS_CA_BUNDLE").or_else(|| self.variable("SSL_CERT_FILE"));
        named.map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// The files that the SDK's chain makes credentials of.
    pub(crate) fn credential_files(&self) -> Vec<PathBuf> {
        if self.has_static_keys() {
            return Vec::new();
        }
        let named = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
        let named = named.iter().filter_map(|name| self.variable(name).map(PathBuf::from));
        let files = self.shared_file().into_iter().chain(self.config_file()).chain(named);
        files.filter_map(|path| std::path::absolute(path).ok()).collect()
    }

    fn file(&self, variable: &str, usual: &str) -> Option<PathBuf> {
        if let Some(named) = self.variable(variable) {
            return Some(PathBuf::from(named));
        }
        let usual = PathBuf::from(self.variable("HOME")?).join(".aws").join(usual);
        usual.is_file().then_some(usual)
    }
}
