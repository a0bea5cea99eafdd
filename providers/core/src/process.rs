//! What every Sidekey process does: no core dumps, Go-style flags, signals, admin endpoints.

pub(crate) mod admin;
pub mod app;
pub(crate) mod command;
pub(crate) mod shutdown;
pub(crate) mod status;
pub mod telemetry;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::kms::server::{Stopper, bind, serve_admin, serve_http1, stopper};
use crate::process::admin::{Admin, Reach, Source};
use crate::process::command::{EXIT_USAGE, complain};
use crate::process::telemetry::LevelHandle;
use crate::socket::SocketOptions;
use crate::{Connections, Endpoint, Error, Kind, Slot};

/// Where the admin endpoints are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminOptions {
    /// On TCP, for probes and scrapers.
    pub address: Option<SocketAddr>,
    /// On a unix socket, for calls that change state too.
    pub socket: Option<Endpoint>,
}

/// Plain HTTP at the paths of a plugin that is replaced, so that probes and scrapers written for
/// it go on working. What is served is what is named here, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthOptions {
    /// Where.
    pub address: SocketAddr,
    /// The path that is ok while every key's Status is.
    pub healthz: Option<String>,
    /// The path that is ok while the process runs.
    pub livez: Option<String>,
    /// The path of the metrics, which everybody who reaches the address can read.
    pub metrics: Option<String>,
    /// Whether to go on without it where the address is taken: nobody may have asked for it.
    pub optional: bool,
}

/// The signals that end a process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// SIGTERM: whoever runs the process wants it to end in good order.
    Terminate,
    /// SIGINT: a person waits for its end.
    Interrupt,
}

/// A core dump would hold keys. One byte, because none at all stops only dumps to a file: where
/// the kernel pipes dumps to a program it takes 1, and nothing else, for "no dump".
pub fn no_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Core).maximum.map_or(1, |most| most.min(1));
    let none = Rlimit { current: Some(limit), maximum: Some(limit) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        complain(&format!("warning: core dumps cannot be turned off: {error}"));
    }
}

/// Go's flag package takes `-flag` for `--flag`, and so do the manifests written for it.
pub fn arguments(all: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    all.map(|argument| {
        let name = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let go_style = name.is_some_and(|name| {
            name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic())
        });
        if !go_style {
            return argument;
        }
        let mut full = OsString::from("-");
        full.push(&argument);
        full
    })
}

/// Reads the command line; `Err` is the exit code, all being said.
pub fn command_line<T: clap::Parser>() -> Result<T, ExitCode> {
    no_core_dumps();
    T::try_parse_from(arguments(std::env::args_os())).map_err(|error| bad_usage(&error))
}

/// Says what is wrong with a command line, or helps, and gives the exit code.
pub(crate) fn bad_usage(error: &clap::Error) -> ExitCode {
    // Nothing more can be done if the terminal is gone.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
}

/// Serves the admin endpoints until the stopper is dropped.
pub(crate) async fn start_admin(
    options: &AdminOptions,
    sockets: &SocketOptions,
    clients: &Connections,
    source: Arc<dyn Source>,
    level: LevelHandle,
) -> Result<Stopper, Error> {
    let admin = |reach| Arc::new(Admin::new(source.clone(), level.clone(), reach));
    let (stopper, stop) = stopper();
    if let Some(address) = options.address {
        let hint = "choose another admin address; port 0 picks a free one";
        let listener = listen("admin address", address, hint).await?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "admin listening");
        tokio::spawn(serve_admin(listener, admin(Reach::of(address.ip())), stop.clone()));
    }
    if let Some(endpoint) = &options.socket {
        let mut listener = bind(endpoint, sockets).await?;
        listener.report_to(clients.clone());
        tracing::info!(socket = %endpoint, "admin listening");
        tokio::spawn(serve_admin(listener, admin(Reach::Socket), stop));
    }
    Ok(stopper)
}

/// Serves the paths of replaced plugins until the stopper is dropped.
pub(crate) async fn start_health(
    options: &[HealthOptions],
    source: Arc<dyn Source>,
    level: LevelHandle,
) -> Result<Stopper, Error> {
    let (stopper, stop) = stopper();
    for options in options {
        let (what, hint) = options.words();
        let listener = match listen(what, options.address, hint).await {
            Err(error) if options.optional => {
                tracing::warn!(error = %error.report(), "health is not served");
                continue;
            }
            listener => listener?,
        };
        let address = listener.local_addr().unwrap_or(options.address);
        tracing::info!(%address, "health listening");
        let admin = Admin::new(source.clone(), level.clone(), Reach::Network);
        let admin = Arc::new(admin.replacing(options.clone()));
        tokio::spawn(serve_admin(listener, admin, stop.clone()));
    }
    Ok(stopper)
}

/// Serves the admin endpoints that can be read on one connection of a caller who has shown a
/// certificate.
pub async fn serve_admin_over<T>(stream: T, source: Arc<dyn Source>, level: LevelHandle, slot: Slot)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    serve_http1(stream, Arc::new(Admin::new(source, level, Reach::Certificate)), slot).await;
}

/// Listens on `address`, which people know as `what`.
pub async fn listen(what: &str, address: SocketAddr, hint: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(Kind::Config, format!("cannot listen on {what} {address}"))
            .with_source(error)
            .with_hint(hint)
    })
}

impl HealthOptions {
    /// What people know it by, and what to do where it is taken.
    fn words(&self) -> (&'static str, &'static str) {
        if self.healthz.is_none() && self.livez.is_none() {
            ("metrics port", "choose another by --metrics-port, or by health in the configuration")
        } else {
            ("health port", "choose another by --health-port, or by health in the configuration")
        }
    }
}

impl Signals {
    /// Listens for SIGTERM and SIGINT from now on.
    pub fn new() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Error::new(Kind::Bug, "cannot listen for signals").with_source(error)
            })
        };
        let terminate = listen(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.terminate.recv() => Order::Terminate,
            _ = self.interrupt.recv() => Order::Interrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_style_flags_become_long_ones_and_the_rest_stays() {
        let given = ["x", "-listen-address=a", "--key", "-o", "json", "-", "-1", "--"];
        let result: Vec<_> = arguments(given.into_iter().map(OsString::from)).collect();
        assert_eq!(result, ["x", "--listen-address=a", "--key", "-o", "json", "-", "-1", "--"]);
    }
}
