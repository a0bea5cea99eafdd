//! The shim as a process, with its configuration in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sidekey_core::client::Connection;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, EncryptResponse, StatusRequest};
use sidekey_core::{Endpoint, client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::{Request, Status};

use super::eventually;
use super::plugin::Plugin;

/// What a call has here: more than kube-apiserver's three seconds, which a busy machine may take.
const CALL: Duration = Duration::from_secs(10);

/// A running shim, killed with the test.
pub struct Shim {
    child: Child,
    pub directory: PathBuf,
}

impl Shim {
    /// Starts one with these keys, and waits until it listens.
    pub async fn start(directory: &Path, document: &Value) -> Self {
        Self::with_flags(directory, document, &[]).await
    }

    pub async fn with_flags(directory: &Path, document: &Value, flags: &[&str]) -> Self {
        let child = spawn(directory, document, flags);
        let mut shim = Self { child, directory: directory.to_owned() };
        shim.listens().await;
        shim
    }

    /// Kills it and starts it again, with another configuration if one is given.
    pub async fn restart(&mut self, document: &Value) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.directory, document, &[]);
        self.listens().await;
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn write(&self, document: &Value) {
        write(&self.directory, document);
    }

    /// Writes a configuration and waits until it is in use.
    pub async fn load(&self, document: &Value) {
        self.write(document);
        let revision = document["revision"].to_string();
        eventually(&format!("revision {revision} is in use"), async || {
            (self.status().await?["revision"] == revision.as_str()).then_some(())
        })
        .await;
    }

    /// Waits until the configuration that was written is refused, and tells why.
    pub async fn refuses(&self) -> String {
        eventually("it is refused", async || {
            Some(self.status().await?["config"]["refused"]["error"].as_str()?.to_owned())
        })
        .await
    }

    /// A client that has connected just now.
    pub async fn client(&self) -> KeyManagementServiceClient<Connection> {
        client::connect(&Endpoint::Path(self.directory.join("kms.sock"))).await.unwrap()
    }

    pub async fn announced(&self) -> Result<String, Status> {
        Ok(self.client().await.status(StatusRequest {}).await?.into_inner().key_id)
    }

    /// Waits until Status is ok.
    pub async fn is_ready(&self) -> String {
        eventually("Status is ok", async || self.announced().await.ok()).await
    }

    /// With the time of most calls here.
    pub async fn encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, Status> {
        let plaintext = plaintext.to_vec().into();
        let mut request = Request::new(EncryptRequest { plaintext, uid: "test".into() });
        request.set_timeout(CALL);
        Ok(self.client().await.encrypt(request).await?.into_inner())
    }

    /// With the time of most calls here.
    pub async fn decrypt(&self, sealed: &EncryptResponse) -> Result<Vec<u8>, Status> {
        self.decrypt_within(CALL, sealed).await
    }

    pub async fn decrypt_within(
        &self,
        time: Duration,
        sealed: &EncryptResponse,
    ) -> Result<Vec<u8>, Status> {
        let EncryptResponse { ciphertext, key_id, annotations } = sealed.clone();
        let request = DecryptRequest { ciphertext, key_id, annotations, uid: "test".into() };
        let mut request = Request::new(request);
        request.set_timeout(time);
        Ok(self.client().await.decrypt(request).await?.into_inner().plaintext.to_vec())
    }

    /// What `/status` says, if it can be asked.
    pub async fn status(&self) -> Option<Value> {
        serde_json::from_str(&self.get("/status").await?).ok()
    }

    /// What `/status` says of one key.
    pub async fn key(&self, id: u64) -> Option<Value> {
        let status = self.status().await?;
        let keys = status["keys"].as_array()?;
        keys.iter().find(|key| key["id"] == id.to_string().as_str()).cloned()
    }

    /// Waits until `/status` says so of a key.
    pub async fn key_is(&self, id: u64, what: &str, says: impl Fn(&Value) -> bool) {
        eventually(what, async || self.key(id).await.filter(&says)).await;
    }

    pub async fn get(&self, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.directory.join("admin.sock")).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Some(body.to_owned())
    }

    async fn listens(&mut self) {
        let endpoint = Endpoint::Path(self.directory.join("kms.sock"));
        eventually("it listens", async || {
            client::connect(&endpoint).await.ok()?;
            self.status().await
        })
        .await;
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A document with quick probes for the shim in that directory.
pub fn document(directory: &Path, revision: u64, keys: &[Value]) -> Value {
    json!({
        "revision": revision, "listen": directory.join("kms.sock"),
        "adminSocket": directory.join("admin.sock"),
        "probe": {"interval": "200ms", "timeout": "2s"}, "filePoll": "200ms", "keys": keys,
    })
}

/// One key at these plugins.
pub fn key(id: u64, role: &str, plugins: &[&Plugin]) -> Value {
    let endpoints: Vec<_> = plugins.iter().map(|plugin| plugin.path.clone()).collect();
    json!({"id": id, "role": role, "endpoints": endpoints})
}

fn write(directory: &Path, document: &Value) {
    let (file, fresh) = (directory.join("shim.yaml"), directory.join("shim.new"));
    std::fs::write(&fresh, document.to_string()).unwrap();
    std::fs::rename(fresh, file).unwrap();
}

fn spawn(directory: &Path, document: &Value, flags: &[&str]) -> Child {
    write(directory, document);
    let log = std::fs::File::create(directory.join("shim.log")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_sidekey-shim"))
        .arg("--config")
        .arg(directory.join("shim.yaml"))
        .args(flags)
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap()
}
