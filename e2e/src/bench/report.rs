//! The report for people.

use std::fmt::Write;

use super::command::Work;
use super::figures::{Cell, Direction, Figures, Judgement};
use super::reload::Reloads;

/// All figures of a subject and what became of its bars, as a text of short tables.
pub fn table(figures: &Figures, judgements: &[Judgement]) -> String {
    let mut text = format!("{}\n", figures.subject);
    // Writing to a string cannot fail.
    let _ = head(&mut text, figures);
    if !figures.load.is_empty() {
        let _ = load(&mut text, &figures.load);
    }
    if let Some(beside) = &figures.beside {
        text.push_str(&format!("\n  in turns with it, {} alone:\n", beside.subject));
        let _ = load(&mut text, &beside.load);
    }
    let _ = bars(&mut text, judgements);
    text
}

fn head(text: &mut String, figures: &Figures) -> std::fmt::Result {
    if let Some(binary) = figures.binary {
        let linked = if binary.is_static { "static" } else { "NOT static" };
        let stripped = if binary.is_stripped { "stripped" } else { "NOT stripped" };
        writeln!(text, "  binary   {:.2} MiB, {linked}, {stripped}", mib(binary.bytes / 1024))?;
    }
    if let Some(start) = figures.start_ms {
        let what = match figures.calls {
            0 => "from start to end",
            _ => "to the first healthy Status",
        };
        writeln!(
            text,
            "  start    {:.2} ms {what} (median of {}; {:.2} to {:.2})",
            start.median, start.count, start.min, start.max
        )?;
    }
    if let Some(calls) = &figures.start_calls {
        let counts = calls.0.iter().map(|(operation, count)| format!("{operation} {count}"));
        let counts: Vec<String> = counts.collect();
        writeln!(text, "           until then, calls to the fake endpoint: {}", counts.join(", "))?;
    }
    memory(text, figures)?;
    if let Some(turns) = &figures.turns {
        let (times, each) = (turns.ratio(), turns.own.objects / turns.rounds);
        writeln!(text, "  turns    {} of each, {each} objects", turns.rounds)?;
        writeln!(text, "    itself {}", work(&turns.own))?;
        writeln!(text, "    beside {}: {}", turns.beside, work(&turns.other))?;
        writeln!(text, "           {times:.2} times its rate")?;
    }
    if let Some(done) = &figures.work {
        writeln!(text, "  work     {}", work(done))?;
    }
    match figures.calls {
        0 => Ok(()),
        calls => writeln!(text, "  calls    {calls} in all"),
    }
}

/// How much it takes, at rest and afterwards.
fn memory(text: &mut String, figures: &Figures) -> std::fmt::Result {
    let memory =
        [("idle", figures.idle), ("together", figures.idle_together), ("loaded", figures.loaded)];
    for (when, memory) in memory.into_iter().filter_map(|(when, m)| Some((when, m?))) {
        writeln!(
            text,
            "  {when:<8} {:.2} MiB RSS, of which {:.2} anonymous; {:.2} PSS",
            mib(memory.rss),
            mib(memory.anonymous),
            mib(memory.pss)
        )?;
    }
    if let Some(Reloads { live_ms, before, after }) = figures.reloads {
        writeln!(
            text,
            "  reload   {:.1} ms until in use (median of {}; {:.1} to {:.1}); RSS {:.2} MiB before, {:.2} MiB after",
            live_ms.median,
            live_ms.count,
            live_ms.min,
            live_ms.max,
            mib(before.rss),
            mib(after.rss)
        )?;
    }
    Ok(())
}

fn work(done: &Work) -> String {
    let (Work { objects, seconds, peak }, rate) = (done, done.rate());
    let peak = mib(*peak);
    format!("{objects} objects in {seconds:.2} s, {rate:.0}/s; at most {peak:.2} MiB RSS")
}

fn load(text: &mut String, cells: &[Cell]) -> std::fmt::Result {
    writeln!(
        text,
        "\n  {:<9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>12} {:>13}",
        "operation",
        "at once",
        "calls/s",
        "p50 us",
        "p99 us",
        "max us",
        "server CPU",
        "backend calls"
    )?;
    let dash = || "-".to_owned();
    for cell in cells {
        let cpu = cell.server_cpu_us.map_or_else(dash, |us| format!("{us:.1} us"));
        let backend = cell.backend_calls.map_or_else(dash, |calls| format!("{calls:.2}"));
        let Cell { operation, concurrency, rate, p50_us, p99_us, max_us, .. } = cell;
        writeln!(
            text,
            "  {operation:<9} {concurrency:>8} {rate:>9.0} {p50_us:>9.0} {p99_us:>9.0} {max_us:>9.0} {cpu:>12} {backend:>13}"
        )?;
    }
    Ok(())
}

fn bars(text: &mut String, judgements: &[Judgement]) -> std::fmt::Result {
    if !judgements.is_empty() {
        writeln!(text, "\n  {:<28} {:>12} {:>18}", "bar", "measured", "")?;
    }
    for Judgement { bar, unit, direction, limit, value, met } in judgements {
        let side = match direction {
            Direction::AtMost => "at most",
            Direction::AtLeast => "at least",
        };
        let value = value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} {unit}"));
        let verdict = if *met { "met" } else { "MISSED" };
        let promise = format!("{side} {limit} {unit}");
        writeln!(text, "  {bar:<28} {value:>12} {:>18}  {verdict}", promise.trim_end())?;
    }
    Ok(())
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
