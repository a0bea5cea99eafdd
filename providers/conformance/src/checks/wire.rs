//! What is no KMS v2 request at all, but reaches the same socket.

use bytes::Bytes;

use crate::check::Check;
use crate::random;
use crate::raw::{RawAnswer, framed, whole};
use crate::trial::{Stop, Trial, broken};

/// gRPC's own limit for a message, which kube-apiserver does not change.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "wire.protobuf",
        promise: "Messages that are not valid protobuf are refused",
        why: "A plugin that guesses at a broken message acts on something that nobody asked for.",
        needs: &[],
        judge: |trial| Box::pin(protobuf(trial)),
    },
    Check {
        id: "wire.oversize",
        promise: "A message of more than 4 MiB is refused",
        why: "Without a limit one caller can take all memory of the node's control plane.",
        needs: &[],
        judge: |trial| Box::pin(oversize(trial)),
    },
    Check {
        id: "wire.unknown-method",
        promise: "An unknown method is an error",
        why: "A success would hide from a newer kube-apiserver that its question was not answered.",
        needs: &[],
        judge: |trial| Box::pin(unknown_method(trial)),
    },
    Check {
        id: "wire.unknown-service",
        promise: "An unknown service is an error",
        why: "Callers probe for other services (reflection, health) and must learn that there \
              are none.",
        needs: &[],
        judge: |trial| Box::pin(unknown_service(trial)),
    },
];

pub(crate) const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";
const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";

/// Posts each body; none may succeed, and the plugin must live.
async fn all_refused(trial: &Trial, posts: Vec<(&str, &str, Bytes)>) -> Result<String, Stop> {
    let session = trial.connect().await?;
    for (what, path, body) in posts {
        let raw = trial.connect_raw().await?;
        match raw.post(path, body).await {
            RawAnswer::Error => {}
            RawAnswer::Success(_) => return Err(broken(format!("{what}: answered with success"))),
            RawAnswer::Silence => return Err(broken(format!("{what}: not answered in time"))),
        }
        let after = |fault| broken(format!("after {what}: {fault}"));
        session.status().await.map_err(after)?;
    }
    trial.lives(&session, "messages that are none").await?;
    Ok(String::new())
}

async fn protobuf(trial: &Trial) -> Result<String, Stop> {
    // Field 1 with 16 bytes announced and 2 there; field 2 (a string) that is not UTF-8; a tag
    // of wire type 7, which does not exist; a length without end. A field of another type than
    // expected is not among them: parsers take it for a field that they do not know.
    let cut = whole(&[0x0a, 16, 1, 2]);
    let not_utf8 = whole(&[0x0a, 1, 1, 0x12, 2, 0xff, 0xfe]);
    let wire_type = whole(&[0x0f]);
    let endless = whole(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let random = whole(&[&[0xff; 16][..], &random::bytes(256)].concat());
    let posts = vec![
        ("a field cut short", ENCRYPT, cut.clone()),
        ("a field cut short", DECRYPT, cut),
        ("a uid that is not UTF-8", ENCRYPT, not_utf8.clone()),
        ("a uid that is not UTF-8", DECRYPT, not_utf8),
        ("an impossible wire type", DECRYPT, wire_type),
        ("an endless length", DECRYPT, endless),
        ("random bytes", ENCRYPT, random),
    ];
    all_refused(trial, posts).await
}

async fn oversize(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let plaintext = vec![0x5a; MESSAGE_MAX + 1];
    if session.encrypt(&plaintext).await.is_ok() {
        return Err(broken("Encrypt accepted a plaintext of more than 4 MiB"));
    }
    let session = trial.connect().await?;
    trial.lives(&session, "a message of more than 4 MiB").await?;
    let announced = framed(u32::MAX, &random::bytes(64));
    all_refused(trial, vec![("4 GiB announced and 64 bytes sent", DECRYPT, announced)]).await
}

async fn unknown_method(trial: &Trial) -> Result<String, Stop> {
    let path = "/v2.KeyManagementService/Conformance";
    all_refused(trial, vec![("an unknown method", path, framed(0, &[]))]).await
}

async fn unknown_service(trial: &Trial) -> Result<String, Stop> {
    let posts = vec![
        ("an unknown service", "/conformance.Unknown/Status", framed(0, &[])),
        ("no service at all", "/", framed(0, &[])),
    ];
    all_refused(trial, posts).await
}
