//! Decrypt: what was wrapped once must unwrap at any time, for anybody who may ask.

use crate::check::Check;
use crate::random;
use crate::trial::{SEED, Stop, Trial, WIDTH, broken, each, unwraps};

/// How often one ciphertext is unwrapped.
const TIMES: usize = 80;

/// How many Decrypts a starting API server may send at once.
const STORM: usize = 64;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "decrypt.repeat",
        promise: "One ciphertext can be decrypted any number of times",
        why: "Every start of every kube-apiserver decrypts the same stored keys again, for years.",
        needs: &[],
        judge: |trial| Box::pin(repeat(trial)),
    },
    Check {
        id: "decrypt.second-connection",
        promise: "What one connection encrypted another one decrypts",
        why: "Several API servers, and several stanzas of one, have a connection each and read \
              each other's writes.",
        needs: &[],
        judge: |trial| Box::pin(second_connection(trial)),
    },
    Check {
        id: "decrypt.reconnect",
        promise: "What a connection encrypted decrypts after that one has closed",
        why: "Connections end with each restart of kube-apiserver; what it wrote must not.",
        needs: &[],
        judge: |trial| Box::pin(reconnect(trial)),
    },
    Check {
        id: "decrypt.concurrent-distinct",
        promise: "64 different ciphertexts at once give each its own plaintext",
        why: "A starting kube-apiserver lists many resources at once; mixed-up answers make \
              objects unreadable, or worse, readable with the wrong key.",
        needs: &[],
        judge: |trial| Box::pin(concurrent_distinct(trial)),
    },
    Check {
        id: "decrypt.concurrent-equal",
        promise: "One ciphertext asked for 64 times at once is answered 64 times",
        why: "All requests that wait for the same stored key ask at the same moment.",
        needs: &[],
        judge: |trial| Box::pin(concurrent_equal(trial)),
    },
];

async fn repeat(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let calls = each(0..TIMES, WIDTH / 4, |_| {
        let (session, plaintext, wrapped) = (session.clone(), plaintext.clone(), wrapped.clone());
        async move { unwraps(&session, &wrapped, &plaintext).await }
    });
    for (time, ended) in calls.await.into_iter().enumerate() {
        if let Err(Stop::Broken(how)) = ended {
            return Err(broken(format!("time {}: {how}", time + 1)));
        }
    }
    Ok(format!("{TIMES} times"))
}

async fn second_connection(trial: &Trial) -> Result<String, Stop> {
    let (first, plaintext, wrapped) = trial.wrapped().await?;
    let second = trial.connect().await?;
    unwraps(&second, &wrapped, &plaintext).await?;
    // The first one has been open until here.
    drop(first);
    Ok(String::new())
}

async fn reconnect(trial: &Trial) -> Result<String, Stop> {
    let (first, plaintext, wrapped) = trial.wrapped().await?;
    drop(first);
    let second = trial.connect().await?;
    unwraps(&second, &wrapped, &plaintext).await?;
    Ok(String::new())
}

async fn concurrent_distinct(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let made = each(0..STORM, WIDTH, |_| {
        let (session, plaintext) = (session.clone(), random::bytes(SEED));
        async move { session.encrypt(&plaintext).await.map(|wrapped| (plaintext, wrapped)) }
    });
    let made = made.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let calls = each(made, STORM, |(plaintext, wrapped)| {
        let session = session.clone();
        async move { unwraps(&session, &wrapped, &plaintext).await }
    });
    calls.await.into_iter().collect::<Result<(), Stop>>()?;
    Ok(String::new())
}

async fn concurrent_equal(trial: &Trial) -> Result<String, Stop> {
    let (session, plaintext, wrapped) = trial.wrapped().await?;
    let calls = each(0..STORM, STORM, |_| {
        let (session, plaintext, wrapped) = (session.clone(), plaintext.clone(), wrapped.clone());
        async move { unwraps(&session, &wrapped, &plaintext).await }
    });
    calls.await.into_iter().collect::<Result<(), Stop>>()?;
    Ok(String::new())
}
