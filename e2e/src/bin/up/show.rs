//! A rotation, live: from the key that writes to a new one, while everything runs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use sidekey_core::client::connect;
use sidekey_core::proto::v2::DecryptRequest;
use sidekey_e2e::stored::{EncryptedObject, key_id_hash};
use sidekey_e2e::wait::{LONG_PATIENCE, eventually};
use sidekey_e2e::{Kind, Stored};

use crate::cluster::Cluster;
use crate::files::append;
use crate::stack::{PROVIDER, Stack};

/// Between two signs of life while kube-apiserver has not yet asked for Status.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// What the Secrets of the show contain.
const DATA: [(&str, &str); 1] = [("password", "correct horse battery staple")];

/// What became of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rotation {
    /// The key_id of the Secret that was written before.
    pub(crate) from: String,
    /// The key_id of the Secret that was written after.
    pub(crate) to: String,
    /// Number of the new key.
    pub(crate) key: u64,
    /// Until kube-apiserver wrote with the new key.
    pub(crate) seconds: f64,
}

/// Where the progress goes: standard output belongs to the result where that is JSON.
pub(crate) struct Progress {
    pub(crate) to_stderr: bool,
    began: Instant,
}

impl Progress {
    pub(crate) fn new(to_stderr: bool) -> Self {
        Self { to_stderr, began: Instant::now() }
    }

    fn say(&self, text: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        self.line(&format!("  [{seconds:5.1}s] {text}"));
    }

    fn more(&self, text: &str) {
        self.line(&format!("           {text}"));
    }

    fn line(&self, text: &str) {
        match self.to_stderr {
            true => eprintln!("{text}"),
            false => println!("{text}"),
        }
    }
}

/// Rotates, and shows each step. Everything it says it has seen.
pub(crate) async fn rotate(stack: &mut Stack, progress: &Progress) -> Result<Rotation> {
    let pids = stack.pids();
    let key = stack.files.next_key()?;
    progress.line(&format!("\nA rotation to key {key}, with everything running:\n"));
    let before = write(cluster(stack)?, "before", progress).await?;
    add(stack, key, progress).await?;
    let announced = promote(stack, key, progress).await?;
    followed(stack, &announced, progress).await?;
    let to = write(cluster(stack)?, "after", progress).await?.key_id;
    ensure!(
        to == announced,
        "the Secret was stored under {to}, but the shim announced {announced}"
    );
    let seconds = progress.began.elapsed().as_secs_f64();
    still_readable(stack, &before, progress).await?;
    stack.look()?;
    ensure!(stack.pids() == pids, "something was restarted: {pids:?}, now {:?}", stack.pids());
    let list: Vec<String> = pids.iter().map(|(name, pid)| format!("{name} {pid}")).collect();
    progress.say(&format!("restarts: 0 (pids as before: {})", list.join(", ")));
    Ok(Rotation { from: before.key_id, to, key, seconds })
}

/// Writes a Secret, and tells how it lies in etcd.
async fn write(cluster: &Cluster, name: &str, progress: &Progress) -> Result<EncryptedObject> {
    cluster.server()?.client().create(Kind::Secret, "default", name, &DATA).await?;
    let key = Kind::Secret.etcd_key("default", name);
    let raw = cluster.etcd().raw(&key).await?;
    let Stored { provider, object } = Stored::parse(&raw)?;
    progress.say(&format!("wrote Secret default/{name}; in etcd:"));
    progress.more(&format!("{key} = k8s:enc:kms:v2:{provider}:…, key_id {}", object.key_id));
    ensure!(provider == PROVIDER, "it was stored by the provider {provider}");
    ensure!(!contains(&raw, DATA[0].1), "the Secret lies in etcd in clear");
    Ok(object)
}

/// Reads the Secret from before. kube-apiserver may still have its data key in memory, so that
/// is unwrapped once more too.
async fn still_readable(
    stack: &Stack,
    before: &EncryptedObject,
    progress: &Progress,
) -> Result<()> {
    let client = cluster(stack)?.server()?.client();
    let old = client.read(Kind::Secret, "default", "before").await?;
    ensure!(old.get(DATA[0].0).is_some_and(|text| text == DATA[0].1), "the old Secret has changed");
    let request = DecryptRequest {
        ciphertext: before.encrypted_dek_source.clone(),
        uid: "cargo-up".to_owned(),
        key_id: before.key_id.clone(),
        annotations: before.annotations.clone(),
    };
    let mut shim = connect(&stack.files.endpoint().parse()?).await?;
    shim.decrypt(request).await.context("the shim did not unwrap the old data key")?;
    progress.say("the Secret from before still reads, and the shim still unwraps its data key");
    Ok(())
}

/// Makes the key, and gives it to the provider and, for reading, to the shim.
async fn add(stack: &mut Stack, key: u64, progress: &Progress) -> Result<()> {
    let Stack { files, provider, shim, .. } = stack;
    let lineage = files.create_key(key).await?;
    let line = files.provider_line(key);
    append(&files.provider(), &line)?;
    progress.say(&format!("made key file key-{key}; added to provider.yaml:"));
    progress.more(&line);
    let what = format!("it serves key {key}");
    provider.wait_status(&what, |status| has_key(status, key, None)).await?;
    let line = files.shim_line(key, "read", Some(&lineage));
    append(&files.shim(), &line)?;
    progress.say("the provider serves it; added to shim.yaml:");
    progress.more(&line);
    let what = format!("it reads with key {key}");
    shim.wait_status(&what, |status| has_key(status, key, Some("read"))).await
}

/// Lets the key write, and tells the key_id that the shim then announces.
async fn promote(stack: &mut Stack, key: u64, progress: &Progress) -> Result<String> {
    progress.say(&format!("the shim has loaded it, so key {key} may write; in shim.yaml:"));
    stack.files.promote(key)?;
    progress.more(&format!("- {{id: {key}, role: write, …}}, and role: read for the one before"));
    let what = format!("it writes with key {key}");
    stack.shim.wait_status(&what, |status| has_key(status, key, Some("write"))).await?;
    let trial = crate::trial::round_trip(&stack.files.endpoint().parse()?).await?;
    progress.say("the shim has proven it by a round trip, and announces:");
    progress.more(&format!("key_id {}", trial.key_id));
    Ok(trial.key_id)
}

/// Waits until kube-apiserver has asked the shim for its Status and has seen the new key_id.
async fn followed(stack: &mut Stack, key_id: &str, progress: &Progress) -> Result<()> {
    let hash = key_id_hash(key_id);
    progress.say("kube-apiserver asks for Status each minute, sooner when asked for /readyz");
    let mut sign = Instant::now() + SIGN_OF_LIFE;
    let waited = eventually("kube-apiserver has seen the new key_id", LONG_PATIENCE, async || {
        stack.look()?;
        let server = cluster(stack)?.server()?;
        // The question makes it ask for Status if the last time was 20 s ago.
        server.readyz().await?;
        let last = server.announced_key_id(PROVIDER).await?;
        if last == hash {
            return Ok(());
        }
        if Instant::now() > sign {
            progress.say("… not yet");
            sign = Instant::now() + SIGN_OF_LIFE;
        }
        bail!("the last one was {last}")
    });
    waited.await?;
    let Some(cluster) = &mut stack.cluster else { bail!("the cluster is gone") };
    cluster.server_mut()?.wait_kms_providers(true).await?;
    progress.say("kube-apiserver's metrics show the new key_id:");
    let name = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds";
    progress.more(&format!("{name}{{key_id_hash=\"{hash}\"}}"));
    Ok(())
}

fn cluster(stack: &Stack) -> Result<&Cluster> {
    stack.cluster.as_ref().context("there is no cluster")
}

/// Whether `/status` of shim or provider has that key, healthy and in that role.
fn has_key(status: &Value, key: u64, role: Option<&str>) -> Result<()> {
    let keys = status["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = Value::from(key.to_string());
    let found = keys.iter().find(|found| found["id"] == id);
    let refused = &status["config"]["refused"];
    let found = found.with_context(|| format!("it does not have it; refused: {refused}"))?;
    ensure!(found["healthy"] == true, "it is not healthy: {found}");
    ensure!(role.is_none_or(|role| found["role"] == role), "it has another role: {refused}");
    Ok(())
}

fn contains(value: &[u8], text: &str) -> bool {
    value.windows(text.len()).any(|window| window == text.as_bytes())
}
