//! `cargo up` does what it says, and nothing that it started outlives it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use sidekey_core::client::connect;
use sidekey_core::proto::v2::StatusRequest;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{Kind, KubeClient, Scratch, eventually};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// What `cargo up -o json` prints.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ready {
    endpoint: String,
    key_id: String,
    admin: String,
    status_page: String,
    provider_admin: String,
    shim_config: PathBuf,
    provider_config: PathBuf,
    encryption_configuration: PathBuf,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) cluster_seconds: Option<f64>,
    pub(crate) node: Option<u32>,
    pub(crate) rotation: Option<Rotation>,
    pids: BTreeMap<String, u32>,
}

/// The rotation that is shown where there is a kube-apiserver.
#[derive(Debug, Deserialize)]
pub(crate) struct Rotation {
    from: String,
    to: String,
    key: u64,
}

/// Starts `up` and waits for the object that it prints when all is ready.
pub(crate) async fn up(dir: &Path, arguments: &[&str]) -> Result<(Process, Ready)> {
    let log = dir.with_extension("log");
    let mut process = Spec::new("up", env!("CARGO_BIN_EXE_up"), log)
        .args(["-o", "json", "--dir"])
        .arg(dir)
        .args(arguments.iter().copied())
        .start()?;
    let find = |line: &str| serde_json::from_str(line).ok();
    let ready = process.wait_for_log("it is ready", LONG_PATIENCE, find).await?;
    Ok((process, ready))
}

/// Waits until none of them runs any more, nor the node's first process; whose parent has not
/// waited for it yet has ended.
pub(crate) async fn gone(ready: &Ready) -> Result<()> {
    eventually("everything has ended", PATIENCE, async || {
        let pids = ready.pids.iter().map(|(name, pid)| (name.as_str(), pid));
        for (name, pid) in pids.chain(ready.node.iter().map(|pid| ("the node", pid))) {
            let path = format!("/proc/{pid}/stat");
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            ensure!(matches!(state, None | Some('Z')), "{name} (pid {pid}) still runs");
        }
        Ok(())
    })
    .await
}

/// All that the README shows after `from` was said, word by word and in that order; it may leave
/// out the rest of a line, and what it has `…` for. `dir` is where it ran.
fn as_in_the_readme(from: &str, said: &str, dir: &Path) {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let shown = readme.split_once(from).and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let words: Vec<String> =
        said.replace(dir.to_str().unwrap(), "/target/up").lines().map(lasting).collect();
    let (words, mut at) = (words.join(" "), 0);
    for line in shown.lines().filter(|line| *line != "...") {
        let wanted = lasting(&line.replace("/…/target/up", "/target/up"));
        for part in wanted.split('…') {
            let found = words[at..].find(part.trim());
            let found = found.unwrap_or_else(|| panic!("{line:?} is in the README alone\n{said}"));
            at += found + part.trim().len();
        }
    }
}

/// A line without what differs each time: numbers, digests, and how far it is set in.
fn lasting(line: &str) -> String {
    let mut lasting = String::new();
    for part in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_digest = word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit());
        for c in if is_digest { "0" } else { word }.chars() {
            match c.is_ascii_digit() {
                true if lasting.ends_with('0') => {}
                true => lasting.push('0'),
                false => lasting.push(c),
            }
        }
        lasting.push_str(&part[word.len()..]);
    }
    lasting.split_whitespace().collect::<Vec<_>>().join(" ").replace("[ ", "[")
}

fn run(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_up")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[tokio::test]
async fn a_single_round_trip_leaves_a_key_and_configurations_and_no_process() {
    let scratch = Scratch::new("up").unwrap();
    let dir = scratch.path().join("once");
    let output = run(&["--once", "--dir", dir.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{problem}");
    as_in_the_readme("$ cargo up\n", &text, &dir);
    let configuration = std::fs::read_to_string(dir.join("encryption-configuration.yaml")).unwrap();
    for line in configuration.lines() {
        assert!(text.contains(line), "not printed: {line}\n{text}");
    }
    assert!(configuration.contains("endpoint: unix:///"), "{configuration}");
    assert!(configuration.contains("name: sidekey\n"), "{configuration}");
    // The next run has the same key and the same configurations.
    let kept = ["key-1", "shim.yaml", "provider.yaml"].map(|name| dir.join(name));
    let before = kept.each_ref().map(|path| std::fs::read(path).unwrap());
    let again = run(&["--once", "-o", "json", "--dir", dir.to_str().unwrap()]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(kept.each_ref().map(|path| std::fs::read(path).unwrap()), before);
    let ready: Ready = serde_json::from_slice(&again.stdout).unwrap();
    assert!(ready.rotation.is_none(), "{:?}", ready.rotation);
    assert!(ready.cluster_seconds.is_none(), "{:?}", ready.cluster_seconds);
    gone(&ready).await.unwrap();
}

#[tokio::test]
async fn it_stays_up_until_a_signal_and_then_ends_everything() {
    let scratch = Scratch::new("up").unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let (mut process, ready) = up(&scratch.path().join("stay"), &[]).await.unwrap();
        let mut client = connect(&ready.endpoint.parse().unwrap()).await.unwrap();
        let status = client.status(StatusRequest {}).await.unwrap().into_inner();
        assert_eq!((status.healthz.as_str(), &status.key_id), ("ok", &ready.key_id));
        assert!(ready.key_id.starts_with("sidekey/1-"), "the shim answers: {}", ready.key_id);
        assert!(ready.shim_config.is_file() && ready.provider_config.is_file());
        assert!(ready.encryption_configuration.is_file());
        let names: Vec<&str> = ready.pids.keys().map(String::as_str).collect();
        assert_eq!(names, ["sidekey-local", "sidekey-shim"]);
        for (url, wanted) in [
            (format!("{}/status", ready.admin), "\"component\": \"shim\""),
            (format!("{}/status", ready.provider_admin), "\"provider\": \"local\""),
            (ready.status_page.clone(), "<h1>Sidekey shim</h1>"),
        ] {
            let text = fetch(&url).await;
            assert!(text.contains(wanted), "{url}: {text}");
        }
        process.signal(signal).unwrap();
        let ended =
            eventually("up ends", PATIENCE, async || process.ended()?.context("it still runs"));
        assert_eq!(ended.await.unwrap().code(), Some(0), "{}", process.log_tail());
        gone(&ready).await.unwrap();
    }
}

async fn fetch(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let http = HttpClient::plain(address.parse().unwrap());
    http.get(&format!("/{path}")).await.unwrap().ok().unwrap().text()
}

#[tokio::test]
async fn a_configuration_of_another_directory_is_refused() {
    let scratch = Scratch::new("up").unwrap();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    assert!(run(&["--once", "--dir", first.to_str().unwrap()]).status.success());
    std::fs::rename(&first, &second).unwrap();
    let output = run(&["--once", "--dir", second.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(problem.contains("was made for another directory"), "{problem}");
}

#[tokio::test]
async fn nothing_outlives_it_when_it_is_killed() {
    let scratch = Scratch::new("up").unwrap();
    let (mut process, ready) = up(&scratch.path().join("kill"), &[]).await.unwrap();
    process.kill().unwrap();
    gone(&ready).await.unwrap();
}

#[tokio::test]
async fn a_process_that_dies_is_reported_with_its_log_and_exit_code_1() {
    let scratch = Scratch::new("up").unwrap();
    for victim in ["sidekey-local", "sidekey-shim"] {
        let (mut process, ready) = up(&scratch.path().join(victim), &[]).await.unwrap();
        let pid = Pid::from_raw(i32::try_from(ready.pids[victim]).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        let ended =
            eventually("up ends", PATIENCE, async || process.ended()?.context("it still runs"));
        assert_eq!(ended.await.unwrap().code(), Some(1));
        let log = process.log().unwrap();
        let wanted = [format!("{victim} does not run"), format!("last lines of {victim}")];
        assert!(wanted.iter().all(|text| log.contains(text)), "{log}");
        gone(&ready).await.unwrap();
    }
}

#[tokio::test]
async fn a_second_one_in_the_same_directory_is_refused() {
    let scratch = Scratch::new("up").unwrap();
    let dir = scratch.path().join("twice");
    let (_process, _ready) = up(&dir, &[]).await.unwrap();
    let output = run(&["--once", "--dir", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(problem.contains("another cargo up runs in"), "{problem}");
}

#[tokio::test]
async fn an_apiserver_shows_a_rotation_and_takes_a_secret_through_the_printed_kubeconfig() {
    let scratch = Scratch::new("up").unwrap();
    let dir = scratch.path().join("apiserver");
    let (mut process, ready) = up(&dir, &["--apiserver"]).await.unwrap();
    assert!(ready.cluster_seconds.is_some() && ready.node.is_none(), "{ready:?}");
    let rotation = ready.rotation.as_ref().expect("a kube-apiserver shows a rotation");
    assert_eq!(rotation.key, 2);
    assert!(rotation.from.starts_with("sidekey/1-"), "{rotation:?}");
    assert!(rotation.to.starts_with("sidekey/2-"), "{rotation:?}");
    let log = process.log().unwrap();
    let wanted = [
        "k8s:enc:kms:v2:sidekey:…, key_id sidekey/1-",
        "k8s:enc:kms:v2:sidekey:…, key_id sidekey/2-",
        "kube-apiserver's metrics show the new key_id",
        "the Secret from before still reads",
        "restarts: 0",
    ];
    for text in wanted {
        assert!(log.contains(text), "not shown: {text}\n{log}");
    }
    as_in_the_readme("A rotation to key 2, with everything running:\n", &log, &dir);
    let kubeconfig = ready.kubeconfig.as_deref().expect("there is a kubeconfig");
    let client = client(&std::fs::read_to_string(kubeconfig).unwrap());
    client.create(Kind::Secret, "default", "hello", &[("a", "b")]).await.unwrap();
    let read = client.read(Kind::Secret, "default", "hello").await.unwrap();
    assert_eq!(read["a"], "b");
    let checks = client.raw("/readyz?verbose").await.unwrap().text();
    assert!(checks.contains("[+]kms-providers ok"), "{checks}");
    assert_eq!(ready.pids.len(), 4, "{:?}", ready.pids);
    process.signal(Signal::INT).unwrap();
    let ended = eventually("up ends", PATIENCE, async || process.ended()?.context("it still runs"));
    assert_eq!(ended.await.unwrap().code(), Some(0), "{}", process.log_tail());
    gone(&ready).await.unwrap();
    // What was rotated stays so, and the next run rotates on; without staying it ends with 0.
    let again = run(&["--once", "--apiserver", "-o", "json", "--dir", dir.to_str().unwrap()]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let ready: Ready = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(ready.key_id, rotation.to);
    let next = ready.rotation.as_ref().expect("a kube-apiserver shows a rotation");
    assert_eq!((&next.from, next.key), (&rotation.to, 3));
    gone(&ready).await.unwrap();
}

#[tokio::test]
async fn the_printed_commands_rotate_to_another_key() {
    let scratch = Scratch::new("up").unwrap();
    let (dir, log) = (scratch.path().join("by-hand"), scratch.path().join("by-hand.log"));
    let spec = Spec::new("up", env!("CARGO_BIN_EXE_up"), log).arg("--dir").arg(&dir);
    let mut process = spec.start().unwrap();
    let last = |line: &str| line.contains("Ctrl-C ends").then_some(());
    process.wait_for_log("it is ready", LONG_PATIENCE, last).await.unwrap();
    let log = process.log().unwrap();
    let (_, printed) = log.split_once("To rotate to key 2 while it runs:\n").expect(&log);
    let commands: Vec<&str> =
        printed.lines().filter_map(|line| line.strip_prefix("  ")).take(4).collect();
    let page = log.lines().find_map(|line| line.trim().strip_prefix("status page")).unwrap();
    for command in &commands[..3] {
        shell(command);
    }
    eventually("the page shows key 2", PATIENCE, async || {
        let text = fetch(page.trim()).await;
        let row = text.split("<tr data-key=").find(|row| row.starts_with("\"2\""));
        ensure!(row.is_some_and(|row| row.contains(">healthy<")), "{text}");
        Ok(())
    })
    .await
    .unwrap();
    shell(commands[3]);
    let endpoint = format!("unix://{}", dir.join("kms.sock").display()).parse().unwrap();
    let mut client = connect(&endpoint).await.unwrap();
    eventually("key 2 writes", PATIENCE, async || {
        let key_id = client.status(StatusRequest {}).await?.into_inner().key_id;
        ensure!(key_id.starts_with("sidekey/2-"), "{key_id}");
        Ok(())
    })
    .await
    .unwrap();
}

fn shell(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {problem}");
}

/// A client made from nothing but a kubeconfig.
pub(crate) fn client(kubeconfig: &str) -> KubeClient {
    let field = |before: &str, after: char| {
        let (_, rest) = kubeconfig.split_once(before).unwrap();
        rest.split_once(after).unwrap().0
    };
    let address: SocketAddr = field("server: \"https://", '"').parse().unwrap();
    let pem = STANDARD.decode(field("certificate-authority-data: ", '}')).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let token = field("token: \"", '"').to_owned();
    let http = HttpClient::tls(address, TlsConnector::from(Arc::new(config)), Some(token));
    KubeClient::new("kube-apiserver", http)
}

/// Whoever runs the tests: a copy of the program, run by nobody.
#[test]
fn a_cluster_without_root_is_refused_and_the_lighter_way_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("up");
    std::fs::copy(env!("CARGO_BIN_EXE_up"), &program).unwrap();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let dir = scratch.path().join("cluster");
    let mut command = Command::new(program);
    command.arg("--cluster").arg("--dir").arg(&dir).stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{problem}");
    for text in ["--cluster takes root", "sudo", "cargo up -- --apiserver"] {
        assert!(problem.contains(text), "not said: {text}\n{problem}");
    }
    assert!(!dir.exists(), "something was begun");
}

#[test]
fn bad_usage_is_exit_code_64_and_help_has_an_example() {
    assert_eq!(run(&["--no-such-flag"]).status.code(), Some(64));
    assert_eq!(run(&["--cluster", "--apiserver"]).status.code(), Some(64));
    // As after `cargo up -- --help`.
    let help = run(&["--", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("cargo up -- --cluster"));
}
