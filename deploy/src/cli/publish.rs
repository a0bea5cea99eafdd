//! `sidekey publish`: what was rendered, to where pods read it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::render::no_namespace;
use super::source::{Document, Source, names_cluster};
use crate::model::SecretEncryption;
use crate::preflight::{self, Subject, Verdict};
use crate::publish::{
    Directory, Live, Options, Outcome, Proof, Target, View, check, publish, verify,
};
use crate::render::profile::Profile;
use crate::render::{ResolvedFiles, render};
use crate::{Console, Error, Exit, Report};

/// How long a provider is tried for a canary.
const CANARY_TIME: Duration = Duration::from_secs(20);

/// Publish the next revision to a cluster, or to directories of this host
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey publish -f cluster-a.yaml                          # to the namespace that it names
  sidekey publish -f cluster-a.yaml --to-dir /etc/sidekey    # for static pods and MicroShift, as root
  sidekey publish -f cluster-a.yaml --identity-first         # first phase of turning encryption on
  sidekey publish -f cluster-a.yaml --dry-run                # what would be done
  sidekey census --may-drop 1 -o json > gone.json && sidekey publish -f cluster-a.yaml --census gone.json

Nothing is written if nothing has changed. What could make data unreadable is refused: to let a key,
a provider's name, identity or a resource go, to give a number to another KEK, and to write with a key
that was not published with role read before (`sidekey rotate` does that in order).

Exit codes: 0 done, 1 failed, 3 refused, 64 bad usage or document.")]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Swap directories of this host instead: DIR/{kube-apiserver,shim,<vendor>}
    #[arg(long, value_name = "DIR")]
    to_dir: Option<PathBuf>,
    /// Group that the pods run as, which may read the files of --to-dir
    #[arg(long, value_name = "GID", default_value_t = 65532)]
    gid: u32,
    /// Revisions to keep; those that a head carries stay in any case
    #[arg(long, value_name = "N", default_value_t = 10)]
    keep: usize,
    /// A keyID, a provider's name, a resource or `identity` that may go, used or not; several times
    #[arg(long, value_name = "KEYID")]
    force_drop: Vec<String>,
    /// What `sidekey census --may-drop KEYID -o json` has answered; several times
    #[arg(long, value_name = "FILE")]
    census: Vec<PathBuf>,
    /// Also refuse what is not safe after this: an EncryptionConfiguration, a shim's file or a
    /// directory of --to-dir; several times
    #[arg(long, value_name = "LIVE")]
    check_against: Vec<PathBuf>,
    /// Directory of the providers' binaries: a key without a canary is tried with its own, and gets one
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Take over what others have changed in our Secrets
    #[arg(long)]
    force_conflicts: bool,
    /// Every pod has sidecars of this version: their sockets are looked for nowhere else any more
    #[arg(long)]
    sockets_apart: bool,
    /// Check everything and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// What was done, or would be.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Published {
    name: String,
    target: String,
    dry_run: bool,
    #[serde(flatten)]
    outcome: Outcome,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let published = super::block_on(work(args))?;
    for note in &published.outcome.notes {
        console.warn(note);
    }
    console.answer(&published)?;
    Ok(Exit::Success)
}

async fn work(args: &Args) -> Result<Published, Error> {
    let mut options = Options {
        keep: args.keep,
        drop: args.force_drop.iter().cloned().collect(),
        force_conflicts: args.force_conflicts,
        ..Options::default()
    };
    for path in &args.census {
        options.proofs.push(Proof::load(path)?);
    }
    let document = args.source.document()?;
    let to = args.to_dir.clone().map(|path| Directory { path, group: Some(args.gid) });
    let (target, live, mut encryption, files) =
        prepare(&args.source, document, to, args.sockets_apart).await?;
    live.keep_canaries(&mut encryption)?;
    let mut without = Vec::new();
    if let Some(bin_dir) = args.bin_dir.clone().filter(|_| !args.dry_run) {
        let options = preflight::Options { bin_dir: Some(bin_dir), timeout: CANARY_TIME };
        let known = live.view()?;
        without = make_canaries(&mut encryption, &files, &known, &options).await;
    }
    let phase = args.source.phase();
    let draft = render(&encryption, 0, &files, phase)?;
    for path in args.check_against.iter().filter(|path| !names_cluster(path)) {
        check::verify(&View::load(path)?, &View::of(&draft)?, &options)?;
    }
    let mut outcome = if args.dry_run {
        let notes = verify(&live, &draft, &options)?;
        plan(&live, &draft, notes)
    } else {
        publish(&target, &encryption, &files, phase, &options).await?
    };
    outcome.notes.extend(without);
    let (name, target) = (encryption.name, describe(&target));
    Ok(Published { name, target, dry_run: args.dry_run, outcome })
}

/// Has providers wrap a canary for every new key that has none; gives which keys stay without.
///
/// One that is wrapped now proves nothing of what a key wrote before: if its settings lead to another
/// KEK by mistake, it would vouch for that one.
async fn make_canaries(
    encryption: &mut SecretEncryption,
    files: &ResolvedFiles,
    known: &View,
    options: &preflight::Options,
) -> Vec<String> {
    let mut without = Vec::new();
    let keys = encryption.spec.keys.iter_mut();
    for key in keys.filter(|key| key.canary.is_none() && !key.is_external()) {
        if known.keys.contains_key(&key.id) {
            let why = "it is in use without one; `sidekey preflight` prints one for its file, once \
                       you know that its settings lead to the right KEK";
            without.push(format!("key {} has no canary: {why}", key.id));
            continue;
        }
        let contents = key.files.iter();
        let contents = contents.map(|file| (file.name.clone(), files.content(&file.source)));
        let why = match preflight::prove(&Subject::of(key, contents.collect()), options).await {
            Ok(report) if report.verdict == Verdict::Ready => {
                key.canary = report.canary;
                continue;
            }
            Ok(_) => format!("`sidekey preflight --key {}` says why", key.id),
            Err(error) => error.report(),
        };
        without.push(format!("key {} has no canary: {why}", key.id));
    }
    without
}

/// Where to, what is there, and what is wanted there.
pub(super) async fn prepare(
    source: &Source,
    document: Document,
    directory: Option<Directory>,
    apart: bool,
) -> Result<(Target, Live, SecretEncryption, ResolvedFiles), Error> {
    let explicit = source.access.kubeconfig.is_some() || source.access.context.is_some();
    let client = match directory {
        Some(_) if !explicit => None,
        _ => Some(source.access.client().await?),
    };
    let target = match (directory, &client) {
        (None, Some(client)) => {
            let namespace = source.target_namespace(&document).ok_or_else(no_namespace)?;
            Target::Cluster { client: client.clone(), namespace }
        }
        (Some(directory), _) => Target::Directory(directory),
        (None, None) => return Err(no_namespace()),
    };
    let name = match &document {
        Document::Encryption(encryption) => encryption.name.clone(),
        Document::Hosted(hosted) => hosted.name.clone(),
        Document::ApiServer(server) => server.name.clone(),
    };
    let live = target.live(&name).await?;
    let mut loaded = source.load(document, Profile::Sidekey, client.as_ref(), &live).await?;
    let before = !apart && live.may_serve_pods_of_before()?;
    live.keep_sockets(&mut loaded.encryption, before)?;
    Ok((target, live, loaded.encryption, loaded.files))
}

fn plan(live: &Live, draft: &crate::render::Rendered, notes: Vec<String>) -> Outcome {
    let (revision, changed) = live.plan(draft);
    let parts = draft.parts.iter().filter(|_| changed);
    let written = parts.map(|part| part.name.to_string()).collect();
    Outcome { revision, changed, written, pruned: Vec::new(), notes }
}

pub(super) fn describe(target: &Target) -> String {
    match target {
        Target::Cluster { namespace, .. } => format!("namespace {namespace}"),
        Target::Directory(directory) => directory.path.display().to_string(),
    }
}

impl Report for Published {
    fn text(&self, console: &Console) -> String {
        let Outcome { revision, changed, written, pruned, .. } = &self.outcome;
        let (name, target) = (&self.name, &self.target);
        let mut text = match (changed, self.dry_run) {
            (false, _) => format!("{name}: unchanged, revision {revision} in {target}"),
            (true, false) => {
                let done = console.good(&format!("revision {revision}"));
                format!("{name}: {done} in {target}\n  written: {}", written.join(", "))
            }
            (true, true) => {
                format!(
                    "{name}: would be revision {revision} in {target}\n  {}",
                    written.join(", ")
                )
            }
        };
        if !pruned.is_empty() {
            let pruned: Vec<String> = pruned.iter().map(u64::to_string).collect();
            text.push_str(&format!("\n  pruned revisions: {}", pruned.join(", ")));
        }
        text
    }
}
