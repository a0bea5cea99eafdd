//! What went wrong, on which object, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

/// What the exit code says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It is done, or the answer is yes.
    #[default]
    Success = 0,
    /// It could not be done, or the answer could not be found.
    Failure = 1,
    /// The answer is no.
    No = 3,
    /// The command line or a file is wrong.
    Usage = 64,
}

/// A failure that a person can act upon.
#[derive(Debug)]
pub struct Error {
    exit: Exit,
    what: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Error {
    /// Something could not be done: what, and on which object.
    pub fn failed(what: impl Into<String>) -> Self {
        Self { exit: Exit::Failure, what: what.into(), hint: None, source: None }
    }

    /// The command line or a file is wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::failed(what) }
    }

    /// Refused, because it would not be safe: the answer is no.
    pub fn refused(what: impl Into<String>) -> Self {
        Self { exit: Exit::No, ..Self::failed(what) }
    }

    /// Why.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What the process should end with.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// What to do, if it is known.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// In one line: what, and why down to the first cause.
    pub fn report(&self) -> String {
        let mut text = self.what.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            let reason = error.to_string();
            // Some crates repeat their source in their own text.
            if !text.ends_with(&reason) {
                text.push_str(": ");
                text.push_str(&reason);
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_every_cause_once() {
        let root = std::io::Error::other("connection refused");
        let inner = Error::failed("cannot reach etcd-0").because(root);
        let error = Error::failed("cannot count secrets").because(inner).hint("is etcd up?");
        assert_eq!(error.report(), "cannot count secrets: cannot reach etcd-0: connection refused");
        assert_eq!(error.advice(), Some("is etcd up?"));
        assert_eq!(error.exit(), Exit::Failure);
    }

    #[test]
    fn a_cause_that_its_owner_repeats_is_said_once() {
        let inner =
            Error::failed("no route: timed out").because(std::io::Error::other("timed out"));
        assert_eq!(Error::failed("x").because(inner).report(), "x: no route: timed out");
    }
}
