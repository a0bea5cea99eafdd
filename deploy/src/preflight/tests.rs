use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use sidekey_core::proto::v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use sidekey_core::proto::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use sidekey_core::server::{Stopper, serve_kms_over, stopper};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tonic::{Request, Response, Status};

use super::*;

/// What is wrong with a plugin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    Clear,
    Moves,
    OtherKeyId,
    OtherPlaintext,
    MayNotEncrypt,
    MayNotDecrypt,
    Version,
    LateBy(u64),
}

/// A plugin that XORs: what is tested is who notices what.
struct Plugin {
    defect: Defect,
    calls: Arc<AtomicU64>,
}

struct Running {
    endpoint: Endpoint,
    _stopper: Stopper,
    _directory: TempDir,
}

fn run(defect: Defect) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kms.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (stopper, stop) = stopper();
    let calls = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let plugin = Plugin { defect, calls: calls.clone() };
            let service = KeyManagementServiceServer::new(plugin);
            let seat = sidekey_core::Connections::default().enter().unwrap();
            tokio::spawn(serve_kms_over(stream, service, |_| None, seat, stop.clone()));
        }
    });
    Running { endpoint: Endpoint::Path(path), _stopper: stopper, _directory: directory }
}

fn xor(bytes: &[u8]) -> Bytes {
    bytes.iter().map(|byte| byte ^ 0x5a).collect()
}

#[tonic::async_trait]
impl KeyManagementService for Plugin {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let calls = self.calls.fetch_add(1, Ordering::SeqCst);
        if matches!(self.defect, Defect::LateBy(late) if calls < late) {
            return Err(Status::unavailable("the KMS is away"));
        }
        let key_id = match self.defect {
            // Status is asked twice before the first look at whether it stays.
            Defect::Moves if calls > 2 => format!("key/{calls}"),
            _ => "key/1".to_owned(),
        };
        let version = if self.defect == Defect::Version { "v1beta1" } else { "v2" };
        let (version, healthz) = (version.to_owned(), "ok".to_owned());
        Ok(Response::new(StatusResponse { version, healthz, key_id }))
    }

    async fn encrypt(
        &self,
        request: Request<EncryptRequest>,
    ) -> Result<Response<EncryptResponse>, Status> {
        let plaintext = request.into_inner().plaintext;
        let ciphertext = match self.defect {
            Defect::MayNotEncrypt => return Err(Status::permission_denied("may not encrypt")),
            Defect::Clear => [b"head".as_slice(), &plaintext].concat().into(),
            _ => xor(&plaintext),
        };
        let key_id = if self.defect == Defect::OtherKeyId { "key/2" } else { "key/1" };
        let (key_id, annotations) = (key_id.to_owned(), Default::default());
        Ok(Response::new(EncryptResponse { ciphertext, key_id, annotations }))
    }

    async fn decrypt(
        &self,
        request: Request<DecryptRequest>,
    ) -> Result<Response<DecryptResponse>, Status> {
        let plaintext = match self.defect {
            Defect::MayNotDecrypt => return Err(Status::permission_denied("may not decrypt")),
            Defect::OtherPlaintext => Bytes::from_static(&[7; 32]),
            _ => xor(&request.into_inner().ciphertext),
        };
        Ok(Response::new(DecryptResponse { plaintext }))
    }
}

async fn tried(defect: Defect, role: Role, canary: Option<&Value>) -> KeyReport {
    let plugin = run(defect);
    prove_socket(&plugin.endpoint, role, canary, Duration::from_secs(5)).await
}

fn failed(report: &KeyReport) -> Vec<&'static str> {
    let bad = |step: &&Step| !matches!(step.result, Outcome::Ok | Outcome::Warning);
    report.steps.iter().filter(bad).map(|step| step.check).collect()
}

#[tokio::test]
async fn a_sound_plugin_may_go_live_and_gets_a_canary() {
    let report = tried(Defect::None, Role::Write, None).await;
    assert_eq!(report.verdict, Verdict::Ready, "{report:?}");
    let canary = report.canary.unwrap();
    let again = tried(Defect::None, Role::Write, Some(&canary)).await;
    assert_eq!(again.verdict, Verdict::Ready, "{again:?}");
    assert_eq!(again.canary, None);
    assert!(again.steps.iter().all(|step| step.result == Outcome::Ok), "{again:?}");
}

#[tokio::test]
async fn a_canary_of_an_older_version_is_read_and_a_new_one_is_made() {
    let mut canary = tried(Defect::None, Role::Write, None).await.canary.unwrap();
    canary["keyId"] = "key/0".into();
    let report = tried(Defect::None, Role::Write, Some(&canary)).await;
    assert_eq!(report.verdict, Verdict::Ready, "{report:?}");
    assert_eq!(report.canary.unwrap()["keyId"], "key/1");
    let report = tried(Defect::MayNotDecrypt, Role::Write, Some(&canary)).await;
    assert_eq!((report.verdict, report.canary), (Verdict::Refused, None));
}

#[tokio::test]
async fn every_defect_is_noticed_at_its_step() {
    for (defect, step) in [
        (Defect::Clear, "encrypt"),
        (Defect::MayNotEncrypt, "encrypt"),
        (Defect::MayNotDecrypt, "decrypt"),
        (Defect::OtherPlaintext, "decrypt"),
        (Defect::Moves, "key_id"),
        (Defect::Version, "status"),
    ] {
        let report = tried(defect, Role::Write, None).await;
        assert_eq!(report.verdict, Verdict::Refused, "{report:?}");
        assert_eq!(failed(&report), [step], "{report:?}");
    }
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_then_unknown() {
    let report = tried(Defect::LateBy(3), Role::Write, None).await;
    assert_eq!(report.verdict, Verdict::Ready, "{report:?}");
    let plugin = run(Defect::LateBy(u64::MAX));
    let time = Duration::from_millis(700);
    let report = prove_socket(&plugin.endpoint, Role::Write, None, time).await;
    assert_eq!((report.verdict, failed(&report)), (Verdict::Unknown, vec!["status"]));
    assert!(report.steps[0].detail.contains("the KMS is away"), "{report:?}");
    // That they differ for ever is no rotation, but only time tells.
    let plugin = run(Defect::OtherKeyId);
    let report = prove_socket(&plugin.endpoint, Role::Write, None, time).await;
    assert_eq!((report.verdict, failed(&report)), (Verdict::Unknown, vec!["encrypt"]));
    let nobody: Endpoint = "/nowhere/kms.sock".parse().unwrap();
    let report = prove_socket(&nobody, Role::Write, None, time).await;
    assert_eq!(report.verdict, Verdict::Unknown);
}

#[tokio::test]
async fn a_reader_needs_its_canary_and_no_right_to_encrypt() {
    let canary = tried(Defect::None, Role::Read, None).await.canary.unwrap();
    let report = tried(Defect::MayNotEncrypt, Role::Read, Some(&canary)).await;
    assert_eq!(report.verdict, Verdict::Ready, "{report:?}");
    let report = tried(Defect::MayNotEncrypt, Role::Write, Some(&canary)).await;
    assert_eq!(report.verdict, Verdict::Refused, "{report:?}");
    for defect in [Defect::MayNotDecrypt, Defect::OtherPlaintext] {
        let report = tried(defect, Role::Read, Some(&canary)).await;
        assert_eq!((report.verdict, failed(&report)), (Verdict::Refused, vec!["canary"]));
    }
    let broken = json!({"keyId": "x"});
    let report = tried(Defect::None, Role::Read, Some(&broken)).await;
    assert_eq!(report.verdict, Verdict::Refused, "{report:?}");
}

#[test]
fn the_hash_follows_settings_and_content_and_nothing_else() {
    let secret = |text: &str| Secret::new(text.as_bytes().to_vec());
    let subject = |kek: Value, files: &[(&str, &str)]| Subject {
        id: 1,
        vendor: "vault".into(),
        role: Role::Read,
        kek,
        settings: Value::Null,
        credentials: Value::Null,
        files: files.iter().map(|(name, text)| ((*name).into(), secret(text))).collect(),
        canary: None,
    };
    let hash = |kek, files: &[(&str, &str)]| subject(kek, files).config_hash();
    let base = hash(json!({"a": 1, "b": 2}), &[("x", "1"), ("y", "2")]);
    assert_eq!(base, hash(json!({"b": 2, "a": 1}), &[("y", "2"), ("x", "1")]));
    assert_eq!(base.len(), "sha256:".len() + 64);
    for other in [
        hash(json!({"a": 1, "b": 3}), &[("x", "1"), ("y", "2")]),
        hash(json!({"a": 1, "b": 2}), &[("x", "2"), ("y", "1")]),
        hash(json!({"a": 1, "b": 2}), &[("x", "1y"), ("", "2")]),
        hash(json!({"a": 1, "b": 2}), &[("x", "1")]),
    ] {
        assert_ne!(base, other);
    }
    let mut promoted = subject(json!({"a": 1, "b": 2}), &[("x", "1"), ("y", "2")]);
    promoted.role = Role::Write;
    assert_eq!(base, promoted.config_hash());
}
