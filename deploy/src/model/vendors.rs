//! What pods and names of other platforms must know of keys: which file a key logs in with, and what
//! HyperShift calls it. All else of a key is for its provider alone.

use serde_json::{Value, json};

use super::Key;

/// Who makes the file that a key logs in with, where HyperShift has it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginFile {
    /// A container beside the provider.
    Minted,
    /// kubelet, for the account of the pod.
    Pod,
    /// A secrets store.
    SecretsStore,
}

/// The file that a key logs in with, if there is one that is made where the provider runs.
pub(crate) fn login_file(key: &Key) -> Option<(&str, LoginFile)> {
    let fields: &[(&str, LoginFile)] = match key.vendor.as_str() {
        "azure" => {
            &[("federatedTokenFile", LoginFile::Minted), ("identityFile", LoginFile::SecretsStore)]
        }
        "ibmcloud" => &[("tokenFile", LoginFile::Pod)],
        _ => &[("webIdentityTokenFile", LoginFile::Minted)],
    };
    fields.iter().find_map(|(field, source)| Some((key.credentials[field].as_str()?, *source)))
}

/// A key of Azure, as HyperShift names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureKey {
    /// Name of the vault.
    pub vault: String,
    /// Name of the key.
    pub name: String,
    /// Version of the key.
    pub version: String,
    /// Whether the vault is a Managed HSM.
    pub managed_hsm: bool,
}

impl AzureKey {
    /// What the provider's `kek` says, if it names a version: HyperShift knows no key without one.
    pub(crate) fn of(kek: &Value) -> Option<Self> {
        let text = |field: &str| kek[field].as_str();
        let (vault, url_of_hsm) = vault_name(text("vault")?);
        Some(Self {
            vault: vault.to_owned(),
            name: text("key")?.to_owned(),
            version: text("version")?.to_owned(),
            managed_hsm: url_of_hsm || kek["managedHsm"] == true,
        })
    }

    /// As the provider reads it.
    pub(crate) fn kek(&self) -> Value {
        let Self { vault, name, version, managed_hsm } = self;
        let mut kek = json!({"vault": vault, "key": name, "version": version});
        if *managed_hsm {
            kek["managedHsm"] = true.into();
        }
        kek
    }

    /// As HyperShift's API has it.
    pub(crate) fn entry(&self) -> Value {
        let Self { vault, name, version, managed_hsm } = self;
        let mut entry = json!({"keyVaultName": vault, "keyName": name, "keyVersion": version});
        if *managed_hsm {
            entry["keyVaultType"] = "ManagedHSM".into();
        }
        entry
    }
}

/// The name of a vault that is given by its name or by its URL, and whether a URL is of a Managed HSM.
fn vault_name(vault: &str) -> (&str, bool) {
    let Some((name, domain)) = vault_host(vault) else { return (vault, false) };
    (name, domain.starts_with("managedhsm."))
}

/// Name and domain of a vault that is given by its URL.
fn vault_host(vault: &str) -> Option<(&str, &str)> {
    let (_, host) = vault.split_once("://")?;
    let host = host.split(['/', ':']).next().unwrap_or_default();
    Some(host.split_once('.').unwrap_or((host, "")))
}

/// The one where nothing is said.
pub(crate) const PUBLIC_CLOUD: &str = "AzurePublicCloud";
/// Azure's clouds, and the domains below which their vaults and Managed HSMs lie.
const CLOUDS: [(&str, &str); 4] = [
    (PUBLIC_CLOUD, "azure.net"),
    ("AzureUSGovernmentCloud", "usgovcloudapi.net"),
    ("AzureChinaCloud", "azure.cn"),
    ("AzureGermanCloud", "microsoftazure.de"),
];

/// The cloud of a key of Azure's for a program that is told a vault by its name alone. `None`: the URL
/// of the vault is of another cloud than the settings say, or of none that has a name.
pub(crate) fn azure_cloud<'a>(kek: &Value, settings: &'a Value) -> Option<&'a str> {
    let said = settings["cloud"].as_str();
    let Some((_, domain)) = kek["vault"].as_str().and_then(vault_host) else {
        return Some(said.unwrap_or(PUBLIC_CLOUD));
    };
    let below = domain.strip_prefix("vault.").or_else(|| domain.strip_prefix("managedhsm."))?;
    let (name, _) = CLOUDS.iter().find(|(_, domain)| *domain == below)?;
    let names = |said: &str| {
        said.eq_ignore_ascii_case(name)
            || (*name == PUBLIC_CLOUD && said.eq_ignore_ascii_case("AzureCloud"))
    };
    said.is_none_or(names).then_some(*name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vault_by_its_url_is_of_the_cloud_that_it_lies_in_and_of_no_other() {
        let cloud = |vault: &str, said: Value| {
            azure_cloud(&json!({"vault": vault}), &json!({"cloud": said})).map(str::to_owned)
        };
        let found = |name: &str| Some(name.to_owned());
        assert_eq!(cloud("v", Value::Null), found("AzurePublicCloud"));
        assert_eq!(cloud("v", "AzureChinaCloud".into()), found("AzureChinaCloud"));
        assert_eq!(cloud("https://v.vault.azure.cn/", Value::Null), found("AzureChinaCloud"));
        let hsm = "https://v.managedhsm.usgovcloudapi.net";
        assert_eq!(cloud(hsm, Value::Null), found("AzureUSGovernmentCloud"));
        assert_eq!(
            cloud("https://v.vault.azure.net", "azurecloud".into()),
            found("AzurePublicCloud")
        );
        assert_eq!(cloud("https://v.vault.azure.cn", "AzurePublicCloud".into()), None);
        assert_eq!(cloud("https://v.vault.local.azurestack.external", Value::Null), None);
    }

    #[test]
    fn a_key_of_azure_has_the_name_that_hypershift_gives_it_however_its_vault_is_written() {
        let key = AzureKey {
            vault: "v".to_owned(),
            name: "k".to_owned(),
            version: "1".to_owned(),
            managed_hsm: true,
        };
        assert_eq!(AzureKey::of(&key.kek()), Some(key.clone()));
        let url = json!({"vault": "https://v.managedhsm.azure.net/", "key": "k", "version": "1"});
        assert_eq!(AzureKey::of(&url), Some(key));
        let url = json!({"vault": "https://v.vault.azure.cn", "key": "k", "version": "1"});
        let named = AzureKey::of(&url).unwrap();
        assert_eq!((named.vault.as_str(), named.managed_hsm), ("v", false));
        assert_eq!(AzureKey::of(&json!({"vault": "v", "key": "k"})), None, "no version");
    }
}
