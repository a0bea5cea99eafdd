//! What a request costs at AWS.

use sidekey_e2e::aws::KmsFault;

use crate::support::{Aws, PLAINTEXT, kms};

/// Nothing but requests calls KMS: no probe comes for an hour.
fn without_probes(aws: &Aws) -> Vec<String> {
    let mut flags = aws.flags(&aws.key);
    flags.retain(|flag| !flag.starts_with("--probe") && !flag.starts_with("--coast"));
    flags.push("--probe-interval=1h".to_owned());
    flags
}

#[tokio::test]
async fn encrypt_costs_two_calls_decrypt_one_and_status_none() {
    let aws = Aws::fresh("calls").await;
    let plugin = aws.serve_with(&without_probes(&aws)).await;
    let client = kms(&plugin, "kms").await;
    let calls = async || {
        let kms = [aws.moto.calls("Encrypt").await, aws.moto.calls("Decrypt").await];
        let kms = kms.map(Result::unwrap);
        assert_eq!(aws.gateway.requests(), aws.moto.calls("").await.unwrap(), "nothing else");
        (kms[0], kms[1])
    };
    let counted = async || {
        let metrics = plugin.metrics().await.unwrap();
        let of = |operation, purpose| {
            let labels = [("operation", operation), ("purpose", purpose)];
            metrics.sum("kms_backend_calls_total", &labels) as u64
        };
        ["request", "probe"].map(|purpose| (of("encrypt", purpose), of("decrypt", purpose)))
    };
    let (start, [_, probes]) = (calls().await, counted().await);
    assert_eq!(start, probes, "the first probe, and nothing else so far");
    assert!(probes.0 > 0 && probes.1 > 0, "{probes:?}");
    let sealed = client.encrypt(&PLAINTEXT).await.unwrap();
    let encrypted = calls().await;
    assert_eq!((encrypted.0 - start.0, encrypted.1 - start.1), (1, 1), "and its verification");
    client.decrypt(&sealed).await.unwrap();
    let decrypted = calls().await;
    assert_eq!((decrypted.0 - encrypted.0, decrypted.1 - encrypted.1), (0, 1));
    for _ in 0..100 {
        client.status().await.unwrap();
    }
    assert_eq!(calls().await, decrypted);
    let requests = (decrypted.0 - start.0, decrypted.1 - start.1);
    assert_eq!(counted().await, [requests, probes], "each call is counted for its purpose");
}

#[tokio::test]
async fn retries_are_few_and_a_success_among_them_is_an_answer() {
    let aws = Aws::fresh("retries").await;
    let plugin = aws.serve_with(&without_probes(&aws)).await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    let internal = KmsFault::error("KMSInternalException", "").status(500);
    aws.moto.faults(&[internal.clone().times(1)]).await.unwrap();
    assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..], "one hiccup is not felt");
    aws.moto.faults(&[internal]).await.unwrap();
    let before = aws.moto.calls("Decrypt").await.unwrap();
    client.decrypt(&sealed).await.unwrap_err();
    let tries = aws.moto.calls("Decrypt").await.unwrap() - before;
    // The failure also brings one probe forward.
    assert!((3..=4).contains(&tries), "{tries} calls for one request");
}
