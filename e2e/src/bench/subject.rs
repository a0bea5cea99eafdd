//! What can be measured. A new subject is one more entry of [`SUBJECTS`]: a name, the
//! processes to start and the bars that its figures are held against.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::figures::{Bar, Direction, Figures};
use super::reload::Reload;
use crate::{binaries, local};

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
    pub socket: PathBuf,
}

impl Launch {
    /// The program's name.
    pub fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// An arrangement to measure: a plugin, and what has to run behind it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// Started first and left alone: providers behind a shim, for one.
    pub behind: Vec<Launch>,
    /// What is started, measured and driven.
    pub measured: Launch,
    /// Whether the first one behind it is driven too, in turns with it: then the figures say
    /// what the measured one adds.
    pub beside: bool,
    /// Its configuration, where changes of it are measured.
    pub reload: Option<Reload>,
    /// What its figures are held against.
    pub bars: &'static [Bar],
}

/// How a known subject is made, with its files in the given directory.
struct Recipe {
    name: &'static str,
    make: fn(&Path) -> Result<Subject>,
}

const SUBJECTS: &[Recipe] =
    &[Recipe { name: "sidekey-local", make: local }, Recipe { name: SHIM, make: shim }];

const SHIM: &str = "sidekey-shim";

/// The first one writes.
const SHIM_KEYS: [u64; 3] = [3, 2, 1];

/// Bars of the local provider.
const LOCAL: &[Bar] = &[
    Bar {
        name: "idle RSS",
        unit: "MiB",
        limit: 4.0,
        direction: Direction::AtMost,
        value: |own| Some(own.idle?.rss as f64 / 1024.0),
    },
    Bar {
        name: "start to healthy, median",
        unit: "ms",
        limit: 10.0,
        direction: Direction::AtMost,
        value: |own| Some(own.start_ms?.median),
    },
    Bar {
        name: "binary size",
        unit: "MiB",
        limit: 5.0,
        direction: Direction::AtMost,
        value: |own| Some(own.binary?.bytes as f64 / (1024.0 * 1024.0)),
    },
    Bar {
        // None; but the background probe may fall into the measurement.
        name: "backend calls per Status",
        unit: "",
        limit: 0.01,
        direction: Direction::AtMost,
        value: |own| {
            let cells = own.load.iter().filter(|cell| cell.operation == "Status");
            cells.filter_map(|cell| cell.backend_calls).reduce(f64::max)
        },
    },
];

/// Bars of the shim. What it adds is held against the provider behind it, alone, in the same
/// run.
const SHIM_BARS: &[Bar] = &[
    Bar {
        name: "added to a Decrypt, p50",
        unit: "us",
        limit: 120.0,
        direction: Direction::AtMost,
        value: |own| own.pair("Decrypt", 1).map(|(shim, alone)| shim.p50_us - alone.p50_us),
    },
    Bar {
        name: "added to a Decrypt, p99",
        unit: "us",
        limit: 400.0,
        direction: Direction::AtMost,
        value: |own| own.pair("Decrypt", 1).map(|(shim, alone)| shim.p99_us - alone.p99_us),
    },
    Bar {
        name: "Decrypt rate at 64, share",
        unit: "",
        limit: 0.45,
        direction: Direction::AtLeast,
        value: |own| own.pair("Decrypt", 64).map(|(shim, alone)| shim.rate / alone.rate),
    },
    Bar {
        name: "CPU of a Status, share",
        unit: "",
        limit: 1.0,
        direction: Direction::AtMost,
        value: status_cost,
    },
    Bar {
        name: "idle RSS with 3 keys",
        unit: "MiB",
        limit: 5.0,
        direction: Direction::AtMost,
        value: |own| Some(own.idle?.rss as f64 / 1024.0),
    },
    Bar {
        name: "RSS after 100,000 requests",
        unit: "MiB",
        limit: 8.0,
        direction: Direction::AtMost,
        value: |own| (own.calls >= 100_000).then_some(own.loaded?.rss as f64 / 1024.0),
    },
    Bar {
        // None; but the kernel counts in pages, and malloc takes more than one at a time. A
        // connection or a key left behind each time would be several MiB.
        name: "RSS growth in 200 reloads",
        unit: "MiB",
        limit: 0.25,
        direction: Direction::AtMost,
        value: |own| {
            let reloads = own.reloads.filter(|reloads| reloads.live_ms.count >= 200)?;
            Some((reloads.after.rss as f64 - reloads.before.rss as f64) / 1024.0)
        },
    },
    Bar {
        name: "binary size",
        unit: "MiB",
        limit: 6.0,
        direction: Direction::AtMost,
        value: |own| Some(own.binary?.bytes as f64 / (1024.0 * 1024.0)),
    },
    Bar {
        name: "new config live, slowest",
        unit: "ms",
        limit: 2000.0,
        direction: Direction::AtMost,
        value: |own| Some(own.reloads?.live_ms.max),
    },
];

/// CPU time of a Status for each one of the provider's, over all concurrencies.
fn status_cost(own: &Figures) -> Option<f64> {
    let mut cost = (0.0, 0.0);
    for cell in own.load.iter().filter(|cell| cell.operation == "Status") {
        let (shim, alone) = own.pair(cell.operation, cell.concurrency)?;
        cost = (cost.0 + shim.server_cpu_us?, cost.1 + alone.server_cpu_us?);
    }
    (cost.1 > 0.0).then_some(cost.0 / cost.1)
}

/// The subject of that name, its release binaries built if need be.
pub fn named(name: &str, dir: &Path) -> Result<Subject> {
    let known = SUBJECTS.iter().find(|subject| subject.name == name).with_context(|| {
        let names: Vec<&str> = SUBJECTS.iter().map(|subject| subject.name).collect();
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
    let measured = Launch { program, args, socket: dir.join("kms.sock") };
    Ok(Subject {
        name: measured.name(),
        behind: Vec::new(),
        measured,
        beside: false,
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
    let subject = given("sidekey-local", &args.map(str::to_owned), dir)?;
    Ok(Subject { bars: LOCAL, ..subject })
}

/// The shim before one provider that serves three keys.
fn shim(dir: &Path) -> Result<Subject> {
    let socket = |id: u64| dir.join(format!("kms-{id}.sock"));
    let (file, behind) = (dir.join("shim.yaml"), dir.join("provider.yaml"));
    let mut served = Vec::new();
    for id in SHIM_KEYS {
        let key_file = dir.join(format!("key-{id}"));
        create_key(&key_file)?;
        let credentials = json!({"keyFile": key_file});
        served.push(json!({"id": id, "listen": socket(id), "credentials": credentials}));
    }
    let provider = json!({"admin": "127.0.0.1:0", "keys": served});
    std::fs::write(&behind, provider.to_string())
        .with_context(|| format!("cannot write {}", behind.display()))?;
    let text = |ids: &[u64]| {
        let key = |(index, id): (usize, &u64)| {
            let role = if index == 0 { "write" } else { "read" };
            json!({"id": id, "role": role, "endpoints": [socket(*id)]})
        };
        let keys: Vec<Value> = ids.iter().enumerate().map(key).collect();
        let (listen, admin) = (dir.join("kms.sock"), "127.0.0.1:0");
        json!({"revision": "{revision}", "listen": listen, "admin": admin, "keys": keys})
            .to_string()
    };
    // A key comes and goes with each change.
    let reload = Reload { file, texts: [text(&SHIM_KEYS), text(&SHIM_KEYS[..2])] };
    reload.write_first()?;
    let config = ["--config", "{dir}/shim.yaml"].map(str::to_owned);
    let subject = given(SHIM, &config, dir)?;
    let args = vec!["--config".to_owned(), behind.to_string_lossy().into_owned()];
    let launch =
        Launch { program: binaries::path(local::PROGRAM)?, args, socket: socket(SHIM_KEYS[0]) };
    Ok(Subject {
        behind: vec![launch],
        beside: true,
        reload: Some(reload),
        bars: SHIM_BARS,
        ..subject
    })
}

fn create_key(file: &Path) -> Result<()> {
    let mut command = Command::new(binaries::path(local::PROGRAM)?);
    let output = command.arg("create").arg("--key-file").arg(file).output();
    let output = output.with_context(|| format!("cannot run {} create", local::PROGRAM))?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot create {}: {problem}", file.display());
    Ok(())
}
