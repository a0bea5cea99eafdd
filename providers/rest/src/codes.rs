//! What a vendor's codes mean: tables, and one way to make errors of them.
//!
//! Codes decide, never texts: those differ between versions. They are shown to people, on one
//! line, bounded and without anything that looks like a credential, because they say best what is
//! wrong.

use sidekey_core::{Error, Kind};

/// As much of a vendor's own words as helps.
const MAX_TEXT: usize = 300;
/// What follows these words is what we sent, tokens included.
const QUOTES: [&str; 3] = ["The Canonical String", "canonical string", "String-to-Sign"];
/// Longer words are no words.
const LONG: usize = 40;

/// What one code means.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// For which calls, by the beginning of their name; empty for all.
    pub action: &'static str,
    /// The code, or several with `|` between; with a `*` at its end, all that begin so.
    pub code: &'static str,
    /// What it is for us.
    pub kind: Kind,
    /// What the operator should do; may be empty.
    pub hint: &'static str,
}

/// One line of a table.
pub const fn code(
    action: &'static str,
    code: &'static str,
    kind: Kind,
    hint: &'static str,
) -> Code {
    Code { action, code, kind, hint }
}

/// A refusal as a vendor wrote it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusal<'a> {
    /// What was asked.
    pub action: &'a str,
    /// Of which object.
    pub object: &'a str,
    /// The code of HTTP.
    pub status: u16,
    /// The vendor's own code, if it gave one.
    pub code: Option<&'a str>,
    /// Its words.
    pub text: &'a str,
}

impl Refusal<'_> {
    /// The error that it is by `table`: the first line that fits, or what its status says. An
    /// unknown one may pass: a vendor adds codes, a balancer answers in its own way.
    pub fn explain(&self, table: &[Code]) -> Error {
        let (kind, hint) = match self.line(table) {
            Some(line) => (line.kind, line.hint),
            None => by_status(self.status),
        };
        self.error(kind, hint)
    }

    /// Whether `table` has its code.
    pub fn is_known(&self, table: &[Code]) -> bool {
        self.line(table).is_some()
    }

    fn line<'a>(&self, table: &'a [Code]) -> Option<&'a Code> {
        let code = self.code?;
        table.iter().find(|line| self.action.starts_with(line.action) && line.is(code))
    }

    /// The same for vendors whose every refusal has a code: one without is not theirs. A firewall
    /// refuses us in their place, or a captive portal wants a login, and that may pass.
    pub fn explain_of(&self, vendor: &str, table: &[Code]) -> Error {
        match (self.status, self.code) {
            (401 | 403, None) => {
                let hint = format!("it is not {vendor} that says so: see what stands before it");
                self.error(Kind::Unavailable, &hint)
            }
            _ => self.explain(table),
        }
    }

    /// The error that it is, where its kind is known.
    pub fn error(&self, kind: Kind, hint: &str) -> Error {
        let said = said(self.text);
        let colon = if said.is_empty() { "" } else { ": " };
        let code = self.code.map_or_else(|| format!("HTTP {}", self.status), self::said);
        let (action, object) = (self.action, self.object);
        let error = Error::new(kind, format!("{action} on {object}: {code}{colon}{said}"));
        if hint.is_empty() { error } else { error.with_hint(hint) }
    }
}

impl Code {
    fn is(&self, code: &str) -> bool {
        self.code.split('|').any(|known| match known.strip_suffix('*') {
            Some(beginning) => code.starts_with(beginning),
            None => code == known,
        })
    }
}

/// What a code of HTTP means where nothing else is known.
fn by_status(status: u16) -> (Kind, &'static str) {
    match status {
        401 | 403 => (Kind::Denied, "check the credentials and what they may do"),
        408 => (Kind::Timeout, "the server waited too long for the request"),
        429 => (Kind::Throttled, "raise the rate limit, or spread the load"),
        500..=599 => (Kind::Unavailable, ""),
        _ => (
            Kind::Unavailable,
            "this answer is not known here: see whether it is the KMS that answers, or a proxy",
        ),
    }
}

/// A vendor's words: on one line, bounded, without what was sent or looks like a credential.
fn said(text: &str) -> String {
    let end = QUOTES.iter().filter_map(|quote| text.find(quote)).min().unwrap_or(text.len());
    let plain: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let word = |word: &str| if is_secret(word) { "[redacted]".to_owned() } else { word.to_owned() };
    let words: Vec<String> = plain.split_whitespace().map(word).collect();
    words.join(" ").chars().take(MAX_TEXT).collect()
}

/// An error of a library with its causes, each once, as bounded and redacted as a vendor's words.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let next = cause.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
    }
    said(&text)
}

/// Whether a word looks like a token, a key or a signature: long, and of letters of both cases and
/// digits, which neither names, paths nor numbers are.
fn is_secret(word: &str) -> bool {
    word.split(['"', '\'', ',', ';', ':', '=', '<', '>', '(', ')']).any(|part| {
        let known = ["hvs.", "hvb.", "eyJ"].iter().any(|start| part.starts_with(start));
        let has = |test: fn(&u8) -> bool| part.as_bytes().iter().any(test);
        let mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
        known || (part.len() >= LONG && mixed && has(u8::is_ascii_digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [Code; 4] = [
        Code { action: "kms:Decrypt", code: "Bad", kind: Kind::Corrupt, hint: "altered" },
        Code { action: "", code: "Bad", kind: Kind::Config, hint: "" },
        Code { action: "", code: "Ext*|Xks*", kind: Kind::Unavailable, hint: "" },
        Code { action: "sts:", code: "No", kind: Kind::Denied, hint: "trust" },
    ];

    #[test]
    fn the_first_line_that_fits_decides_and_then_the_status() {
        let kind = |action, code, status| {
            let refusal = Refusal { action, object: "key", status, code, text: "" };
            refusal.explain(&TABLE).kind()
        };
        assert_eq!(kind("kms:Decrypt", Some("Bad"), 400), Kind::Corrupt);
        assert_eq!(kind("kms:Encrypt", Some("Bad"), 400), Kind::Config);
        assert_eq!(kind("kms:Encrypt", Some("XksProxyGone"), 400), Kind::Unavailable);
        assert_eq!(kind("kms:Encrypt", Some("No"), 403), Kind::Denied);
        assert_eq!(kind("kms:Encrypt", None, 429), Kind::Throttled);
        assert_eq!(kind("kms:Encrypt", None, 503), Kind::Unavailable);
        assert_eq!(kind("kms:Encrypt", Some("SomethingNew"), 400), Kind::Unavailable, "may pass");
        assert_eq!(kind("kms:Encrypt", None, 302), Kind::Unavailable);
    }

    #[test]
    fn a_refusal_without_a_code_is_not_the_vendors_and_may_pass() {
        let explained = |status, code| {
            let refusal = Refusal { action: "get", object: "key", status, code, text: "" };
            refusal.explain_of("Example KMS", &TABLE)
        };
        for status in [401, 403] {
            assert_eq!(explained(status, Some("Unknown")).kind(), Kind::Denied);
            let error = explained(status, None);
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.report().contains("not Example KMS"), "{}", error.report());
        }
        assert_eq!(explained(429, None).kind(), Kind::Throttled);
    }

    #[test]
    fn an_error_says_what_on_which_object_why_and_what_to_do() {
        let text = "no\nway";
        let refusal = Refusal {
            action: "kms:Decrypt",
            object: "alias/x",
            status: 400,
            code: Some("Bad"),
            text,
        };
        assert_eq!(
            refusal.explain(&TABLE).report(),
            "kms:Decrypt on alias/x: Bad: no way (altered)"
        );
    }

    #[test]
    fn an_error_of_a_library_is_told_with_its_causes_each_once_and_without_secrets() {
        let token = format!("hvs.{}", "aB3".repeat(30));
        let inner = Error::new(Kind::Bug, format!("no {token}"));
        let error = Error::new(Kind::Bug, "it broke").with_source(inner);
        let error = Error::new(Kind::Bug, "dispatch: it broke").with_source(error);
        assert_eq!(chain(&error), "dispatch: it broke: no [redacted]");
    }

    #[test]
    fn no_part_of_what_was_sent_is_ever_in_a_text() {
        let token = format!("IQoJb3JpZ2luX2VjEJ3{}", "aB3/xYz9".repeat(30));
        let texts = [
            format!(
                "The signature does not match.\n\nThe Canonical String for this request should have been\n'POST\n/\n\nx-amz-security-token:{token}\n'"
            ),
            format!("token {token} is not valid"),
            format!("x-amz-security-token:{token}"),
            format!("{{\"token\":\"{token}\"}}"),
        ];
        for text in texts {
            let said = said(&text);
            for start in 0..token.len() - 8 {
                assert!(!said.contains(&token[start..start + 8]), "{said}");
            }
        }
        assert!(!said("hvs.CAESIJ is bad").contains("CAES"));
        let plain = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab is pending deletion.";
        assert_eq!(said(plain), plain, "names are no secrets");
        assert!(said(&"word ".repeat(500)).len() <= MAX_TEXT);
    }
}
