//! `sidekey migrate`: brings every stored object under the write key.

mod report;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, ValueEnum};
use http::Uri;
use kube::{Client, Config};
use sidekey_core::config::parse_duration;

use crate::cluster::{Access, server};
use crate::migrate::{
    self, Observer, Options, Pattern, Plan, Resource, Run, Selection, Stop, gate,
};
use crate::{Console, Error, Exit, Progress};
use report::{Answer, Awaited};

/// Rewrite every stored object of the encrypted resources, so that it is under the write key
///
/// Each object gets an empty patch: kube-apiserver writes it again if it is stored under another
/// key, and does nothing otherwise. Contents are neither read nor changed. It can be stopped or
/// killed at any moment; the same command goes on where it was.
#[derive(Debug, clap::Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["encryption_config", "file", "resources"]),
    after_help = "Examples:
  sidekey migrate --encryption-config /etc/kubernetes/encryption/encryption.yaml
  sidekey migrate -f cluster-a.yaml --require-key-id-hash sha256:df5d88…
  sidekey migrate --resources secrets,configmaps,widgets.example.com --dry-run
  sidekey migrate --resources '*.*' --rate 200 -o json
  sidekey migrate --resources secrets --server https://10.0.0.4:6443 --server https://10.0.0.5:6443 \\
      --require-key-id-hash sha256:df5d88… --await-only

Exit codes: 0 everything is under the write key, 1 something is not, or it was stopped,
64 bad usage or configuration."
)]
pub(super) struct Args {
    #[command(flatten)]
    access: Access,
    /// kube-apiserver's EncryptionConfiguration, which names the resources
    #[arg(long, value_name = "FILE")]
    encryption_config: Option<PathBuf>,
    /// A SecretEncryption, which names the resources
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The resources, as in EncryptionConfiguration: secrets, widgets.example.com, *.apps, *., *.*
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',')]
    resources: Vec<Pattern>,
    /// That the cluster has not all of these is no failure, as it is none for those of a file
    #[arg(long, requires = "resources")]
    ignore_missing: bool,
    #[command(flatten)]
    begin: BeginArgs,
    /// The write key that this is for, in your own words: another one begins anew [default: what
    /// kube-apiserver announces]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Where it is remembered how far it is [default: a file in ~/.local/state/sidekey]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Most writes at the same time; fewer while the server is busy
    #[arg(long, value_name = "N", default_value = "16")]
    concurrency: NonZeroUsize,
    /// Most writes in a second [default: as many as the server takes]
    #[arg(long, value_name = "N")]
    rate: Option<NonZeroU32>,
    /// How long the API server may be away or too busy before this gives up
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    patience: Duration,
    /// Count the objects and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Who rewrites
    #[arg(long, value_enum, default_value_t)]
    via: Via,
}

/// When to begin.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "When to begin")]
struct BeginArgs {
    /// Begin only when kube-apiserver announces this write key (its key_id_hash metric)
    #[arg(long, value_name = "sha256:HEX", value_parser = hash)]
    require_key_id_hash: Option<String>,
    /// Begin only when kube-apiserver has loaded the EncryptionConfiguration of this SHA-256
    #[arg(long, value_name = "sha256:HEX", value_parser = hash)]
    require_config_hash: Option<String>,
    /// KMS provider that must announce the key; may be repeated [default: those of the file]
    #[arg(long, value_name = "NAME", requires = "require_key_id_hash")]
    require_provider: Vec<String>,
    /// Ask this kube-apiserver, and every other that is given so, with the kubeconfig's name and
    /// credentials [default: the one behind the kubeconfig]
    #[arg(long, value_name = "https://IP:PORT", value_parser = server)]
    server: Vec<Uri>,
    /// How long to wait for that
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    wait: Duration,
    /// Wait for that, and write nothing
    #[arg(long, conflicts_with = "dry_run")]
    await_only: bool,
}

/// Who rewrites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Via {
    /// This command
    #[default]
    Patch,
    /// The cluster's own migrator, through its StorageVersionMigration API
    Svm,
}

pub(super) async fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let selection = args.selection()?;
    let config = args.access.config().await?;
    let client = migrate::client(config.clone())?;
    if let Some(gate) = args.begin.gate(&selection)? {
        let tell = |text: &str| console.note(text);
        let servers = gate::wait(&config, &gate, args.begin.wait, tell).await?;
        if args.begin.await_only {
            console.answer(&Awaited::new(&gate, servers))?;
            return Ok(Exit::Success);
        }
    }
    let options = args.options();
    let resolved = migrate::resolve(&client, &selection.patterns, &options).await?;
    let (stopper, stop) = Stop::pair();
    let mut plan = Plan { resolved, options, checkpoint: None, stop };
    let mut outcome = if args.dry_run {
        migrate::count(&client, &plan).await?
    } else {
        plan.checkpoint = args.checkpoint(&config, &client, console).await?;
        let mut shown = Shown::new(console);
        let work = async {
            match args.via {
                Via::Patch => migrate::run(&client, &plan, &mut shown).await,
                Via::Svm => migrate::svm::run(&client, &plan, &mut shown).await,
            }
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            error = interruption(&stopper, console) => Err(error),
        };
        shown.finish();
        outcome.map_err(|error| resumable(error, &plan, console))?
    };
    // Who names a resource by hand expects it to be there.
    for skipped in &mut outcome.skipped {
        skipped.matters |= !args.ignore_missing && args.is_named(&skipped.resource);
    }
    let complete = outcome.is_complete() || (args.dry_run && outcome.could_begin());
    console.answer(&Answer {
        complete,
        dry_run: args.dry_run,
        via_svm: args.via == Via::Svm,
        outcome,
    })?;
    Ok(if complete { Exit::Success } else { Exit::Failure })
}

impl Args {
    fn selection(&self) -> Result<Selection, Error> {
        if let Some(path) = &self.encryption_config {
            return Selection::of_encryption_configuration(
                &read(path)?,
                &path.display().to_string(),
            );
        }
        if let Some(path) = &self.file {
            return Selection::of_secret_encryption(&read(path)?, &path.display().to_string());
        }
        Ok(Selection::named(self.resources.clone()))
    }

    fn options(&self) -> Options {
        Options { concurrency: self.concurrency, rate: self.rate, patience: self.patience }
    }

    fn is_named(&self, resource: &str) -> bool {
        self.resources.iter().any(|pattern| pattern.to_string() == resource)
    }

    /// Where it is remembered how far it is. A position means nothing unless it is known for
    /// which write key it was reached.
    async fn checkpoint(
        &self,
        config: &Config,
        client: &Client,
        console: &Console,
    ) -> Result<Option<(PathBuf, Run)>, Error> {
        let target = match self.target.clone().or_else(|| self.begin.require_key_id_hash.clone()) {
            Some(target) => Some(target),
            None => gate::announced(config).await.ok().and_then(|announced| announced.digest()),
        };
        let Some(target) = target else {
            if self.checkpoint.is_some() {
                return Err(Error::usage("a checkpoint needs to know which write key it is for")
                    .because("kube-apiserver does not tell which one it has")
                    .hint("name it with --target, by any name that changes with each rotation"));
            }
            console.warn(
                "the write key is not known: if this is stopped it will begin anew; --target helps",
            );
            return Ok(None);
        };
        let run = Run { cluster: gate::cluster_id(client).await?, target };
        let path = self.checkpoint.clone().or_else(|| run.default_path());
        if path.is_none() {
            console.warn("there is no home directory for a checkpoint: give one with --checkpoint");
        }
        Ok(path.map(|path| (path, run)))
    }
}

impl BeginArgs {
    fn gate(&self, selection: &Selection) -> Result<Option<gate::Gate>, Error> {
        let gate = gate::Gate {
            key_id_hash: self.require_key_id_hash.clone(),
            config_hash: self.require_config_hash.clone(),
            writers: match self.require_provider.as_slice() {
                [] => selection.writers.clone(),
                given => given.to_vec(),
            },
            servers: self.server.clone(),
        };
        if gate.key_id_hash.is_some() || gate.config_hash.is_some() {
            return Ok(Some(gate));
        }
        if self.await_only || !self.server.is_empty() {
            return Err(Error::usage("--await-only and --server need something to wait for")
                .hint("give --require-key-id-hash, --require-config-hash, or both"));
        }
        Ok(None)
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("cannot read {}", path.display())).because(error))
}

fn hash(text: &str) -> Result<String, String> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    match hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        true => Ok(text.to_owned()),
        false => Err("it is sha256: and 64 hexadecimal digits, as kube-apiserver's metrics and `sidekey status` show it".into()),
    }
}

/// The first Ctrl-C ends the run in good order, the second at once.
async fn interruption(stopper: &migrate::Stopper, console: &Console) -> Error {
    signalled().await;
    console.note("stopping: waiting for the requests under way");
    stopper.stop();
    signalled().await;
    Error::failed("stopped at once")
}

pub(super) async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        ended = tokio::signal::ctrl_c() => match ended {
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        },
        _ = term.recv() => {}
    }
}

fn resumable(error: Error, plan: &Plan, console: &Console) -> Error {
    if let Some((path, _)) = plan.checkpoint.as_ref().filter(|(path, _)| path.exists()) {
        console.note(&format!("how far it came is in {}: run it again to go on", path.display()));
    }
    error
}

/// Progress on the terminal.
pub(super) struct Shown {
    console: Console,
    progress: Option<Progress>,
    /// What was done by earlier runs.
    before: u64,
}

impl Shown {
    pub(super) fn new(console: &Console) -> Self {
        Self { console: console.clone(), progress: None, before: 0 }
    }

    fn finish(self) {
        if let Some(progress) = self.progress {
            progress.finish();
        }
    }
}

impl Observer for Shown {
    fn begin(&mut self, total: u64) {
        self.progress = Some(Progress::new(&self.console, "migrating", Some(total)));
    }

    fn resource(&mut self, resource: &Resource, done: u64) {
        self.before += done;
        if let Some(progress) = &mut self.progress {
            progress.set_message(resource.id());
            progress.add(done);
        }
    }

    fn advance(&mut self, more: u64) {
        if let Some(progress) = &mut self.progress {
            progress.add(more);
        }
    }

    fn note(&mut self, text: &str) {
        match &self.progress {
            Some(progress) => progress.note(text),
            None => self.console.note(text),
        }
    }
}
