//! `rotate`: asks a KMS for a new version of a key, and waits until it has one.
//!
//! Only for providers that implement [`Rotate`]: they take [`RotateCommand`] for a command of their
//! own and run it with [`rotate`]. Others do not know the word, and say so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Answer, Output, answer, complain, trial};
use crate::config::{self, KeySpec, mistakes, parse_duration, read_file};
use crate::error::bounded;
use crate::key::proof::{self, within};
use crate::kms::key_id::split_shim_prefix;
use crate::provider::backend::Backend;
use crate::{Call, Error, KeyId, Kind, Provider, jitter};

/// Between two looks at the key.
const PAUSE: Duration = Duration::from_secs(1);

/// A provider whose KMS makes a new version of the same KEK when it is asked to.
pub trait Rotate: Provider {
    /// Asks for one. It is sent once: whoever does not know what became of it says so, and the
    /// key_id tells. That the KMS is still at it is no error.
    fn rotate(&self, deadline: Instant) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The command of a provider that can [`Rotate`].
#[derive(Debug, Subcommand)]
pub enum RotateCommand {
    /// Ask the KMS for a new version of a key, and wait until it has one
    #[command(
        after_help = "Examples:\n  rotate --config provider.yaml --key 1\n  rotate --config provider.yaml --key 1 --if-key-id-hash sha256:…   # safe to be run again\n\nIt needs a right that serving does not; the README names it. What runs follows by itself.\n\nExit codes: 0 there is a new version, 64 mistakes, 1 failure."
    )]
    Rotate(RotateArgs),
}

/// Which key, and from where on.
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// Configuration file that the key is in
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Number of the key
    #[arg(long, value_name = "ID")]
    key: u64,
    /// Ask only if this is the hash of the key_id: if it has moved on, all is done
    #[arg(long, value_name = "HASH", value_parser = hash)]
    if_key_id_hash: Option<String>,
    /// Hashes are those of key_ids as the shim announces them for this key
    #[arg(long, value_name = "ID-FINGERPRINT", value_parser = label)]
    shim_key: Option<String>,
    /// How long to wait for the new version
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
    /// Write the answer, or why there is none, to this file too: JSON of at most 4 KiB
    #[arg(long, value_name = "FILE")]
    result_file: Option<PathBuf>,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl RotateCommand {
    /// The form in which it answers.
    pub fn output(&self) -> Output {
        let Self::Rotate(args) = self;
        args.output
    }
}

impl RotateArgs {
    fn hash_of(&self, key_id: &KeyId) -> Result<String, Error> {
        match &self.shim_key {
            Some(label) => Ok(KeyId::new(&format!("sidekey/{label}/{key_id}"))?.hash()),
            None => Ok(key_id.hash()),
        }
    }

    fn said(&self, rotated: bool, before: &str, after: &str) -> Answer {
        let key = self.key;
        let text = match rotated {
            true => format!("key {key} has a new version: key_id {before} became {after}"),
            false => format!("key {key} is already rotated: key_id is {after}, not {before}"),
        };
        let json = json!({
            "key": key.to_string(), "rotated": rotated, "before": before, "after": after,
        });
        Answer { text, json }
    }
}

/// Runs the command.
pub fn rotate<P: Rotate>(command: RotateCommand) -> Result<Answer, Error> {
    let RotateCommand::Rotate(args) = command;
    let result = answer(ask::<P>(&args));
    let Some(path) = &args.result_file else { return result };
    match result {
        Ok(answer) => keep(path, &answer.json).map(|()| answer),
        Err(error) => {
            let json = json!({"error": bounded(error.report()), "kind": error.kind().label()});
            if let Err(error) = keep(path, &json) {
                complain(&format!("error: {}", error.report()));
            }
            Err(error)
        }
    }
}

async fn ask<P: Rotate>(args: &RotateArgs) -> Result<Answer, Error> {
    let source = args.config.display().to_string();
    let config = read_file(&args.config).and_then(|document| config::parse::<P>(&document));
    let config =
        config.map_err(|problems| Error::new(Kind::Invalid, mistakes(&source, &problems)))?;
    let spec = config.keys.iter().find(|spec| spec.id.0 == args.key).ok_or_else(|| {
        let ids: Vec<String> = config.keys.iter().map(|spec| spec.id.to_string()).collect();
        let text = format!("{source} has no key {}, only {}", args.key, ids.join(", "));
        Error::new(Kind::Invalid, text)
    })?;
    let deadline = Instant::now() + args.timeout;
    let result = async {
        let backend = within(deadline, trial::open(spec)).await?;
        let result = turn::<P>(&*backend, spec, args, deadline).await;
        // What was taken for it is given back; if not, it expires by itself.
        backend.close().await;
        result
    };
    result.await.map_err(|error| match error.kind() {
        // That is for bad usage, and the file is sound.
        Kind::Invalid => Error::new(Kind::Bug, error.report()),
        _ => error,
    })
}

/// Asks, unless somebody has, and waits.
async fn turn<P: Rotate>(
    backend: &dyn Backend,
    spec: &KeySpec,
    args: &RotateArgs,
    deadline: Instant,
) -> Result<Answer, Error> {
    let before = within(deadline, current(backend, spec, deadline)).await?;
    let hash = args.hash_of(&before)?;
    if let Some(expected) = args.if_key_id_hash.as_ref().filter(|expected| **expected != hash) {
        return Ok(args.said(false, expected, &hash));
    }
    let client = backend.as_any().downcast_ref::<P>();
    let client = client.ok_or_else(|| Error::new(Kind::Bug, "the client is of another kind"))?;
    within(deadline, client.rotate(deadline)).await?;
    let after = moved(backend, &before, deadline).await.map_err(|error| match error.hint() {
        None => error.with_hint(format!(
            "it may still come: run it again with --if-key-id-hash {hash}, which looks first"
        )),
        Some(_) => error,
    })?;
    Ok(args.said(true, &hash, &args.hash_of(&after)?))
}

/// The key_id now, of just the KEK that the canary is of.
async fn current(backend: &dyn Backend, spec: &KeySpec, deadline: Instant) -> Result<KeyId, Error> {
    if let Some(canary) = &spec.canary {
        let call = Call { uid: "rotate", deadline };
        proof::reads(backend, canary, &call, None).await?;
    }
    backend.key_id().await
}

/// Waits until the KMS reports another version.
async fn moved(backend: &dyn Backend, before: &KeyId, deadline: Instant) -> Result<KeyId, Error> {
    loop {
        let trouble = match within(deadline, backend.key_id()).await {
            Ok(now) if now != *before => return Ok(now),
            Ok(_) => None,
            Err(error) if error.kind().is_transient() => Some(error),
            Err(error) => return Err(error),
        };
        if Instant::now() + PAUSE >= deadline {
            let text = "the KMS was asked for a new version, but does not report one yet";
            let error = Error::new(Kind::Timeout, text);
            return Err(match trouble {
                Some(trouble) => error.with_source(trouble),
                None => error,
            });
        }
        tokio::time::sleep(jitter(PAUSE)).await;
    }
}

fn keep(path: &Path, json: &Value) -> Result<(), Error> {
    std::fs::write(path, json.to_string()).map_err(|error| {
        Error::new(Kind::Bug, format!("cannot write {}", path.display())).with_source(error)
    })
}

fn hash(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() == 64 && digits.bytes().all(hex) {
        return Ok(text.to_owned());
    }
    Err("is not of the form sha256:<64 hex digits>".to_owned())
}

fn label(text: &str) -> Result<String, String> {
    match split_shim_prefix(&format!("sidekey/{text}/x")) {
        (Some(_), "x") => Ok(text.to_owned()),
        _ => Err("is not of the form <number>-<fingerprint>".to_owned()),
    }
}

#[cfg(test)]
mod tests;
