//! The way to Vault through an HTTP proxy, as the environment says.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sidekey_conformance::Launched;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::NAMED;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{PLAINTEXT, Stage, binary, quick, shared};

/// A proxy that takes every CONNECT to one server, whatever it is called there, and keeps what it
/// was asked for.
struct Connect {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Connect {
    async fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let list = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (list, to) = (list.clone(), to.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await?);
                    }
                    let head = String::from_utf8_lossy(&head);
                    list.lock().unwrap().extend(head.lines().next().map(str::to_owned));
                    let mut server = TcpStream::connect(to).await?;
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
                    tokio::io::copy_bidirectional(&mut stream, &mut server).await
                });
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Serves with these addresses of Vault and this environment.
async fn round_trip(stage: &Stage, addresses: &Value, environment: &[(&str, &str)]) {
    let mut key = stage.app_role_key(1, &stage.key);
    let tls = key["settings"]["tls"].take();
    key["settings"] = json!({"addresses": addresses, "tls": tls});
    let mut document = quick(&[key]);
    document["admin"] = "127.0.0.1:0".into();
    stage.write("proxied.yaml", &document.to_string());
    let mut command = std::process::Command::new(binary());
    for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
        command.env_remove(name);
    }
    command.arg("--config").arg(stage.path("proxied.yaml")).envs(environment.iter().copied());
    let endpoint = stage.endpoint(1);
    let _launched = Launched::start(command, endpoint.parse().unwrap()).await.unwrap();
    let kms = KmsClient::connect(&endpoint).await.unwrap();
    kms.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn https_proxy_leads_to_vault_but_for_what_no_proxy_names_and_what_is_near() {
    let (stage, server) = (Stage::new("proxied").await, shared().await);
    let to = server.named_address().trim_start_matches("https://").to_owned();
    let (_, port) = to.rsplit_once(':').unwrap();
    // A name that only the proxy knows.
    let far = format!("https://{NAMED}:{port}");
    let proxy = Connect::start(to.clone()).await;

    round_trip(&stage, &json!([far]), &[("HTTPS_PROXY", &proxy.url)]).await;
    let asked = proxy.asked();
    assert!(!asked.is_empty(), "it came to Vault without the proxy");
    let wanted = format!("CONNECT {NAMED}:{port} HTTP/1.1");
    assert!(asked.iter().all(|line| *line == wanted), "{asked:?}");

    // The name is not known here: the server beside it, which is near, answers.
    let both = json!([far, server.address()]);
    let environment = [("HTTPS_PROXY", proxy.url.as_str()), ("NO_PROXY", ".sidekey.test")];
    round_trip(&stage, &both, &environment).await;
    assert_eq!(proxy.asked(), asked, "the proxy was asked for what it is not for");
}
