//! `sidekey diff`: what publishing would change.

use std::path::PathBuf;

use serde::Serialize;

use super::publish::{describe, prepare};
use super::source::{Source, answer};
use crate::diff::{Change, Diff};
use crate::publish::Directory;
use crate::render::render;
use crate::{Console, Error, Exit, Report, Table};

/// Show what publishing would change, field by field, nothing secret
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sidekey diff -f cluster-a.yaml                          # against the cluster
  sidekey diff -f cluster-a.yaml --to-dir /etc/sidekey    # against directories of this host

A change under `kek` needs a key with a new number; everything else is taken over in place, without
a migration. Secrets are shown as the beginning of their hash.

Exit codes: 0 no difference, 1 failed, 3 different, 64 bad usage or document.")]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Compare with directories of this host
    #[arg(long, value_name = "DIR")]
    to_dir: Option<PathBuf>,
}

/// What would change.
#[derive(Serialize)]
struct Compared {
    name: String,
    target: String,
    different: bool,
    #[serde(flatten)]
    diff: Diff,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Exit, Error> {
    let compared = super::block_on(work(args))?;
    console.answer(&compared)?;
    Ok(answer(!compared.different))
}

async fn work(args: &Args) -> Result<Compared, Error> {
    let document = args.source.document()?;
    let to = args.to_dir.clone().map(|path| Directory { path, group: None });
    let (target, live, mut encryption, files) = prepare(&args.source, document, to, false).await?;
    live.keep_canaries(&mut encryption)?;
    let draft = render(&encryption, 0, &files, args.source.phase())?;
    let diff = Diff::between(&live, &draft)?;
    let (name, target) = (encryption.name, describe(&target));
    Ok(Compared { name, target, different: !diff.is_empty(), diff })
}

impl Report for Compared {
    fn text(&self, console: &Console) -> String {
        if !self.different {
            return format!("{}: no difference in {}", self.name, self.target);
        }
        let mut blocks = Vec::new();
        if !self.diff.keys.is_empty() {
            let mut table = Table::new(["key", "what happens", "changed"]);
            for key in &self.diff.keys {
                let what = key.what.label().to_owned();
                table.row([key.id.to_string(), what, key.sections.join(", ")]);
            }
            blocks.push(table.render());
        }
        for part in &self.diff.parts {
            let lines = part.changes.iter().map(|change| line(console, change));
            let lines: Vec<String> = lines.collect();
            blocks.push(format!("{}\n{}", part.part, lines.join("\n")));
        }
        for refused in &self.diff.refused {
            blocks.push(console.bad(&format!("would be refused: {refused}")));
        }
        blocks.join("\n\n")
    }
}

fn line(console: &Console, change: &Change) -> String {
    let Change { path, old, new } = change;
    match (old, new) {
        (None, Some(new)) => console.good(&format!("  + {path}: {new}")),
        (Some(old), None) => console.bad(&format!("  - {path}: {old}")),
        (Some(old), Some(new)) => format!("  ~ {path}: {old} -> {new}"),
        (None, None) => format!("  ~ {path}"),
    }
}
