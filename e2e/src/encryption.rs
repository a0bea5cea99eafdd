//! EncryptionConfiguration, as kube-apiserver reads it.

use std::fmt::{self, Display};

/// Time for the plugin that a busy machine does not use up: a stall of the tests' own making
/// is no failed request.
const PATIENT: &str = "15s";

/// The whole file.
#[derive(Clone, Debug, Default)]
pub struct EncryptionConfiguration {
    stanzas: Vec<Stanza>,
}

impl EncryptionConfiguration {
    /// An empty one, which kube-apiserver refuses: add stanzas.
    pub fn new() -> Self {
        Self::default()
    }

    /// The usual one: Secrets and ConfigMaps through one KMS v2 plugin, older
    /// plain data still readable.
    pub fn kms(name: &str, endpoint: impl Display) -> Self {
        let stanza = Stanza::new(["secrets", "configmaps"]).kms(name, endpoint).identity();
        Self::new().stanza(stanza)
    }

    /// Adds a stanza.
    pub fn stanza(mut self, stanza: Stanza) -> Self {
        self.stanzas.push(stanza);
        self
    }
}

impl Display for EncryptionConfiguration {
    /// The YAML text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "apiVersion: apiserver.config.k8s.io/v1")?;
        writeln!(f, "kind: EncryptionConfiguration")?;
        writeln!(f, "resources:")?;
        for Stanza { resources, providers } in &self.stanzas {
            writeln!(f, "- resources: [{}]", resources.join(", "))?;
            writeln!(f, "  providers:")?;
            for provider in providers {
                provider.write(f)?;
            }
        }
        Ok(())
    }
}

/// Some resources and the providers for them, of which the first one writes.
#[derive(Clone, Debug)]
pub struct Stanza {
    resources: Vec<String>,
    providers: Vec<Provider>,
}

impl Stanza {
    /// For resources such as `secrets` or `*.apps`.
    pub fn new<R: Into<String>>(resources: impl IntoIterator<Item = R>) -> Self {
        let resources = resources.into_iter().map(Into::into).collect();
        Self { resources, providers: Vec::new() }
    }

    /// Adds a KMS v2 plugin with a timeout for busy machines.
    pub fn kms(self, name: &str, endpoint: impl Display) -> Self {
        self.kms_within(name, endpoint, PATIENT)
    }

    /// Adds a KMS v2 plugin with kube-apiserver's own timeout (3 s).
    pub fn kms_by_default(self, name: &str, endpoint: impl Display) -> Self {
        self.provider(name, endpoint, None)
    }

    /// Adds a KMS v2 plugin with a timeout such as `10s`.
    pub fn kms_within(self, name: &str, endpoint: impl Display, timeout: &str) -> Self {
        self.provider(name, endpoint, Some(timeout.to_owned()))
    }

    /// Adds plain storage: first it writes in clear, last it reads old data.
    pub fn identity(mut self) -> Self {
        self.providers.push(Provider::Identity);
        self
    }

    /// Adds keys of the file itself: `kind` is aescbc, aesgcm or secretbox. The first one writes.
    pub fn keys(mut self, kind: &str, keys: &[(&str, &str)]) -> Self {
        let keys = keys.iter().map(|(name, key)| ((*name).to_owned(), (*key).to_owned())).collect();
        self.providers.push(Provider::Keys { kind: kind.to_owned(), keys });
        self
    }

    fn provider(mut self, name: &str, endpoint: impl Display, timeout: Option<String>) -> Self {
        let (name, endpoint) = (name.to_owned(), endpoint.to_string());
        self.providers.push(Provider::Kms { name, endpoint, timeout });
        self
    }
}

#[derive(Clone, Debug)]
enum Provider {
    Kms { name: String, endpoint: String, timeout: Option<String> },
    Keys { kind: String, keys: Vec<(String, String)> },
    Identity,
}

impl Provider {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, endpoint, timeout) = match self {
            Self::Kms { name, endpoint, timeout } => (name, endpoint, timeout),
            Self::Keys { kind, keys } => {
                writeln!(f, "  - {kind}:\n      keys:")?;
                for (name, key) in keys {
                    writeln!(f, "      - {{name: {name}, secret: {key}}}")?;
                }
                return Ok(());
            }
            Self::Identity => return writeln!(f, "  - identity: {{}}"),
        };
        writeln!(f, "  - kms:")?;
        writeln!(f, "      apiVersion: v2")?;
        writeln!(f, "      name: {name}")?;
        writeln!(f, "      endpoint: {endpoint}")?;
        match timeout {
            Some(timeout) => writeln!(f, "      timeout: {timeout}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_yaml_keeps_the_order_of_providers_and_stanzas() {
        let config = EncryptionConfiguration::kms("sidekey", "unix:///a.sock").stanza(
            Stanza::new(["leases.coordination.k8s.io"]).identity().kms_within(
                "sidekey-2",
                "unix:///b.sock",
                "10s",
            ),
        );
        let config = config.stanza(Stanza::new(["pods"]).keys("aescbc", &[("one", "a2V5")]));
        let expected = "\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps]
  providers:
  - kms:
      apiVersion: v2
      name: sidekey
      endpoint: unix:///a.sock
      timeout: 15s
  - identity: {}
- resources: [leases.coordination.k8s.io]
  providers:
  - identity: {}
  - kms:
      apiVersion: v2
      name: sidekey-2
      endpoint: unix:///b.sock
      timeout: 10s
- resources: [pods]
  providers:
  - aescbc:
      keys:
      - {name: one, secret: a2V5}
";
        assert_eq!(config.to_string(), expected);
    }
}
