//! `azure.json`, as both replaced plugins read it: YAML, of which most fields are somebody else's.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sidekey_core::{Error, Files, Kind, Secret, config};

use super::identity_file;
use super::pkcs12;
use crate::cloud::Cloud;
use crate::identity::{Identity, Login};

/// Where the names of a cloud of one's own stand, as the Azure SDKs have it.
const ENVIRONMENT: &str = "AZURE_ENVIRONMENT_FILEPATH";

/// What counts here.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AzureJson {
    cloud: Option<String>,
    tenant_id: Option<String>,
    aad_client_id: Option<String>,
    aad_client_secret: Option<String>,
    use_managed_identity_extension: bool,
    use_workload_identity_extension: bool,
    #[serde(rename = "userAssignedIdentityID")]
    user_assigned_identity_id: Option<String>,
    aad_client_cert_path: Option<PathBuf>,
    aad_client_cert_password: Option<String>,
    #[serde(rename = "aadMSIDataPlaneIdentityPath")]
    identity_path: Option<PathBuf>,
}

/// Of the names of a cloud of one's own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Environment {
    active_directory_endpoint: String,
    #[serde(rename = "keyVaultDNSSuffix")]
    vaults: String,
    #[serde(rename = "managedHSMDNSSuffix", default)]
    hsms: Option<String>,
    #[serde(default)]
    resource_identifiers: Resources,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Resources {
    key_vault: Option<String>,
}

impl AzureJson {
    pub(crate) fn read(path: &Path, files: &Files) -> Result<Self, Error> {
        let bad = |why: &str| Error::new(Kind::Config, format!("file {path:?} {why}"));
        let text = files.secret(path)?.as_text().ok_or_else(|| bad("is not text"))?;
        let document = config::document(text).map_err(|_| bad("cannot be read as YAML"))?;
        // The error would quote the file.
        serde_json::from_value(document).map_err(|_| bad("has a field of another type"))
    }

    /// Files that it names in turn.
    pub(crate) fn named_files(&self) -> Vec<PathBuf> {
        let mut named = Vec::new();
        named.extend(self.is_own_cloud().then(|| variable(ENVIRONMENT)).flatten());
        named.extend(self.federated().then(|| variable("AZURE_FEDERATED_TOKEN_FILE")).flatten());
        let mut named: Vec<PathBuf> = named.into_iter().map(PathBuf::from).collect();
        match (self.has_secret(), self.has_certificate()) {
            _ if self.federated() || self.use_managed_identity_extension => {}
            (true, _) => {}
            (_, true) => named.extend(self.aad_client_cert_path.clone()),
            _ => named.extend(self.identity_path.clone()),
        }
        named.retain(|path| path.is_absolute());
        named
    }

    /// The cloud that it names.
    pub(crate) fn cloud(&self, files: &Files) -> Result<Cloud, Error> {
        let name = self.cloud.as_deref().unwrap_or_default();
        let bad = |text: String| Error::new(Kind::Config, text);
        if !self.is_own_cloud() {
            return Cloud::named(name)
                .ok_or_else(|| bad(format!("cloud {name:?} of azure.json is not known")));
        }
        let path = variable(ENVIRONMENT)
            .ok_or_else(|| bad(format!("AzureStackCloud needs {ENVIRONMENT}")))?;
        let file = files.secret(Path::new(&path))?;
        let read: Environment = serde_json::from_slice(file.expose())
            .map_err(|_| bad(format!("file {path:?} does not name the endpoints of a cloud")))?;
        let resource =
            read.resource_identifiers.key_vault.filter(|text| text.starts_with("https://"));
        Ok(Cloud {
            vaults: read.vaults,
            hsms: read.hsms.filter(|domain| domain.contains('.')),
            authority: read.active_directory_endpoint,
            resource: resource.map(|resource| resource.trim_end_matches('/').to_owned()),
        })
    }

    /// Who we are, by the order of the replaced plugins.
    pub(crate) fn identity(&self, files: &Files) -> Result<Identity, Error> {
        let none = || {
            let text = "azure.json names no credentials for Key Vault";
            Error::new(Kind::Config, text).with_hint("see the ways in the provider's README")
        };
        let identity = |login| -> Result<Identity, Error> {
            let client = self.aad_client_id.clone().ok_or_else(none)?;
            let tenant = self.tenant_id.clone().ok_or_else(none)?;
            Ok(Identity { tenant, client: Some(client), authority: None, login })
        };
        if self.federated() {
            return workload(files);
        }
        if self.use_managed_identity_extension {
            let client = self.user_assigned_identity_id.clone().filter(|id| !id.is_empty());
            return Ok(Identity {
                tenant: String::new(),
                client,
                authority: None,
                login: Login::Managed,
            });
        }
        if let Some(secret) = self.aad_client_secret.as_ref().filter(|_| self.has_secret()) {
            return identity(Login::Secret(Secret::new(secret.clone().into_bytes())));
        }
        if let Some(path) = self.aad_client_cert_path.as_ref().filter(|_| self.has_certificate()) {
            let password = self.aad_client_cert_password.as_deref().unwrap_or_default();
            let (chain, key) = pkcs12::read(files.secret(path)?.expose(), password)?;
            return identity(Login::Certificate { chain, key });
        }
        let path = self.identity_path.as_deref().ok_or_else(none)?;
        identity_file::read(path, files)
    }

    fn is_own_cloud(&self) -> bool {
        self.cloud.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("AzureStackCloud"))
    }

    fn federated(&self) -> bool {
        self.use_workload_identity_extension
    }

    fn has_secret(&self) -> bool {
        let set = |value: &Option<String>| value.as_deref().is_some_and(|value| !value.is_empty());
        set(&self.aad_client_id) && set(&self.aad_client_secret)
    }

    fn has_certificate(&self) -> bool {
        let password = self.aad_client_cert_password.as_deref().unwrap_or_default();
        self.aad_client_cert_path.is_some() && !password.is_empty()
    }
}

/// A workload identity, as variables of the pod name it.
fn workload(files: &Files) -> Result<Identity, Error> {
    let [client, tenant, path] =
        ["AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"].map(|name| {
            let missing = || Error::new(Kind::Config, format!("workload identity needs {name}"));
            variable(name).ok_or_else(missing)
        });
    let login = Login::Token(sidekey_rest::files::one_line(files, Some(Path::new(&path?)))?);
    Ok(Identity { tenant: tenant?, client: Some(client?), authority: None, login })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What the log may show of it is nothing.
impl std::fmt::Debug for AzureJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AzureJson")
    }
}
