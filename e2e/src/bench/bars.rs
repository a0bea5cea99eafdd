//! What the project has set itself, subject by subject.

use super::figures::{Bar, Direction, Figures};

/// Where none is promised, or just so many: the background probe may fall into the measurement.
const PROBE: f64 = 0.01;

/// Bars of the local provider.
pub(super) const LOCAL: &[Bar] = &[
    at_most("idle RSS", "MiB", 4.0, idle_rss),
    at_most("start to healthy, median", "ms", 10.0, start),
    at_most("binary size", "MiB", 5.0, binary_size),
    at_most("backend calls per Status", "", PROBE, |own| backend_calls(own, "Status")),
];

/// Bars of the local provider with 50 keys.
pub(super) const MANY_LOCAL: &[Bar] = &[at_most("idle RSS", "MiB", 10.0, idle_rss)];

/// Bars of the shim before a provider with 50 keys.
pub(super) const MANY_SHIM: &[Bar] =
    &[at_most("RSS after the load", "MiB", 8.0, |own| Some(own.loaded?.rss as f64 / 1024.0))];

/// Bars of the socket proxy. What it adds is held against the provider behind it: the way over
/// TLS and TCP is part of it.
pub(super) const PROXY: &[Bar] = &[
    at_most("added to a Decrypt, p50", "us", 200.0, |own| {
        own.pair("Decrypt", 1).map(|(proxy, alone)| proxy.p50_us - alone.p50_us)
    }),
    at_most("idle RSS", "MiB", 5.0, idle_rss),
    at_most("binary size", "MiB", 6.0, binary_size),
];

/// Bars of the shim. What it adds is held against the provider behind it, alone, in the same
/// run.
pub(super) const SHIM: &[Bar] = &[
    at_most("added to a Decrypt, p50", "us", 120.0, |own| {
        own.pair("Decrypt", 1).map(|(shim, alone)| shim.p50_us - alone.p50_us)
    }),
    at_most("added to a Decrypt, p99", "us", 400.0, |own| {
        own.pair("Decrypt", 1).map(|(shim, alone)| shim.p99_us - alone.p99_us)
    }),
    at_least("Decrypt rate at 64, share", "", 0.55, rate_share),
    at_most("CPU of a Status, share", "", 1.0, status_cost),
    at_most("idle RSS with 3 keys", "MiB", 5.5, idle_rss),
    at_most("RSS after 100,000 requests", "MiB", 8.0, |own| {
        (own.calls >= 100_000).then_some(own.loaded?.rss as f64 / 1024.0)
    }),
    // None; but the kernel counts in pages, and malloc takes more than one at a time. A
    // connection or a key left behind each time would be several MiB.
    at_most("RSS growth in 200 reloads", "MiB", 0.25, |own| {
        let reloads = own.reloads.filter(|reloads| reloads.live_ms.count >= 200)?;
        Some((reloads.after.rss as f64 - reloads.before.rss as f64) / 1024.0)
    }),
    at_most("binary size", "MiB", 6.0, binary_size),
    at_most("new config live, slowest", "ms", 2000.0, |own| Some(own.reloads?.live_ms.max)),
];

/// Bars of the AWS provider. Its Decrypt is held against the same request, sent to the same
/// fake endpoint without it.
pub(super) const AWS: &[Bar] = &[
    at_most("idle RSS", "MiB", 9.0, idle_rss),
    // 1.7 times what it took with a signer and an HTTP parser of our own, which was 2.38; and 0.45 of
    // the rate that it had, 0.71. AWS itself takes some 5 ms, beside which neither is felt.
    at_most("Decrypt p50 / direct call", "", 4.05, latency_share),
    at_least("Decrypt rate at 64, share", "", 0.32, rate_share),
    at_most("CPU of a Decrypt", "us", 250.0, |own| {
        let cells = own.load.iter().filter(|cell| cell.operation == "Decrypt");
        cells.filter_map(|cell| cell.server_cpu_us).reduce(f64::max)
    }),
    // One, and one to verify it.
    at_most("backend calls per Encrypt", "", 2.0 + PROBE, |own| backend_calls(own, "Encrypt")),
    at_most("backend calls per Decrypt", "", 1.0 + PROBE, |own| backend_calls(own, "Decrypt")),
    at_most("backend calls per Status", "", PROBE, |own| backend_calls(own, "Status")),
    at_most("start to healthy, median", "ms", 15.0, start),
    at_most("binary size", "MiB", 10.0, binary_size),
];

/// Bars of the AWS provider with a KMS that takes as long as a real one.
pub(super) const SLOW_AWS: &[Bar] =
    &[at_most("Decrypt p50 / direct call", "", 1.06, latency_share)];

/// Bars of the Vault provider.
pub(super) const VAULT: &[Bar] = &[
    at_most("idle RSS", "MiB", 7.0, idle_rss),
    // One, and one to verify it.
    at_most("backend calls per Encrypt", "", 2.0 + PROBE, |own| backend_calls(own, "Encrypt")),
    at_most("of which before verification", "", 1.0 + PROBE, |own| {
        let cells = own.load.iter().filter(|cell| cell.operation == "Encrypt");
        let counts = cells.filter_map(|cell| cell.backend_operations.as_ref());
        // What verifies is a Decrypt; everything else comes before it.
        let before = counts.map(|counts| {
            let before = counts.iter().filter(|(name, _)| *name != "Decrypt");
            before.fold(0.0, |sum, (_, count)| sum + count)
        });
        before.reduce(f64::max)
    }),
    at_most("backend calls per Decrypt", "", 1.0 + PROBE, |own| backend_calls(own, "Decrypt")),
    at_most("backend calls per Status", "", PROBE, |own| backend_calls(own, "Status")),
];

/// Bars of the `sidekey` command itself.
pub(super) const COMMAND: &[Bar] = &[
    at_most("sidekey --version, median", "ms", 10.0, start),
    at_most("binary size", "MiB", 15.0, binary_size),
];

/// Bars of a census, for 100,000 objects.
pub(super) const CENSUS: &[Bar] = &[
    at_most("census of 100,000 objects", "s", 10.0, |own| {
        own.work.filter(|work| work.objects >= 100_000).map(|work| work.seconds)
    }),
    at_most("peak RSS", "MiB", 40.0, |own| {
        own.work.filter(|work| work.objects >= 100_000).map(|work| work.peak as f64 / 1024.0)
    }),
];

/// Bars of a migration: its rate on 3,000 objects, its memory on 100,000.
pub(super) const MIGRATE: &[Bar] = &[
    at_least("rate / kubectl replace's", "", 2.0, |own| {
        let turns = own.turns.as_ref()?;
        (turns.own.objects >= 3000 * turns.rounds).then(|| turns.ratio())
    }),
    at_most("peak RSS, 100,000 objects", "MiB", 60.0, |own| {
        own.work.filter(|work| work.objects >= 100_000).map(|work| work.peak as f64 / 1024.0)
    }),
];

/// Bars of the shim and an AWS provider with two keys behind it, together.
pub(super) const SHIM_AND_AWS: &[Bar] =
    &[at_most("idle RSS of both", "MiB", 15.5, |own| Some(own.idle_together?.rss as f64 / 1024.0))];

const fn at_most(
    name: &'static str,
    unit: &'static str,
    limit: f64,
    value: fn(&Figures) -> Option<f64>,
) -> Bar {
    Bar { name, unit, limit, direction: Direction::AtMost, value }
}

const fn at_least(
    name: &'static str,
    unit: &'static str,
    limit: f64,
    value: fn(&Figures) -> Option<f64>,
) -> Bar {
    Bar { name, unit, limit, direction: Direction::AtLeast, value }
}

fn idle_rss(own: &Figures) -> Option<f64> {
    Some(own.idle?.rss as f64 / 1024.0)
}

fn start(own: &Figures) -> Option<f64> {
    Some(own.start_ms?.median)
}

fn binary_size(own: &Figures) -> Option<f64> {
    Some(own.binary?.bytes as f64 / (1024.0 * 1024.0))
}

fn latency_share(own: &Figures) -> Option<f64> {
    own.pair("Decrypt", 1).map(|(own, direct)| own.p50_us / direct.p50_us)
}

fn rate_share(own: &Figures) -> Option<f64> {
    own.pair("Decrypt", 64).map(|(own, alone)| own.rate / alone.rate)
}

/// At the concurrency where there are most of them.
fn backend_calls(own: &Figures, operation: &str) -> Option<f64> {
    let cells = own.load.iter().filter(|cell| cell.operation == operation);
    cells.filter_map(|cell| cell.backend_calls).reduce(f64::max)
}

/// CPU time of a Status for each one of the provider's, over all concurrencies.
fn status_cost(own: &Figures) -> Option<f64> {
    let mut cost = (0.0, 0.0);
    for cell in own.load.iter().filter(|cell| cell.operation == "Status") {
        let (shim, alone) = own.pair(cell.operation, cell.concurrency)?;
        cost = (cost.0 + shim.server_cpu_us?, cost.1 + alone.server_cpu_us?);
    }
    (cost.1 > 0.0).then_some(cost.0 / cost.1)
}
