//! What `sidekey migrate` costs on a real control plane, in turns with what people do without it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;

use super::command::{PROGRAM, Work};
use super::figures::Figures;
use super::watch::Watched;
use crate::apiserver::Options;
use crate::golang::KUBECTL;
use crate::kube::{Kind, KubeClient};
use crate::shim::replicas::{PROVIDER, key_number};
use crate::shim::{Shim, ShimConfig};
use crate::{ControlPlane, EncryptionConfiguration, KubeApiserver, LocalPlugin, Stanza, binaries};

/// The name under which it is measured.
pub const MIGRATE: &str = "sidekey migrate";

/// What it is measured against.
const YARDSTICK: &str = "kubectl get | kubectl replace";
/// Objects that both rewrite in turns.
const COMPARED: u64 = 3000;
/// Turns of each.
const ROUNDS: u64 = 2;
/// Bytes of data in a Secret.
const SECRET: usize = 1000;
/// Creates at the same time.
const WRITERS: u64 = 8;
/// Between two lines while Secrets are created.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// The same work, done by the subject and by something else in turns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turns {
    /// What else.
    pub beside: String,
    /// Turns of each.
    pub rounds: u64,
    /// All turns of the subject together.
    pub own: Work,
    /// All turns of the other together.
    pub other: Work,
}

impl Turns {
    /// How many times as fast the subject is.
    pub fn ratio(&self) -> f64 {
        self.own.rate() / self.other.rate()
    }
}

/// Rewrites some objects in turns with kubectl, and then all of them.
pub(super) async fn measure(dir: &Path, objects: u64) -> Result<Figures> {
    let (program, kubectl) = (binaries::path_async(PROGRAM).await?, KUBECTL.build_async().await?);
    let mut world = World::start(dir, program, kubectl).await?;
    let compared = objects.min(COMPARED);
    world.fill(compared).await?;
    let (mut own, mut other) = (Work::default(), Work::default());
    for round in 1..=ROUNDS {
        world.rotate().await?;
        eprintln!("{MIGRATE}: turn {round} of {ROUNDS}, {YARDSTICK}");
        other = other.and(world.kubectl().await?);
        world.rotate().await?;
        eprintln!("{MIGRATE}: turn {round} of {ROUNDS}, itself");
        own = own.and(world.migrate().await?);
    }
    let turns = Turns { beside: YARDSTICK.to_owned(), rounds: ROUNDS, own, other };
    world.fill(objects).await?;
    world.rotate().await?;
    eprintln!("{MIGRATE}: all {objects} objects");
    let work = world.migrate().await?;
    Ok(Figures { turns: Some(turns), work: Some(work), ..Figures::of(MIGRATE) })
}

/// A control plane whose Secrets are encrypted through a shim. Dropped, and so ended, in this
/// order.
struct World {
    server: KubeApiserver,
    shim: Shim,
    /// The last one writes.
    plugins: Vec<LocalPlugin>,
    plane: ControlPlane,
    program: PathBuf,
    kubectl: PathBuf,
    dir: PathBuf,
    objects: u64,
}

impl World {
    async fn start(dir: &Path, program: PathBuf, kubectl: PathBuf) -> Result<Self> {
        eprintln!("{MIGRATE}: starting etcd, kube-apiserver and a shim");
        let plane = ControlPlane::start("xbench-migrate").await?;
        let plugins = vec![LocalPlugin::start(&plane.scratch, "kek-1").await?];
        let shim = Shim::start(&plane.scratch, "shim", &config(&plugins)).await?;
        let stanza = Stanza::new(["secrets"]).kms(PROVIDER, shim.endpoint()).identity();
        let encryption = EncryptionConfiguration::new().stanza(stanza);
        let server = KubeApiserver::start(&plane, Options::new("a").encryption(encryption)).await?;
        std::fs::write(dir.join("kubeconfig"), server.kubeconfig())
            .with_context(|| format!("cannot write a kubeconfig to {}", dir.display()))?;
        let dir = dir.to_owned();
        Ok(Self { server, shim, plugins, plane, program, kubectl, dir, objects: 0 })
    }

    /// Creates Secrets until there are so many.
    async fn fill(&mut self, objects: u64) -> Result<()> {
        if objects > self.objects {
            eprintln!("{MIGRATE}: creating {} Secrets", objects - self.objects);
        }
        let mut numbers = self.objects..objects;
        let mut writers = JoinSet::new();
        let (client, mut said) = (self.server.client(), Instant::now());
        for number in numbers.by_ref().take(WRITERS as usize) {
            writers.spawn(create(client.clone(), number));
        }
        while let Some(created) = writers.join_next().await {
            created??;
            self.objects += 1;
            if let Some(number) = numbers.next() {
                writers.spawn(create(client.clone(), number));
            }
            if said.elapsed() >= LINES_EVERY {
                said = Instant::now();
                eprintln!("{MIGRATE}: {} of {objects} Secrets", self.objects);
            }
        }
        Ok(())
    }

    /// Brings a new key that writes, and waits until kube-apiserver writes under it.
    async fn rotate(&mut self) -> Result<()> {
        let id = self.plugins.len() + 1;
        eprintln!("{MIGRATE}: rotating to key {id}; kube-apiserver sees it within 20 s");
        self.plugins.push(LocalPlugin::start(&self.plane.scratch, &format!("kek-{id}")).await?);
        self.shim.load(&config(&self.plugins)).await?;
        let hash = self.shim.key_id_hash().await?;
        self.server.wait_key_id(PROVIDER, &hash).await
    }

    /// `kubectl get secrets -A -o json | kubectl replace -f -`
    async fn kubectl(&self) -> Result<Work> {
        let said = self.dir.join("replaced");
        let begin = Instant::now();
        let mut get = self.kubectl_command();
        get.args(["get", "secrets", "-A", "-o", "json"]);
        get.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut get = Watched::start(get, "kubectl get")?;
        let list = get.take_stdout().context("kubectl get has no stdout")?;
        let mut replace = self.kubectl_command();
        replace.args(["replace", "-f", "-"]).stdin(list).stdout(File::create(&said)?);
        let replace = Watched::start(replace, "kubectl replace")?;
        let (got, replaced) = tokio::try_join!(get.end(), replace.end())?;
        let seconds = begin.elapsed().as_secs_f64();
        let count = std::fs::read_to_string(&said)?.lines().count() as u64;
        ensure!(count == self.objects, "kubectl replaced {count} of {} Secrets", self.objects);
        self.check_keys().await?;
        Ok(Work { objects: self.objects, seconds, peak: got.peak.max(replaced.peak) })
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        // What it keeps of the server's API must not end up in somebody's home.
        command.env("HOME", &self.dir).env("KUBECONFIG", self.dir.join("kubeconfig"));
        command
    }

    async fn migrate(&self) -> Result<Work> {
        let said = self.dir.join("migrated.json");
        // A new one each time: nothing is taken up where another turn was.
        let checkpoint = self.dir.join(format!("checkpoint-{}.json", self.plugins.len()));
        let mut command = Command::new(&self.program);
        command.args(["migrate", "-o", "json", "--kubeconfig"]).arg(self.dir.join("kubeconfig"));
        command.arg("--encryption-config").arg(self.server.encryption_file());
        command.arg("--checkpoint").arg(checkpoint);
        command.stdin(Stdio::null()).stdout(File::create(&said)?);
        let ended = Watched::start(command, MIGRATE)?.end().await?;
        let answer: Value = serde_json::from_slice(&std::fs::read(&said)?)?;
        let rewritten = &answer["resources"][0]["rewritten"];
        ensure!(*rewritten == self.objects, "there are {}, but: {answer:#}", self.objects);
        self.check_keys().await?;
        Ok(Work { objects: self.objects, seconds: ended.seconds, peak: ended.peak })
    }

    /// Whoever is fast because it has left something out is not measured.
    async fn check_keys(&self) -> Result<()> {
        let (wanted, mut found) = (self.plugins.len() as u64, 0);
        for entry in self.plane.etcd.list("/registry/secrets/").await? {
            let key = key_number(&entry.value).with_context(|| entry.key.clone())?;
            ensure!(key == wanted, "{} is under key {key}, not {wanted}", entry.key);
            found += 1;
        }
        ensure!(found == self.objects, "etcd has {found} Secrets of {}", self.objects);
        Ok(())
    }
}

/// All keys but the last one only read.
fn config(plugins: &[LocalPlugin]) -> ShimConfig {
    let revision = plugins.len() as u64;
    let keys = plugins.iter().zip(1..);
    keys.fold(ShimConfig::new(revision), |config, (plugin, id)| match id == revision {
        true => config.write(id, plugin.endpoint()),
        false => config.read(id, plugin.endpoint()),
    })
}

async fn create(client: KubeClient, number: u64) -> Result<()> {
    let name = format!("secret-{number:08}");
    // Not all alike, so that nothing is gained by it.
    let text = name.repeat(SECRET / name.len());
    client.create(Kind::Secret, "default", &name, &[("word", &text)]).await
}
