//! How commands answer: tables for people, JSON and YAML for programs.

mod brief;

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Error, Exit};

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs, and for files.
    Yaml,
}

/// Where answers go, and how.
///
/// Answers go to stdout, everything else (progress, warnings, errors) to stderr, so that an
/// answer can be piped.
#[derive(Clone, Debug)]
pub struct Console {
    output: Output,
    colour: bool,
    live: bool,
    /// Where the answer goes too, in short.
    result: Option<Arc<Path>>,
}

/// An answer: its fields are what programs read, [`text`](Report::text) is what people read.
pub trait Report: Serialize {
    /// For people. No newline at the end.
    fn text(&self, console: &Console) -> String;
}

/// Columns that line up.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Console {
    /// As the terminal and the environment allow.
    pub fn new(output: Output) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = std::io::stdout().is_terminal() && !plain && output == Output::Table;
        Self { output, colour, live: std::io::stderr().is_terminal(), result: None }
    }

    /// Answers and failures also go into this file, as JSON that fits a termination message.
    #[must_use]
    pub fn result_file(mut self, path: Option<&Path>) -> Self {
        self.result = path.map(Arc::from);
        self
    }

    /// The form that was asked for.
    pub fn output(&self) -> Output {
        self.output
    }

    /// Whether somebody watches stderr: progress may be drawn over itself.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Prints an answer. That nobody reads it is no failure.
    pub fn answer(&self, report: &impl Report) -> Result<(), Error> {
        let text = match self.output {
            Output::Table => report.text(self),
            Output::Json => serde_json::to_string_pretty(report)
                .map_err(|error| Error::failed("cannot write JSON").because(error))?,
            Output::Yaml => yaml(report)?,
        };
        let _ = writeln!(std::io::stdout(), "{}", text.trim_end_matches('\n'));
        let Some(path) = &self.result else { return Ok(()) };
        let document = serde_json::to_value(report)
            .map_err(|error| Error::failed("cannot write JSON").because(error))?;
        keep(path, document)
    }

    /// A line beside the answer.
    pub fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Something that the operator should know, though it went on.
    pub fn warn(&self, text: &str) {
        self.note(&format!("warning: {text}"));
    }

    /// Prints a failure where and how it is expected, and gives the exit code.
    pub fn fail(&self, error: &Error) -> Exit {
        let document = json!({"error": error.report(), "hint": error.advice()});
        if let Some(path) = &self.result
            && let Err(error) = keep(path, document.clone())
        {
            self.note(&format!("error: {}", error.report()));
        }
        match self.failure(&document) {
            Some(text) => {
                let _ = writeln!(std::io::stdout(), "{}", text.trim_end_matches('\n'));
            }
            None => {
                self.note(&format!("error: {}", error.report()));
                if let Some(hint) = error.advice() {
                    self.note(&format!("  {hint}"));
                }
            }
        }
        error.exit()
    }

    /// A failure in the form that programs have asked for.
    fn failure(&self, document: &Value) -> Option<String> {
        match self.output {
            Output::Table => None,
            Output::Json => Some(format!("{document:#}")),
            Output::Yaml => yaml(document).ok(),
        }
    }

    /// Green, where colours are shown.
    pub fn good(&self, text: &str) -> String {
        self.paint(text, "32")
    }

    /// Red, where colours are shown.
    pub fn bad(&self, text: &str) -> String {
        self.paint(text, "31")
    }

    /// Dim, where colours are shown.
    pub fn dim(&self, text: &str) -> String {
        self.paint(text, "2")
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Table {
    /// A table with these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| heading.to_uppercase()).collect()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Whether there is nothing but headings.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// The table as text; each column as wide as its widest cell.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| shown(cell)).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let gap = width - shown(cell) + 2;
                let _ = write!(line, "{cell}{:gap$}", "");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.pop();
        text
    }
}

/// Written in place: a container's termination message is a file that others have opened.
fn keep(path: &Path, document: Value) -> Result<(), Error> {
    std::fs::write(path, brief::fit(document))
        .map_err(|error| Error::failed(format!("cannot write {}", path.display())).because(error))
}

/// How wide a cell is on the screen: colours take no room.
fn shown(cell: &str) -> usize {
    let mut hidden = false;
    cell.chars()
        .filter(|&c| {
            let counts = !hidden && c != '\x1b';
            hidden = c == '\x1b' || (hidden && c != 'm');
            counts
        })
        .count()
}

/// A document as YAML.
pub(crate) fn yaml(document: &impl Serialize) -> Result<String, Error> {
    serde_saphyr::to_string(document)
        .map_err(|error| Error::failed("cannot write YAML").because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_colour() {
        let mut table = Table::new(["key", "objects"]);
        table.row(["\x1b[32msidekey\x1b[0m".into(), "12".into()]);
        table.row(["a".into(), "3".into()]);
        let text = table.render();
        assert_eq!(text, "KEY      OBJECTS\n\x1b[32msidekey\x1b[0m  12\na        3");
    }

    #[test]
    fn a_failure_has_the_form_that_was_asked_for() {
        let document = json!({"error": "cannot read a: b", "hint": null});
        let told = |output| Console::new(output).failure(&document);
        assert_eq!(told(Output::Table), None, "people read it on stderr");
        for output in [Output::Json, Output::Yaml] {
            let text = told(output).unwrap();
            assert_eq!(sidekey_core::config::document(&text).unwrap(), document, "{text}");
        }
        assert!(told(Output::Yaml).unwrap().starts_with("error: "), "it is no JSON");
    }

    #[test]
    fn yaml_reads_back_as_the_same_document() {
        let document = json!({"name": "a: b #c", "list": [1, null, "y"], "text": "two\nlines\n"});
        let text = yaml(&document).unwrap();
        assert_eq!(sidekey_core::config::document(&text).unwrap(), document);
    }
}
