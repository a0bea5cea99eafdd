//! What the `sidekey` command costs: its start, and its work on a real etcd or control plane.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use serde_json::{Value, json};

use super::elf::Binary;
use super::figures::{Bar, Figures, Spread};
use super::watch::{Ended, Watched};
use super::{bars, migrate};
use crate::stored::{EncryptedObject, KMS_V2};
use crate::{Etcd, binaries};

/// The program's name, and the name under which its start is measured.
pub const PROGRAM: &str = "sidekey";
/// The name under which its census is measured.
pub const CENSUS: &str = "sidekey census";

/// Puts in one transaction; etcd takes 128.
const TRANSACTION: u64 = 128;
/// Bytes of an encrypted Secret: a service account's token, or a pair of certificate and key.
const SECRET: usize = 1500;
/// Work that ended by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// Objects that it was about.
    pub objects: u64,
    /// How long it took.
    pub seconds: f64,
    /// The most memory that was resident, in KiB.
    pub peak: u64,
}

impl Work {
    /// Objects in each second.
    pub fn rate(&self) -> f64 {
        self.objects as f64 / self.seconds
    }

    /// This and more of the same.
    pub(super) fn and(self, more: Self) -> Self {
        Self {
            objects: self.objects + more.objects,
            seconds: self.seconds + more.seconds,
            peak: self.peak.max(more.peak),
        }
    }
}

/// Measures one of them; `None` if it is none.
pub async fn measure(
    name: &str,
    dir: &Path,
    starts: usize,
    objects: u64,
) -> Result<Option<(Figures, &'static [Bar])>> {
    Ok(match name {
        PROGRAM => Some((start(starts).await?, bars::COMMAND)),
        CENSUS => Some((census(dir, objects).await?, bars::CENSUS)),
        migrate::MIGRATE => Some((migrate::measure(dir, objects).await?, bars::MIGRATE)),
        _ => None,
    })
}

/// `sidekey --version`, many times.
async fn start(starts: usize) -> Result<Figures> {
    let program = binaries::path_async(PROGRAM).await?;
    eprintln!("{PROGRAM}: {starts} starts");
    let mut times = Vec::new();
    // The first one warms the page cache; it is not counted.
    for round in 0..=starts {
        let mut command = Command::new(&program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null());
        let begin = Instant::now();
        let status = command.status().context("cannot run sidekey --version")?;
        ensure!(status.success(), "sidekey --version ended with {status}");
        if round > 0 {
            times.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
    }
    let binary = Binary::read(&program).ok();
    Ok(Figures { binary, start_ms: Spread::of(times), ..Figures::of(PROGRAM) })
}

/// A census of so many encrypted Secrets.
async fn census(dir: &Path, objects: u64) -> Result<Figures> {
    let program = binaries::path_async(PROGRAM).await?;
    let etcd = Etcd::start(dir).await?;
    eprintln!("{CENSUS}: writing {objects} objects");
    fill(&etcd, objects).await?;
    eprintln!("{CENSUS}: counting");
    let out = dir.join("census.json");
    let mut command = Command::new(program);
    command.args(["census", "-o", "json", "--endpoints", &etcd.url()]);
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&out)?);
    let Ended { seconds, peak } = Watched::start(command, CENSUS)?.end().await?;
    let counted: Value = serde_json::from_slice(&std::fs::read(&out)?)?;
    ensure!(counted["objects"] == objects, "{objects} were written, but: {counted:#}");
    Ok(Figures { work: Some(Work { objects, seconds, peak }), ..Figures::of(CENSUS) })
}

/// Secrets as kube-apiserver stores them through a shim.
async fn fill(etcd: &Etcd, objects: u64) -> Result<()> {
    let mut numbers = (0..objects).peekable();
    while numbers.peek().is_some() {
        let puts: Vec<Value> = numbers.by_ref().take(TRANSACTION as usize).map(put).collect();
        etcd.call("kv/txn", &json!({"success": puts})).await?;
    }
    Ok(())
}

fn put(number: u64) -> Value {
    let key = format!("/registry/secrets/namespace-{:03}/secret-{number:08}", number % 100);
    let mut value = [KMS_V2, b"sidekey:"].concat();
    // Not all alike, so that nothing is gained by it.
    let data: Vec<u8> = (0..SECRET as u64).map(|at| (at * 31 + number * 17) as u8).collect();
    let object = EncryptedObject {
        encrypted_data: data.into(),
        key_id: format!("sidekey/{}-0a1b2c3d/local/5f3a/1", 1 + number % 2),
        encrypted_dek_source: Bytes::from_static(&[7; 60]),
        annotations: [("local.sidekey.dev/nonce".to_owned(), Bytes::from_static(&[1; 12]))].into(),
        encrypted_dek_source_type: 1,
    };
    value.extend(object.encode_to_vec());
    json!({"request_put": {"key": STANDARD.encode(key), "value": STANDARD.encode(value)}})
}
