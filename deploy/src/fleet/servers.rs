//! kube-apiservers, each asked for itself: which key_id the plugin's Status gave it last, and
//! whether it could make a data key under it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Api, Client, Config};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Serialize;
use tokio_rustls::TlsConnector;

use super::metrics::{self, Sample};
use super::pods::{Pods, Replica};
use super::{split, within};
use crate::Error;
use crate::cluster::refused;

const ENVELOPE: &str = "apiserver_envelope_encryption_key_id_hash_";
const CONTROLLER: &str = "apiserver_encryption_config_controller_";
/// Longest `/readyz?verbose`.
const MAX_CHECKS: usize = 1024 * 1024;

/// Where kube-apiservers are.
#[derive(Clone)]
pub(super) enum Source {
    /// In the pods of the control plane.
    InPods { config: Box<Config>, port: u16 },
    /// Where the cluster says.
    Named(Box<Config>),
    /// Just there.
    Url(Box<Config>),
}

/// One kube-apiserver.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerReport {
    /// Its pod or its address.
    pub name: String,
    /// Its pod is being deleted; until it is gone it serves.
    pub ending: bool,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ServerStatus>,
    /// Why it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a kube-apiserver says of its encryption.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// What each KMS v2 provider of its EncryptionConfiguration announced last, by name.
    pub announced: BTreeMap<String, Announced>,
    /// The key_id hash under which something was stored last, by provider name.
    pub written: BTreeMap<String, Announced>,
    /// Whether its own checks of the KMS providers are good; `None` if it has none.
    pub kms_healthy: Option<bool>,
    /// The hash of the EncryptionConfiguration in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// Whether its last reload of EncryptionConfiguration failed.
    pub reload_failed: bool,
}

/// A key_id, and when it was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Announced {
    /// The hash of the key_id.
    pub key_id_hash: String,
    /// When, by the clock of kube-apiserver.
    pub at: String,
    #[serde(skip)]
    seconds: f64,
}

impl Announced {
    #[cfg(test)]
    pub(super) fn now(key_id_hash: &str) -> Self {
        Self { key_id_hash: key_id_hash.to_owned(), at: String::new(), seconds: 1.0 }
    }
}

/// One to be asked.
pub(super) struct Target {
    name: String,
    ending: bool,
    client: Result<Client, Error>,
}

impl Target {
    fn new(name: impl Into<String>, client: Result<Client, Error>) -> Self {
        Self { name: name.into(), ending: false, client }
    }

    pub(super) async fn ask(self, limit: Duration) -> ServerReport {
        let Self { name, ending, client } = self;
        let (status, error) = split(within(limit, async { ask(&client?).await }).await);
        ServerReport { name, ending, status, error }
    }
}

/// Everybody whom the sources name.
pub(super) async fn targets(
    sources: &[Source],
    pods: Option<&Pods>,
    replicas: &[Replica],
) -> Result<Vec<Target>, Error> {
    let mut targets = Vec::new();
    for source in sources {
        match source {
            Source::Url(config) => {
                targets
                    .push(Target::new(config.cluster_url.to_string(), client((**config).clone())));
            }
            Source::Named(config) => targets.extend(named(config).await?),
            Source::InPods { config, port } => {
                let Some(pods) = pods else { continue };
                for replica in replicas {
                    let way = Way { pods: pods.clone(), pod: replica.name.clone(), port: *port };
                    let client = through(config, way);
                    let name = replica.name.clone();
                    targets.push(Target { name, ending: replica.ending, client });
                }
            }
        }
    }
    Ok(targets)
}

/// The addresses that kube-apiservers register under `default/kubernetes`.
async fn named(config: &Config) -> Result<Vec<Target>, Error> {
    let slices: Api<EndpointSlice> = Api::namespaced(client(config.clone())?, "default");
    let service = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let what = "cannot list the kube-apiservers (EndpointSlices of default/kubernetes)";
    let list = slices.list(&service).await.map_err(|error| refused(what, error))?;
    let mut targets = Vec::new();
    for slice in &list.items {
        let ports = slice.ports.iter().flatten();
        let port = ports.filter_map(|port| port.port).next().unwrap_or(6443);
        for address in slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses) {
            let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
            let url: Result<Uri, _> = format!("https://{host}:{port}/").parse();
            let url = url
                .map_err(|error| Error::failed(format!("bad address {address}")).because(error))?;
            // Whoever answers under the name of the cluster has it in its certificate.
            let name = config.tls_server_name.clone().or_else(|| host_of(&config.cluster_url));
            let mut own = config.clone();
            (own.cluster_url, own.tls_server_name) = (url, name);
            targets.push(Target::new(format!("{host}:{port}"), client(own)));
        }
    }
    if targets.is_empty() {
        return Err(Error::failed("no kube-apiserver is registered under default/kubernetes")
            .hint("name each one with --server"));
    }
    Ok(targets)
}

fn host_of(url: &Uri) -> Option<String> {
    url.host().map(|host| host.trim_matches(['[', ']']).to_owned())
}

fn client(mut config: Config) -> Result<Client, Error> {
    let server = config.cluster_url.to_string();
    // One question is one request: what fails is said.
    config.default_retry = false;
    Client::try_from(config)
        .map_err(|error| Error::failed(format!("cannot make a client for {server}")).because(error))
}

/// A port of a pod.
#[derive(Clone)]
struct Way {
    pods: Pods,
    pod: String,
    port: u16,
}

/// HTTPS through a port of a pod, a connection for each request.
#[derive(Clone)]
struct Through {
    way: Way,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A client with a kubeconfig's credentials that takes another way than its URL.
fn through(config: &Config, way: Way) -> Result<Client, Error> {
    let unusable = |error: kube::Error| Error::usage("cannot use the kubeconfig").because(error);
    let name = config.tls_server_name.clone().or_else(|| host_of(&config.cluster_url));
    let name = ServerName::try_from(name.unwrap_or_default())
        .map_err(|error| Error::usage("the kubeconfig's server has no name").because(error))?;
    let tls = Arc::new(config.rustls_client_config().map_err(unusable)?);
    let builder = ClientBuilder::new(Through { way, tls, name }, &config.default_namespace);
    let base = config.base_uri_layer();
    Ok(match config.auth_layer().map_err(unusable)? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    })
}

impl tower_service::Service<Request<Body>> for Through {
    type Response = Response<Incoming>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sending = self.clone().send(request);
        Box::pin(async { sending.await.map_err(Into::into) })
    }
}

impl Through {
    async fn send(self, mut request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let Self { way: Way { pods, pod, port }, tls, name } = self;
        let (stream, failure) = pods.forward(&pod, port).await?;
        let stream = match TlsConnector::from(tls).connect(name, stream).await {
            Ok(stream) => stream,
            Err(error) => {
                let error = Error::failed(format!("no TLS with {pod}")).because(error);
                return Err(failure.explain(error).await);
            }
        };
        let broken =
            |error: hyper::Error| Error::failed(format!("no answer of {pod}")).because(error);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let authority = request.uri().authority().map(|authority| authority.to_string());
        if let Some(Ok(host)) = authority.map(HeaderValue::try_from) {
            request.headers_mut().insert(HOST, host);
        }
        // A server wants the path alone; the rest is for proxies.
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse();
        *request.uri_mut() = path.unwrap_or_default();
        sender.send_request(request).await.map_err(broken)
    }
}

async fn ask(client: &Client) -> Result<ServerStatus, Error> {
    let body = get(client, "/metrics").await?;
    let samples = metrics::read(body, &[ENVELOPE, CONTROLLER]).await?;
    // Asked after the metrics: it waits for the data key of the key_id that they show, and makes
    // kube-apiserver ask for the plugin's Status if it last did so some time ago.
    let checks = get(client, "/readyz?verbose").await?;
    let checks = Limited::new(checks, MAX_CHECKS).collect().await;
    let checks = checks.map_err(|error| Error::failed("/readyz broke off").because(error))?;
    Ok(interpret(&samples, &String::from_utf8_lossy(&checks.to_bytes())))
}

/// The body, whatever the status of `/readyz`; of other paths an error unless it is 200.
async fn get(client: &Client, path: &str) -> Result<Body, Error> {
    let request = Request::get(path).body(Body::empty());
    let request =
        request.map_err(|error| Error::failed(format!("cannot ask for {path}")).because(error))?;
    let answer = client.send(request).await.map_err(|error| unanswered(path, error))?;
    let code = answer.status();
    let good = code.is_success() || (path.starts_with("/readyz") && code.is_server_error());
    if good {
        return Ok(answer.into_body());
    }
    let failed = Error::failed(format!("GET {path} was answered {code}"));
    Err(match code.as_u16() {
        401 | 403 => failed.hint(format!("the kubeconfig's user must be allowed to get {path}")),
        _ => failed,
    })
}

/// The way through a pod has its own words for what went wrong.
fn unanswered(path: &str, error: kube::Error) -> Error {
    match error {
        kube::Error::Service(inner) => match inner.downcast::<Error>() {
            Ok(own) => *own,
            Err(inner) => refused(format!("no answer to GET {path}"), kube::Error::Service(inner)),
        },
        error => refused(format!("no answer to GET {path}"), error),
    }
}

fn interpret(samples: &[Sample], checks: &str) -> ServerStatus {
    let mut status = ServerStatus::default();
    for sample in samples {
        let part = sample.name.strip_prefix(ENVELOPE).unwrap_or(&sample.name);
        let seen = || {
            let provider = sample.label("provider_name")?;
            Some((provider, sample.label("key_id_hash")?, sample.value))
        };
        let writes = sample.label("transformation_type") == Some("to_storage");
        match part {
            "status_last_timestamp_seconds" => latest(&mut status.announced, seen()),
            "last_timestamp_seconds" if writes => latest(&mut status.written, seen()),
            _ => {}
        }
        if sample.name == format!("{CONTROLLER}last_config_info") {
            status.config_hash = sample.label("hash").map(str::to_owned);
        }
    }
    let reload = |result: &str| {
        let name = format!("{CONTROLLER}automatic_reload_last_timestamp_seconds");
        let found = samples.iter().filter(|sample| sample.name == name);
        let of = found.filter(|sample| sample.label("status") == Some(result));
        of.map(|sample| sample.value).fold(0.0, f64::max)
    };
    status.reload_failed = reload("failure") > reload("success");
    let kms = checks
        .lines()
        .filter(|line| line.get(3..).is_some_and(|check| check.starts_with("kms-provider")));
    let good: Vec<bool> = kms.map(|line| line.starts_with("[+]")).collect();
    status.kms_healthy = (!good.is_empty()).then(|| good.iter().all(|good| *good));
    status
}

/// Keeps the newest for each provider.
fn latest(map: &mut BTreeMap<String, Announced>, seen: Option<(&str, &str, f64)>) {
    let Some((provider, hash, seconds)) = seen else { return };
    if map.get(provider).is_some_and(|known| known.seconds >= seconds) {
        return;
    }
    let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let at = sidekey_core::time(SystemTime::UNIX_EPOCH + since.min(Duration::from_secs(1 << 37)));
    let announced = Announced { key_id_hash: hash.to_owned(), at, seconds };
    map.insert(provider.to_owned(), announced);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn the_newest_key_id_of_each_provider_counts() {
        let text = r#"apiserver_encryption_config_controller_last_config_info{apiserver_id_hash="sha256:a",hash="sha256:c0"} 1
apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds{apiserver_id_hash="sha256:a",status="success"} 1.7e+09
apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds{apiserver_id_hash="sha256:a",status="failure"} 1.8e+09
apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{apiserver_id_hash="sha256:a",key_id_hash="sha256:old",provider_name="sidekey",transformation_type="from_storage"} 1.9e+09
apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{apiserver_id_hash="sha256:a",key_id_hash="sha256:new",provider_name="sidekey",transformation_type="to_storage"} 1.75e+09
apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{apiserver_id_hash="sha256:a",key_id_hash="sha256:new",provider_name="sidekey"} 1.76e+09
apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{apiserver_id_hash="sha256:a",key_id_hash="sha256:old",provider_name="sidekey"} 1.75e+09
apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{apiserver_id_hash="sha256:a",key_id_hash="sha256:old",provider_name="sidekey-tokens"} 1.75e+09
apiserver_envelope_encryption_key_id_hash_total{apiserver_id_hash="sha256:a",key_id_hash="sha256:old",provider_name="sidekey",transformation_type="from_storage"} 7
"#;
        let body = Full::new(Bytes::from(text));
        let samples = metrics::read(body, &[ENVELOPE, CONTROLLER]).await.unwrap();
        let status =
            interpret(&samples, "[+]ping ok\n[+]kms-provider-0 ok\n[-]kms-provider-1 failed\n");
        assert_eq!(status.announced["sidekey"].key_id_hash, "sha256:new");
        assert_eq!(status.announced["sidekey"].at, "2025-10-09T08:53:20Z");
        assert_eq!(status.announced["sidekey-tokens"].key_id_hash, "sha256:old");
        assert_eq!(status.written["sidekey"].key_id_hash, "sha256:new");
        assert_eq!(status.config_hash.as_deref(), Some("sha256:c0"));
        assert!(status.reload_failed);
        assert_eq!(status.kms_healthy, Some(false));
        let good = interpret(&[], "[+]kms-providers ok\nreadyz check passed");
        assert_eq!(good.kms_healthy, Some(true));
        assert_eq!(interpret(&[], "[+]ping ok").kms_healthy, None);
    }
}
