//! Stored values with one thing changed: what somebody can do who writes to etcd.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::check::Check;
use crate::session::{Session, Wrapped};
use crate::trial::{Reply, Stop, Trial, WIDTH, each, forge, refuses};

/// Most places that are changed in one annotation value.
const PLACES: usize = 256;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "mutate.ciphertext",
        promise: "A ciphertext with any one byte changed never gives another plaintext",
        why: "kube-apiserver would take the wrong plaintext for the data key: whoever writes to \
              etcd could choose what it decrypts with.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext(trial)),
    },
    Check {
        id: "mutate.ciphertext-length",
        promise: "A ciphertext cut short or drawn out never gives another plaintext",
        why: "Torn writes and truncated backups are cut at the end; the plugin must not make \
              something of them.",
        needs: &[],
        judge: |trial| Box::pin(ciphertext_length(trial)),
    },
    Check {
        id: "mutate.key-id",
        promise: "A key_id with any one character changed is refused",
        why: "key_id is stored without protection. A plugin that accepts a key_id it never \
              issued lets a forger steer which key is used and hides which keys are still needed.",
        needs: &[],
        judge: |trial| Box::pin(key_id(trial)),
    },
    Check {
        id: "mutate.annotation-value",
        promise: "A changed annotation value never gives another plaintext",
        why: "Annotations are stored without protection; what the plugin takes from them must be \
              authenticated.",
        needs: &[],
        judge: |trial| Box::pin(annotation_value(trial)),
    },
    Check {
        id: "mutate.annotation-removed",
        promise: "Missing annotations never give another plaintext",
        why: "Whoever can change annotations can drop them too; defaults in their place must not \
              lead to a wrong key.",
        needs: &[],
        judge: |trial| Box::pin(annotation_removed(trial)),
    },
];

/// Sends them all; the number that gave the true plaintext all the same.
async fn never_another(
    session: &Session,
    plaintext: &[u8],
    forgeries: Vec<(String, Wrapped)>,
) -> Result<usize, Stop> {
    let replies = each(forgeries, WIDTH, |(what, forged)| {
        let (session, plaintext) = (session.clone(), plaintext.to_vec());
        async move { forge(&session, &forged, &plaintext, &what).await }
    });
    let replies = replies.await.into_iter().collect::<Result<Vec<Reply>, Stop>>()?;
    Ok(replies.iter().filter(|reply| matches!(reply, Reply::Right)).count())
}

fn tally(all: usize, right: usize) -> String {
    match right {
        0 => format!("{all} forgeries, all refused"),
        right => format!("{all} forgeries, {right} of which made no difference"),
    }
}

/// The same bytes with one bit of the byte at `place` turned.
fn flipped(bytes: &[u8], place: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    bytes[place] ^= 1 << (place % 8);
    bytes.into()
}

async fn ciphertext(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let forge = |place| {
        let forged = wrapped.with_ciphertext(flipped(&wrapped.ciphertext, place));
        (format!("byte {place} changed"), forged)
    };
    let forgeries: Vec<_> = (0..wrapped.ciphertext.len()).map(forge).collect();
    let all = forgeries.len();
    let right = never_another(&session, &plaintext, forgeries).await?;
    trial.lives(&session, "changed ciphertexts").await?;
    Ok(tally(all, right))
}

async fn ciphertext_length(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let whole = &wrapped.ciphertext;
    let mut forgeries: Vec<_> = spread(whole.len(), PLACES)
        .filter(|&len| len > 0)
        .map(|len| (format!("cut to {len} bytes"), wrapped.with_ciphertext(whole.slice(..len))))
        .collect();
    for tail in [&[0_u8][..], &[0xff], &[0; 16], whole] {
        let longer = [whole, tail].concat();
        let what = format!("drawn out to {} bytes", longer.len());
        forgeries.push((what, wrapped.with_ciphertext(longer)));
    }
    let headless = whole.slice(whole.len().min(1)..);
    forgeries.push(("without its first byte".to_owned(), wrapped.with_ciphertext(headless)));
    let all = forgeries.len();
    let right = never_another(&session, &plaintext, forgeries).await?;
    trial.lives(&session, "resized ciphertexts").await?;
    Ok(tally(all, right))
}

async fn key_id(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let characters: Vec<char> = wrapped.key_id.chars().collect();
    // Neither a digit nor a letter: the next digit might name another version that exists.
    let changed = |place: usize| {
        let mut changed = characters.clone();
        changed[place] = if changed[place] == '~' { '!' } else { '~' };
        (format!("character {place} of key_id changed"), changed.into_iter().collect::<String>())
    };
    let mut forgeries: Vec<_> = (0..characters.len()).map(changed).collect();
    forgeries.push(("key_id with a character more".to_owned(), format!("{}~", wrapped.key_id)));
    let all = forgeries.len();
    let replies = each(forgeries, WIDTH, |(what, key_id)| {
        let (session, plaintext) = (session.clone(), plaintext.clone());
        let forged = wrapped.with_key_id(key_id);
        async move { refuses(&session, &forged, &plaintext, &what).await }
    });
    replies.await.into_iter().collect::<Result<(), Stop>>()?;
    trial.lives(&session, "changed key_ids").await?;
    Ok(tally(all, 0))
}

async fn annotation_value(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let mut forgeries = Vec::new();
    for (key, value) in &wrapped.annotations {
        let mut forge = |what: String, value: Bytes| {
            let mut annotations = wrapped.annotations.clone();
            annotations.insert(key.clone(), value);
            forgeries.push((what, wrapped.with_annotations(annotations)));
        };
        for place in spread(value.len(), PLACES) {
            forge(format!("byte {place} of annotation {key:?} changed"), flipped(value, place));
        }
        forge(format!("annotation {key:?} empty"), Bytes::new());
    }
    let all = forgeries.len();
    let right = never_another(&session, &plaintext, forgeries).await?;
    trial.lives(&session, "changed annotations").await?;
    Ok(if all == 0 { "no annotations to change".to_owned() } else { tally(all, right) })
}

async fn annotation_removed(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let mut forgeries: Vec<_> = wrapped
        .annotations
        .keys()
        .map(|key| {
            let mut annotations = wrapped.annotations.clone();
            annotations.remove(key);
            (format!("without annotation {key:?}"), wrapped.with_annotations(annotations))
        })
        .collect();
    if !forgeries.is_empty() {
        let none = wrapped.with_annotations(BTreeMap::new());
        forgeries.push(("without any annotation".to_owned(), none));
    }
    let all = forgeries.len();
    let right = never_another(&session, &plaintext, forgeries).await?;
    trial.lives(&session, "missing annotations").await?;
    Ok(if all == 0 { "no annotations to remove".to_owned() } else { tally(all, right) })
}

/// At most `most` of the numbers below `len`, the first and the last among them.
fn spread(len: usize, most: usize) -> impl Iterator<Item = usize> {
    let count = len.min(most);
    (0..count).map(move |n| if count < 2 { n } else { n * (len - 1) / (count - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_from_first_to_last() {
        assert_eq!(spread(0, 4).count(), 0);
        assert_eq!(spread(1, 4).collect::<Vec<_>>(), [0]);
        assert_eq!(spread(4, 4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 3, 6, 9]);
    }

    #[test]
    fn a_flip_changes_one_byte_and_nothing_else() {
        let bytes = [0_u8; 20];
        for place in 0..bytes.len() {
            let changed = flipped(&bytes, place);
            assert_eq!(changed.iter().filter(|byte| **byte != 0).count(), 1);
            assert_ne!(changed[place], 0);
        }
    }
}
