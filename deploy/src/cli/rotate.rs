//! `sidekey rotate`: from the key that writes to a new one.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use sidekey_core::config::parse_duration;

use super::fleet::{self, FleetArgs};
use super::migrate::Shown;
use super::publish::prepare;
use super::source::Source;
use crate::model::{Role, SecretEncryption};
use crate::publish::{self, Directory, Live, Target};
use crate::render::{Phase, ResolvedFiles, render};
use crate::rotate::{self, Observer, Patience, Plane, Stage, State, Store};
use crate::{Console, Error, Exit, Report, preflight};

/// Rotate to the key that the file names as writer, without a failed request or a restart
///
/// In the one safe order: the new key is proven, then published as a reader; when every shim reads
/// with it, it becomes the writer; when every kube-apiserver announces it, stored objects are
/// rewritten. It can be killed at any moment: the same command goes on where it was. The old key
/// stays as a reader until `sidekey census --may-drop` says that nothing needs it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey rotate -f cluster-a.yaml --hosted-kubeconfig hosted.kubeconfig --dry-run
  sidekey rotate -f cluster-a.yaml --hosted-kubeconfig hosted.kubeconfig
  sidekey rotate -f cluster-a.yaml --abort      # as long as the new key was never promoted
  sidekey rotate -f node.yaml --to-dir /etc/sidekey --shim http://127.0.0.1:8093 --standalone

Exit codes: 0 completed, 1 failed or not finished (run it again), 3 refused because it would not be
safe, 64 bad usage or configuration.")]
pub(super) struct Args {
    /// The SecretEncryption as it is to be in the end: the new key writes, the old one reads
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Files of a host in the place of a cluster's Secrets (see `sidekey publish`)
    #[arg(long, value_name = "DIR")]
    to_dir: Option<PathBuf>,
    /// Group that the pods run as, which may read the files of --to-dir
    #[arg(long, value_name = "GID", default_value_t = 65532)]
    gid: u32,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "abort")]
    dry_run: bool,
    /// Give the rotation under way up; possible until the new key is promoted
    #[arg(long)]
    abort: bool,
    /// Do not run the provider here to prove the new key: leave that to the shims
    #[arg(long)]
    no_preflight: bool,
    /// Directory of the providers' binaries, for the preflight [default: $PATH]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// How long to wait for all replicas, in each stage
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = parse_duration)]
    patience: Duration,
}

/// What came of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(flatten)]
    state: State,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plan: Vec<String>,
    /// Why the key of a rotation that was given up is still published.
    #[serde(skip_serializing_if = "Option::is_none")]
    stays: Option<String>,
    #[serde(skip)]
    seconds: u64,
}

impl Answer {
    fn of(state: State) -> Self {
        Self { state, plan: Vec::new(), stays: None, seconds: 0 }
    }
}

/// Tells a person how it goes.
struct Told<'a> {
    console: &'a Console,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let begun = std::time::Instant::now();
    let answer = super::block_on(work(args, console))?;
    console.answer(&Answer { seconds: begun.elapsed().as_secs(), ..answer })?;
    Ok(Exit::Success)
}

async fn work(args: &Args, console: &Console) -> Result<Answer, Error> {
    let FleetArgs { access, namespace, .. } = &args.fleet;
    let source = Source::of(args.file.clone(), namespace.clone(), access.clone());
    let (path, group) = (args.to_dir.clone(), Some(args.gid));
    let directory = path.map(|path| Directory { path, group });
    let (target, live, wanted, files) =
        prepare(&source, source.document()?, directory, false).await?;
    let store = match &target {
        Target::Cluster { client, namespace } => Store::cluster(client.clone(), namespace),
        Target::Directory(directory) => Store::directory(&directory.path),
    };
    let (from, to) = rotate::turns(&live, &wanted)?;
    if args.dry_run {
        let state = store.load().await?.state.filter(|state| !state.stage.is_over());
        let new = || from.map(|from| State::begin(from, to.clone(), "", None));
        let Some(state) = state.or_else(new) else {
            return Err(Error::refused(format!("key {} writes already", to.id)));
        };
        let plan = plan(&wanted, &files, &state, &live)?;
        return Ok(Answer { plan, ..Answer::of(state) });
    }
    let mut plane = args.plane(target, wanted, files, console).await?;
    if args.abort {
        let (state, stays) = rotate::abort(&store, &mut plane).await?;
        return Ok(Answer { stays, ..Answer::of(state) });
    }
    let started = rotate::begin(&store, &live, from, to).await?;
    let patience = Patience { limit: args.patience, ..Patience::default() };
    let told = &mut Told { console };
    Ok(Answer::of(rotate::drive(&store, started, &mut plane, told, patience).await?))
}

impl Args {
    async fn plane(
        &self,
        target: Target,
        wanted: SecretEncryption,
        files: ResolvedFiles,
        console: &Console,
    ) -> Result<Plane, Error> {
        let fleet = self.fleet.fleet(&fleet::Plane::of(&wanted)).await?;
        let bin_dir = self.bin_dir.clone();
        let preflight = preflight::Options { bin_dir, ..preflight::Options::default() };
        Ok(Plane {
            target,
            wanted,
            files,
            fleet,
            preflight: (!self.no_preflight).then_some(preflight),
            api: self.fleet.stored().await?,
            progress: Box::new(Shown::new(console)),
        })
    }
}

/// What would be done from here on; what publishing would refuse is refused now.
fn plan(
    wanted: &SecretEncryption,
    files: &ResolvedFiles,
    state: &State,
    live: &Live,
) -> Result<Vec<String>, Error> {
    let (from, to) = (state.from.id, state.to.id);
    if !state.stage.is_promoted() {
        let mut read = wanted.clone();
        for key in &mut read.spec.keys {
            key.role = if key.id.0 == from { Role::Write } else { Role::Read };
        }
        let draft = render(&read, 0, files, Phase::Settled)?;
        publish::verify(live, &draft, &publish::Options::default())?;
    }
    let resources = wanted.spec.resources.join(", ");
    let steps = [
        (Stage::Preflight, format!("prove key {to} ({}) with its provider", state.to.vendor)),
        (Stage::ReadOnlyDeploy, format!("publish key {to} as read; wait for every shim")),
        (
            Stage::WritePromote,
            format!("publish key {to} as write; wait for every shim and every kube-apiserver"),
        ),
        (Stage::Migrating, format!("rewrite {resources}")),
        (Stage::Completed, format!("key {from} stays as read until a census lets it go")),
    ];
    let place = |stage: &Stage| Stage::ALL.iter().position(|other| other == stage);
    let left = steps.iter().filter(|(stage, _)| place(stage) >= place(&state.stage));
    Ok(left.map(|(stage, text)| format!("{:<15} {text}", stage.label())).collect())
}

impl Observer for Told<'_> {
    fn stage(&mut self, state: &State) {
        let (from, to) = (state.from.id, state.to.id);
        let text = match state.stage {
            Stage::Preflight => format!("from key {from} to key {to} ({})", state.to.vendor),
            Stage::ReadOnlyDeploy => format!("every replica learns to read with key {to}"),
            Stage::WritePromote => format!("key {to} becomes the writer"),
            Stage::Migrating => format!("stored objects move to key {to}"),
            Stage::Completed | Stage::Interrupted => return,
        };
        self.console.note(&format!("{:<15} {text}", state.stage.label()));
    }

    fn doing(&mut self, text: &str) {
        self.console.note(&format!("{:<15} {text}", ""));
    }

    fn waiting(&mut self, missing: &[String]) {
        for line in missing.iter().take(5) {
            self.doing(&format!("waiting: {line}"));
        }
        if missing.len() > 5 {
            self.doing(&format!("waiting: {} more", missing.len() - 5));
        }
    }
}

impl Report for Answer {
    fn text(&self, console: &Console) -> String {
        if !self.plan.is_empty() {
            return self.plan.join("\n");
        }
        let (from, to) = (self.state.from.id, self.state.to.id);
        match (self.state.stage, &self.stays) {
            (Stage::Interrupted, Some(why)) => format!(
                "given up: key {from} writes as before.\nKey {to} stays to read, because data may be under it: {why}.\nWhether it may go: sidekey census --may-drop {to}"
            ),
            (Stage::Interrupted, None) => format!(
                "given up: key {from} writes as before, key {to} never did.\nThe number {to} is used up: the next key is {}.",
                to + 1
            ),
            _ => {
                let took = humantime::format_duration(Duration::from_secs(self.seconds));
                let done = console.good("Completed");
                format!(
                    "{done} in {took}: key {to} writes, everything stored is under it.\nKey {from} stays to read. Backups from before need it as long as you keep them.\nWhether it may go: sidekey census --may-drop {from}"
                )
            }
        }
    }
}
