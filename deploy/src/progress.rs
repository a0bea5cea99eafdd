//! How far long work has come: a bar on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Console;

/// Between two lines where there is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// Counts objects that are done, and shows it.
#[derive(Debug)]
pub struct Progress {
    what: String,
    console: Console,
    bar: ProgressBar,
    started: Instant,
    said: Instant,
}

impl Progress {
    /// Starts counting; `total` may be learned later.
    pub fn new(console: &Console, what: impl Into<String>, total: Option<u64>) -> Self {
        let what = what.into();
        let target = if console.is_live() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target).with_message(what.clone());
        let now = Instant::now();
        let progress = Self { what, console: console.clone(), bar, started: now, said: now };
        progress.choose_style();
        progress
    }

    /// How many there are, once it is known.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
        self.choose_style();
    }

    /// Says what is being worked at.
    pub fn set_message(&mut self, what: impl Into<String>) {
        self.what = what.into();
        self.bar.set_message(self.what.clone());
    }

    /// So many are done by now.
    pub fn set(&mut self, done: u64) {
        self.bar.set_position(done);
        if !self.console.is_live() && self.said.elapsed() >= LINES_EVERY {
            self.said = Instant::now();
            self.console.note(&self.line());
        }
    }

    /// So many more are done.
    pub fn add(&mut self, more: u64) {
        self.set(self.bar.position() + more);
    }

    /// How many are done.
    pub fn done(&self) -> u64 {
        self.bar.position()
    }

    /// Objects in each second so far.
    pub fn rate(&self) -> f64 {
        self.bar.position() as f64 / self.started.elapsed().as_secs_f64().max(0.001)
    }

    /// Prints a line above the bar.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| self.console.note(text));
    }

    /// Takes the bar away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn choose_style(&self) {
        let template = if self.bar.length().is_some() {
            "{msg} [{bar:30}] {human_pos}/{human_len}  {per_sec}  {eta} left"
        } else {
            "{msg} {spinner} {human_pos}  {per_sec}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    fn line(&self) -> String {
        let (done, rate) = (self.bar.position(), self.rate());
        let head = format!("{}: {done}", self.what);
        match self.bar.length() {
            // Nothing can be said of the rest before something is done.
            Some(total) if done == 0 => format!("{head} of {total}"),
            Some(total) => {
                let left = total.saturating_sub(done) as f64 / rate.max(0.001);
                let left = humantime::format_duration(Duration::from_secs(left as u64));
                format!("{head} of {total}, {rate:.0}/s, {left} left")
            }
            None => format!("{head}, {rate:.0}/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Output;

    #[test]
    fn the_time_left_is_told_only_once_something_is_done() {
        let console = Console::new(Output::Json);
        let mut progress = Progress::new(&console, "secrets", Some(5000));
        assert_eq!(progress.line(), "secrets: 0 of 5000");
        progress.set(2500);
        let line = progress.line();
        assert!(line.starts_with("secrets: 2500 of 5000, ") && line.ends_with(" left"), "{line}");
    }
}
