//! The life of every Sidekey process: read, log, bind, serve, take changes over, drain.
//!
//! A [`Program`] is what a command line has set up; it reads documents, and starts an [`App`], which
//! makes configurations the ones in use. All else is here once, for providers, shim and proxy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use crate::config::{LogOptions, Problems, ProcessOptions, mistakes, parse_file};
use crate::files::reload::ConfigFile;
use crate::files::{Digest, Files, Watcher};
use crate::metrics::ReloadCounter;
use crate::process::admin::Source;
use crate::process::command::{Output, print, usage};
use crate::process::telemetry::{self, LevelHandle};
use crate::process::{Signals, start_admin};
use crate::{Connections, Ending, Error, Kind, time};

/// Where the configuration of a process comes from.
#[derive(Clone, Debug)]
pub enum Given {
    /// From a file, which is watched.
    File(PathBuf),
    /// From the flags alone.
    CommandLine(Value),
}

/// A configuration that has been found sound.
pub trait Configuration: Sized {
    /// What every process has; warnings are added to it.
    fn options(&mut self) -> &mut ProcessOptions;
    /// What is taken over by the next start alone, beside what is so for every process.
    fn fixed(&self) -> Vec<(&'static str, String)>;
}

/// What a command line has set up.
pub trait Program: Sized {
    /// For the log.
    const NAME: &'static str;
    /// What it reads.
    type Config: Configuration;
    /// What it starts.
    type App: App<Config = Self::Config>;

    /// Checks a document with the flags laid over it; `Err` lists every mistake.
    fn parse(&self, document: Value) -> Result<Self::Config, Problems>;

    /// What to start with where the file cannot be used, if anything. Told what was read, if it
    /// could be.
    fn fallback(&mut self, _: Option<&Self::Config>) -> Option<Self::Config> {
        None
    }

    /// Does what must be done before the start, once the configuration has been found sound.
    fn prepare(&self, _: &Self::Config) -> Result<(), Error> {
        Ok(())
    }

    /// Makes what the admin endpoints show. Nothing need be served yet.
    fn start(
        &mut self,
        config: &Self::Config,
        surroundings: Surroundings,
    ) -> impl Future<Output = Result<Self::App, Error>>;
}

/// What an [`App`] finds when it starts.
pub struct Surroundings {
    /// Where the configuration comes from, in words.
    pub source: String,
    /// Watches files.
    pub watcher: Arc<Watcher>,
    /// Changes the level of the log.
    pub level: LevelHandle,
}

/// A running process.
pub trait App: Sized {
    /// What it takes over.
    type Config: Configuration;

    /// What the admin endpoints ask.
    fn source(&self) -> Arc<dyn Source>;
    /// The connections that are open.
    fn connections(&self) -> Connections;
    /// What is known of the configuration.
    fn state(&self) -> &ConfigState;

    /// Makes the first configuration the one in use, or another one where that is better.
    fn begin(&mut self, mut config: Self::Config) -> impl Future<Output = Result<Begun, Error>> {
        async move {
            let options = config.options().clone();
            self.apply(config).await.map(|()| Begun { options, refused: None })
        }
    }

    /// Makes `config` the one in use. Everything that can fail comes first; if it does, or if the
    /// future is dropped, nothing has changed.
    fn apply(&mut self, config: Self::Config) -> impl Future<Output = Result<(), Error>>;

    /// Waits until there is [`work`](App::work) to do. Dropping the future loses nothing.
    fn due(&self) -> impl Future<Output = ()> {
        std::future::pending()
    }

    /// Does what came up beside the configuration.
    fn work(&mut self) -> impl Future<Output = ()> {
        async {}
    }

    /// Takes no new connections, and lets open requests end.
    fn end(self) -> impl Future<Output = ()>;
}

/// What is in use after the start.
pub struct Begun {
    /// The settings of the configuration in use.
    pub options: ProcessOptions,
    /// Why it is not the one that was given.
    pub refused: Option<String>,
}

/// The configuration in use, and why a newer one is not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConfigStatus {
    /// Where it comes from.
    pub source: String,
    /// Its revision, if it carries one.
    pub revision: Option<String>,
    /// Since when it is in use.
    pub loaded: String,
    /// Why a newer one is not.
    pub refused: Option<ConfigRefusal>,
    /// What is in use though it says otherwise, and why.
    pub warnings: Vec<String>,
}

/// Why a newer configuration is not in use.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigRefusal {
    /// When it was last tried.
    pub at: String,
    /// Why.
    pub error: String,
}

/// What is known of the configuration, and how often it was to change.
pub struct ConfigState {
    status: Mutex<ConfigStatus>,
    reloads: ReloadCounter,
}

/// What a process takes from its configuration once, at the start: a later change of it is told,
/// by name, and takes effect at the next start. All else is taken over while it runs, the level of
/// the log among it.
struct AtStart {
    /// Each field with what it was.
    fields: Vec<(&'static str, String)>,
    log: LogOptions,
    level: LevelHandle,
}

/// Reads the configuration and runs until told to stop.
pub fn serve<P: Program>(mut program: P, given: Given) -> ExitCode {
    let (source, file, (document, known)) = match given {
        Given::File(path) => (path.display().to_string(), Some(path.clone()), first(&path)),
        Given::CommandLine(document) => ("the command line".to_owned(), None, (Ok(document), None)),
    };
    let loaded = document.and_then(|document| program.parse(document));
    let fallback = program.fallback(loaded.as_ref().ok());
    let (mut config, refused) = match (loaded, fallback) {
        (Ok(config), _) => (config, None),
        (Err(problems), Some(fallback)) => (fallback, Some(mistakes(&source, &problems))),
        (Err(problems), None) => return usage(&mistakes(&source, &problems)),
    };
    if let Err(error) = program.prepare(&config) {
        return print(Err(error), Output::Text);
    }
    let level = telemetry::start(config.options().log);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = Error::new(Kind::Bug, "cannot start the runtime").with_source(error);
            return print(Err(error), Output::Text);
        }
    };
    let file = file.map(|path| (path, known));
    let result = runtime.block_on(live(program, config, refused, file, source, level));
    // A second signal must not wait for anything that still runs.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %error.report(), "cannot go on");
            ExitCode::FAILURE
        }
    }
}

/// The document to start with, and what tells it from a later one.
fn first(path: &Path) -> (Result<Value, Problems>, Option<Digest>) {
    match Files::read([path]) {
        Ok(files) => (parse_file(path, &files), Some(files.digest())),
        Err(error) => (Err(Problems::one("", &error.report())), None),
    }
}

async fn live<P: Program>(
    mut program: P,
    mut config: P::Config,
    refused: Option<String>,
    file: Option<(PathBuf, Option<Digest>)>,
    source: String,
    level: LevelHandle,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let ProcessOptions { admin, socket, file_poll, shown, .. } = config.options().clone();
    tracing::info!(process = P::NAME, version = crate::VERSION, config = %shown, "starting");
    let watcher = Arc::new(Watcher::new(file_poll));
    let mut at_start = AtStart::new(&mut config, level.clone());
    let surroundings = Surroundings { source, watcher: watcher.clone(), level: level.clone() };
    let mut app = program.start(&config, surroundings).await?;
    let _admin = start_admin(&admin, &socket, &app.connections(), app.source(), level).await?;
    let begun = tokio::select! {
        begun = app.begin(config) => Some(begun?),
        _ = signals.next() => None,
    };
    let Some(begun) = begun else {
        // What is served already is finished, as at any other time.
        tokio::select! {
            () = app.end() => {}
            _ = signals.next() => {}
        }
        return Ok(());
    };
    let (mut options, refused) = (begun.options, refused.or(begun.refused));
    app.state().accept(&options);
    let mut file = file.map(|(path, known)| ConfigFile::watch(&watcher, &path, known));
    if let Some(error) = &refused {
        app.state().refuse(error);
        tracing::warn!(error, "configuration refused at the start, the last good one is in use");
        if let Some(file) = &mut file {
            file.retry_current();
        }
    }
    let mut ending = Ending::new(app.connections());
    let drains = loop {
        tokio::select! {
            // What hangs while it is to prove itself must not delay the end.
            drains = ending.wait(&mut signals, options.linger) => break drains,
            taken = step(&program, &mut app, &mut file, &mut at_start) => {
                options = taken.unwrap_or(options);
            }
        }
    };
    if !drains {
        return Ok(());
    }
    tracing::info!(drain = ?options.drain, "stopping: waiting for open requests");
    tokio::select! {
        () = app.end() => tracing::info!("stopped"),
        _ = signals.next() => tracing::warn!("second signal: stopping at once"),
    }
    Ok(())
}

/// Takes a changed document over, or does what else has come up. Gives the settings of the document
/// that is in use from now on, if there is one.
async fn step<P: Program>(
    program: &P,
    app: &mut P::App,
    file: &mut Option<ConfigFile>,
    at_start: &mut AtStart,
) -> Option<ProcessOptions> {
    let document = tokio::select! {
        document = next(file) => document,
        () = app.due() => {
            app.work().await;
            return None;
        }
    };
    let result = match document {
        Ok(document) => reload(document, program, app, at_start).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(options) => {
            app.state().accept(&options);
            app.state().reloads.count(true);
            let ProcessOptions { shown, revision, .. } = &options;
            tracing::info!(config = %shown, revision, "new configuration is in use");
            if let Some(file) = file {
                file.accepted();
            }
            Some(options)
        }
        Err(error) => {
            app.state().refuse(&error);
            tracing::warn!(error, "new configuration refused, the last good one stays in use");
            None
        }
    }
}

/// Never ends where there is no file to watch.
async fn next(file: &mut Option<ConfigFile>) -> Result<Value, String> {
    match file {
        Some(file) => file.next().await,
        None => std::future::pending().await,
    }
}

async fn reload<P: Program>(
    document: Value,
    program: &P,
    app: &mut P::App,
    at_start: &mut AtStart,
) -> Result<ProcessOptions, String> {
    let mut config =
        program.parse(document).map_err(|problems| mistakes("the new configuration", &problems))?;
    let changed = at_start.changed(&mut config);
    config.options().warnings.extend(changed);
    let options = config.options().clone();
    app.apply(config).await.map_err(|error| error.report())?;
    at_start.follow_level(options.log);
    Ok(options)
}

impl AtStart {
    fn new(config: &mut impl Configuration, level: LevelHandle) -> Self {
        Self { fields: fixed(config), log: config.options().log, level }
    }

    /// What to tell of a configuration that changes what is fixed, if it does.
    fn changed(&self, config: &mut impl Configuration) -> Option<String> {
        let fields = fixed(config);
        let changed = self.fields.iter().zip(&fields).filter(|(old, new)| old != new);
        let names: Vec<_> = changed.map(|(_, (name, _))| *name).collect();
        let these = if names.len() == 1 { "this field" } else { "these fields" };
        (!names.is_empty()).then(|| {
            format!("{}: {these} changed, which the next start takes over", names.join(", "))
        })
    }

    /// Logs at the level of a configuration that is in use from now on. One that changes nothing
    /// leaves a level that somebody has set meanwhile.
    fn follow_level(&mut self, log: LogOptions) {
        if self.log.level != log.level {
            self.level.change(&log.level.to_string());
            self.log.level = log.level;
        }
    }
}

/// What only a start takes over.
fn fixed(config: &mut impl Configuration) -> Vec<(&'static str, String)> {
    let mut fields = config.fixed();
    let ProcessOptions { admin, file_poll, log, .. } = config.options();
    fields.extend([
        ("admin", format!("{:?}", admin.address)),
        ("adminSocket", format!("{:?}", admin.socket)),
        ("filePoll", format!("{file_poll:?}")),
        ("log.format", format!("{:?}", log.format)),
    ]);
    fields
}

impl ConfigState {
    /// Before anything is in use.
    pub fn new(source: String, reloads: ReloadCounter) -> Self {
        let status = ConfigStatus { source, ..ConfigStatus::default() };
        Self { status: Mutex::new(status), reloads }
    }

    /// What there is to show.
    pub fn status(&self) -> ConfigStatus {
        self.status.lock().clone()
    }

    /// A configuration with these settings is in use.
    fn accept(&self, options: &ProcessOptions) {
        for warning in &options.warnings {
            tracing::warn!(warning, "not all of the configuration is in use as written");
        }
        let mut status = self.status.lock();
        status.revision.clone_from(&options.revision);
        status.warnings.clone_from(&options.warnings);
        status.loaded = time(SystemTime::now());
        status.refused = None;
    }

    /// A newer configuration is not in use.
    fn refuse(&self, error: &str) {
        self.reloads.count(false);
        let refusal = ConfigRefusal { at: time(SystemTime::now()), error: error.to_owned() };
        self.status.lock().refused = Some(refusal);
    }
}
