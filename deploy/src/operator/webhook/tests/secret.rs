//! The certificate: made, shown, renewed while connections are open, and trusted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sidekey_core::server::stopper;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::*;
use crate::operator::run::{Server, fake};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The objects of the cluster, and how often each was written.
#[derive(Default)]
struct World {
    secret: Option<Value>,
    bundle: Option<Vec<u8>>,
    writes: BTreeMap<String, usize>,
}

type Shared = Arc<Mutex<World>>;

fn world() -> (Shared, kube::Client) {
    let world = Shared::default();
    let client = fake::client({
        let world = world.clone();
        move |method, path, body| world.lock().unwrap().answer(method, path, body)
    });
    (world, client)
}

impl World {
    fn answer(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        if method != "GET" {
            *self.writes.entry(format!("{method} {path}")).or_default() += 1;
        }
        let is_secret = path.starts_with("/api/v1/namespaces/ops/secrets");
        match (method, is_secret) {
            ("GET", true) => match &self.secret {
                Some(secret) => (200, secret.clone()),
                None => fake::absent(),
            },
            ("POST" | "PUT", true) => {
                let mut secret = body.clone();
                secret["metadata"]["resourceVersion"] = "1".into();
                self.secret = Some(secret.clone());
                (200, secret)
            }
            (method, false) => {
                if method == "PATCH" {
                    let webhook = &body["webhooks"][0];
                    assert_eq!(webhook["name"], "pods.sidekey.dev");
                    let bundle = webhook["clientConfig"]["caBundle"].as_str().unwrap();
                    self.bundle = Some(STANDARD.decode(bundle).unwrap());
                }
                (200, self.configuration())
            }
            other => panic!("{other:?} {path}"),
        }
    }

    fn configuration(&self) -> Value {
        let bundle = self.bundle.as_ref().map(|bytes| STANDARD.encode(bytes));
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "sidekey-operator"},
            "webhooks": [{
                "name": "pods.sidekey.dev", "admissionReviewVersions": ["v1"],
                "sideEffects": "None", "clientConfig": {"caBundle": bundle},
            }],
        })
    }

    fn trusted(&self) -> String {
        String::from_utf8(self.bundle.clone().unwrap()).unwrap()
    }
}

/// A caller who trusts what the API server was told to trust.
async fn connect(
    address: SocketAddr,
    bundle: &str,
) -> (SendRequest<Empty<Bytes>>, CertificateDer<'static>) {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("sidekey-operator.ops.svc").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    (sender, shown)
}

async fn ask(sender: &mut SendRequest<Empty<Bytes>>) -> u16 {
    sender.ready().await.unwrap();
    let request = Request::get("/mutate").header("host", "x").body(Empty::new()).unwrap();
    sender.send_request(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_at_once_and_no_connection_ends() {
    let (world, client) = world();
    let certificate = Certificate::default();
    let keeper = Keeper::new(&client, "ops", certificate.clone());
    let server = Server::bind("webhook", ([127, 0, 0, 1], 0).into(), Some(certificate.server()))
        .await
        .unwrap();
    let address = server.address(([0, 0, 0, 0], 0).into());
    let (_stopper, stop) = stopper();
    let site = Arc::new(Webhook::new(Shelf::whole(), options()));
    tokio::spawn(server.serve(site, stop));

    keeper.load().await.unwrap();
    assert!(!certificate.is_there(), "who does not lead makes none");
    let now = SystemTime::now();
    keeper.tend(now - DAY * 80).await.unwrap();
    let bundle = world.lock().unwrap().trusted();
    let (mut first, old) = connect(address, &bundle).await;
    assert_eq!(ask(&mut first).await, 405);

    keeper.tend(now).await.unwrap();
    assert_eq!(world.lock().unwrap().trusted(), bundle, "the CA is the same");
    let (mut second, new) = connect(address, &bundle).await;
    assert_ne!(old, new);
    assert_eq!((ask(&mut first).await, ask(&mut second).await), (405, 405));
}

#[tokio::test]
async fn what_the_leader_made_is_taken_over_by_the_others() {
    let (world, client) = world();
    let (leads, follows) = (Certificate::default(), Certificate::default());
    let leader = Keeper::new(&client, "ops", leads.clone());
    let follower = Keeper::new(&client, "ops", follows.clone());
    leader.tend(SystemTime::now()).await.unwrap();
    let writes = world.lock().unwrap().writes.clone();
    follower.load().await.unwrap();
    assert!(leads.is_there() && follows.is_there());
    assert_eq!(world.lock().unwrap().writes, writes, "who does not lead writes nothing");
}

#[tokio::test]
async fn where_all_is_well_nothing_is_written() {
    let (world, client) = world();
    let keeper = Keeper::new(&client, "ops", Certificate::default());
    keeper.tend(SystemTime::now()).await.unwrap();
    let writes = world.lock().unwrap().writes.clone();
    assert_eq!(writes.values().sum::<usize>(), 2, "{writes:?}");
    keeper.tend(SystemTime::now()).await.unwrap();
    assert_eq!(world.lock().unwrap().writes, writes);
    world.lock().unwrap().bundle = Some(b"somebody's".to_vec());
    keeper.tend(SystemTime::now()).await.unwrap();
    assert!(world.lock().unwrap().trusted().contains("BEGIN CERTIFICATE"));
}

#[tokio::test]
async fn a_new_ca_is_trusted_by_the_api_server_before_it_signs() {
    let (world, client) = world();
    let keeper = Keeper::new(&client, "ops", Certificate::default());
    let count = |text: String| text.matches("BEGIN CERTIFICATE").count();
    let begun = SystemTime::now();
    let mut most = 0;
    for day in (0..900).step_by(5) {
        let before = world.lock().unwrap().bundle.clone();
        keeper.tend(begun + DAY * day).await.unwrap();
        let world = world.lock().unwrap();
        let trusted = world.trusted();
        most = most.max(count(trusted.clone()));
        // Whoever still goes by what was trusted before trusts what is shown now.
        let leaf =
            STANDARD.decode(world.secret.as_ref().unwrap()["data"]["tls.crt"].as_str().unwrap());
        let before = before.map_or(trusted, |bytes| String::from_utf8(bytes).unwrap());
        assert!(verifies(&before, &leaf.unwrap(), begun + DAY * day), "day {day}");
    }
    assert_eq!(most, 2, "the old one and its successor");
}

fn verifies(bundle: &str, leaf: &[u8], at: SystemTime) -> bool {
    use rustls::client::verify_server_cert_signed_by_trust_anchor as verify;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let leaf = CertificateDer::from_pem_slice(leaf).unwrap();
    let parsed = rustls::server::ParsedCertificate::try_from(&leaf).unwrap();
    let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at = rustls::pki_types::UnixTime::since_unix_epoch(at);
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    verify(&parsed, &roots, &[], at, provider.signature_verification_algorithms.all).is_ok()
}

#[tokio::test]
async fn a_damaged_secret_is_named_and_what_is_shown_stays() {
    let (world, client) = world();
    let certificate = Certificate::default();
    let keeper = Keeper::new(&client, "ops", certificate.clone());
    keeper.tend(SystemTime::now()).await.unwrap();
    world.lock().unwrap().secret.as_mut().unwrap()["data"] = json!({"ca.crt": "eA=="});
    let error = keeper.tend(SystemTime::now()).await.unwrap_err();
    assert!(error.report().contains("sidekey-operator-tls"), "{}", error.report());
    assert!(keeper.load().await.is_err() && certificate.is_there());
}
