//! Which licences may be in the binaries that we hand out.

use std::iter::Peekable;
use std::str::SplitWhitespace;

use crate::assert_none;
use crate::metadata::Metadata;

/// Permissive licences that ask for no more than a notice.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Zlib",
];

#[test]
fn every_dependency_has_an_allowed_licence() {
    let metadata = Metadata::load();
    let wrong: Vec<String> = metadata
        .built()
        .filter_map(|package| match &package.license {
            None => Some(format!("{} {} names no licence", package.name, package.version)),
            Some(text) if !is_allowed(text) => {
                Some(format!("{} {} is under {text}", package.name, package.version))
            }
            Some(_) => None,
        })
        .collect();
    assert_none("only permissive licences", &wrong);
}

/// Whether the SPDX expression can be met with allowed licences alone.
fn is_allowed(expression: &str) -> bool {
    // Old manifests write `MIT/Apache-2.0` for a choice.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens = spaced.split_whitespace().peekable();
    any_of(&mut tokens) && tokens.next().is_none()
}

fn any_of(tokens: &mut Peekable<SplitWhitespace<'_>>) -> bool {
    let mut met = all_of(tokens);
    while tokens.next_if_eq(&"OR").is_some() {
        met |= all_of(tokens);
    }
    met
}

fn all_of(tokens: &mut Peekable<SplitWhitespace<'_>>) -> bool {
    let mut met = one(tokens);
    while tokens.next_if_eq(&"AND").is_some() {
        met &= one(tokens);
    }
    met
}

fn one(tokens: &mut Peekable<SplitWhitespace<'_>>) -> bool {
    if tokens.next_if_eq(&"(").is_some() {
        return any_of(tokens) & tokens.next_if_eq(&")").is_some();
    }
    let Some(name) = tokens.next() else { return false };
    match tokens.next_if_eq(&"WITH").and_then(|_| tokens.next()) {
        Some(exception) => ALLOWED.contains(&format!("{name} WITH {exception}").as_str()),
        None => ALLOWED.contains(&name),
    }
}

#[test]
fn licence_expressions_are_read_rightly() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "ISC AND (Apache-2.0 OR GPL-2.0-only) AND OpenSSL",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
    ] {
        assert!(is_allowed(good), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT)", "MIT GPL-3.0", "MIT WITH X", "OR"]
    {
        assert!(!is_allowed(bad), "{bad}");
    }
}
