//! The certificate of the operator's own servers, and who makes it.
//!
//! It is in a Secret beside the CA that signed it. Who leads makes and renews it, and tells the
//! API server which CA to trust; every operator reads it again and again and shows the newest
//! from the next handshake on. Connections that are open stay open.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use serde_json::json;
use sidekey_core::Secret;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::Error;
use crate::cluster::refused;
use crate::model::names;
use crate::operator::pki::{
    Authority, CERT_FILE, Issued, KEY_FILE, Purpose, Store, contents, renewed,
};

/// The Secret with the certificate, its key, and the CA.
pub(super) const SECRET: &str = "sidekey-operator-tls";
/// The Service, and the configuration of the webhook.
const SERVICE: &str = "sidekey-operator";
/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(60);
/// How often, as long as there is none or something failed.
const SOON: Duration = Duration::from_secs(2);

/// The certificate that servers show now; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Certificate(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

/// Keeps a [`Certificate`] as the Secret has it and, where it leads, the Secret as it should be.
pub(crate) struct Keeper {
    store: Store,
    configurations: Api<MutatingWebhookConfiguration>,
    names: Vec<String>,
    certificate: Certificate,
}

impl Certificate {
    /// Whether there is one to show.
    pub(crate) fn is_there(&self) -> bool {
        self.shown().is_some()
    }

    /// TLS that shows whatever is the newest.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::builder_with_protocol_versions(&[&TLS13])
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Shows this one from now on.
    fn take(&self, files: &BTreeMap<String, Secret>) -> Result<(), Error> {
        let issued = Issued::read(files).ok_or_else(|| {
            Error::failed(format!("Secret {SECRET} holds no {CERT_FILE} and {KEY_FILE}"))
        })?;
        let newest = issued.certified()?;
        if self.shown().is_some_and(|shown| shown.cert == newest.cert) {
            return Ok(());
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(newest));
        tracing::info!("serving certificate taken over");
        Ok(())
    }

    fn shown(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.shown()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificate").field(&self.is_there()).finish()
    }
}

impl Keeper {
    /// For the operator of this namespace.
    pub(crate) fn new(client: &Client, namespace: &str, certificate: Certificate) -> Self {
        let service = format!("{SERVICE}.{namespace}.svc");
        Self {
            store: Store::new(client, namespace, None),
            configurations: Api::all(client.clone()),
            names: vec![format!("{service}.cluster.local"), service],
            certificate,
        }
    }

    /// Goes on for ever; `leads` says whether this operator leads.
    pub(crate) async fn run(self, mut leads: watch::Receiver<bool>) {
        loop {
            let leading = *leads.borrow_and_update();
            let done = if leading { self.tend(SystemTime::now()).await } else { self.load().await };
            if let Err(error) = &done {
                let hint = error.advice().unwrap_or_default();
                tracing::warn!(error = %error.report(), hint, "cannot keep the certificate");
            }
            let pause = if done.is_ok() && self.certificate.is_there() { EVERY } else { SOON };
            // Ends early when that changes; who holds the other end holds it as long as we run.
            if let Ok(Err(_)) = timeout(sidekey_core::jitter(pause), leads.changed()).await {
                return;
            }
        }
    }

    /// Shows what the Secret has.
    pub(super) async fn load(&self) -> Result<(), Error> {
        match self.store.read(SECRET).await? {
            Some(object) => self.certificate.take(&contents(&object)),
            None => Ok(()),
        }
    }

    /// Makes or renews what is missing or due, shows it, and has the API server trust it.
    pub(super) async fn tend(&self, now: SystemTime) -> Result<(), Error> {
        let object = self.store.read(SECRET).await?;
        let before = object.as_ref().map(contents);
        let configuration = self.configuration().await?;
        let mut authority = match &before {
            Some(files) => {
                Authority::read(files).map_err(|error| self.store.damaged(SECRET, error))?
            }
            None => Authority::create(now)?,
        };
        // Nobody else has to be told where nothing is asked of the webhook.
        let spread = authority.spreading().is_some_and(|anchor| {
            configuration.as_ref().is_none_or(|trusted| trusted.all_hold(anchor))
        });
        let mut changed = before.is_none();
        changed |= before.is_some() && authority.advance(now, spread)?;
        let mut files = authority.files();
        let own = before.into_iter().flatten();
        files.extend(own.filter(|(name, _)| [CERT_FILE, KEY_FILE].contains(&name.as_str())));
        if let Some(newer) = renewed(files.clone(), &authority, &self.names, Purpose::Server, now)?
        {
            (files, changed) = (newer, true);
        }
        if changed {
            self.store.write(SECRET, object, files.clone()).await?;
            tracing::info!(secret = SECRET, "serving certificate made or renewed");
        }
        self.certificate.take(&files)?;
        match configuration {
            Some(trusted) => self.trust(&trusted, &authority.bundle()).await,
            None => Ok(()),
        }
    }

    async fn configuration(&self) -> Result<Option<Trusted>, Error> {
        let found = self.configurations.get_opt(SERVICE).await.map_err(|error| {
            refused(format!("cannot read MutatingWebhookConfiguration {SERVICE}"), error)
        })?;
        let webhooks = found.map(|found| found.webhooks.unwrap_or_default());
        Ok(webhooks.map(|webhooks| {
            let bundle = |bundle: Option<ByteString>| bundle.map(|bytes| bytes.0);
            let each = webhooks.into_iter().map(|w| (w.name, bundle(w.client_config.ca_bundle)));
            Trusted(each.collect())
        }))
    }

    async fn trust(&self, trusted: &Trusted, bundle: &str) -> Result<(), Error> {
        let bytes = ByteString(bundle.as_bytes().to_vec());
        let others = trusted.0.iter().filter(|(_, own)| own.as_deref() != Some(bundle.as_bytes()));
        let webhooks: Vec<_> = others
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bytes}}))
            .collect();
        if webhooks.is_empty() {
            return Ok(());
        }
        let parameters =
            PatchParams { field_manager: Some(names::FIELD_MANAGER.into()), ..Default::default() };
        let patch = Patch::Strategic(json!({"webhooks": webhooks}));
        let patched = self.configurations.patch(SERVICE, &parameters, &patch).await;
        patched.map(drop).map_err(|error| {
            refused(format!("cannot write MutatingWebhookConfiguration {SERVICE}"), error)
        })
    }
}

/// Every webhook of the configuration, and the CA that the API server trusts for it.
struct Trusted(Vec<(String, Option<Vec<u8>>)>);

impl Trusted {
    fn all_hold(&self, anchor: &str) -> bool {
        let holds = |bundle: &Option<Vec<u8>>| {
            let text = bundle.as_deref().map(String::from_utf8_lossy);
            text.is_some_and(|text| text.contains(anchor.trim()))
        };
        self.0.iter().all(|(_, bundle)| holds(bundle))
    }
}
