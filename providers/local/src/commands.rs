//! The command line of `sidekey-local`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sidekey_core::{Answer, CommandLine, Error, Kind, Output, complain};

use crate::{KeyFile, Local, store};

/// One key, described by flags.
#[derive(Debug, Args)]
pub struct Flags {
    /// Socket to serve [default: unix:///var/run/kmsplugin/kms-1.sock]
    #[arg(long, value_name = "SOCKET")]
    listen: Option<String>,
    /// File that holds the key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Make the key file if it is missing; one that exists is never touched
    #[arg(long, requires = "key_file")]
    create_key: bool,
}

/// Commands on key files.
#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Make a key file; one that exists is never touched
    #[command(after_help = "Example:\n  sidekey-local create --key-file /etc/sidekey/key")]
    Create {
        /// Which file, and how to answer
        #[command(flatten)]
        target: Target,
    },
    /// Add a version to the key; `activate` makes it the one that writes
    #[command(
        after_help = "Example, for several processes that share the file:\n  sidekey-local rotate --key-file /etc/sidekey/key\n  sidekey-local activate --key-file /etc/sidekey/key   # when all have read it"
    )]
    Rotate {
        /// Which file, and how to answer
        #[command(flatten)]
        target: Target,
        /// Write with the new version at once: for a single process
        #[arg(long)]
        activate: bool,
    },
    /// Write with another version; only forward, because a key_id must never come back
    #[command(
        after_help = "Example:\n  sidekey-local activate --key-file /etc/sidekey/key --version 2"
    )]
    Activate {
        /// Which file, and how to answer
        #[command(flatten)]
        target: Target,
        /// The version to write with [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
    /// Show the versions of a key, not the key itself
    #[command(after_help = "Example:\n  sidekey-local show --key-file /etc/sidekey/key -o json")]
    Show {
        /// Which file, and how to answer
        #[command(flatten)]
        target: Target,
    },
}

/// The key file and the form of the answer.
#[derive(Debug, Args)]
pub struct Target {
    /// File that holds the key
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl CommandLine for Local {
    const ABOUT: &'static str = "KMS v2 provider with an AES-256 key in a local file, for development, demonstrations and single nodes";
    const EXAMPLES: &'static str = "Examples:
  sidekey-local --listen unix:///var/run/kmsplugin/kms.sock --key-file /etc/sidekey/key --create-key --admin 127.0.0.1:8093
  sidekey-local --config local.yaml
  sidekey-local rotate --key-file /etc/sidekey/key --activate

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = LocalCommand;

    fn keys(flags: &Flags) -> Result<Option<Value>, Error> {
        let Some(path) = &flags.key_file else {
            return match flags.listen {
                None => Ok(None),
                Some(_) => Err(Error::new(Kind::Invalid, "--listen needs --key-file")),
            };
        };
        let path = std::path::absolute(path).map_err(|error| {
            Error::new(Kind::Invalid, format!("--key-file {}", path.display())).with_source(error)
        })?;
        let mut key = json!({"id": "1", "type": "local", "credentials": {"keyFile": path}});
        if let Some(listen) = &flags.listen {
            key["listen"] = listen.as_str().into();
        }
        Ok(Some(json!([key])))
    }

    fn prepare(flags: &Flags) -> Result<(), Error> {
        let Some(path) = flags.key_file.as_ref().filter(|_| flags.create_key) else {
            return Ok(());
        };
        if store::create(path)? {
            let path = path.display();
            complain(&format!("made a new key in {path}: back it up, data is lost without it"));
        }
        Ok(())
    }

    fn output(command: &LocalCommand) -> Output {
        match command {
            LocalCommand::Create { target }
            | LocalCommand::Rotate { target, .. }
            | LocalCommand::Activate { target, .. }
            | LocalCommand::Show { target } => target.output,
        }
    }

    fn execute(command: LocalCommand) -> Result<Answer, Error> {
        match command {
            LocalCommand::Create { target } => {
                let made = store::create(&target.key_file)?;
                let file = store::read(&target.key_file)?;
                let text =
                    if made { "made a new key; back it up" } else { "the key file exists already" };
                Ok(answer(text, &file))
            }
            LocalCommand::Rotate { target, activate } => {
                let file = store::change(&target.key_file, |file| {
                    let rotated = file.rotated()?;
                    if activate { rotated.activated(rotated.latest()) } else { Ok(rotated) }
                })?;
                let hint = if activate { "" } else { "; `activate` makes it the one that writes" };
                Ok(answer(&format!("added version {}{hint}", file.latest()), &file))
            }
            LocalCommand::Activate { target, version } => {
                let file = store::change(&target.key_file, |file| {
                    file.activated(version.unwrap_or_else(|| file.latest()))
                })?;
                Ok(answer(&format!("version {} writes now", file.active()), &file))
            }
            LocalCommand::Show { target } => Ok(answer("", &store::read(&target.key_file)?)),
        }
    }
}

fn answer(text: &str, file: &KeyFile) -> Answer {
    let versions: Vec<u32> = file.versions().map(|(version, _)| version).collect();
    let list = versions.iter().map(|version| {
        let mark = if *version == file.active() { " (writes)" } else { "" };
        format!("{version}{mark}")
    });
    let list: Vec<String> = list.collect();
    let state = format!("lineage {}, versions {}", file.lineage(), list.join(", "));
    let separator = if text.is_empty() { "" } else { "\n" };
    Answer {
        text: format!("{text}{separator}{state}"),
        json: json!({"lineage": file.lineage(), "active": file.active(), "versions": versions}),
    }
}
