//! The runtime's promises, on real sockets, with a KMS that does what the test tells it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod proofs;
mod rotation;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use crate::kms::client::Connection;
use crate::process::app::{App, Configuration};
use crate::proto::v2::key_management_service_client::KeyManagementServiceClient;
use crate::proto::v2::{DecryptRequest, EncryptRequest, EncryptResponse, StatusRequest};
use crate::provider::supervisor::Supervisor;
use crate::testing::{KmsState, Scripted, ScriptedKms};
use crate::{Endpoint, Kind, Source, Watcher, config};

/// Nothing here takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process in miniature.
struct Process {
    directory: tempfile::TempDir,
    supervisor: Supervisor,
}

impl Process {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let watcher = Arc::new(Watcher::new(Duration::from_secs(1)));
        let supervisor = Supervisor::new("scripted", "test".into(), watcher);
        Self { directory, supervisor }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// One key of the configuration; its socket is named after it.
    fn key(&self, id: u64, kms: &str) -> Value {
        json!({"id": id, "listen": self.path(&format!("{id}.sock")), "kek": {"kms": kms}})
    }

    /// With quick probes.
    async fn apply(&mut self, keys: Value) -> Result<(), crate::Error> {
        let probe = json!({"interval": "100ms", "timeout": "1s", "coast": "7s"});
        self.configure(keys, probe).await
    }

    /// With one key, which is healthy, and of which no probe comes by itself again.
    async fn calm(kms: &str) -> Self {
        let mut process = Self::new();
        let probe = json!({"interval": "1h", "timeout": "10s", "coast": "2h"});
        process.configure(json!([process.key(1, kms)]), probe).await.unwrap();
        process.until_healthy(1).await;
        process
    }

    async fn configure(&mut self, keys: Value, probe: Value) -> Result<(), crate::Error> {
        let document = json!({"keys": keys, "probe": probe, "revision": 5});
        self.supervisor.apply(config::parse::<Scripted>(&document).unwrap()).await
    }

    async fn client(&self, id: u64) -> KeyManagementServiceClient<Connection> {
        let endpoint = Endpoint::Path(self.path(&format!("{id}.sock")));
        crate::kms::client::connect(&endpoint).await.unwrap()
    }

    async fn status(&self, id: u64) -> Result<String, tonic::Status> {
        let status = self.client(id).await.status(StatusRequest {}).await?;
        Ok(status.into_inner().key_id)
    }

    /// Waits until Status is as `wanted` says.
    async fn until(&self, id: u64, wanted: impl Fn(&Result<String, tonic::Status>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status(id).await;
            if wanted(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "Status stays {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_healthy(&self, id: u64) {
        self.until(id, Result::is_ok).await;
    }

    async fn encrypt(&self, id: u64) -> Result<EncryptResponse, tonic::Status> {
        let request = EncryptRequest { plaintext: vec![9; 32].into(), uid: "u".into() };
        Ok(self.client(id).await.encrypt(request).await?.into_inner())
    }

    async fn decrypt(&self, id: u64, sealed: &EncryptResponse) -> Result<Vec<u8>, tonic::Status> {
        Ok(self.client(id).await.decrypt(patient(sealed)).await?.into_inner().plaintext.to_vec())
    }
}

/// A Decrypt of what was answered, by a caller with all the time that there is.
fn patient(sealed: &EncryptResponse) -> tonic::Request<DecryptRequest> {
    let EncryptResponse { ciphertext, key_id, annotations } = sealed.clone();
    let mut request =
        tonic::Request::new(DecryptRequest { ciphertext, uid: "u".into(), key_id, annotations });
    request.set_timeout(PATIENCE);
    request
}

fn key_id(status: &Result<String, tonic::Status>) -> Option<&str> {
    status.as_ref().ok().map(String::as_str)
}

fn code<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> Code {
    result.expect_err("should have failed").code()
}

#[tokio::test]
async fn a_key_serves_only_after_its_first_proof() {
    let kms = ScriptedKms::new("first-proof");
    kms.set(|state| state.fails = Some(Kind::Denied));
    let mut process = Process::new();
    process.apply(json!([process.key(1, "first-proof")])).await.unwrap();
    process.until(1, |status| matches!(status, Err(e) if e.code() == Code::PermissionDenied)).await;
    assert_eq!(code(process.encrypt(1).await), Code::PermissionDenied);
    assert_eq!(process.supervisor.shared.pending().len(), 1);
    kms.set(|state| state.fails = None);
    process.until_healthy(1).await;
    assert!(process.supervisor.shared.pending().is_empty());
    let sealed = process.encrypt(1).await.unwrap();
    assert_eq!(process.decrypt(1, &sealed).await.unwrap(), [9; 32]);
}

#[tokio::test]
async fn what_cannot_be_unwrapped_is_never_answered() {
    let kms = ScriptedKms::new("lies");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "lies")])).await.unwrap();
    process.until_healthy(1).await;
    kms.set(|state| state.lies = true);
    assert_eq!(code(process.encrypt(1).await), Code::Internal);
    process.until(1, |status| status.is_err()).await;
    kms.set(|state| state.lies = false);
    process.until_healthy(1).await;
}

#[tokio::test]
async fn passing_faults_are_retried_within_the_callers_time() {
    let kms = ScriptedKms::new("retries");
    let process = Process::calm("retries").await;
    let sealed = process.encrypt(1).await.unwrap();
    kms.set(|state| state.fails_times = 2);
    assert_eq!(process.decrypt(1, &sealed).await.unwrap(), [9; 32]);
    kms.set(|state| state.delay = Duration::from_secs(30));
    let mut request =
        tonic::Request::new(EncryptRequest { plaintext: vec![9; 32].into(), uid: "u".into() });
    request.set_timeout(Duration::from_secs(2));
    assert_eq!(code(process.client(1).await.encrypt(request).await), Code::DeadlineExceeded);
}

#[tokio::test]
async fn equal_decrypts_at_the_same_time_reach_the_kms_once() {
    const CALLERS: usize = 20;
    let kms = ScriptedKms::new("equal");
    let process = Process::calm("equal").await;
    let sealed = process.encrypt(1).await.unwrap();
    let before = kms.ask(|state| state.decrypts);
    kms.hold();
    let arrived = AtomicUsize::new(0);
    let calls = (0..CALLERS).map(async |_| {
        let mut client = process.client(1).await;
        // Requests of one connection are taken in order: an answer to the second says that the
        // first has come. The last of all to come has the KMS answer.
        let mut second = client.clone();
        let come = async {
            second.status(StatusRequest {}).await.unwrap();
            if arrived.fetch_add(1, Ordering::SeqCst) + 1 == CALLERS {
                kms.release();
            }
        };
        join(client.decrypt(patient(&sealed)), come).await.0
    });
    for answer in join_all(calls).await {
        assert_eq!(answer.unwrap().into_inner().plaintext, vec![9; 32]);
    }
    assert_eq!(kms.ask(|state| state.decrypts) - before, 1);
    let metrics = process.supervisor.shared.metrics();
    assert!(metrics.contains("kms_shared_decrypts_total{key=\"1\"} 19"), "{metrics}");
}

#[tokio::test]
async fn a_passing_outage_coasts_and_heals_by_itself() {
    let kms = ScriptedKms::new("outage");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "outage")])).await.unwrap();
    process.until_healthy(1).await;
    kms.set(|state| state.fails = Some(Kind::Unavailable));
    let failing = kms.ask(|state| state.connects);
    process.until(1, |status| matches!(status, Err(e) if e.code() == Code::Unavailable)).await;
    assert_eq!(kms.ask(|state| state.connects), failing, "an outage needs no new client");
    kms.set(|state| state.fails = None);
    process.until_healthy(1).await;
}

#[tokio::test]
async fn a_key_with_a_foreign_canary_is_not_served() {
    let kms = ScriptedKms::new("canary");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "canary")])).await.unwrap();
    process.until_healthy(1).await;
    let sealed = process.encrypt(1).await.unwrap();
    let plaintext = crate::Secret::new(vec![9; 32]);
    let sealed = crate::Sealed {
        key_id: crate::KeyId::new(&sealed.key_id).unwrap(),
        ciphertext: sealed.ciphertext,
        annotations: sealed.annotations,
    };
    let canary = crate::Canary::new(sealed, &plaintext).document();
    let with_canary = |process: &Process, id: u64| {
        let mut key = process.key(id, "canary");
        key["canary"] = canary.clone();
        key
    };
    // The very KEK passes, another one does not, and a changed hash does not.
    process.apply(json!([with_canary(&process, 2)])).await.unwrap();
    process.until_healthy(2).await;
    kms.set(|state| state.kek = 2);
    process.apply(json!([with_canary(&process, 3)])).await.unwrap();
    process.until(3, |s| matches!(s, Err(e) if e.message().contains("canary"))).await;
    assert_eq!(code(process.encrypt(3).await), Code::FailedPrecondition);
    kms.set(|state| state.kek = 1);
    process.until_healthy(3).await;
    let mut altered = with_canary(&process, 4);
    altered["canary"]["sha256"] = "0".repeat(64).into();
    process.apply(json!([altered])).await.unwrap();
    process.until(4, |s| matches!(s, Err(e) if e.message().contains("canary"))).await;
}

#[tokio::test]
async fn new_credentials_take_over_and_bad_ones_never_do() {
    let kms = ScriptedKms::new("credentials");
    let mut process = Process::new();
    let token = process.path("token");
    std::fs::write(&token, "good-1").unwrap();
    let mut key = process.key(1, "credentials");
    key["credentials"] = json!({"token": token});
    process.apply(json!([key])).await.unwrap();
    process.until_healthy(1).await;
    let refused = |process: &Process| {
        let status = process.supervisor.shared.status();
        status["keys"][0]["refused"].clone()
    };
    for bad in ["stolen", ""] {
        std::fs::write(&token, bad).unwrap();
        wait(|| !refused(&process).is_null()).await;
        assert!(process.status(1).await.is_ok(), "the last good token must stay in use");
        assert!(process.encrypt(1).await.is_ok());
        let before = kms.ask(|state| state.connects);
        replace(&token, "good-2");
        wait(|| refused(&process).is_null() && kms.ask(|state| state.connects) > before).await;
    }
    // Another token that leads to another KEK: refused, because data would be lost.
    kms.set(|state| state.kek = 2);
    replace(&token, "good-3");
    wait(|| refused(&process).to_string().contains("another key")).await;
}

#[tokio::test]
async fn settings_that_name_a_file_which_is_not_there_yet_wait_for_it() {
    let kms = ScriptedKms::new("late-file");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "late-file")])).await.unwrap();
    process.until_healthy(1).await;
    let token = process.path("token");
    let mut key = process.key(1, "late-file");
    key["credentials"] = json!({"token": token});
    process.apply(json!([key])).await.unwrap();
    let refused =
        |process: &Process| process.supervisor.shared.status()["keys"][0]["refused"].to_string();
    wait(|| refused(&process).contains("token")).await;
    assert!(process.encrypt(1).await.is_ok(), "the last good ones stay in use");
    let before = kms.ask(|state| state.connects);
    replace(&token, "good-1");
    wait(|| refused(&process) == "null" && kms.ask(|state| state.connects) > before).await;
}

#[tokio::test]
async fn a_key_that_was_made_anew_at_the_kms_is_never_announced() {
    let kms = ScriptedKms::new("anew");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "anew")])).await.unwrap();
    process.until_healthy(1).await;
    kms.set(|state| state.kek = 2);
    process.until(1, |s| matches!(s, Err(e) if e.message().contains("another key"))).await;
    kms.set(|state| state.kek = 1);
    process.until(1, |status| key_id(status) == Some("1/1")).await;
}

#[tokio::test]
async fn keys_come_and_go_while_the_others_serve() {
    ScriptedKms::new("stays");
    let sick = ScriptedKms::new("sick");
    sick.set(|state| state.delay = Duration::from_secs(60));
    let mut process = Process::new();
    process.apply(json!([process.key(1, "stays")])).await.unwrap();
    process.until_healthy(1).await;
    let mut client = process.client(1).await;
    process.apply(json!([process.key(1, "stays"), process.key(2, "sick")])).await.unwrap();
    assert!(client.status(StatusRequest {}).await.is_ok(), "the connection must survive");
    assert!(process.status(2).await.is_err());
    assert!(process.encrypt(1).await.is_ok(), "a hung key must not slow another");
    process.apply(json!([process.key(1, "stays")])).await.unwrap();
    wait(|| !process.path("2.sock").exists()).await;
    assert!(client.status(StatusRequest {}).await.is_ok());
    assert_eq!(process.supervisor.shared.status()["keys"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn another_kek_under_a_used_number_is_refused_whole() {
    ScriptedKms::new("kek-a");
    ScriptedKms::new("kek-b");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "kek-a")])).await.unwrap();
    process.until_healthy(1).await;
    let changed = json!([process.key(1, "kek-b"), process.key(2, "kek-b")]);
    let error = process.apply(changed).await.unwrap_err();
    assert!(error.report().contains("new id"), "{}", error.report());
    assert!(process.status(1).await.is_ok());
    assert!(!process.path("2.sock").exists(), "a refused configuration must change nothing");
}

#[tokio::test]
async fn a_kek_that_never_worked_may_be_mended() {
    ScriptedKms::new("mended");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "misspelt")])).await.unwrap();
    process.until(1, Result::is_err).await;
    process.apply(json!([process.key(1, "mended")])).await.unwrap();
    process.until_healthy(1).await;
}

#[tokio::test]
async fn stopping_lets_open_requests_finish() {
    let kms = ScriptedKms::new("drain");
    let process = Process::calm("drain").await;
    let sealed = process.encrypt(1).await.unwrap();
    let sent = kms.ask(|state| state.decrypts);
    kms.hold();
    let mut client = process.client(1).await;
    let open = tokio::spawn(async move { client.decrypt(patient(&sealed)).await });
    wait(|| kms.ask(|state| state.decrypts) > sent).await;
    let socket = process.path("1.sock");
    // Only when the socket is gone, and the end has begun, is the request answered.
    let answered = async {
        wait(|| !socket.exists()).await;
        assert!(!open.is_finished(), "nobody has answered it yet");
        kms.release();
    };
    join(process.supervisor.end(), answered).await;
    assert_eq!(open.await.unwrap().unwrap().into_inner().plaintext, vec![9; 32]);
    assert_eq!(kms.ask(|state| state.closes), 1, "the client gives back what it holds");
}

/// Waits for a condition, with a deadline.
async fn wait(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "condition not met in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As kubelet and careful writers do it.
fn replace(path: &Path, text: &str) {
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

#[tokio::test]
async fn another_mode_of_the_sockets_waits_for_the_next_start_and_holds_nothing_else_back() {
    ScriptedKms::new("modes");
    let mut process = Process::new();
    let (first, second) = (process.key(1, "modes"), process.key(2, "modes"));
    let parse = |keys: Value, mode: &str| {
        let document = json!({"keys": keys, "socket": {"mode": mode}});
        config::parse::<Scripted>(&document).unwrap()
    };
    let (before, after) = (parse(json!([first]), "0660"), parse(json!([first, second]), "0600"));
    let told = |config: &config::ProcessConfig| {
        config.fixed().into_iter().find(|(name, _)| *name == "socket").unwrap()
    };
    assert_ne!(told(&before), told(&after));
    process.supervisor.apply(before).await.unwrap();
    process.supervisor.apply(after).await.unwrap();
    for id in [1, 2] {
        process.until_healthy(id).await;
        let socket = std::fs::metadata(process.path(&format!("{id}.sock"))).unwrap();
        assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    }
}
