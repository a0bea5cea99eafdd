//! Well-formed requests with hostile contents: what a forged etcd value can bring.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use sidekey_core::proto::v2::DecryptResponse;

use super::encrypt::{ANNOTATIONS_MAX, CIPHERTEXT_MAX};
use super::status::KEY_ID_MAX;
use super::wire::DECRYPT;
use crate::check::Check;
use crate::random;
use crate::raw::{RawAnswer, whole};
use crate::session::Wrapped;
use crate::trial::{Stop, Trial, broken, forge, refuses};

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "hostile.ciphertext-empty",
        promise: "Decrypt of an empty ciphertext is refused",
        why: "A plugin that slices before it measures ends here, and with it all reads.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext_empty(trial)),
    },
    Check {
        id: "hostile.ciphertext-short",
        promise: "Decrypt of 1 to 31 bytes is refused",
        why: "Shorter than nonce, tag or header: the classic place for a slice out of bounds.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext_short(trial)),
    },
    Check {
        id: "hostile.ciphertext-long",
        promise: "Decrypt of 1025 bytes and of 1 MiB is refused",
        why: "The protocol ends at 1024 bytes; what is longer is an attack on memory or backend.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext_long(trial)),
    },
    Check {
        id: "hostile.ciphertext-garbage",
        promise: "Decrypt of random bytes is refused",
        why: "A success means that the plugin does not authenticate what it decrypts.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext_garbage(trial)),
    },
    Check {
        id: "hostile.key-id-empty",
        promise: "Decrypt with an empty key_id is refused",
        why: "kube-apiserver never sends one, so it was forged; to fall back on a default key \
              is a guess.",
        needs: &[],
        judge: |trial| Box::pin(key_id_empty(trial)),
    },
    Check {
        id: "hostile.key-id-long",
        promise: "Decrypt with a key_id of more than 1024 bytes is refused",
        why: "The protocol ends at 1024 bytes; longer ones end up in logs, URLs and backend calls.",
        needs: &[],
        judge: |trial| Box::pin(key_id_long(trial)),
    },
    Check {
        id: "hostile.key-id-unknown",
        promise: "Decrypt with a key_id that was never issued is refused",
        why: "A forged key_id that is silently accepted hides which key the data really needs, \
              until that key is deleted.",
        needs: &[],
        judge: |trial| Box::pin(key_id_unknown(trial)),
    },
    Check {
        id: "hostile.key-id-prefixed",
        promise: "A key_id with a sidekey/… prefix is refused or decrypts rightly",
        why: "A shim in front of the plugin may put a prefix before its key_ids; after the shim \
              is gone, or when the prefix is forged, no wrong plaintext and no crash may follow.",
        needs: &[],
        judge: |trial| Box::pin(key_id_prefixed(trial)),
    },
    Check {
        id: "hostile.annotation-keys",
        promise: "Annotations with absurd keys are refused or ignored",
        why: "Annotations come from etcd and can be forged: a plugin must not end over their keys.",
        needs: &[],
        judge: |trial| Box::pin(annotation_keys(trial)),
    },
    Check {
        id: "hostile.annotation-size",
        promise: "Huge values and 65,536 annotations are refused or ignored",
        why: "Annotations come from etcd and can be forged: their size must not bring the plugin \
              down.",
        needs: &[],
        judge: |trial| Box::pin(annotation_size(trial)),
    },
];

/// Every forgery must be refused, and the plugin must live.
async fn all_refused<M>(trial: &Trial, forgeries: M) -> Result<String, Stop>
where
    M: FnOnce(&Wrapped) -> Vec<(String, Wrapped)>,
{
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    for (what, forged) in forgeries(&wrapped) {
        refuses(&session, &forged, &plaintext, &what).await?;
    }
    trial.lives(&session, "hostile input").await?;
    Ok(String::new())
}

/// Every forgery must be refused or decrypt to the true plaintext, and the plugin must live.
async fn none_wrong<M>(trial: &Trial, forgeries: M) -> Result<String, Stop>
where
    M: FnOnce(&Wrapped) -> Vec<(String, Wrapped)>,
{
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    for (what, forged) in forgeries(&wrapped) {
        forge(&session, &forged, &plaintext, &what).await?;
    }
    trial.lives(&session, "hostile input").await?;
    Ok(String::new())
}

fn ciphertexts(wrapped: &Wrapped, lengths: &[usize]) -> Vec<(String, Wrapped)> {
    let garbage =
        |&len: &usize| (format!("{len} random bytes"), wrapped.with_ciphertext(random::bytes(len)));
    lengths.iter().map(garbage).collect()
}

async fn ciphertext_empty(trial: &Trial) -> Result<String, Stop> {
    let empty = |wrapped: &Wrapped| {
        vec![("an empty ciphertext".to_owned(), wrapped.with_ciphertext(Bytes::new()))]
    };
    all_refused(trial, empty).await
}

async fn ciphertext_short(trial: &Trial) -> Result<String, Stop> {
    let lengths = [1, 2, 4, 8, 11, 12, 13, 15, 16, 17, 27, 28, 29, 31];
    all_refused(trial, |wrapped| ciphertexts(wrapped, &lengths)).await
}

async fn ciphertext_long(trial: &Trial) -> Result<String, Stop> {
    let lengths = [CIPHERTEXT_MAX + 1, 64 * 1024, 1024 * 1024];
    all_refused(trial, |wrapped| ciphertexts(wrapped, &lengths)).await
}

async fn ciphertext_garbage(trial: &Trial) -> Result<String, Stop> {
    let garbage = |wrapped: &Wrapped| {
        let same = wrapped.ciphertext.len();
        let mut forgeries = ciphertexts(wrapped, &[32, 60, 100, 256, 512, CIPHERTEXT_MAX, same]);
        forgeries.push(("zeros".to_owned(), wrapped.with_ciphertext(vec![0; same])));
        forgeries
    };
    all_refused(trial, garbage).await
}

async fn key_id_empty(trial: &Trial) -> Result<String, Stop> {
    let empty = |wrapped: &Wrapped| vec![("an empty key_id".to_owned(), wrapped.with_key_id(""))];
    all_refused(trial, empty).await
}

async fn key_id_long(trial: &Trial) -> Result<String, Stop> {
    let long = |wrapped: &Wrapped| {
        let of = |len: usize| {
            let what = format!("a key_id of {len} bytes");
            (what, wrapped.with_key_id("k".repeat(len)))
        };
        vec![of(KEY_ID_MAX + 1), of(64 * 1024), of(1024 * 1024)]
    };
    all_refused(trial, long).await
}

async fn key_id_unknown(trial: &Trial) -> Result<String, Stop> {
    let unknown = |wrapped: &Wrapped| {
        let uid = random::uid();
        let forged = ["0", "1", "default", "../../../../etc/passwd", "%s%n{}$(id)", "\u{0}", &uid];
        let name = |key_id: &&str| {
            (format!("the unknown key_id {key_id:?}"), wrapped.with_key_id(*key_id))
        };
        forged.iter().map(name).collect()
    };
    all_refused(trial, unknown).await
}

async fn key_id_prefixed(trial: &Trial) -> Result<String, Stop> {
    let prefixed = |wrapped: &Wrapped| {
        let id = &wrapped.key_id;
        let forged = [
            format!("sidekey/999-deadbeef/{id}"),
            format!("sidekey/1-00/{id}"),
            format!("sidekey/99999999999999999999999-deadbeef/{id}"),
            format!("sidekey/999-deadbeef/sidekey/999-deadbeef/{id}"),
            format!("sidekey/-/{id}"),
            format!("sidekey//{id}"),
            format!("sidekey/9é9-\u{10ffff}/{id}"),
            "sidekey/999-deadbeef/".to_owned(),
            "sidekey/999-deadbeef".to_owned(),
            "sidekey/999".to_owned(),
            "sidekey//".to_owned(),
            "sidekey/".to_owned(),
            "sidekey".to_owned(),
        ];
        let name = |key_id: String| {
            (format!("the prefixed key_id {key_id:?}"), wrapped.with_key_id(key_id))
        };
        forged.into_iter().map(name).collect()
    };
    none_wrong(trial, prefixed).await
}

async fn annotation_keys(trial: &Trial) -> Result<String, Stop> {
    let absurd = |wrapped: &Wrapped| {
        let long = "k".repeat(64 * 1024);
        let keys = ["", ".", "..", "plain", "UPPER.Case", "a..b", "a b.c\n", "\u{0}.\u{0}", &long];
        let add = |key: &&str| {
            let what = format!("an annotation key of {} bytes", key.len());
            let added = [((*key).to_owned(), Bytes::from_static(b"x"))];
            (what, with_more(wrapped, added))
        };
        keys.iter().map(add).collect()
    };
    none_wrong(trial, absurd).await
}

async fn annotation_size(trial: &Trial) -> Result<String, Stop> {
    let huge = |wrapped: &Wrapped| {
        let mut forgeries: Vec<_> = [ANNOTATIONS_MAX + 1, 1024 * 1024]
            .map(|len| {
                let added = [("huge.conformance.example".to_owned(), vec![0; len].into())];
                (format!("an annotation of {len} bytes"), with_more(wrapped, added))
            })
            .into();
        let grown = wrapped.annotations.iter().map(|(key, value)| {
            (key.clone(), [value.as_ref(), &[0; ANNOTATIONS_MAX]].concat().into())
        });
        forgeries.push(("each annotation 32 KiB longer".to_owned(), with_more(wrapped, grown)));
        forgeries
    };
    none_wrong(trial, huge).await?;
    many_annotations(trial).await
}

/// Written to the wire by hand: no client of ours should have to hold such a map.
async fn many_annotations(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let mut message = wrapped.request().encode_to_vec();
    for n in 0..65_536 {
        // Field 4 of the request: an entry with the key in its field 1 and no value.
        let key = format!("a{n:05}.conformance.example");
        let length = key.len() as u8;
        message.extend_from_slice(&[0x22, length + 2, 0x0a, length]);
        message.extend_from_slice(key.as_bytes());
    }
    let what = "65,536 annotations";
    match trial.connect_raw().await?.post(DECRYPT, whole(&message)).await {
        RawAnswer::Error => {}
        RawAnswer::Silence => return Err(broken(format!("{what}: not answered in time"))),
        RawAnswer::Success(body) => {
            let answer = body.get(5..).and_then(|message| DecryptResponse::decode(message).ok());
            if answer.is_none_or(|answer| answer.plaintext != plaintext) {
                return Err(broken(format!("{what}: Decrypt succeeded with wrong bytes")));
            }
        }
    }
    trial.lives(&session, what).await?;
    Ok(String::new())
}

fn with_more(wrapped: &Wrapped, more: impl IntoIterator<Item = (String, Bytes)>) -> Wrapped {
    let mut annotations: BTreeMap<_, _> = wrapped.annotations.clone();
    annotations.extend(more);
    wrapped.with_annotations(annotations)
}
