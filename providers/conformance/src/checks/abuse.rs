//! Callers that are slow, rude or gone: one of them must not hurt the others.

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tonic::metadata::AsciiMetadataValue;

use crate::check::Check;
use crate::random;
use crate::raw::framed;
use crate::trial::{Stop, Trial, WIDTH, broken, each};

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many rude callers hang on at once.
const RUDE: usize = 8;

/// How many connections come and go.
const CHURN: usize = 100;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "abuse.silent-connection",
        promise: "Connections that send nothing do not hold up others",
        why: "Probes and port scanners connect and say nothing; reads must go on beside them.",
        needs: &[],
        judge: |trial| Box::pin(silent_connection(trial)),
    },
    Check {
        id: "abuse.half-frame",
        promise: "Connections stuck in the middle of a frame do not hold up others",
        why: "A caller that is frozen or killed stops anywhere; reads must go on beside it.",
        needs: &[],
        judge: |trial| Box::pin(half_frame(trial)),
    },
    Check {
        id: "abuse.garbage-bytes",
        promise: "Bytes that are not HTTP/2 end their own connection only",
        why: "Probes speak HTTP/1.1 or TLS to anything that listens.",
        needs: &[],
        judge: |trial| Box::pin(garbage_bytes(trial)),
    },
    Check {
        id: "abuse.connection-churn",
        promise: "100 connections opened and dropped leave the plugin working",
        why: "A kube-apiserver in a crash loop does just that; leaked descriptors or permits \
              would lock it out for good.",
        needs: &[],
        judge: |trial| Box::pin(connection_churn(trial)),
    },
    Check {
        id: "abuse.deadlines",
        promise: "Deadlines of 1 ns, 10,000 years and nonsense leave it working",
        why: "grpc-timeout is the caller's text: an expired, endless or broken one must cost \
              that call alone.",
        needs: &[],
        judge: |trial| Box::pin(deadlines(trial)),
    },
    Check {
        id: "abuse.cancelled-calls",
        promise: "Calls cancelled half-way leave the plugin working",
        why: "kube-apiserver cancels a call when its own client goes away; locks and permits \
              must not go with it.",
        needs: &[],
        judge: |trial| Box::pin(cancelled_calls(trial)),
    },
];

async fn dial(trial: &Trial) -> Result<UnixStream, Stop> {
    let failed = |error| broken(format!("cannot connect: {error}"));
    trial.plugin.endpoint.connect().await.map_err(failed)
}

/// Connects and writes `bytes`. That the plugin hangs up early is its good right.
async fn write(trial: &Trial, bytes: &[u8]) -> Result<UnixStream, Stop> {
    let mut stream = dial(trial).await?;
    let _ = stream.write_all(bytes).await;
    Ok(stream)
}

fn beside(rude: &str, stop: Stop) -> Stop {
    match stop {
        Stop::Broken(how) => broken(format!("{rude}: {how}")),
        Stop::NotRun(reason) => Stop::NotRun(reason),
    }
}

async fn silent_connection(trial: &Trial) -> Result<String, Stop> {
    let mut held = Vec::new();
    for _ in 0..RUDE {
        held.push(dial(trial).await?);
    }
    trial.works().await.map_err(|stop| beside("beside silent connections", stop))?;
    Ok(format!("beside {} of them", held.len()))
}

async fn half_frame(trial: &Trial) -> Result<String, Stop> {
    // A SETTINGS frame that announces six bytes and sends three; a HEADERS frame without an
    // end; half a preface.
    let half_settings = [PREFACE, &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0]].concat();
    let half_headers =
        [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0, 0, 64, 1, 0, 0, 0, 0, 1, 0x83]].concat();
    let half_preface = &PREFACE[..10];
    let mut held = Vec::new();
    for rude in 0..RUDE {
        let part = [&half_settings[..], &half_headers, half_preface][rude % 3];
        held.push(write(trial, part).await?);
    }
    trial.works().await.map_err(|stop| beside("beside half-sent frames", stop))?;
    Ok(format!("beside {} of them", held.len()))
}

async fn garbage_bytes(trial: &Trial) -> Result<String, Stop> {
    let oversize_frame = [PREFACE, &[0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0]].concat();
    let unknown_frame = [PREFACE, &[0xff; 64]].concat();
    let random = random::bytes(4096);
    let greetings: [&[u8]; 5] = [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &random,
        &oversize_frame,
        &unknown_frame,
    ];
    let session = trial.connect().await?;
    for greeting in greetings {
        drop(write(trial, greeting).await?);
        trial.lives(&session, "bytes that are not HTTP/2").await?;
    }
    trial.works().await.map_err(|stop| beside("after bytes that are not HTTP/2", stop))?;
    Ok(String::new())
}

async fn connection_churn(trial: &Trial) -> Result<String, Stop> {
    for turn in 0..CHURN {
        match turn % 4 {
            0 | 1 => drop(dial(trial).await?),
            2 => drop(write(trial, &PREFACE[..10]).await?),
            _ => drop(trial.connect().await?.status().await?),
        }
    }
    trial.works().await.map_err(|stop| beside("after 100 connections", stop))?;
    Ok(String::new())
}

async fn deadlines(trial: &Trial) -> Result<String, Stop> {
    let (session, _, wrapped) = trial.wrapped().await?;
    let texts =
        ["1n", "0n", "1u", "99999999H", "", "-1S", "1", "S", "999999999999999999999S", "1é"];
    // As bytes: the last one is nothing that a well-behaved client could put in a header.
    let values: Vec<AsciiMetadataValue> =
        texts.iter().filter_map(|text| text.as_bytes().try_into().ok()).collect();
    let calls = each(values, WIDTH, |value| {
        let (session, wrapped) = (session.clone(), wrapped.clone());
        async move { session.all_within(value, &wrapped).await }
    });
    let turns = calls.await.len();
    trial.works().await.map_err(|stop| beside("after strange deadlines", stop))?;
    Ok(format!("{turns} turns"))
}

async fn cancelled_calls(trial: &Trial) -> Result<String, Stop> {
    let raw = trial.connect_raw().await?;
    let part = framed(64, &[0x0a, 32, 1, 2, 3]);
    let mut cancelled = 0;
    for turn in 0..CHURN {
        let path =
            ["/v2.KeyManagementService/Encrypt", "/v2.KeyManagementService/Decrypt"][turn % 2];
        // A plugin may hang up on a caller that goes on like this.
        if raw.abandon(path, part.clone()).await.is_err() {
            break;
        }
        cancelled += 1;
    }
    trial.works().await.map_err(|stop| beside("after cancelled calls", stop))?;
    Ok(format!("{cancelled} calls"))
}
