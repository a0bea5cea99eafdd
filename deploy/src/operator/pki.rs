//! The certificates of a control plane: one CA each, made and renewed by the operator.
//!
//! With them the operator asks the shims, and the shims reach the socket proxies. The CA's key is
//! in a Secret that no pod mounts. Nothing is written unless something is missing or it is time:
//! what is signed is renewed after two thirds of its life, and so is the CA, whose successor is
//! trusted by everybody before it signs anything.

mod authority;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as Object;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::version::TLS13;
use serde_json::{Map, Value, json};
use sidekey_core::Secret;

pub(crate) use authority::{Authority, CA_FILE, CERT_FILE, Issued, KEY_FILE, LEAF_LIFE, Purpose};

use crate::Error;
use crate::cluster::refused;
use crate::fleet::Replica;
use crate::model::{FileRef, FileSource, ObjectKey, names};

/// A client certificate of the operator is made anew in each pass.
const CLIENT_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Before the names of the files that land beside the shim's own.
const SHIM_PREFIX: &str = "sidekey-";

/// The CA of a control plane.
pub struct Pki {
    authority: Authority,
}

/// Where the Secrets of one control plane, or of the operator itself, are kept.
pub(crate) struct Store {
    api: Api<Object>,
    namespace: String,
    encryption: Option<String>,
}

/// Makes or renews the CA of a control plane and what it signs: the shims' certificate, and the
/// proxies' if there are any. Of two who do so at the same time one is told, and changes nothing.
/// They say of which SecretEncryption they are, and are not owned by it: see
/// [`proxy`](super::proxy).
pub async fn ensure(
    client: &Client,
    namespace: &str,
    encryption: &str,
    proxy: bool,
) -> Result<Pki, Error> {
    let store = Store::new(client, namespace, Some(encryption.to_owned()));
    let now = SystemTime::now();
    let authority = match store.read(names::CA_SECRET).await? {
        None => {
            let authority = Authority::create(now)?;
            store.write(names::CA_SECRET, None, authority.files()).await?;
            authority
        }
        Some(object) => {
            let mut authority = Authority::read(&contents(&object))
                .map_err(|error| store.damaged(names::CA_SECRET, error))?;
            let spread = match authority.spreading() {
                Some(anchor) => store.shims_have(anchor).await?,
                None => false,
            };
            if authority.advance(now, spread)? || is_owned(&object) {
                store.write(names::CA_SECRET, Some(object), authority.files()).await?;
            }
            authority
        }
    };
    let shim = [names::SHIM_NAME.to_owned()];
    store.certificate(names::SHIM_TLS_SECRET, &authority, &shim, Purpose::Both, now).await?;
    if proxy {
        let service = names::PROVIDERS;
        let proxy = [
            names::PROXY_NAME.to_owned(),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ];
        store
            .certificate(names::PROXY_TLS_SECRET, &authority, &proxy, Purpose::Server, now)
            .await?;
    }
    Ok(Pki { authority })
}

impl Pki {
    /// TLS that shows the operator's name and trusts what this CA signed.
    pub fn client(&self) -> Result<Arc<ClientConfig>, Error> {
        let failed = |error| Error::failed("cannot make a TLS client").because(error);
        let name = [names::OPERATOR_NAME.to_owned()];
        let issued =
            self.authority.issue(&name, Purpose::Client, CLIENT_LIFE, SystemTime::now())?;
        let (cert, key) = issued.parts()?;
        let mut config = ClientConfig::builder_with_protocol_versions(&[&TLS13])
            .with_root_certificates(self.authority.roots()?)
            .with_client_auth_cert(vec![cert], key)
            .map_err(failed)?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// What lands beside the shim's file.
    pub fn shim_files() -> Vec<FileRef> {
        let file = |key: &str| FileRef {
            name: format!("{SHIM_PREFIX}{key}"),
            source: FileSource::Secret(ObjectKey {
                name: names::SHIM_TLS_SECRET.to_owned(),
                key: key.to_owned(),
            }),
        };
        [CA_FILE, CERT_FILE, KEY_FILE].map(file).to_vec()
    }

    /// What the shim's file says of them: the operator may ask on the pod's address, and proxies
    /// are reached with the same certificate. `listen` is what [`listen`] says.
    pub fn shim_settings(listen: IpAddr) -> Map<String, Value> {
        let path = |key: &str| format!("{}/{SHIM_PREFIX}{key}", names::MOUNT);
        let (ca, cert, key) = (path(CA_FILE), path(CERT_FILE), path(KEY_FILE));
        let address = std::net::SocketAddr::from((listen, names::SHIM_ADMIN_TLS_PORT));
        let admin_tls = json!({
            "listen": address.to_string(),
            "ca": ca, "cert": cert, "key": key,
            "allow": [names::OPERATOR_NAME],
        });
        let tls = json!({"ca": ca, "cert": cert, "key": key, "serverName": names::PROXY_NAME});
        // On loopback too: people ask with `sidekey status` through kubelet.
        let admin = Value::from(names::SHIM_ADMIN);
        let fields = [("admin", admin), ("adminTls", admin_tls), ("tls", tls)];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Where the shims of these pods are to listen: on every IPv4 address, or on every IPv6 address
/// where pods have nothing else.
pub fn listen(replicas: &[Replica]) -> IpAddr {
    let mut known = replicas.iter().filter_map(|replica| replica.ip.as_ref()?.parse().ok());
    let first: Option<IpAddr> = known.next();
    match first {
        Some(first) if first.is_ipv6() && known.all(|ip| ip.is_ipv6()) => {
            Ipv6Addr::UNSPECIFIED.into()
        }
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}

impl Store {
    pub(crate) fn new(client: &Client, namespace: &str, encryption: Option<String>) -> Self {
        let api = Api::namespaced(client.clone(), namespace);
        Self { api, namespace: namespace.to_owned(), encryption }
    }

    pub(crate) async fn read(&self, name: &str) -> Result<Option<Object>, Error> {
        let found = self.api.get_opt(name).await;
        found.map_err(|e| refused(format!("cannot read Secret {}/{name}", self.namespace), e))
    }

    /// Creates it, or replaces just the version that was read.
    pub(crate) async fn write(
        &self,
        name: &str,
        before: Option<Object>,
        files: BTreeMap<String, Secret>,
    ) -> Result<(), Error> {
        let parameters =
            PostParams { field_manager: Some(names::FIELD_MANAGER.into()), ..Default::default() };
        let data = files.into_iter().map(|(key, value)| (key, ByteString(value.expose().to_vec())));
        let data = Some(data.collect());
        let written = match before {
            Some(mut object) => {
                object.data = data;
                object.metadata.owner_references = None;
                self.api.replace(name, &parameters, &object).await
            }
            None => {
                let mut object = Object { data, ..Object::default() };
                object.metadata.name = Some(name.to_owned());
                let (managed, by) = names::MANAGED_BY;
                object.labels_mut().insert(managed.to_owned(), by.to_owned());
                if let Some(encryption) = &self.encryption {
                    let label = (names::LABEL_ENCRYPTION.to_owned(), encryption.clone());
                    object.labels_mut().extend([label]);
                }
                self.api.create(&parameters, &object).await
            }
        };
        let what = || format!("cannot write Secret {}/{name}", self.namespace);
        written.map(drop).map_err(|error| refused(what(), error))
    }

    /// A certificate and what its owner trusts; written if something of it is not right.
    async fn certificate(
        &self,
        secret: &str,
        authority: &Authority,
        names: &[String],
        purpose: Purpose,
        now: SystemTime,
    ) -> Result<(), Error> {
        let object = self.read(secret).await?;
        let files = object.as_ref().map(contents).unwrap_or_default();
        let owned = object.as_ref().is_some_and(is_owned).then(|| files.clone());
        if let Some(files) = renewed(files, authority, names, purpose, now)?.or(owned) {
            self.write(secret, object, files).await?;
        }
        Ok(())
    }

    /// Whether the head that the shims mount trusts this CA; nobody mounts one that is not there.
    async fn shims_have(&self, anchor: &str) -> Result<bool, Error> {
        let Some(head) = self.read(names::SHIM_SECRET).await? else { return Ok(true) };
        let files = contents(&head);
        let trusted = files.get(&format!("{SHIM_PREFIX}{CA_FILE}")).and_then(Secret::as_text);
        Ok(trusted.is_none_or(|trusted| trusted.contains(anchor.trim())))
    }

    pub(crate) fn damaged(&self, name: &str, error: Error) -> Error {
        let what = format!("Secret {}/{name} holds no CA", self.namespace);
        Error::failed(what).because(error).hint("delete it, and a new CA is made")
    }
}

/// Whether the garbage collector would take it with something else.
fn is_owned(object: &Object) -> bool {
    !object.owner_references().is_empty()
}

/// What a certificate's Secret should hold, if that is not what it holds.
pub(crate) fn renewed(
    mut files: BTreeMap<String, Secret>,
    authority: &Authority,
    names: &[String],
    purpose: Purpose,
    now: SystemTime,
) -> Result<Option<BTreeMap<String, Secret>>, Error> {
    let bundle = Secret::new(authority.bundle().into_bytes());
    let trusts = files.get(CA_FILE) == Some(&bundle);
    let good = Issued::read(&files).is_some_and(|issued| authority.vouches(&issued, names, now));
    if trusts && good {
        return Ok(None);
    }
    if !good {
        let issued = authority.issue(names, purpose, LEAF_LIFE, now)?;
        files.insert(CERT_FILE.to_owned(), Secret::new(issued.cert.into_bytes()));
        files.insert(KEY_FILE.to_owned(), issued.key);
    }
    files.insert(CA_FILE.to_owned(), bundle);
    Ok(Some(files))
}

pub(crate) fn contents(object: &Object) -> BTreeMap<String, Secret> {
    let data = object.data.iter().flatten();
    data.map(|(name, bytes)| (name.clone(), Secret::new(bytes.0.clone()))).collect()
}
