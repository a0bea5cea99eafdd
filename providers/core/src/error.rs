//! The one error of every provider, and the kinds that decide what happens next.

use std::fmt;

/// What went wrong, as far as anybody must act on it.
///
/// The kind alone decides the gRPC code, whether a retry can help, whether the
/// key's health suffers and how the failure is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The request breaks the protocol: the caller's fault.
    Invalid,
    /// Our configuration or a file it names is wrong: the operator must mend it.
    Config,
    /// The KMS refuses our credentials or lacks a permission for them.
    Denied,
    /// The key is disabled, deleted, unknown or not the one that was configured.
    KeyState,
    /// The KMS asks us to slow down.
    Throttled,
    /// The KMS cannot be reached or answers with a passing fault.
    Unavailable,
    /// No answer came within the caller's time.
    Timeout,
    /// What was to be decrypted has been altered, or belongs to something else.
    Corrupt,
    /// Something that cannot happen did: a defect of ours or of the KMS.
    #[default]
    Bug,
}

crate::labels! {
    pub Kind: Invalid = "invalid", Config = "config", Denied = "denied", KeyState = "key_state",
    Throttled = "throttled", Unavailable = "unavailable", Timeout = "timeout",
    Corrupt = "corrupt", Bug = "bug",
}

impl Kind {
    /// The code that kube-apiserver shows in its own metrics.
    pub fn code(self) -> tonic::Code {
        match self {
            Self::Invalid => tonic::Code::InvalidArgument,
            Self::Config | Self::KeyState => tonic::Code::FailedPrecondition,
            Self::Denied => tonic::Code::PermissionDenied,
            Self::Throttled => tonic::Code::ResourceExhausted,
            Self::Unavailable => tonic::Code::Unavailable,
            Self::Timeout => tonic::Code::DeadlineExceeded,
            Self::Corrupt => tonic::Code::DataLoss,
            Self::Bug => tonic::Code::Internal,
        }
    }

    /// Whether the same call may succeed a moment later.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Throttled | Self::Unavailable | Self::Timeout)
    }

    /// Whether the failure speaks of the key rather than of one request.
    pub fn concerns_health(self) -> bool {
        !matches!(self, Self::Invalid | Self::Corrupt)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A failure: what failed on which object, why (as source) and what to do.
///
/// The text must never hold plaintext, ciphertext, tokens or other secrets: it
/// goes to logs, to `/status` and to kube-apiserver.
#[derive(Debug, Default, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    kind: Kind,
    what: String,
    hint: Option<String>,
    needs_reload: bool,
    is_final: bool,
    is_lasting: bool,
    is_mended: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A failure of `kind`; `what` is lower-case and one line.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), ..Self::default() }
    }

    /// Adds what the operator should do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause; its text is not repeated in ours.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says that the key's files may have changed: the runtime reads them again at
    /// once and repeats the call if they have.
    #[must_use]
    pub fn after_reload(mut self) -> Self {
        self.needs_reload = true;
        self
    }

    /// Says that trying again at once would do harm: a budget of retries is spent, say.
    #[must_use]
    pub fn without_retry(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// Says that waiting does not mend it though its kind might pass: a login was refused, say.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.is_lasting = true;
        self
    }

    /// Says that its cause has been mended meanwhile (a new login was made, say): the runtime
    /// repeats the call at once, as the next of its attempts.
    #[must_use]
    pub fn mended(mut self) -> Self {
        self.is_mended = true;
        self
    }

    /// What decides everything else.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the operator should do.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether fresh files may make the call succeed.
    pub fn needs_reload(&self) -> bool {
        self.needs_reload
    }

    /// Whether the call must not be tried again at once, whatever its kind.
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Whether waiting does not mend it, whatever its kind.
    pub fn is_lasting(&self) -> bool {
        self.is_lasting
    }

    /// Whether its cause has been mended meanwhile.
    pub fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// The whole chain on one line, with the hint: for logs and status texts.
    pub fn report(&self) -> String {
        let mut text = self.what.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let next = error.to_string();
            if !next.is_empty() {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        if let Some(hint) = &self.hint {
            text.push_str(" (");
            text.push_str(hint);
            text.push(')');
        }
        text.replace(['\n', '\r'], " ")
    }
}

impl From<&Error> for tonic::Status {
    fn from(error: &Error) -> Self {
        Self::new(error.kind.code(), bounded(error.report()))
    }
}

/// gRPC's codes as grpc-go writes them, and so kube-apiserver's `grpc_status_code` label: dashboards
/// join on it.
pub fn code_name(code: tonic::Code) -> String {
    match code {
        tonic::Code::Ok => "OK".to_owned(),
        tonic::Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// OpenShift keeps at most 1024 characters of such a text; more helps nobody.
pub(crate) fn bounded(mut text: String) -> String {
    let end = cut(&text).len();
    if end < text.len() {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// As much of a text as goes over the wire: it travels in a header.
pub(crate) fn cut(text: &str) -> &str {
    const MAX: usize = 1000;
    &text[..text.floor_char_boundary(MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_shows_each_cause_once_and_the_hint_on_one_line() {
        let cause = std::io::Error::other("no\nroute");
        let error = Error::new(Kind::Unavailable, "cannot reach the KMS")
            .with_source(cause)
            .with_hint("check the network");
        assert_eq!(error.report(), "cannot reach the KMS: no route (check the network)");
    }

    #[test]
    fn status_text_is_bounded_at_a_character_border() {
        let status = tonic::Status::from(&Error::new(Kind::Bug, "ä".repeat(2000)));
        assert!(status.message().len() <= 1003);
        assert!(status.message().ends_with('…'));
    }

    #[test]
    fn texts_are_cut_at_a_character_border() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(""), "");
        let long = "ä".repeat(1000);
        assert_eq!(cut(&long).len(), 1000);
        assert_eq!(cut(&format!("x{long}")).len(), 999);
    }

    #[test]
    fn every_kind_has_a_label_of_its_own() {
        let labels: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|k| k.label()).collect();
        assert_eq!(labels.len(), Kind::ALL.len());
    }

    #[test]
    fn codes_are_written_as_grpc_go_does() {
        use tonic::Code;
        let codes = [Code::Ok, Code::Cancelled, Code::NotFound, Code::DeadlineExceeded];
        assert_eq!(codes.map(code_name), ["OK", "Canceled", "NotFound", "DeadlineExceeded"]);
    }
}
