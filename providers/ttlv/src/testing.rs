//! A KMIP server on loopback whose answers are scripted, behind mutual TLS.

use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use sidekey_core::Files;
use sidekey_core::tls::Unusable;
use sidekey_rest::tls::Pair;
use sidekey_rest::{Address, Trust};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::Client;
use crate::codec::{Item, Value, encode};
use crate::protocol::{tag, version};

pub(crate) const RESPONSE_HEADER: u32 = 0x42_007a;

/// Writes answers, sound ones and others.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn structure(&mut self, tag: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.0.extend_from_slice(&(tag << 8 | 1).to_be_bytes());
        self.0.extend_from_slice(&u32::try_from(inner.0.len()).unwrap().to_be_bytes());
        self.0.append(&mut inner.0);
    }

    pub(crate) fn integer(&mut self, tag: u32, value: i32) {
        self.0.extend_from_slice(&encode(tag, Value::Integer(value)));
    }

    pub(crate) fn enumeration(&mut self, tag: u32, value: u32) {
        self.0.extend_from_slice(&encode(tag, Value::Enumeration(value)));
    }

    pub(crate) fn text(&mut self, tag: u32, value: &str) {
        self.0.extend_from_slice(&encode(tag, Value::Text(value)));
    }

    pub(crate) fn bytes(&mut self, tag: u32, value: &[u8]) {
        self.0.extend_from_slice(&encode(tag, Value::Bytes(value)));
    }

    pub(crate) fn version(&mut self, minor: i32) {
        let version = version(minor);
        self.0.extend_from_slice(&encode(tag::PROTOCOL_VERSION, Value::Structure(&version)));
    }
}

/// What comes after a request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// This, in so many parts, and the connection stays.
    Answer(Vec<u8>, usize),
    /// This, and the connection ends.
    Last(Vec<u8>),
    /// Nothing, ever.
    Silence,
}

type Script = dyn Fn(&[u8]) -> Reply + Send + Sync;

/// A request, and the number of the connection that it came on.
pub(crate) struct Seen(pub(crate) usize, pub(crate) Vec<u8>);

/// The server; it ends with the test.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) address: Address,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    dir: Arc<TempDir>,
}

impl Fake {
    pub(crate) async fn start(script: impl Fn(&[u8]) -> Reply + Send + Sync + 'static) -> Self {
        Self::speaking(rustls::DEFAULT_VERSIONS, script).await
    }

    pub(crate) async fn speaking(
        versions: &[&'static SupportedProtocolVersion],
        script: impl Fn(&[u8]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let (server, key) = certified(&dir, "server");
        let (client, _) = certified(&dir, "client");
        let mut roots = RootCertStore::empty();
        roots.add(client.into()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![server.into()], PrivateKeyDer::try_from(key).unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = crate::address(&listener.local_addr().unwrap().to_string()).unwrap();
        let fake = Self { address, seen: Arc::default(), dir };
        let (seen, script): (_, Arc<Script>) = (fake.seen.clone(), Arc::new(script));
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (acceptor, seen, script) = (acceptor.clone(), seen.clone(), script.clone());
                tokio::spawn(async move {
                    if let Ok(mut stream) = acceptor.accept(stream).await {
                        serve(&mut stream, connection, &seen, &*script).await;
                    }
                });
            }
        });
        fake
    }

    pub(crate) fn trust(&self) -> Trust {
        self.trust_of("client")
    }

    /// With one of the certificates that there are: `server` is none that the server knows.
    pub(crate) fn trust_of(&self, who: &str) -> Trust {
        let path = |name: String| self.dir.path().join(name);
        let pair = Pair { cert: path(format!("{who}.crt")), key: path(format!("{who}.key")) };
        let bundle = path("server.crt".to_owned());
        let files = [bundle.as_path(), &pair.cert, &pair.key];
        let files = Files::read(files).unwrap();
        Trust::new(Some(&bundle), Unusable::Refuse, Some(&pair), &files, "settings.caFile").unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.trust(), [self.address.clone()])
    }

    /// Of each request its operation, and the connection that it came on.
    pub(crate) fn operations(&self) -> Vec<(usize, u32)> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|Seen(connection, request)| (*connection, operation(request))).collect()
    }
}

fn certified(dir: &TempDir, name: &str) -> (Vec<u8>, Vec<u8>) {
    let names = vec!["127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    std::fs::write(dir.path().join(format!("{name}.crt")), made.pem()).unwrap();
    std::fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
    (made.der().to_vec(), key.serialize_der())
}

async fn serve(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    connection: usize,
    seen: &Mutex<Vec<Seen>>,
    script: &Script,
) {
    loop {
        let mut request = vec![0; 8];
        if stream.read_exact(&mut request).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes(request[4..].try_into().unwrap()) as usize;
        request.resize(8 + length, 0);
        stream.read_exact(&mut request[8..]).await.unwrap();
        let reply = script(&request);
        seen.lock().unwrap().push(Seen(connection, request));
        match reply {
            Reply::Answer(bytes, parts) => {
                for part in bytes.chunks(bytes.len().div_ceil(parts)) {
                    stream.write_all(part).await.unwrap();
                    stream.flush().await.unwrap();
                }
            }
            Reply::Last(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                let _ = stream.shutdown().await;
                return;
            }
            Reply::Silence => std::future::pending().await,
        }
    }
}

fn batch_item(request: &[u8]) -> Item<'_> {
    Item::parse(request).unwrap().find(tag::BATCH_ITEM).unwrap()
}

pub(crate) fn operation(request: &[u8]) -> u32 {
    batch_item(request).find(tag::OPERATION).and_then(Item::number).unwrap()
}

/// What a request asks with.
pub(crate) fn asked(request: &[u8]) -> Item<'_> {
    batch_item(request).find(tag::REQUEST_PAYLOAD).unwrap()
}

/// A good answer to an operation.
pub(crate) fn answer(operation: u32, payload: impl FnOnce(&mut Writer)) -> Vec<u8> {
    item(|item| {
        item.enumeration(tag::OPERATION, operation);
        item.enumeration(tag::RESULT_STATUS, 0);
        item.structure(tag::RESPONSE_PAYLOAD, payload);
    })
}

/// A refusal.
pub(crate) fn refusal(operation: u32, reason: u32, text: &str) -> Vec<u8> {
    item(|item| {
        item.enumeration(tag::OPERATION, operation);
        item.enumeration(tag::RESULT_STATUS, 1);
        item.enumeration(tag::RESULT_REASON, reason);
        item.text(tag::RESULT_MESSAGE, text);
    })
}

/// An answer of one item.
pub(crate) fn item(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.structure(tag::RESPONSE_MESSAGE, |message| {
        message.structure(RESPONSE_HEADER, |header| header.integer(tag::BATCH_COUNT, 1));
        message.structure(tag::BATCH_ITEM, fill);
    });
    writer.0
}
