//! HyperShift's HostedCluster, and what its `secretEncryption` means here.
//!
//! HyperShift forgets keys: a `backupKey` once its own status is set, and the old key when the
//! provider or the type changes. Whatever the object still names is kept here as a reader.

mod azure;
mod raw;
mod read;

use serde_json::{Value, json};

use super::{ResolvedFiles, hashes};
use crate::Error;
use crate::model::{
    AzureKey, Cipher, CipherKind, FileRef, FileSource, Key, KeyNumber, ObjectKey, Role,
    SecretEncryption, Spec, Writer, names,
};

pub use read::parse;

/// What HyperShift encrypts with a KMS.
pub const KMS_RESOURCES: [&str; 5] = [
    "secrets",
    "configmaps",
    "routes.route.openshift.io",
    "oauthaccesstokens.oauth.openshift.io",
    "oauthauthorizetokens.oauth.openshift.io",
];
/// The token that HyperShift's minter writes.
const TOKEN: &str = "/var/run/secrets/openshift/serviceaccount/token";
/// The token that kubelet gives to IBM's pods.
const POD_TOKEN: &str = "/etc/pod-identity-token/pod-identity-token";
/// Where managed Azure's identities lie.
pub(crate) const AZURE_CERTS: &str = "/mnt/certs";
/// What [`AzureAccess`] is read from.
pub(crate) const AZURE_LOGINS: &str = "must be tenantId, clientId and federatedTokenFile, or an identityFile in /mnt/certs: \
     HyperShift's sidecars log in by nothing else";
/// The entry of a Secret with an AES-CBC key.
const AESCBC_ENTRY: &str = "key";
/// The entry of a Secret with an IBM API key.
pub(crate) const IBM_ENTRY: &str = "iam_apikey";

/// What a HostedCluster says of its encryption.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosted {
    /// Its name.
    pub name: String,
    /// Its own namespace; the control plane's is made of both.
    pub namespace: Option<String>,
    /// Every key that it names, the oldest first.
    pub keys: Vec<HostedKey>,
    /// How to log in, where the provider needs to know.
    pub auth: Auth,
}

/// A key of a HostedCluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedKey {
    /// Which.
    pub identity: Identity,
    /// Whether new data is written with it, as far as HyperShift itself has got.
    pub writes: bool,
    /// Whether the spec wants new data to be written with it.
    pub wanted: bool,
}

/// What tells a key from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// AWS KMS.
    Aws {
        /// Its ARN.
        arn: String,
        /// Where it is used.
        region: String,
    },
    /// Azure Key Vault or Managed HSM.
    Azure(AzureKey),
    /// IBM Cloud Key Protect.
    Ibm {
        /// The root key.
        crk: String,
        /// The instance.
        instance: String,
        /// The version, as HyperShift counts.
        version: u32,
        /// For IBM's own records.
        correlation: String,
        /// Where the service is.
        url: String,
        /// In which region.
        region: String,
    },
    /// A key that kube-apiserver holds itself.
    Aescbc {
        /// The Secret with it.
        secret: String,
    },
}

/// How a provider logs in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auth {
    /// The role of the AWS provider.
    pub aws_role: Option<String>,
    /// The Secret that names that role in its AWS configuration, where the spec does not.
    pub aws_role_secret: Option<String>,
    /// That of Azure.
    pub azure: Option<AzureAccess>,
    /// Azure's cloud, where it is not the public one.
    pub azure_cloud: Option<String>,
    /// The Secret with IBM's API key; none if services trust each other.
    pub ibm_secret: Option<String>,
}

/// How Azure's providers log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AzureAccess {
    /// With what a secrets store holds of a managed identity.
    ManagedIdentity {
        /// The secret's name there, and the file's in the pod.
        secret: String,
    },
    /// With a token of the hosted cluster.
    WorkloadIdentity {
        /// The client.
        client: String,
        /// Its tenant.
        tenant: String,
    },
}

/// A key that was published before.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownKey {
    /// Its number.
    pub id: KeyNumber,
    /// Of its KEK.
    pub fingerprint: String,
}

impl Identity {
    /// As HyperShift's status shows it.
    pub fn fingerprint(&self) -> String {
        let text = match self {
            Self::Aws { arn, .. } => arn.clone(),
            Self::Azure(AzureKey { vault, name, version, managed_hsm }) => {
                let hsm = if *managed_hsm { "/ManagedHSM" } else { "" };
                format!("{vault}/{name}/{version}{hsm}")
            }
            Self::Ibm { crk, instance, version, .. } => format!("{crk}/{instance}/{version}"),
            Self::Aescbc { secret } => secret.clone(),
        };
        sidekey_core::hex(&sidekey_core::sha256(text.as_bytes()))
    }

    /// The provider's name in HyperShift's status.
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Aws { .. } => "AWS",
            Self::Azure(_) => "Azure",
            Self::Ibm { .. } => "IBMCloud",
            Self::Aescbc { .. } => "AESCBC",
        }
    }

    /// As HyperShift's status has it: of an AES-CBC key also the hash of its content.
    pub fn status(&self, data_hash: &str) -> Value {
        let provider = self.provider();
        match self {
            Self::Aws { arn, .. } => json!({"provider": provider, "aws": {"arn": arn}}),
            Self::Azure(key) => json!({"provider": provider, "azure": key.entry()}),
            Self::Ibm { crk, instance, version, correlation, url, .. } => {
                let entry = json!({
                    "crkID": crk, "instanceID": instance, "keyVersion": version,
                    "correlationID": correlation, "url": url,
                });
                json!({"provider": provider, "ibmCloud": entry})
            }
            Self::Aescbc { secret } => {
                let entry = json!({"secret": {"name": secret}, "dataHash": data_hash});
                json!({"provider": provider, "aescbc": entry})
            }
        }
    }

    /// The fingerprint that the shim knows it by; none for a key of kube-apiserver's own.
    pub fn kek_fingerprint(&self) -> Option<String> {
        let kek = self.kek();
        (!kek.is_null()).then(|| sidekey_core::fingerprint(&kek))
    }

    /// The provider's name here.
    pub fn vendor(&self) -> &'static str {
        match self {
            Self::Aws { .. } => "aws",
            Self::Azure(_) => "azure",
            Self::Ibm { .. } => "ibmcloud",
            Self::Aescbc { .. } => "aescbc",
        }
    }

    /// What makes the KEK.
    fn kek(&self) -> Value {
        match self {
            Self::Aws { arn, region } => {
                // The ARN names its region; another one counts for multi-region keys alone.
                match region.is_empty() || arn.split(':').nth(3) == Some(region) {
                    true => json!({"key": arn}),
                    false => json!({"key": arn, "region": region}),
                }
            }
            Self::Azure(key) => key.kek(),
            // A version as HyperShift counts is none of Key Protect's: the provider follows those of
            // its key by itself.
            Self::Ibm { crk, instance, .. } => json!({"instance": instance, "key": crk}),
            Self::Aescbc { .. } => Value::Null,
        }
    }
}

impl AzureAccess {
    /// Of a key's credentials, if HyperShift's sidecars can log in by them.
    pub(crate) fn of(credentials: &Value) -> Option<Self> {
        let text = |field: &str| credentials[field].as_str().map(str::to_owned);
        if let Some(file) = text("identityFile") {
            let secret = file.strip_prefix(AZURE_CERTS)?.strip_prefix('/')?.to_owned();
            return (!secret.contains('/')).then_some(Self::ManagedIdentity { secret });
        }
        text("federatedTokenFile")?;
        Some(Self::WorkloadIdentity { client: text("clientId")?, tenant: text("tenantId")? })
    }

    /// As the provider reads it.
    fn credentials(&self) -> Value {
        match self {
            Self::ManagedIdentity { secret } => {
                json!({"identityFile": format!("{AZURE_CERTS}/{secret}")})
            }
            Self::WorkloadIdentity { client, tenant } => {
                json!({"tenantId": tenant, "clientId": client, "federatedTokenFile": TOKEN})
            }
        }
    }
}

/// The namespace of the control plane of a HostedCluster.
pub fn control_plane_namespace(namespace: &str, name: &str) -> String {
    format!("{namespace}-{}", name.replace('.', "-"))
}

impl Hosted {
    /// The namespace of the control plane.
    pub fn control_plane_namespace(&self) -> Option<String> {
        Some(control_plane_namespace(self.namespace.as_ref()?, &self.name))
    }

    /// The same with what the spec wants as the writer, however far HyperShift itself has got: for
    /// those who rotate in its stead.
    #[must_use]
    pub fn as_wanted(mut self) -> Self {
        for key in &mut self.keys {
            key.writes = key.wanted;
        }
        self
    }

    /// What the object leaves out of how to log in: the vendor, and what to do about it.
    pub fn unsaid_login(&self) -> Option<(&'static str, String)> {
        let wanted = self.keys.iter().find(|key| key.wanted)?;
        if !matches!(wanted.identity, Identity::Ibm { .. }) || self.auth.ibm_secret.is_some() {
            return None;
        }
        let login = format!("{{tokenFile: {POD_TOKEN}, profileName: NAME}}");
        let text = format!(
            "spec.secretEncryption.kms.ibmcloud.auth.type: Managed names no trusted profile, and IAM \
             gives a pod's token no rights without one: write vendors: {{ibmcloud: {{credentials: \
             {login}}}}} into the annotation sidekey.dev/settings"
        );
        Some((wanted.identity.vendor(), text))
    }

    /// Content that must be known before it can be translated: names are made of it.
    pub fn sources(&self) -> Vec<FileSource> {
        self.ciphers().map(|(_, source)| source).collect()
    }

    fn ciphers(&self) -> impl Iterator<Item = (&HostedKey, FileSource)> {
        self.keys.iter().filter_map(|key| match &key.identity {
            Identity::Aescbc { secret } => {
                let (name, key_name) = (secret.clone(), AESCBC_ENTRY.to_owned());
                Some((key, FileSource::Secret(ObjectKey { name, key: key_name })))
            }
            _ => None,
        })
    }

    /// As a SecretEncryption. Keys that were published before keep their numbers; others get the
    /// next ones, the oldest first.
    pub fn translate(
        &self,
        files: &ResolvedFiles,
        known: &[KnownKey],
    ) -> Result<SecretEncryption, Error> {
        if let (Some(secret), None) = (&self.auth.aws_role_secret, &self.auth.aws_role) {
            let text = format!("{}: auth.awsKms names Secret {secret}", self.name);
            return Err(Error::usage(text)
                .hint("write the role's ARN itself: here nobody reads it from a Secret"));
        }
        let mut ciphers = Vec::new();
        let mut write = Writer::Keys;
        for (key, source) in self.ciphers() {
            if !files.contains(&source) {
                let text =
                    format!("{} refers to what is not there\n{source}: not found", self.name);
                return Err(Error::failed(text));
            }
            let name = hashes::aescbc_key(files.content(&source).expose());
            if key.writes {
                write = Writer::Cipher(name.clone());
            }
            // Two Secrets with the same key are one key.
            if ciphers.iter().all(|other: &Cipher| other.name != name) {
                ciphers.push(Cipher { name, kind: CipherKind::Aescbc, source });
            }
        }
        let mut keys = self.kms_keys(known);
        // Somebody must be the writer behind the shim, also while a cipher writes.
        if let Some(last) = keys.last_mut()
            && write != Writer::Keys
        {
            last.role = Role::Write;
        }
        let kms = !keys.is_empty();
        let all = KMS_RESOURCES.iter().take(if kms { KMS_RESOURCES.len() } else { 1 });
        let resources = all.map(|name| (*name).to_owned()).collect();
        let spec = Spec { resources, ciphers, write, keys, ..Spec::default() };
        let namespace = self.control_plane_namespace();
        Ok(SecretEncryption { name: self.name.clone(), namespace, spec })
    }

    fn kms_keys(&self, known: &[KnownKey]) -> Vec<Key> {
        let mut last = known.iter().map(|key| key.id.0).max().unwrap_or(0);
        let mut keys: Vec<Key> = Vec::new();
        let kms = |key: &&HostedKey| !matches!(key.identity, Identity::Aescbc { .. });
        for hosted in self.keys.iter().filter(kms) {
            let kek = hosted.identity.kek();
            let fingerprint = sidekey_core::fingerprint(&kek);
            // One KEK under several versions of HyperShift's count is one key.
            let same = keys.iter().position(|key| key.fingerprint() == fingerprint);
            let same = same.map(|index| keys.remove(index));
            // The newest: an old KEK that came back had got a new number.
            let before = known.iter().filter(|known| known.fingerprint == fingerprint);
            let before = before.map(|known| known.id).max();
            let id = before.or_else(|| same.as_ref().map(|key| key.id)).unwrap_or_else(|| {
                last += 1;
                KeyNumber(last)
            });
            let mut key = self.key(id, hosted, kek);
            if same.is_some_and(|same| same.role == Role::Write) {
                key.role = Role::Write;
            }
            keys.push(key);
        }
        keys
    }

    fn key(&self, id: KeyNumber, hosted: &HostedKey, kek: Value) -> Key {
        let mut files = Vec::new();
        let (mut settings, mut credentials) = (Value::Null, Value::Null);
        match &hosted.identity {
            Identity::Aws { .. } => {
                let role = self.auth.aws_role.clone().unwrap_or_default();
                credentials = json!({"roleArn": role, "webIdentityTokenFile": TOKEN});
            }
            Identity::Azure(_) => {
                credentials =
                    self.auth.azure.as_ref().map_or(Value::Null, AzureAccess::credentials);
                if let Some(cloud) = &self.auth.azure_cloud {
                    settings = json!({"cloud": cloud});
                }
            }
            Identity::Ibm { correlation, url, .. } => {
                settings = json!({"address": url});
                // HyperShift's status may leave it out.
                if !correlation.is_empty() {
                    settings["correlationId"] = correlation.as_str().into();
                }
                credentials = match &self.auth.ibm_secret {
                    None => json!({"tokenFile": POD_TOKEN}),
                    Some(name) => {
                        let source = ObjectKey { name: name.clone(), key: IBM_ENTRY.to_owned() };
                        let source = FileSource::Secret(source);
                        files.push(FileRef { name: IBM_ENTRY.to_owned(), source });
                        json!({"apiKeyFile": format!("{}/{IBM_ENTRY}", names::MOUNT)})
                    }
                };
            }
            Identity::Aescbc { .. } => {}
        }
        Key {
            id,
            vendor: hosted.identity.vendor().to_owned(),
            role: if hosted.writes { Role::Write } else { Role::Read },
            kek,
            settings,
            credentials,
            files,
            canary: None,
            given_fingerprint: None,
            listen: names::key_socket(hosted.identity.vendor(), id),
            endpoints: Vec::new(),
            server_uids: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
