//! The real binary against the whole conformance suite.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_local_conforms_to_kms_v2() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, key) = (directory.path().join("kms.sock"), directory.path().join("key"));
    let endpoint = format!("unix://{}", socket.display());
    let binary = program(env!("CARGO_BIN_EXE_sidekey-local"));

    let mut serve = Command::new(&binary);
    serve.args(["--listen", &endpoint, "--create-key", "--admin", "127.0.0.1:0", "--key-file"]);
    serve.arg(&key);
    let launched = Launched::start(serve, endpoint.parse().unwrap()).await.unwrap();

    let mut rotate = Command::new(binary);
    rotate.args(["rotate", "--activate", "--key-file"]).arg(&key);
    let counted = launched.clone();
    let plugin = launched
        .plugin()
        .with_rotate(Hook::command(rotate))
        .with_backend_calls(move || std::future::ready(backend_calls(&counted.log())));
    assert_conforms(&plugin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_local_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let directory = tempfile::tempdir().unwrap();
        let (socket, file) = (directory.path().join("kms.sock"), directory.path().join("key"));
        std::fs::write(&file, key.state::<Value>().to_string()).unwrap();
        let endpoint = format!("unix://{}", socket.display());
        let mut serve = Command::new(program(env!("CARGO_BIN_EXE_sidekey-local")));
        serve.args(["--listen", &endpoint, "--admin", "127.0.0.1:0", "--key-file"]).arg(&file);
        let launched = Launched::start(serve, endpoint.parse().unwrap()).await.unwrap();
        (vec![("sidekey", endpoint.parse().unwrap())], (launched, directory))
    };
    assert_reads_corpus("local", start).await;
}

/// The calls that the provider itself counts, read from the admin address in its newest log.
fn backend_calls(log: &str) -> Result<u64, std::io::Error> {
    let (_, rest) = log.rsplit_once("admin listening address=").expect("an admin address");
    let mut stream = TcpStream::connect(rest.split_whitespace().next().unwrap_or_default())?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics)?;
    let calls = metrics.lines().filter(|line| line.starts_with("kms_backend_calls_total{"));
    let calls: Vec<&str> = calls.filter_map(|line| line.rsplit(' ').next()).collect();
    // For requests and for probes, apart.
    assert_eq!(calls.len(), 6, "two counts each of key_id, encrypt and decrypt:\n{metrics}");
    Ok(calls.iter().filter_map(|count| count.parse::<u64>().ok()).sum())
}
