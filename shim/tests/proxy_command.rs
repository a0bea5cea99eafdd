//! Promises of the `sidekey-proxy` command.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::plugin::Plugin;
use support::{
    PATIENCE, SERVER, SHIM, Use, World, decrypt, dial, encrypt, eventually, status, write,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

const BINARY: &str = env!("CARGO_BIN_EXE_sidekey-proxy");
const SHIM_BINARY: &str = env!("CARGO_BIN_EXE_sidekey-shim");

/// Runs a command to its end.
fn output(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A running process, ended with the test.
struct Process {
    child: Child,
    log: mpsc::Receiver<String>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(BINARY)
            .args(arguments)
            .args(["--log-format", "json"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, log }
    }

    /// Waits for a log line with this message.
    fn line(&self, message: &str) -> Value {
        let mut seen = Vec::new();
        while let Ok(line) = self.log.recv_timeout(PATIENCE) {
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if value["message"].as_str().is_some_and(|text| text.contains(message)) {
                return value;
            }
            seen.push(line);
        }
        panic!("no line {message:?} in\n{}", seen.join("\n"));
    }

    fn address(&self, message: &str) -> SocketAddr {
        self.line(message)["address"].as_str().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (answer[9..12].parse().unwrap(), body)
}

async fn proxy_status(admin: SocketAddr) -> Value {
    serde_json::from_str(&get(admin, "/status").await.1).unwrap()
}

/// Writes a configuration as kubelet does: a new directory, then a swap of `..data`.
fn publish(mount: &Path, revision: u32, document: &Value) -> PathBuf {
    let directory = mount.join(format!("..{revision}"));
    std::fs::create_dir_all(&directory).unwrap();
    let mut document = document.clone();
    document["revision"] = json!(revision);
    std::fs::write(directory.join("proxy.yaml"), document.to_string()).unwrap();
    let link = mount.join("..data_tmp");
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    std::fs::rename(&link, mount.join("..data")).unwrap();
    let path = mount.join("proxy.yaml");
    if !path.is_symlink() {
        std::os::unix::fs::symlink("..data/proxy.yaml", &path).unwrap();
    }
    path
}

#[test]
fn plaintext_off_loopback_is_refused_with_64() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("proxy.yaml");
    for address in ["0.0.0.0:0", ":8080", "[::]:0", "192.0.2.1:0"] {
        let listen = format!("--listen-addr={address}");
        let result = output(&[&listen, "--socket-path=/socket/kms.sock"]);
        assert_eq!(result.status.code(), Some(64), "{address}");
        assert!(text(&result.stderr).contains("plaintext is for loopback"), "{address}");
        let document = json!({"listen": address, "plugin": "/s", "plaintext": true});
        std::fs::write(&file, document.to_string()).unwrap();
        let config = file.to_str().unwrap();
        assert_eq!(output(&["--config", config]).status.code(), Some(64), "{address}");
        assert_eq!(output(&["check", "--config", config]).status.code(), Some(64), "{address}");
    }
}

#[tokio::test]
async fn the_flags_of_the_enhancement_text_serve_plaintext_on_loopback_with_a_warning() {
    let world = World::new();
    let socket = world.path("kms.sock");
    let _plugin = Plugin::start(&socket).await;
    // One dash, as Go programs take it.
    let path = format!("-socket-path={}", socket.display());
    let process = Process::start(&["-listen-addr=127.0.0.1:0", &path]);
    let address = process.address("proxy listening");
    let warning = process.line("every process on this host can use the plugin");
    assert_eq!(warning["level"], "WARN");
    let tcp = TcpStream::connect(address).await.unwrap();
    let origin = "http://localhost".parse().unwrap();
    let (mut client, _) = sidekey_core::client::open(tcp, origin).await.unwrap();
    client.encrypt(encrypt(b"x")).await.unwrap();
}

#[test]
fn bad_usage_is_64_and_help_has_examples() {
    for arguments in [
        &[][..],
        &["--listen-addr=127.0.0.1:1"],
        &["--config", "/missing/proxy.yaml"],
        &["--config", "x", "--listen-addr=127.0.0.1:1", "--socket-path=/s"],
        &["probe"],
        &["probe", "--endpoint", "http://x", "--ca", "a", "--cert", "b", "--key", "c"],
        &["probe", "--endpoint", "https://x", "--ca", "a", "--cert", "b"],
        &["probe", "--config", "x", "--ca", "a"],
        &[
            "probe",
            "--config",
            "x",
            "--endpoint",
            "https://x",
            "--ca",
            "a",
            "--cert",
            "b",
            "--key",
            "c",
        ],
        &["--colour"],
    ] {
        let result = output(arguments);
        assert_eq!(result.status.code(), Some(64), "{arguments:?}: {}", text(&result.stderr));
        assert!(!result.stderr.is_empty());
    }
    for arguments in [&["--help"][..], &["check", "--help"], &["probe", "--help"]] {
        let result = output(arguments);
        assert_eq!(result.status.code(), Some(0));
        let help = text(&result.stdout);
        assert!(help.contains("Example") && help.contains("--config"), "{help}");
    }
    let plain = ["probe-proxy", "--endpoint", "http://x", "--ca", "a", "--cert", "b", "--key", "c"];
    for arguments in [&plain[..], &["probe-proxy"]] {
        let result = Command::new(SHIM_BINARY).args(arguments).output().unwrap();
        assert_eq!(result.status.code(), Some(64), "{}", text(&result.stderr));
    }
    assert!(text(&output(&["--version"]).stdout).starts_with("sidekey-proxy 0."));
}

#[test]
fn check_looks_at_the_certificates_too() {
    let world = World::new();
    let file = world.path("proxy.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, world.document().to_string()).unwrap();
    let result = output(&["check", "--config", path, "-o", "json"]);
    assert_eq!(result.status.code(), Some(0));
    let answer: Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!(answer["ok"], true);
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let expired = world.authority.issue_until(Use::Server, &[SERVER], past);
    write(&world.path("server"), &world.authority.pem, &expired);
    let result = output(&["check", "--config", path]);
    assert_eq!(result.status.code(), Some(64));
    assert!(text(&result.stderr).contains("tls.cert: has expired"));
    let other = world.authority.issue(Use::Server, &[SERVER]);
    std::fs::write(world.path("server").join("tls.key"), other.key).unwrap();
    let result = output(&["check", "--config", path, "-o", "json"]);
    assert_eq!(result.status.code(), Some(64));
    let answer: Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!(answer["mistakes"][0]["path"], "tls");
    assert_eq!(output(&["--config", path]).status.code(), Some(64), "nor is it served");
}

#[tokio::test]
async fn a_swapped_configuration_is_taken_over_and_a_bad_one_is_refused_with_its_reason() {
    let world = World::new();
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    let mount = world.path("mount");
    let mut document = world.document();
    document["admin"] = json!("127.0.0.1:0");
    let file = publish(&mount, 1, &document);
    let process = Process::start(&["--config", file.to_str().unwrap()]);
    let (address, admin) = (process.address("proxy listening"), process.address("admin listening"));
    let mut client = dial(&world.client(&[SHIM]), address).await.unwrap();
    client.encrypt(encrypt(b"x")).await.unwrap();
    assert_eq!(proxy_status(admin).await["config"]["revision"], "1");

    let mut bad = document.clone();
    bad["plugin"] = json!(world.path("nobody.sock"));
    publish(&mount, 2, &bad);
    let refused = eventually("refused", async || {
        let status = proxy_status(admin).await;
        status["config"]["refused"]["error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(refused.contains("nobody.sock"), "{refused}");
    let metrics = get(admin, "/metrics").await.1;
    assert!(!metrics.contains("socket_proxy_config_reloads_total{result=\"failure\"} 0"));
    client.encrypt(encrypt(b"x")).await.expect("the last good one serves");

    document["clients"] = json!([{"san": SHIM, "allow": ["status", "decrypt"]}]);
    publish(&mount, 3, &document);
    eventually("revision 3", async || {
        let status = proxy_status(admin).await;
        (status["config"]["revision"] == "3").then_some(())
    })
    .await;
    let status = proxy_status(admin).await;
    assert!(status["config"]["refused"].is_null());
    assert_eq!(status["clients"][0]["allow"], json!(["status", "decrypt"]));
    assert_eq!(client.encrypt(encrypt(b"x")).await.unwrap_err().code(), Code::PermissionDenied);
    client.decrypt(decrypt(b"x")).await.unwrap();

    std::fs::write(&file, "listen: [").unwrap();
    process.line("new configuration refused");
    client.decrypt(decrypt(b"x")).await.unwrap();
}

#[tokio::test]
async fn what_only_a_restart_can_change_is_named_and_the_rest_is_taken_over() {
    let world = World::new();
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    let mount = world.path("mount");
    let mut document = world.document();
    document["admin"] = json!("127.0.0.1:0");
    let file = publish(&mount, 1, &document);
    let process = Process::start(&["--config", file.to_str().unwrap()]);
    let (address, admin) = (process.address("proxy listening"), process.address("admin listening"));
    let mut client = dial(&world.client(&[SHIM]), address).await.unwrap();
    client.status(status()).await.unwrap();

    document["listen"] = json!("127.0.0.1:1");
    document["filePoll"] = json!("20s");
    document["log"] = json!({"level": "debug"});
    document["clients"] = json!([{"san": SHIM, "allow": ["status", "decrypt"]}]);
    publish(&mount, 2, &document);
    let warning = process.line("not all of the configuration is in use as written");
    let text = "listen, filePoll: these fields changed, which the next start takes over";
    assert_eq!(warning["warning"], text);
    process.line("new configuration is in use");
    let told = proxy_status(admin).await;
    assert_eq!(
        (&told["config"]["revision"], &told["config"]["warnings"]),
        (&json!("2"), &json!([text]))
    );
    assert!(told["config"]["refused"].is_null());
    assert_eq!(client.encrypt(encrypt(b"x")).await.unwrap_err().code(), Code::PermissionDenied);
    client.decrypt(decrypt(b"x")).await.unwrap();
    assert_eq!(process.line("request served")["operation"], "decrypt");
}

#[tokio::test]
async fn probes_tell_listening_from_healthy_and_ask_as_a_client() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let mut document = world.document();
    document["admin"] = json!("127.0.0.1:0");
    let file = world.path("proxy.yaml");
    let path = file.to_str().unwrap().to_owned();
    std::fs::write(&file, document.to_string()).unwrap();
    let mut process = Process::start(&["--config", &path]);
    let (address, admin) = (process.address("proxy listening"), process.address("admin listening"));
    // What runs picked its ports; the probe reads them from a file of its own.
    document["listen"] = json!(format!("0.0.0.0:{}", address.port()));
    document["admin"] = json!(admin.to_string());
    let asked = world.path("asked.yaml").to_str().unwrap().to_owned();
    std::fs::write(&asked, document.to_string()).unwrap();
    let run = async |binary: &'static str, command: &str, more: &[&str]| {
        let mut arguments = vec![command.to_owned(), "-o".to_owned(), "json".to_owned()];
        arguments.extend(more.iter().map(|&text| text.to_owned()));
        // The plugin runs on this thread.
        let run = move || Command::new(binary).args(arguments).output().unwrap();
        let result = tokio::task::spawn_blocking(run).await.unwrap();
        let answer: Value = serde_json::from_slice(&result.stdout).unwrap();
        (result.status.code().unwrap(), answer)
    };
    let probe = async |more: &[&str]| run(BINARY, "probe", more).await;
    // Two commands, one answer.
    let ask_as_client = async |more: &[&str]| {
        let answer = probe(more).await;
        assert_eq!(run(SHIM_BINARY, "probe-proxy", more).await, answer);
        answer
    };
    assert_eq!(probe(&["--config", &asked]).await, (0, json!({"listens": true})));
    let healthy = ["--config", asked.as_str(), "--healthy"];
    eventually("healthy", async || (probe(&healthy).await.0 == 0).then_some(())).await;

    let client = world.authority.issue(Use::Client, &[SHIM]);
    let files = write(&world.path("shim"), &world.authority.pem, &client);
    let [ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|path| path.to_str().unwrap());
    let url = format!("https://127.0.0.1:{}", address.port());
    let as_client = ["--endpoint", &url, "--ca", ca, "--cert", cert, "--key", key];
    let (code, answer) = ask_as_client(&as_client).await;
    assert_eq!((code, &answer["healthy"]), (0, &json!(true)), "{answer}");
    let named = [&as_client[..], &["--server-name", "other.example"]].concat();
    let (code, answer) = ask_as_client(&named).await;
    assert_eq!((code, &answer["kind"]), (1, &json!("denied")), "{answer}");

    plugin.kill().await;
    eventually("sick", async || (probe(&healthy).await.0 == 1).then_some(())).await;
    assert_eq!(probe(&["--config", &asked]).await.0, 0, "it listens all the same");
    assert_eq!(get(admin, "/livez").await.0, 200);
    assert_eq!(get(admin, "/readyz").await.0, 200);
    assert_eq!(get(admin, "/healthz").await.0, 503);
    process.signal(Signal::TERM);
    assert!(process.ended().await.success());
    let (code, answer) = ask_as_client(&as_client).await;
    assert_eq!((code, &answer["kind"]), (1, &json!("unavailable")), "{answer}");
}

#[tokio::test]
async fn a_signal_drains_and_a_second_one_ends_at_once() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    *plugin.manners.gate.lock().unwrap() = Some(gate.clone());
    let mut document = world.document();
    document["drain"] = json!("1h");
    let file = world.path("proxy.yaml");
    std::fs::write(&file, document.to_string()).unwrap();
    for second in [false, true] {
        let mut process = Process::start(&["--config", file.to_str().unwrap()]);
        let address = process.address("proxy listening");
        let mut client = dial(&world.client(&[SHIM]), address).await.unwrap();
        client.status(status()).await.unwrap();
        let before = plugin.seen();
        let open = tokio::spawn(async move { client.decrypt(decrypt(b"x")).await });
        eventually("the request is with the plugin", async || {
            (plugin.seen() > before).then_some(())
        })
        .await;
        process.signal(Signal::TERM);
        process.line("stopping: waiting for open requests");
        if second {
            process.signal(Signal::TERM);
            assert!(process.ended().await.success());
            open.await.unwrap().unwrap_err();
        } else {
            assert_eq!(process.child.try_wait().unwrap(), None);
            gate.add_permits(1);
            open.await.unwrap().unwrap();
            assert!(process.ended().await.success());
        }
    }
}
