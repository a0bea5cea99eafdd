//! What can be measured. A new subject is one more entry of [`SUBJECTS`]: a name, the
//! processes to start and the bars that its figures are held against.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::figures::{Bar, Direction};
use crate::binaries;

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

/// An arrangement to measure: a plugin, and what has to run behind it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name in the report.
    pub name: String,
    /// Started first and left alone: providers behind a shim, for one.
    pub behind: Vec<Launch>,
    /// What is started, measured and driven.
    pub measured: Launch,
    /// What its figures are held against.
    pub bars: &'static [Bar],
}

/// How a known subject is made, with its files in the given directory.
struct Recipe {
    name: &'static str,
    make: fn(&Path) -> Result<Subject>,
}

const SUBJECTS: &[Recipe] = &[Recipe { name: "sidekey-local", make: local }];

/// Bars of the local provider.
const LOCAL: &[Bar] = &[
    Bar {
        name: "idle RSS",
        unit: "MiB",
        limit: 4.0,
        direction: Direction::AtMost,
        value: |own, _| Some(own.idle?.rss as f64 / 1024.0),
    },
    Bar {
        name: "start to healthy, median",
        unit: "ms",
        limit: 10.0,
        direction: Direction::AtMost,
        value: |own, _| Some(own.start_ms?.median),
    },
    Bar {
        name: "binary size",
        unit: "MiB",
        limit: 5.0,
        direction: Direction::AtMost,
        value: |own, _| Some(own.binary?.bytes as f64 / (1024.0 * 1024.0)),
    },
    Bar {
        // None; but the background probe may fall into the measurement.
        name: "backend calls per Status",
        unit: "",
        limit: 0.01,
        direction: Direction::AtMost,
        value: |own, _| {
            let cells = own.load.iter().filter(|cell| cell.operation == "Status");
            cells.filter_map(|cell| cell.backend_calls).reduce(f64::max)
        },
    },
];

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
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = match program.contains('/') {
        true => PathBuf::from(program),
        false => binaries::path(program)?,
    };
    let place = dir.to_str().context("the scratch directory's path is not UTF-8")?;
    let args = args.iter().map(|argument| argument.replace(DIRECTORY, place)).collect();
    let measured = Launch { program, args, socket: dir.join("kms.sock") };
    Ok(Subject { name, behind: Vec::new(), measured, bars: &[] })
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
