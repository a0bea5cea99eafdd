//! The real binary as a child of the test, and the ways to talk to it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sidekey_core::client::Connection;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, EncryptResponse, StatusRequest};
use sidekey_core::{Endpoint, client};
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

pub(crate) mod h2;

/// Nothing here takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: [u8; 32] = *b"Zq3!promised-never-to-be-seen#7x";

/// A private directory for one test.
pub(crate) struct Home(tempfile::TempDir);

/// A running `sidekey-local`; killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: NamedTempFile,
}

/// A client of one key.
pub(crate) struct Kms(KeyManagementServiceClient<Connection>);

/// An answer over HTTP.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o750)).unwrap();
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// As text, for command lines and configurations.
    pub(crate) fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The flags of the contract: socket `kms.sock`, key file `key`, admin on a port of its own.
    pub(crate) fn flags(&self) -> Vec<String> {
        let listen = format!("unix://{}", self.at("kms.sock"));
        let key = self.at("key");
        ["--listen", &listen, "--key-file", &key, "--create-key", "--admin", "127.0.0.1:0"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Starts with the flags of the contract and `more`, and waits until Status is ok.
    pub(crate) async fn serve(&self, more: &[&str]) -> Process {
        let mut flags = self.flags();
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let process = Process::start(&flags);
        self.healthy("kms.sock").await;
        process
    }

    /// Waits until Status on this socket is ok, and gives the key_id.
    pub(crate) async fn healthy(&self, socket: &str) -> String {
        until("Status is ok", async || {
            Kms::try_open(&self.path(socket)).await.ok()?.status().await.ok()
        })
        .await
    }

    pub(crate) async fn kms(&self, socket: &str) -> Kms {
        Kms::try_open(&self.path(socket)).await.unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs a command of the binary on the key file `key`.
    pub(crate) fn on_key(&self, command: &[&str]) -> Output {
        let key = self.at("key");
        let mut all = command.to_vec();
        all.extend(["--key-file", &key]);
        run(&all)
    }

    /// Makes a key file.
    pub(crate) fn make_key(&self, name: &str) {
        let made = run(&["create", "--key-file", &self.at(name)]);
        assert!(made.status.success(), "{made:?}");
    }

    /// What is in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Process {
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Self {
        let mut command = binary();
        // A file, not a pipe: what it has written before anything else is seen of it is there.
        let log = NamedTempFile::new().unwrap();
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.reopen().unwrap());
        let child = command.spawn().unwrap();
        Self { child, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log.path()).unwrap()).into_owned()
    }

    /// Waits until the log holds `text`.
    pub(crate) async fn logs(&self, text: &str) {
        let what = format!("{text:?} in the log");
        let result = wait(async || self.log().contains(text).then_some(())).await;
        assert!(result.is_some(), "no {what}:\n{}", self.log());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let ended = wait(async || self.child.try_wait().unwrap()).await;
        ended.unwrap_or_else(|| panic!("still runs:\n{}", self.log()))
    }

    /// Asks it to stop and waits for a good end.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.end().await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// Kills it and waits for its end.
    pub(crate) async fn kill(mut self) {
        self.signal(Signal::KILL);
        self.end().await;
    }

    /// The address of the admin server, from the log.
    pub(crate) async fn admin(&self) -> String {
        const MARK: &str = "admin listening address=";
        self.logs(MARK).await;
        let log = self.log();
        let (_, rest) = log.split_once(MARK).unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let stream = TcpStream::connect(self.admin().await).unwrap();
        http(stream, "GET", path)
    }

    pub(crate) async fn status(&self) -> serde_json::Value {
        let answer = self.get("/status").await;
        assert_eq!(answer.code, 200);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The sum of a metric over all lines that begin so.
    pub(crate) async fn metric(&self, start: &str) -> Option<f64> {
        let metrics = self.get("/metrics").await.body;
        let lines = metrics.lines().filter(|line| line.starts_with(start));
        let numbers: Vec<f64> =
            lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        (!numbers.is_empty()).then(|| numbers.iter().sum())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Kms {
    pub(crate) async fn try_open(socket: &Path) -> Result<Self, client::ConnectError> {
        Self::at(&Endpoint::Path(socket.to_owned())).await
    }

    pub(crate) async fn at(endpoint: &Endpoint) -> Result<Self, client::ConnectError> {
        client::connect(endpoint).await.map(Self)
    }

    /// The key_id of an answer that says ok.
    pub(crate) async fn status(&mut self) -> Result<String, Status> {
        let status = self.0.status(StatusRequest {}).await?.into_inner();
        assert_eq!((status.version.as_str(), status.healthz.as_str()), ("v2", "ok"));
        Ok(status.key_id)
    }

    pub(crate) async fn encrypt(&mut self) -> Result<EncryptResponse, Status> {
        self.encrypt_as("test-uid").await
    }

    pub(crate) async fn encrypt_as(&mut self, uid: &str) -> Result<EncryptResponse, Status> {
        let request = EncryptRequest { plaintext: PLAINTEXT.to_vec().into(), uid: uid.into() };
        Ok(self.0.encrypt(request).await?.into_inner())
    }

    /// Unwraps, and compares.
    pub(crate) async fn decrypt(&mut self, sealed: &EncryptResponse) -> Result<(), Status> {
        self.decrypt_as("test-uid", sealed).await
    }

    pub(crate) async fn decrypt_as(
        &mut self,
        uid: &str,
        sealed: &EncryptResponse,
    ) -> Result<(), Status> {
        let EncryptResponse { ciphertext, key_id, annotations } = sealed.clone();
        let request = DecryptRequest { ciphertext, uid: uid.into(), key_id, annotations };
        let plaintext = self.0.decrypt(request).await?.into_inner().plaintext;
        assert_eq!(&plaintext[..], PLAINTEXT);
        Ok(())
    }

    /// A client on the same connection.
    pub(crate) fn share(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The binary under test; its output has no colours and its panics no pages.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidekey-local"));
    command.env_remove("RUST_BACKTRACE");
    command
}

/// Runs the binary to its end.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    binary().args(args).stdin(Stdio::null()).output().unwrap()
}

/// What a command printed where errors go.
pub(crate) fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command answered with `-o json`.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Waits for something to be there.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    wait(look).await.unwrap_or_else(|| panic!("waited in vain: {what}"))
}

async fn wait<T>(mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return Some(found);
        }
        if Instant::now() > deadline {
            return None;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Asks over a unix socket.
pub(crate) fn ask_socket(socket: &Path, method: &str, path: &str) -> Answer {
    http(UnixStream::connect(socket).unwrap(), method, path)
}

/// One request, one answer.
pub(crate) fn http<S: Read + Write>(mut stream: S, method: &str, path: &str) -> Answer {
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, body: body.to_owned() }
}

/// The code that a call failed with.
pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    result.err().expect("should have failed").code()
}
