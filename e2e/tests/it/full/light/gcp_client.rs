//! Promise: what the fake of Google Cloud KMS says is what Google's own Go client takes, and the
//! requests that it makes are kept for the provider's tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_e2e::Scratch;
use sidekey_e2e::fakes::gcp::{DECRYPT, ENCRYPT, LOOK, MACHINE, Tokens};
use sidekey_e2e::fakes::{Exchange, RECORD};
use sidekey_e2e::gcp::{ACCOUNT, GcpBackend};
use sidekey_e2e::golang::GCP_CLIENT;

const ALL: [&str; 3] = [ENCRYPT, DECRYPT, LOOK];
const ROBOT: &str = "robot@example.iam.gserviceaccount.com";

/// A fake, and Google's client.
struct Scene {
    backend: GcpBackend,
    program: PathBuf,
    scratch: Scratch,
}

impl Scene {
    async fn start() -> Self {
        let scratch = Scratch::new("gcp-client").unwrap();
        let backend = GcpBackend::start(&scratch).await.unwrap();
        let program = GCP_CLIENT.build_async().await.unwrap();
        Self { backend, program, scratch }
    }

    /// What comes of some orders, by somebody.
    async fn ask(&self, who: &str, orders: &[Value]) -> Vec<Value> {
        let mut command = Command::new(&self.program);
        command
            .args([&self.backend.fake.url(), who])
            .env_clear()
            .env("HOME", self.scratch.path())
            .env("SSL_CERT_FILE", self.backend.fake.ca())
            .env("GCE_METADATA_HOST", self.backend.fake.plain().to_string());
        let orders: Vec<String> = orders.iter().map(|order| format!("{order}\n")).collect();
        let ran = tokio::task::spawn_blocking(move || run(command, &orders.concat()));
        ran.await.unwrap().unwrap()
    }

    /// The same by the service account, with its key.
    async fn owner(&self, orders: &[Value]) -> Vec<Value> {
        self.ask(&format!("token:{}", self.backend.credentials.display()), orders).await
    }

    fn order(&self, call: &str, end: &str, data: &[u8], aad: Option<&str>) -> Value {
        let mut order = json!({
            "call": call, "name": format!("{}{end}", self.backend.key), "data": STANDARD.encode(data),
        });
        if let Some(aad) = aad {
            order["aad"] = STANDARD.encode(aad).into();
        }
        order
    }

    /// It encrypts and decrypts, by the key and by a version, with associated data and without.
    async fn round_trips(&self) {
        let wrapped = self
            .owner(&[
                json!({"call": "get", "name": self.backend.key}),
                self.order("encrypt", "", b"words", Some("context")),
                self.order("encrypt", "/cryptoKeyVersions/1", b"words", Some("context")),
                self.order("encrypt", "", b"words", None),
            ])
            .await;
        let version = format!("{}/cryptoKeyVersions/1", self.backend.key);
        let expected = json!({
            "name": version, "state": "ENABLED", "purpose": "ENCRYPT_DECRYPT",
            "algorithm": "GOOGLE_SYMMETRIC_ENCRYPTION",
        });
        assert_eq!(wrapped[0], expected);
        let mut orders = Vec::new();
        for (answer, aad) in wrapped[1..].iter().zip([Some("context"), Some("context"), None]) {
            assert_eq!(answer["name"], version, "{answer}");
            let data = STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
            orders.push(self.order("decrypt", "", &data, aad));
        }
        for answer in self.owner(&orders).await {
            assert_eq!(answer["data"], STANDARD.encode("words"), "{answer}");
        }
    }

    /// Its refusals are what that client knows as Google's.
    async fn refusals(&self) {
        let wrapped = self.owner(&[self.order("encrypt", "", b"words", Some("context"))]).await;
        let data = STANDARD.decode(wrapped[0]["data"].as_str().unwrap()).unwrap();
        let mut bad_sum = self.order("encrypt", "", b"words", None);
        bad_sum["badSum"] = true.into();
        let said = self
            .owner(&[
                self.order("decrypt", "", &data, Some("another")),
                self.order("decrypt", "", &data[..9], None),
                bad_sum,
                self.order("encrypt", "/cryptoKeyVersions/9", b"words", None),
                json!({"call": "get", "name": format!("{}-not", self.backend.key)}),
            ])
            .await;
        let codes =
            ["InvalidArgument", "InvalidArgument", "InvalidArgument", "NotFound", "NotFound"];
        assert_eq!(said.iter().map(code).collect::<Vec<_>>(), codes, "{said:?}");

        self.backend.fake.service().key(&self.backend.key).set_state(1, "DISABLED");
        let said = self
            .owner(&[
                self.order("encrypt", "", b"words", None),
                self.order("decrypt", "", &data, Some("context")),
                json!({"call": "get", "name": self.backend.key}),
            ])
            .await;
        // Over REST that client goes by the code of HTTP: the words tell more.
        for refused in &said[..2] {
            let text = refused["error"].as_str().unwrap();
            assert_eq!(code(refused), "InvalidArgument", "{refused}");
            assert!(text.contains("current state is: DISABLED"), "{text}");
        }
        assert_eq!(said[2]["state"], "DISABLED");
        self.backend.fake.service().key(&self.backend.key).set_state(1, "ENABLED");

        self.backend.fake.service().allow(ACCOUNT, &[DECRYPT]);
        let permissions = json!({"call": "permissions", "name": self.backend.key, "permissions": [ENCRYPT, DECRYPT]});
        let said = self.owner(&[self.order("encrypt", "", b"words", None), permissions]).await;
        let text = said[0]["error"].as_str().unwrap();
        assert_eq!(code(&said[0]), "PermissionDenied", "{text}");
        assert!(text.contains("reason = IAM_PERMISSION_DENIED"), "{text}");
        assert_eq!(said[1]["permissions"], json!([DECRYPT]));
        self.backend.fake.service().allow(ACCOUNT, &ALL);
    }

    /// After a rotation what either version wrapped is unwrapped by the key.
    async fn rotation(&self) {
        let order = [self.order("encrypt", "", b"words", None)];
        let old = self.owner(&order).await;
        self.backend.fake.service().key(&self.backend.key).rotate();
        let new = self.owner(&order).await;
        assert!(new[0]["name"].as_str().unwrap().ends_with("/2"), "{new:?}");
        let back = [&old[0], &new[0]].map(|answer| {
            let data = STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
            self.order("decrypt", "", &data, None)
        });
        for answer in self.owner(&back).await {
            assert_eq!(answer["data"], STANDARD.encode("words"), "{answer}");
        }
    }

    /// Every form of credentials leads that client to a token of the fake, but for a person's refresh
    /// token: it sends that to one fixed address.
    async fn credentials(&self) {
        let hour = Duration::from_secs(3600);
        let (subject, principal) =
            Tokens::subject_token("system:serviceaccount:kube-system:kms", hour);
        let path = |name: &str| self.scratch.path().join(name);
        std::fs::write(path("token"), &subject).unwrap();
        let files = {
            let mut service = self.backend.fake.service();
            for who in [MACHINE, principal.as_str(), ROBOT] {
                service.allow(who, &ALL);
            }
            service.tokens.impersonators.insert((principal, ROBOT.to_owned()));
            let url = self.backend.fake.url();
            service.tokens.subject = json!({"value": subject}).to_string();
            let field = json!({"type": "json", "subject_token_field_name": "value"});
            let from_url = json!({"url": format!("{url}/subject"), "format": field});
            let file = json!({"file": path("token")});
            [
                ("file", service.tokens.external(&file, None, &url)),
                ("address", service.tokens.external(&from_url, Some(ROBOT), &url)),
            ]
        };
        let order = [self.order("encrypt", "", b"words", None)];
        let mut asked = vec!["metadata".to_owned()];
        for (name, file) in files {
            std::fs::write(path(name), file.to_string()).unwrap();
            asked.push(path(name).display().to_string());
        }
        for who in asked {
            let said = self.ask(&who, &order).await;
            assert!(said[0]["data"].is_string(), "{who}: {said:?}");
        }
        let fake = &self.backend.fake;
        for operation in ["token", "exchange", "impersonate", "subject", "metadata"] {
            assert!(fake.calls(operation) > 0, "{operation} was never asked for");
        }
    }
}

fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or("none")
}

fn run(mut command: Command, orders: &str) -> Result<Vec<Value>> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no stdin")?.write_all(orders.as_bytes())?;
    let ran = child.wait_with_output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = String::from_utf8(ran.stdout)?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// What was said about keys, without what is another one each time.
fn recorded(exchanges: Vec<Exchange>) -> Vec<Exchange> {
    let of_keys = |exchange: &Exchange| {
        ["describe", "encrypt", "decrypt", "permissions"].contains(&exchange.operation.as_str())
    };
    exchanges.into_iter().filter(of_keys).collect()
}

#[tokio::test]
async fn googles_own_client_takes_what_the_fake_says() {
    let scene = Scene::start().await;
    scene.round_trips().await;
    scene.refusals().await;
    scene.rotation().await;
    is_as_kept(&recorded(scene.backend.fake.exchanges()));
    scene.credentials().await;
}

/// What was said is what the provider's tests compare with.
fn is_as_kept(said: &[Exchange]) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../providers/gcp/tests/fixtures/google-client.json");
    if std::env::var_os(RECORD).is_some() {
        let text = serde_json::to_string_pretty(said).unwrap();
        std::fs::write(&fixture, text + "\n").unwrap();
    }
    let kept: Vec<Exchange> =
        serde_json::from_str(&std::fs::read_to_string(&fixture).unwrap()).unwrap();
    let (said, kept) = (said.iter().map(Exchange::shape), kept.iter().map(Exchange::shape));
    assert!(said.eq(kept), "the client says something else: look, and record it with {RECORD}=1");
}
