//! One subject's figures, from its start to its last reload.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidekey_core::Endpoint;
use sidekey_e2e::bench::fake::{Calls, Fake};
use sidekey_e2e::bench::subject::{Launch, Yardstick};
use sidekey_e2e::bench::{
    Binary, Companion, Counter, Effort, Figures, Memory, Reach, Server, Spread, Subject, Target,
    measure_load,
};

use crate::Arguments;

/// Whatever a plugin still does after it has become healthy.
const SETTLE: Duration = Duration::from_secs(1);

/// Starts a subject many times, loads it, and changes the configuration of a fresh one.
pub(crate) async fn measure(subject: &Subject, arguments: &Arguments) -> Result<Figures> {
    let mut behind = Vec::new();
    for launch in &subject.behind {
        behind.push(Server::start(launch).await?);
    }
    let name = subject.name.as_str();
    eprintln!("{name}: {} starts", arguments.starts);
    // The first one makes the key and warms the page cache; it is not counted.
    drop(Server::start(&subject.measured).await?);
    let mut starts = Vec::new();
    for _ in 0..arguments.starts.get() {
        starts.push(Server::start(&subject.measured).await?.start_time().as_secs_f64() * 1000.0);
    }
    let (server, start_calls) = start_counted(subject).await?;
    tokio::time::sleep(SETTLE).await;
    let measured = target(&subject.measured, &server, subject.fake.as_ref())?;
    let companion = companion(subject, &behind)?;
    let together = together(&server, &behind);
    let mut figures = drive(name, &measured, companion.as_ref(), arguments).await?;
    figures.idle_together = together;
    figures.start_calls = start_calls;
    figures.binary = Binary::read(&subject.measured.program).ok();
    figures.start_ms = Spread::of(starts);
    drop(server);
    if let Some(reload) = &subject.reload {
        eprintln!("{name}: {} reloads", arguments.reloads);
        let server = Server::start(&subject.measured).await?;
        figures.reloads = Some(reload.measure(&server, arguments.reloads.get()).await?);
    }
    Ok(figures)
}

/// Loads a plugin that somebody else has started; what it costs is seen if it is one of ours
/// or runs under our user.
pub(crate) async fn drive_socket(endpoint: &Endpoint, arguments: &Arguments) -> Result<Figures> {
    let stream =
        endpoint.connect().await.with_context(|| format!("cannot connect to {endpoint}"))?;
    let pid = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    drop(stream);
    let program = pid.and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
    let target = Target { reach: Reach::Socket(endpoint.clone()), pid, counter: Counter::Nobody };
    let mut figures = drive(&endpoint.to_string(), &target, None, arguments).await?;
    figures.binary = program.and_then(|path| Binary::read(&path).ok());
    Ok(figures)
}

/// Starts the subject, and tells what it has asked the fake endpoint by the time that it says
/// it is healthy. If that is no round trip, the time to get there is worth nothing.
async fn start_counted(subject: &Subject) -> Result<(Server, Option<Calls>)> {
    let Some(fake) = &subject.fake else {
        return Ok((Server::start(&subject.measured).await?, None));
    };
    let before = Calls::of(fake.address()).await?;
    let server = Server::start(&subject.measured).await?;
    let calls = Calls::of(fake.address()).await?.since(&before);
    // With plugins of its own behind it, it does not ask the fake itself.
    if subject.behind.is_empty() {
        let proven = calls.count("Encrypt") > 0 && calls.count("Decrypt") > 0;
        ensure!(proven, "{} says it is healthy after no round trip: {calls:?}", subject.name);
    }
    Ok((server, Some(calls)))
}

/// Calls are counted at the fake endpoint where there is one.
fn target(launch: &Launch, server: &Server, fake: Option<&Fake>) -> Result<Target> {
    let reach = launch.reach.clone();
    let counter = match (fake, server.admin()) {
        (Some(fake), _) => Counter::Fake(fake.address()),
        (None, Some(admin)) => Counter::Plugin(admin),
        (None, None) => Counter::Nobody,
    };
    Ok(Target { reach, pid: Some(server.pid()), counter })
}

fn companion(subject: &Subject, behind: &[Server]) -> Result<Option<Companion>> {
    Ok(match (subject.yardstick, subject.behind.first().zip(behind.first()), &subject.fake) {
        (Yardstick::Behind, Some((launch, server)), fake) => {
            let target = target(launch, server, fake.as_ref())?;
            Some(Companion::Plugin(launch.name(), target))
        }
        (Yardstick::Direct, _, Some(fake)) => Some(Companion::Direct(fake.address(), fake.pid())),
        _ => None,
    })
}

/// Memory of all plugins of an arrangement, where there are several.
fn together(server: &Server, behind: &[Server]) -> Option<Memory> {
    let mut sum = Memory::of(server.pid()).ok().filter(|_| !behind.is_empty())?;
    for server in behind {
        sum = sum + Memory::of(server.pid()).ok()?;
    }
    Some(sum)
}

async fn drive(
    name: &str,
    target: &Target,
    companion: Option<&Companion>,
    arguments: &Arguments,
) -> Result<Figures> {
    let effort = Effort {
        concurrency: arguments.concurrency.iter().map(|number| number.get()).collect(),
        pool: arguments.pool.get(),
        time: Duration::from_secs_f64(arguments.seconds),
        calls: arguments.calls,
    };
    let memory = || target.pid.and_then(|pid| Memory::of(pid).ok());
    let idle = memory();
    eprintln!("{name}: load");
    let load = measure_load(target, companion, &effort).await?;
    Ok(Figures {
        idle,
        loaded: memory(),
        calls: load.calls,
        load: load.cells,
        beside: load.beside,
        ..Figures::of(name)
    })
}
