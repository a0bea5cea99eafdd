//! What a changed configuration costs: how long until it is in use, and whether memory stays.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::figures::Spread;
use super::memory::Memory;
use super::server::Server;
use crate::http::HttpClient;

/// Placeholder for the number of the configuration in its text.
const REVISION: &str = "{revision}";

/// Changes before the first look at memory: by then everything has been used once.
const WARM_UP: usize = 20;

/// Between two questions whether the new configuration is in use.
const PAUSE: Duration = Duration::from_millis(1);

/// A change that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(30);

/// A configuration file that can be changed back and forth.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The file, replaced by rename.
    pub file: PathBuf,
    /// The texts, used one after the other. In each, `{revision}` stands for a number that
    /// the program shows as `revision` on `/status`.
    pub texts: [String; 2],
}

/// What many changes have cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reloads {
    /// From the rename to the first answer of `/status` with the new revision.
    pub live_ms: Spread,
    /// After some changes.
    pub before: Memory,
    /// After all of them.
    pub after: Memory,
}

impl Reload {
    /// Writes the configuration to start with.
    pub fn write_first(&self) -> Result<()> {
        self.replace(0)
    }

    /// Changes the configuration `count` times, each time when the last one is in use.
    pub async fn measure(&self, server: &Server, count: usize) -> Result<Reloads> {
        let admin = server.admin().context("it logged no admin address")?;
        let admin = HttpClient::plain(admin);
        let mut took = Vec::new();
        let mut before = Memory::of(server.pid())?;
        for revision in 1..=WARM_UP + count {
            took.push(self.change(&admin, revision).await?.as_secs_f64() * 1000.0);
            if revision == WARM_UP {
                before = Memory::of(server.pid())?;
            }
        }
        let live_ms = Spread::of(took.split_off(WARM_UP)).context("no change was asked for")?;
        Ok(Reloads { live_ms, before, after: Memory::of(server.pid())? })
    }

    async fn change(&self, admin: &HttpClient, revision: usize) -> Result<Duration> {
        self.replace(revision)?;
        let begin = Instant::now();
        let wanted = revision.to_string();
        loop {
            let status = admin.get("/status").await?.ok()?.json()?;
            if status["revision"] == wanted {
                return Ok(begin.elapsed());
            }
            let refused = &status["config"]["refused"];
            ensure!(begin.elapsed() < LIMIT, "revision {wanted} is not in use: {refused}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn replace(&self, revision: usize) -> Result<()> {
        let text = self.texts[revision % 2].replace(REVISION, &revision.to_string());
        let new = self.file.with_extension("new");
        let write = || std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.file));
        write().with_context(|| format!("cannot write {}", self.file.display()))
    }
}
