//! `sidekey preflight`: may a key go live?

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use sidekey_core::Endpoint;
use sidekey_core::config::parse_duration;
use tokio::signal::unix::{SignalKind, signal};

use super::fleet::read_document;
use crate::cluster::Access;
use crate::model::{Key, Role, SecretEncryption};
use crate::preflight::{self, KeyReport, Options, Outcome, Subject, Verdict};
use crate::render::ResolvedFiles;
use crate::{Console, Error, Exit, Report, Table};

/// Run the provider with the given settings and say whether its keys may go live
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey preflight -f encryption.yaml                    # every key of the file
  sidekey preflight -f encryption.yaml --key 2 -o json
  sidekey preflight -f encryption.yaml --from-dir secrets/   # secrets/<name>/<key> for Secrets and ConfigMaps
  sidekey preflight --socket unix:///var/run/kmsplugin/kms.sock   # a plugin that runs, of any vendor

Exit codes: 0 may go live, 1 not known (the KMS is away, say: try again), 3 must not go live, 64 bad file or usage.")]
pub(super) struct Args {
    /// SecretEncryption with the keys
    #[arg(short, long, value_name = "FILE", required_unless_present = "socket")]
    filename: Option<PathBuf>,
    /// Only this key; may be repeated
    #[arg(long, value_name = "ID")]
    key: Vec<u64>,
    /// Socket of a running plugin, in the place of a file
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["filename", "key"])]
    socket: Option<Endpoint>,
    /// File with the canary that this plugin must read
    #[arg(long, value_name = "FILE", requires = "socket")]
    canary: Option<PathBuf>,
    /// That plugin only reads
    #[arg(long, requires = "socket")]
    read_only: bool,
    /// Directory of the providers' binaries [default: $PATH]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Directory with what Secrets and ConfigMaps hold, as DIR/<name>/<key> [default: the cluster]
    #[arg(long, value_name = "DIR")]
    from_dir: Option<PathBuf>,
    /// How long to try one key
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: String,
    #[command(flatten)]
    access: Access,
}

/// The answer.
#[derive(Serialize)]
struct Answer {
    verdict: Verdict,
    keys: Vec<KeyReport>,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let timeout =
        parse_duration(&args.timeout).map_err(|text| Error::usage(format!("--timeout: {text}")))?;
    let keys = super::block_on(async {
        // What was started and copied goes when the trial is dropped.
        tokio::select! {
            keys = prove(args, timeout) => keys,
            error = interrupted() => Err(error),
        }
    })?;
    let verdict = keys.iter().map(|key| key.verdict).max().unwrap_or(Verdict::Unknown);
    console.answer(&Answer { verdict, keys })?;
    Ok(match verdict {
        Verdict::Ready => Exit::Success,
        Verdict::Unknown => Exit::Failure,
        Verdict::Refused => Exit::No,
    })
}

async fn interrupted() -> Error {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
    Error::failed("interrupted: the provider was ended, its files are gone")
}

async fn prove(args: &Args, timeout: Duration) -> Result<Vec<KeyReport>, Error> {
    if let Some(endpoint) = &args.socket {
        let role = if args.read_only { Role::Read } else { Role::Write };
        let canary = args.canary.as_deref().map(read_canary).transpose()?;
        let report = preflight::prove_socket(endpoint, role, canary.as_ref(), timeout).await;
        return Ok(vec![report]);
    }
    let path = args.filename.as_deref().unwrap_or_else(|| Path::new("-"));
    let document = chosen(read_document(path)?, &args.key)?;
    let files = resolve(args, path, &document).await?;
    let options = Options { bin_dir: args.bin_dir.clone(), timeout };
    let mut reports = Vec::new();
    for key in &document.spec.keys {
        reports.push(prove_key(key, &files, &options).await?);
    }
    Ok(reports)
}

async fn prove_key(
    key: &Key,
    files: &ResolvedFiles,
    options: &Options,
) -> Result<KeyReport, Error> {
    if key.is_external() {
        let socket =
            key.endpoints(false).into_iter().find_map(|text| text.parse::<Endpoint>().ok());
        let socket = socket.ok_or_else(|| {
            Error::failed(format!("key {} is served by others, over a network", key.id))
                .hint("ask its plugin where it runs: sidekey preflight --socket")
        })?;
        let (role, canary) = (key.role, key.canary.as_ref());
        let mut report = preflight::prove_socket(&socket, role, canary, options.timeout).await;
        report.id = key.id.to_string();
        return Ok(report);
    }
    let files = key.files.iter().map(|file| (file.name.clone(), files.content(&file.source)));
    preflight::prove(&Subject::of(key, files.collect()), options).await
}

/// The document with the wanted keys alone: what others need is not looked for.
fn chosen(mut document: SecretEncryption, wanted: &[u64]) -> Result<SecretEncryption, Error> {
    let spec = &mut document.spec;
    let unknown: Vec<String> = wanted
        .iter()
        .filter(|id| spec.keys.iter().all(|key| key.id.0 != **id))
        .map(ToString::to_string)
        .collect();
    if !unknown.is_empty() {
        return Err(Error::usage(format!("the file has no key {}", unknown.join(", "))));
    }
    spec.keys.retain(|key| wanted.is_empty() || wanted.contains(&key.id.0));
    spec.shim_files.clear();
    spec.ciphers.clear();
    if spec.keys.is_empty() {
        return Err(Error::usage("the file has no keys"));
    }
    Ok(document)
}

async fn resolve(
    args: &Args,
    path: &Path,
    document: &SecretEncryption,
) -> Result<ResolvedFiles, Error> {
    let beside = path.parent().unwrap_or_else(|| Path::new("."));
    let mut files = ResolvedFiles::from_files(document, beside, args.from_dir.as_deref())?;
    let complete = document.sources().iter().all(|source| files.contains(source));
    if let (Some(namespace), false) = (&document.namespace, complete || args.from_dir.is_some()) {
        files.from_cluster(document, &args.access.client().await?, namespace).await?;
    }
    files.require(document)?;
    Ok(files)
}

fn read_canary(path: &Path) -> Result<serde_json::Value, Error> {
    let document = sidekey_core::read_file(path).map_err(|problems| {
        Error::usage(sidekey_core::mistakes(&path.display().to_string(), &problems))
    })?;
    // As `sidekey-<provider> canary` prints it, or the object alone.
    Ok(document.get("canary").cloned().unwrap_or(document))
}

impl Report for Answer {
    fn text(&self, console: &Console) -> String {
        let mut table = Table::new(["key", "type", "role", "check", "result", "detail"]);
        for key in &self.keys {
            for step in &key.steps {
                table.row([
                    key.id.clone(),
                    key.vendor.clone(),
                    key.role.to_string(),
                    step.check.to_owned(),
                    shown(step.result, console),
                    step.detail.clone(),
                ]);
            }
        }
        let mut parts = vec![table.render()];
        for key in &self.keys {
            parts.push(sentence(key, console));
        }
        parts.join("\n\n")
    }
}

fn shown(result: Outcome, console: &Console) -> String {
    match result {
        Outcome::Ok => console.good("ok"),
        Outcome::Warning => "warning".to_owned(),
        Outcome::Transient => console.bad("not yet"),
        Outcome::Terminal => console.bad("no"),
    }
}

fn sentence(key: &KeyReport, console: &Console) -> String {
    let name = if key.id == "-" { key.vendor.clone() } else { format!("key {}", key.id) };
    let mut text = match key.verdict {
        Verdict::Ready => console.good(&format!("{name} may go live")),
        Verdict::Unknown => {
            console.bad(&format!("{name}: not known yet. This may pass: try again"))
        }
        Verdict::Refused => {
            console.bad(&format!("{name} must not go live. This stays until something is changed"))
        }
    };
    if let Some(hash) = &key.config_hash {
        text.push_str(&format!("\n  configuration {hash}"));
    }
    if let Some(canary) = &key.canary {
        text.push_str(&format!("\n  its canary, for the file:\n    canary: {canary}"));
    }
    if !key.log.is_empty() {
        text.push_str("\n  the end of the provider's log:");
        for line in &key.log {
            text.push_str(&format!("\n    {line}"));
        }
    }
    text
}
