//! Encrypt: what comes back must be storable, secret and decryptable.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as STANDARD_NO_PAD;
use tonic::Code;

use super::status::KEY_ID_MAX;
use crate::check::Check;
use crate::random;
use crate::session::Session;
use crate::trial::{SEED, Stop, Trial, broken, each, unwraps};

/// Longest ciphertext that kube-apiserver stores and reads, in bytes.
pub(crate) const CIPHERTEXT_MAX: usize = 1024;

/// Largest sum of annotation keys and values that kube-apiserver stores and reads, in bytes.
pub(crate) const ANNOTATIONS_MAX: usize = 32 * 1024;

/// How many calls are under way at once when agreement is looked at under load.
const CALLERS: usize = 32;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "encrypt.key-id",
        promise: "Encrypt uses the key_id that Status announces, also under load",
        why: "kube-apiserver discards a wrapped key whose key_id is not the one that Status \
              announced, and counts the provider as unhealthy.",
        needs: &[],
        judge: |trial| Box::pin(key_id(trial)),
    },
    Check {
        id: "encrypt.round-trip",
        promise: "Any 32 bytes come back from Encrypt and Decrypt unchanged",
        why: "The 32 bytes are the key to everything that is written after; a byte that is \
              trimmed, padded or recoded loses all of it.",
        needs: &[],
        judge: |trial| Box::pin(round_trip(trial)),
    },
    Check {
        id: "encrypt.ciphertext-size",
        promise: "32 bytes are wrapped into 1 to 1024 bytes",
        why: "kube-apiserver refuses an empty or longer ciphertext, when it is made and at every \
              read from etcd.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext_size(trial)),
    },
    Check {
        id: "encrypt.confidential",
        promise: "The plaintext is nowhere in what Encrypt returns",
        why: "Ciphertext, key_id and annotations are stored in etcd in clear; a plaintext in one \
              of them opens all data to whoever has a backup.",
        needs: &[],
        judge: |trial| Box::pin(confidential(trial)),
    },
    Check {
        id: "encrypt.annotation-keys",
        promise: "Annotation keys are fully qualified domain names",
        why: "kube-apiserver refuses other keys, when they are made and at every read from etcd.",
        needs: &[],
        judge: |trial| Box::pin(annotation_keys(trial)),
    },
    Check {
        id: "encrypt.annotation-size",
        promise: "Annotation keys and values have at most 32 KiB together",
        why: "kube-apiserver refuses more; and all of it is stored again with every object.",
        needs: &[],
        judge: |trial| Box::pin(annotation_size(trial)),
    },
    Check {
        id: "encrypt.fresh",
        promise: "The same plaintext is never wrapped into the same ciphertext",
        why: "Equal ciphertexts show that two plaintexts are equal and are the mark of a repeated \
              nonce, which AES-GCM does not survive.",
        needs: &[],
        judge: |trial| Box::pin(fresh(trial)),
    },
    Check {
        id: "encrypt.sizes",
        promise: "Plaintexts of 1 to 4096 bytes come back unchanged or are refused",
        why: "Other callers wrap other sizes; one that is cut off in silence is lost for good.",
        needs: &[],
        judge: |trial| Box::pin(sizes(trial)),
    },
    Check {
        id: "encrypt.empty",
        promise: "An empty plaintext comes back empty or is an InvalidArgument",
        why: "kube-apiserver never sends one, so whoever does has made a mistake and must be told \
              so; the plugin must not end over it.",
        needs: &[],
        judge: |trial| Box::pin(empty(trial)),
    },
];

/// A rotation may fall between two calls: the key_id before or after it will do, and a
/// disagreement counts only if it stays.
async fn agrees(session: &Session) -> Result<(), Stop> {
    let mut disagreement = String::new();
    for _ in 0..3 {
        let before = session.status().await?.key_id;
        let wrapped = session.encrypt(&random::bytes(SEED)).await?.key_id;
        let after = session.status().await?.key_id;
        if wrapped == before || wrapped == after {
            return Ok(());
        }
        disagreement =
            format!("Status announces {} but Encrypt used {}", cut(&after), cut(&wrapped));
    }
    Err(broken(disagreement))
}

/// A key_id for a message, in bounded length.
pub(crate) fn cut(key_id: &str) -> String {
    if key_id.len() <= KEY_ID_MAX / 8 {
        return format!("{key_id:?}");
    }
    let head: String = key_id.chars().take(32).collect();
    format!("{head:?}… ({} bytes)", key_id.len())
}

async fn key_id(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    agrees(&session).await?;
    let callers = each(0..CALLERS, CALLERS, |_| {
        let session = session.clone();
        async move { agrees(&session).await }
    });
    callers.await.into_iter().collect::<Result<(), Stop>>()?;
    Ok(format!("alone and with {CALLERS} callers at once"))
}

async fn round_trip(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let mut ends_in_newline = random::bytes(SEED);
    ends_in_newline[SEED - 1] = b'\n';
    let samples = [
        ("random bytes", random::bytes(SEED)),
        ("only zeros", vec![0; SEED]),
        ("only 0xff", vec![0xff; SEED]),
        ("only spaces", vec![b' '; SEED]),
        ("a final newline", ends_in_newline),
        ("digits", b"01234567890123456789012345678901".to_vec()),
        (
            "quotes and backslashes",
            b"\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\\"\\".to_vec(),
        ),
    ];
    for (what, plaintext) in &samples {
        let wrapped = session.encrypt(plaintext).await?;
        unwraps(&session, &wrapped, plaintext).await.map_err(|stop| named(what, stop))?;
    }
    Ok(format!("{} plaintexts", samples.len()))
}

fn named(what: &str, stop: Stop) -> Stop {
    match stop {
        Stop::Broken(how) => broken(format!("{what}: {how}")),
        Stop::NotRun(reason) => Stop::NotRun(reason),
    }
}

async fn ciphertext_size(trial: &Trial) -> Result<String, Stop> {
    let (_, _, wrapped) = trial.wrapped().await?;
    match wrapped.ciphertext.len() {
        len @ 1..=CIPHERTEXT_MAX => Ok(format!("{len} bytes")),
        len => Err(broken(format!("the ciphertext has {len} bytes"))),
    }
}

async fn confidential(trial: &Trial) -> Result<String, Stop> {
    let (_, plaintext, wrapped) = trial.wrapped().await?;
    let reversed: Vec<u8> = plaintext.iter().rev().copied().collect();
    let shapes = [
        ("", plaintext.clone()),
        (" in hex", hex(&plaintext)),
        (" in base64", STANDARD_NO_PAD.encode(&plaintext).into_bytes()),
        (" in reverse", reversed),
    ];
    let mut places = vec![
        ("the ciphertext".to_owned(), wrapped.ciphertext.to_vec()),
        ("the key_id".to_owned(), wrapped.key_id.clone().into_bytes()),
    ];
    for (key, value) in &wrapped.annotations {
        places.push((format!("annotation {key:?}"), value.to_vec()));
    }
    for (place, bytes) in &places {
        let lower = bytes.to_ascii_lowercase();
        for (shape, secret) in &shapes {
            let within = |text: &[u8]| text.windows(secret.len()).any(|part| part == secret);
            if within(bytes) || (*shape == " in hex" && within(&lower)) {
                return Err(broken(format!("{place} contains the plaintext{shape}")));
            }
        }
    }
    Ok(String::new())
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

async fn annotation_keys(trial: &Trial) -> Result<String, Stop> {
    let (_, _, wrapped) = trial.wrapped().await?;
    match wrapped.annotations.keys().find(|key| !is_qualified(key)) {
        Some(key) => Err(broken(format!("{key:?} is not a fully qualified domain name"))),
        None => Ok(format!("{} annotations", wrapped.annotations.len())),
    }
}

/// What kube-apiserver's `IsFullyQualifiedDomainName` accepts.
fn is_qualified(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|&b| plain(b) || b == b'-')
            && bytes.first().copied().is_some_and(plain)
            && bytes.last().copied().is_some_and(plain)
    };
    name.len() <= 253 && name.split('.').count() >= 2 && name.split('.').all(label)
}

async fn annotation_size(trial: &Trial) -> Result<String, Stop> {
    let (_, _, wrapped) = trial.wrapped().await?;
    let size: usize = wrapped.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size <= ANNOTATIONS_MAX {
        return Ok(format!("{size} bytes"));
    }
    Err(broken(format!("the annotations have {size} bytes together")))
}

async fn fresh(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, first) = trial.wrapped().await?;
    let mut seen = vec![first.ciphertext];
    for _ in 0..3 {
        let next = session.encrypt(&plaintext).await?.ciphertext;
        if seen.contains(&next) {
            return Err(broken("two encryptions of one plaintext gave the same ciphertext"));
        }
        seen.push(next);
    }
    Ok(format!("{} different ciphertexts", seen.len()))
}

async fn sizes(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let mut taken = Vec::new();
    for size in [1, 2, 15, 16, 17, 31, 33, 64, 256, 512, 1024, 4096] {
        let plaintext = random::bytes(size);
        match session.encrypt(&plaintext).await {
            Ok(wrapped) => {
                let what = format!("{size} bytes");
                unwraps(&session, &wrapped, &plaintext).await.map_err(|stop| named(&what, stop))?;
                taken.push(size.to_string());
            }
            Err(fault) if fault.code().is_some() => {}
            Err(fault) => return Err(broken(format!("{size} bytes: {fault}"))),
        }
    }
    trial.lives(&session, "plaintexts of other sizes").await?;
    Ok(format!("accepts {}", taken.join(", ")))
}

async fn empty(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let seen = match session.encrypt(&[]).await {
        Ok(wrapped) => {
            unwraps(&session, &wrapped, &[]).await?;
            "accepts it"
        }
        Err(fault) if fault.code() == Some(Code::InvalidArgument) => "refuses it",
        Err(fault) => return Err(broken(format!("neither accepted nor InvalidArgument: {fault}"))),
    };
    trial.lives(&session, "an empty plaintext").await?;
    Ok(seen.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_keys_are_judged_as_kube_apiserver_does() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long_name = format!("{}example", "a.".repeat(130));
        for good in ["a.b", "version.kms.example.com", "1.2", "a-b.c-d", "kms.example.com."] {
            assert!(is_qualified(good), "{good}");
        }
        let bad = ["", ".", "version", "A.b", "a_b.c", "-a.b", "a-.b", "a..b", "a.b/c", "a.b.."];
        for bad in bad.into_iter().chain([long_label.as_str(), long_name.as_str()]) {
            assert!(!is_qualified(bad), "{bad}");
        }
    }
}
