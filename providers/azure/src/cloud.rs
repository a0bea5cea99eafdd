//! Microsoft's clouds: where their vaults lie, and who issues tokens for them.

use http::Uri;
use sidekey_rest::Address;

/// One cloud, or what a vault of another one needs in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cloud {
    /// The domain of its vaults.
    pub(crate) vaults: String,
    /// The domain of its Managed HSMs, if it has some.
    pub(crate) hsms: Option<String>,
    /// Who issues tokens.
    pub(crate) authority: String,
    /// For what tokens are issued, where that is not the domain of the vault.
    pub(crate) resource: Option<String>,
}

/// A URL of which the path counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) address: Address,
    /// Without the slash at its end.
    pub(crate) path: String,
}

/// The names of each cloud in lower case, the domains of its vaults and Managed HSMs, its login.
type Known = (&'static [&'static str], &'static str, Option<&'static str>, &'static str);

#[rustfmt::skip]
const CLOUDS: [Known; 4] = [
    (&["", "azurecloud", "azurepubliccloud"], "vault.azure.net", Some("managedhsm.azure.net"), "https://login.microsoftonline.com"),
    (&["azureusgovernment", "azureusgovernmentcloud", "azuregovernmentcloud"], "vault.usgovcloudapi.net", Some("managedhsm.usgovcloudapi.net"), "https://login.microsoftonline.us"),
    (&["azurechinacloud"], "vault.azure.cn", Some("managedhsm.azure.cn"), "https://login.chinacloudapi.cn"),
    (&["azuregermancloud"], "vault.microsoftazure.de", None, "https://login.microsoftonline.de"),
];

impl Cloud {
    /// By one of its names, in any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        CLOUDS.iter().find(|(names, ..)| names.contains(&name.as_str())).map(Self::from)
    }

    /// The one that a vault of this host lies in.
    pub(crate) fn of_host(host: &str) -> Option<Self> {
        CLOUDS.iter().map(Self::from).find(|cloud| cloud.domain_of(host).is_some())
    }

    /// The domain below which `host` is a vault or a Managed HSM of this cloud.
    pub(crate) fn domain_of(&self, host: &str) -> Option<&str> {
        let domains = [Some(&self.vaults), self.hsms.as_ref()];
        let is_below = |domain: &&String| {
            host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
        };
        domains.into_iter().flatten().find(is_below).map(String::as_str)
    }
}

impl From<&Known> for Cloud {
    fn from((_, vaults, hsms, authority): &Known) -> Self {
        let (vaults, hsms) = ((*vaults).to_owned(), hsms.map(str::to_owned));
        Self { vaults, hsms, authority: (*authority).to_owned(), resource: None }
    }
}

impl Base {
    /// Reads a URL without query.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let path = uri.path().trim_end_matches('/').to_owned();
        let address = Address::of(&uri).filter(|_| uri.query().is_none())?;
        Some(Self { address, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clouds_are_found_by_any_of_their_names_and_by_the_host_of_a_vault() {
        for name in ["", "AzureCloud", "AZUREPUBLICCLOUD"] {
            assert_eq!(Cloud::named(name).unwrap().vaults, "vault.azure.net");
        }
        for name in ["AzureUSGovernment", "AzureUSGovernmentCloud", "AzureGovernmentCloud"] {
            assert_eq!(Cloud::named(name).unwrap().authority, "https://login.microsoftonline.us");
        }
        assert_eq!(Cloud::named("AzureGermanCloud").unwrap().hsms, None);
        assert_eq!(Cloud::named("MyCloud"), None);
        let host = Cloud::of_host("kek.managedhsm.azure.cn").unwrap();
        assert_eq!(host.domain_of("kek.managedhsm.azure.cn"), Some("managedhsm.azure.cn"));
        for stranger in
            ["vault.azure.net", "evilvault.azure.net", "kek.vault.azure.net.evil.example"]
        {
            assert_eq!(Cloud::of_host(stranger), None, "{stranger}");
        }
    }

    #[test]
    fn a_url_with_a_path_is_taken_apart() {
        let base = Base::parse("https://adfs.local.example/adfs/").unwrap();
        assert_eq!(
            (base.address.to_string().as_str(), base.path.as_str()),
            ("https://adfs.local.example", "/adfs")
        );
        for bad in ["login", "https://a?b", "ftp://a", "https://u:p@a"] {
            assert_eq!(Base::parse(bad), None, "{bad}");
        }
    }
}
