//! What can be measured. A new subject is one more entry of [`SUBJECTS`]: a name, the
//! processes to start and the bars that its figures are held against.

mod faked;
mod proxied;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::bars;
use super::fake::Fake;
use super::figures::Bar;
use super::reach::Reach;
use super::reload::Reload;
use crate::{aws, binaries, local, vault};

/// Placeholder for the run's own directory in given arguments.
const DIRECTORY: &str = "{dir}";

/// One process to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it will listen.
    pub reach: Reach,
    /// Where its log goes.
    pub log: PathBuf,
    /// Whether it gets none of our own environment.
    pub isolated: bool,
}

impl Launch {
    /// A program that will listen on `socket`; its log lies beside it.
    fn on_socket(program: PathBuf, args: Vec<String>, socket: &Path) -> Result<Self> {
        let reach = Reach::Socket(socket.to_string_lossy().parse()?);
        Ok(Self { program, args, reach, log: socket.with_extension("log"), isolated: false })
    }

    /// The program's name.
    pub fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// An arrangement to measure: a plugin, and what has to run behind it.
#[derive(Debug)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// Started first and left alone: providers behind a shim, for one.
    pub behind: Vec<Launch>,
    /// What is started, measured and driven.
    pub measured: Launch,
    /// The fake KMS behind it all, which runs already.
    pub fake: Option<Fake>,
    /// What is driven in turns with it.
    pub yardstick: Yardstick,
    /// Its configuration, where changes of it are measured.
    pub reload: Option<Reload>,
    /// What its figures are held against.
    pub bars: &'static [Bar],
}

/// What is driven in turns with a subject: then the figures say what the subject adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yardstick {
    /// Nothing.
    None,
    /// The first plugin behind it.
    Behind,
    /// The fake KMS, with the very requests that the subject sends to it.
    Direct,
}

/// How a known subject is made, with its files in the given directory.
struct Recipe {
    name: &'static str,
    make: fn(&Path) -> Result<Subject>,
}

const SUBJECTS: &[Recipe] = &[
    Recipe { name: local::PROGRAM, make: local },
    Recipe { name: MANY_LOCAL, make: many_local },
    Recipe { name: SHIM, make: shim },
    Recipe { name: MANY_SHIM, make: many_shim },
    Recipe { name: proxied::PROGRAM, make: proxied::proxy },
    Recipe { name: aws::PROGRAM, make: faked::aws },
    Recipe { name: SLOW_AWS, make: faked::slow_aws },
    Recipe { name: vault::PROGRAM, make: faked::vault },
    Recipe { name: SHIM_AND_AWS, make: faked::shim_and_aws },
];

const SHIM: &str = "sidekey-shim";
const MANY_LOCAL: &str = "sidekey-local with 50 keys";
const MANY_SHIM: &str = "sidekey-shim with 50 keys";
const SLOW_AWS: &str = "sidekey-aws with a KMS of 5 ms";
const SHIM_AND_AWS: &str = "sidekey-shim+aws";

/// The first one writes.
const SHIM_KEYS: [u64; 3] = [3, 2, 1];

/// As many as a control plane may collect if nothing is ever rewritten.
const MANY: u64 = 50;

/// Everything that can be measured by its name alone.
pub fn names() -> impl Iterator<Item = &'static str> {
    SUBJECTS.iter().map(|subject| subject.name)
}

/// The subject of that name, its release binaries built if need be.
pub fn named(name: &str, dir: &Path) -> Result<Subject> {
    let known = SUBJECTS.iter().find(|subject| subject.name == name).with_context(|| {
        let names: Vec<&str> = names().collect();
        format!("how to start {name} is not known here: give its arguments after --, or one of {names:?}")
    })?;
    (known.make)(dir)
}

/// Any plugin, started with given arguments in which `{dir}` stands for a directory of the
/// run. It must listen on `{dir}/kms.sock`.
pub fn given(program: &str, args: &[String], dir: &Path) -> Result<Subject> {
    let program = match program.contains('/') {
        true => PathBuf::from(program),
        false => binaries::path(program)?,
    };
    let place = dir.to_str().context("the scratch directory's path is not UTF-8")?;
    let args = args.iter().map(|argument| argument.replace(DIRECTORY, place)).collect();
    let measured = Launch::on_socket(program, args, &dir.join("kms.sock"))?;
    Ok(Subject {
        name: measured.name(),
        behind: Vec::new(),
        measured,
        fake: None,
        yardstick: Yardstick::None,
        reload: None,
        bars: &[],
    })
}

fn local(dir: &Path) -> Result<Subject> {
    let args = [
        "--listen",
        "unix://{dir}/kms.sock",
        "--key-file",
        "{dir}/key",
        "--create-key",
        "--admin",
        "127.0.0.1:0",
    ];
    let subject = given(local::PROGRAM, &args.map(str::to_owned), dir)?;
    Ok(Subject { bars: bars::LOCAL, ..subject })
}

/// One provider that serves many keys.
fn many_local(dir: &Path) -> Result<Subject> {
    let ids: Vec<u64> = (1..=MANY).rev().collect();
    let measured = provider(dir, &ids)?;
    let subject = given(local::PROGRAM, &[], dir)?;
    Ok(Subject { name: MANY_LOCAL.to_owned(), measured, bars: bars::MANY_LOCAL, ..subject })
}

/// The shim before one provider that serves three keys.
fn shim(dir: &Path) -> Result<Subject> {
    // A key comes and goes with each change.
    let texts = [shim_text(dir, &SHIM_KEYS), shim_text(dir, &SHIM_KEYS[..2])];
    let reload = Reload { file: dir.join("shim.yaml"), texts };
    reload.write_first()?;
    let subject = shim_before(provider(dir, &SHIM_KEYS)?, dir)?;
    Ok(Subject { reload: Some(reload), bars: bars::SHIM, ..subject })
}

/// The shim before one provider that serves many keys.
fn many_shim(dir: &Path) -> Result<Subject> {
    let ids: Vec<u64> = (1..=MANY).rev().collect();
    let text = shim_text(dir, &ids).replace("{revision}", "1");
    std::fs::write(dir.join("shim.yaml"), text).context("cannot write shim.yaml")?;
    let subject = shim_before(provider(dir, &ids)?, dir)?;
    Ok(Subject { name: MANY_SHIM.to_owned(), bars: bars::MANY_SHIM, ..subject })
}

/// The shim of `shim.yaml` in `dir` before a provider, measured in turns with it.
fn shim_before(provider: Launch, dir: &Path) -> Result<Subject> {
    let subject = given(SHIM, &["--config", "{dir}/shim.yaml"].map(str::to_owned), dir)?;
    Ok(Subject { behind: vec![provider], yardstick: Yardstick::Behind, ..subject })
}

/// The local provider with these keys; it is reached by the socket of the first.
fn provider(dir: &Path, ids: &[u64]) -> Result<Launch> {
    let mut served = Vec::new();
    for id in ids {
        let key_file = dir.join(format!("key-{id}"));
        create_key(&key_file)?;
        let (listen, credentials) = (key_socket(dir, *id), json!({"keyFile": key_file}));
        served.push(json!({"id": id, "listen": listen, "credentials": credentials}));
    }
    let config = dir.join("provider.yaml");
    std::fs::write(&config, json!({"admin": "127.0.0.1:0", "keys": served}).to_string())
        .with_context(|| format!("cannot write {}", config.display()))?;
    let args = vec!["--config".to_owned(), config.to_string_lossy().into_owned()];
    Launch::on_socket(binaries::path(local::PROGRAM)?, args, &key_socket(dir, ids[0]))
}

/// A configuration of the shim before keys whose first one writes; `{revision}` is left open.
fn shim_text(dir: &Path, ids: &[u64]) -> String {
    let key = |(index, id): (usize, &u64)| {
        let role = if index == 0 { "write" } else { "read" };
        json!({"id": id, "role": role, "endpoints": [key_socket(dir, *id)]})
    };
    let keys: Vec<Value> = ids.iter().enumerate().map(key).collect();
    let (listen, admin) = (dir.join("kms.sock"), "127.0.0.1:0");
    json!({"revision": "{revision}", "listen": listen, "admin": admin, "keys": keys}).to_string()
}

fn key_socket(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("kms-{id}.sock"))
}

fn create_key(file: &Path) -> Result<()> {
    let mut command = Command::new(binaries::path(local::PROGRAM)?);
    let output = command.arg("create").arg("--key-file").arg(file).output();
    let output = output.with_context(|| format!("cannot run {} create", local::PROGRAM))?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot create {}: {problem}", file.display());
    Ok(())
}
