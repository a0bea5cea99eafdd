//! Secrets in files: one line and nothing else.

use std::path::Path;

use sidekey_core::config::Problems;
use sidekey_core::{Error, Files, Kind, Secret};

/// The content of a file that holds one word and perhaps a line end. What is half-written, or
/// something else altogether, is not sent to anybody.
pub fn one_line(files: &Files, path: Option<&Path>) -> Result<Secret, Error> {
    line(files, path, "plain text", |text| {
        let text = text.trim();
        text.bytes().all(|byte| byte.is_ascii_graphic()).then_some(text)
    })
}

/// The content of a file that holds a password: anything but what no keyboard has.
pub fn password(files: &Files, path: Option<&Path>) -> Result<Secret, Error> {
    line(files, path, "text", |text| {
        let text = text.trim_end_matches(['\r', '\n']);
        (!text.chars().any(char::is_control)).then_some(text)
    })
}

fn line(
    files: &Files,
    path: Option<&Path>,
    of: &str,
    cut: impl Fn(&str) -> Option<&str>,
) -> Result<Secret, Error> {
    let path = path.ok_or_else(|| Error::new(Kind::Config, "a file is not configured"))?;
    let text = std::str::from_utf8(files.secret(path)?.expose()).ok().and_then(cut);
    let text = text.filter(|text| !text.is_empty()).ok_or_else(|| {
        Error::new(Kind::Config, format!("file {path:?} does not hold one line of {of}"))
            .with_hint("write the secret into it and nothing else")
    })?;
    Ok(Secret::new(text.as_bytes().to_vec()))
}

/// Reports paths that depend on where the process was started.
pub fn check_absolute(fields: &[(&str, Option<&Path>)], problems: &mut Problems) {
    for (field, path) in fields {
        if path.is_some_and(|path| !path.is_absolute()) {
            problems.add(field, "must be an absolute path");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_one_line_and_what_else_there_is_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let read = |text: &str, how: fn(&Files, Option<&Path>) -> Result<Secret, Error>| {
            std::fs::write(&path, text).unwrap();
            let files = Files::read([path.as_path()]).unwrap();
            how(&files, Some(&path)).ok().map(|secret| secret.as_text().unwrap().to_owned())
        };
        assert_eq!(read("token\n", one_line).as_deref(), Some("token"));
        assert_eq!(read("two words\n", one_line), None);
        assert_eq!(read("one\ntwo", one_line), None);
        assert_eq!(read("two words\r\n", password).as_deref(), Some("two words"));
        assert_eq!(read("one\ntwo", password), None);
        assert_eq!(read("\x01", password), None);
        assert!(one_line(&Files::read([]).unwrap(), None).is_err());
    }
}
