//! The operator's page: asked with a token of its own, and led to a browser that has none.
//!
//! A browser sends no token by itself. In a cluster a proxy of the console does so for whoever has
//! logged in; here it is a [`Door`].

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Managed, OPERATOR, OPERATOR_NAMESPACE};

/// The port of the page and of the metrics.
const PORT: u16 = 8443;

/// The page, as whoever knows the operator's CA reaches it.
#[derive(Clone)]
pub struct Page {
    address: SocketAddr,
    name: String,
    tls: TlsConnector,
}

impl Managed {
    /// The way to the page, through its Service. Who it is, is proven by the CA that the operator
    /// has put into its webhook's configuration.
    pub async fn page(&self) -> Result<Page> {
        let client = self.hosted.cluster.client();
        let service = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/services/{OPERATOR}");
        let service = client.get(&service).await?;
        let address = service["spec"]["clusterIP"].as_str().context("a Service without address")?;
        Page::new(SocketAddr::new(address.parse()?, PORT), &self.webhook_ca().await?)
    }

    /// The CA that the cluster trusts for the operator's webhook, in PEM.
    pub async fn webhook_ca(&self) -> Result<String> {
        let group = "/apis/admissionregistration.k8s.io/v1";
        let path = format!("{group}/mutatingwebhookconfigurations/{OPERATOR}");
        let hook = self.hosted.cluster.client().get(&path).await?;
        let bundle = hook["webhooks"][0]["clientConfig"]["caBundle"].as_str();
        let bundle = bundle.with_context(|| format!("no CA: {}", hook["webhooks"]))?;
        Ok(String::from_utf8(STANDARD.decode(bundle)?)?)
    }

    /// A real token of a service account in the operator's namespace, which is made where it is
    /// not there. It may see SecretEncryptions and metrics if `sees`.
    pub async fn token_of(&self, account: &str, sees: bool) -> Result<String> {
        let client = self.hosted.cluster.client();
        let metadata = json!({"name": account, "namespace": OPERATOR_NAMESPACE});
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        client.apply(&object).await?;
        if sees {
            for object in sight(account) {
                client.apply(&object).await?;
            }
        }
        let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/serviceaccounts/{account}");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
        });
        let made = client.send(Method::POST, &format!("{path}/token"), Some(&request)).await?;
        Ok(made["status"]["token"].as_str().context("no token")?.to_owned())
    }
}

fn sight(account: &str) -> [Value; 2] {
    let (group, name) = ("rbac.authorization.k8s.io", format!("{account}-sees"));
    let rules = json!([
        {"apiGroups": ["sidekey.dev"], "resources": ["secretencryptions"], "verbs": ["get", "list"]},
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    ]);
    let account =
        json!({"kind": "ServiceAccount", "name": account, "namespace": OPERATOR_NAMESPACE});
    [
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": rules,
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": name}, "subjects": [account],
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        }),
    ]
}

impl Page {
    /// A page at an address, whose certificate the CA in `pem` has signed.
    pub fn new(address: SocketAddr, pem: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = format!("{OPERATOR}.{OPERATOR_NAMESPACE}.svc");
        Ok(Self { address, name, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// One request, with this token or none; the answer, whatever its status.
    pub async fn get(&self, path: &str, token: Option<&str>) -> Result<Response<Bytes>> {
        let tcp = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(self.name.clone())?;
        let stream = self.tls.connect(name, tcp).await.context("TLS handshake")?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::get(path).header(HOST, &self.name);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let answer = sender.send_request(request.body(Full::new(Bytes::new()))?).await?;
        let (head, body) = answer.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    }
}

/// Adds a token to what a browser asks. Closed when this is dropped.
#[derive(Debug)]
pub struct Door {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Door {
    /// Opens it on loopback.
    pub async fn open(page: Page, token: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a door")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (page, token) = (page.clone(), token.clone());
                let service = service_fn(move |request| {
                    let (page, token) = (page.clone(), token.clone());
                    async move { Ok::<_, Infallible>(led(&page, &token, &request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { address, task })
    }

    /// What to ask a browser for to see the page at this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn led(page: &Page, token: &str, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    match page.get(request.uri().path(), Some(token)).await {
        Ok(answer) => answer.map(Full::new),
        Err(error) => {
            let mut answer = Response::new(Full::new(Bytes::from(format!("{error:#}"))));
            *answer.status_mut() = hyper::StatusCode::BAD_GATEWAY;
            answer
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}
