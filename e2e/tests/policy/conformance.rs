//! Every provider's tests run the conformance suite and read the whole corpus. They are read as the
//! compiler reads them, so that no comment, string, condition or attribute can pretend it.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::layout::{providers, root};
use crate::metadata::Metadata;
use crate::{assert_none, metadata};

const SUITE: &str = "assert_conforms";
pub(crate) const CORPUS: &str = "assert_reads_corpus";

/// What could keep a test, or its end, from being run.
const EVASIONS: &[&str] = &["return", "exit", "catch_unwind", "macro_rules", "include"];
const SWITCHES: &[&str] = &["cfg", "cfg_attr", "ignore", "should_panic"];

#[test]
fn every_provider_runs_the_conformance_suite() {
    let members: Vec<&metadata::Package> = Metadata::load().members().collect();
    let mut wrong = Vec::new();
    // The example too: others are copied from it.
    for name in providers().into_iter().chain(["example".to_owned()]) {
        let file = format!("providers/{name}/tests/conformance.rs");
        let package = format!("sidekey-{name}");
        let package = members.iter().find(|member| member.name == package);
        let mut targets = package.into_iter().flat_map(|package| &package.targets);
        if !targets.any(|target| target.name == "conformance" && target.test) {
            wrong.push(format!("{file} is no test that cargo runs"));
            continue;
        }
        let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
        // What does not exist has stored nothing.
        let stored = (name != "example").then_some(name.as_str());
        let judge = |file| runs_the_suite(file, stored);
        let seen = text.parse().map_err(|error| format!("{error}")).and_then(judge);
        wrong.extend(seen.err().map(|problem| format!("{file}: {problem}")));
    }
    assert_none("every provider's tests run sidekey_conformance's suite and its corpus", &wrong);
}

/// Whether every test of that file ends by running the suite, or by reading what `stored` had
/// written, and both are there.
fn runs_the_suite(file: TokenStream, stored: Option<&str>) -> Result<(), String> {
    let file: Vec<TokenTree> = file.into_iter().collect();
    let needed = || std::iter::once(SUITE).chain(stored.map(|_| CORPUS));
    if let Some(name) = needed().find(|name| !imports(&file, name)) {
        return Err(format!("{name} is not sidekey_conformance's"));
    }
    if let Some(evasion) = EVASIONS.iter().find(|word| has(&file, word)) {
        return Err(format!("{evasion} could leave the suite out"));
    }
    let (mut ends, mut attributes) = (Vec::new(), Vec::new());
    for (at, token) in file.iter().enumerate() {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                attributes.push(path(group.stream()));
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let is_test =
                    attributes.iter().any(|path| path.last().is_some_and(|w| w == "test"));
                if is_test {
                    let name = file[..at].iter().rev().find_map(ident).unwrap_or_default();
                    let end = last_statement(group.stream(), stored);
                    let none = || format!("the test {name} does not end with {SUITE}(…).await");
                    ends.push(end.ok_or_else(none)?);
                }
                attributes.clear();
            }
            _ => {}
        }
        let switch = attributes.iter().flatten().find(|word| SWITCHES.contains(&word.as_str()));
        if let Some(switch) = switch {
            return Err(format!("{switch} could leave the suite out"));
        }
    }
    match needed().find(|name| !ends.contains(name)) {
        Some(name) => Err(format!("it has no test that ends with {name}(…).await")),
        None => Ok(()),
    }
}

/// `use sidekey_conformance::…` names it, and nothing else does.
fn imports(file: &[TokenTree], name: &str) -> bool {
    let word = |token: &TokenTree| ident(token).unwrap_or_default();
    let begins =
        |two: &[TokenTree]| word(&two[0]) == "use" && word(&two[1]) == "sidekey_conformance";
    let Some(at) = file.windows(2).position(begins) else { return false };
    let import: Vec<TokenTree> =
        file[at..].iter().take_while(|token| token.to_string() != ";").cloned().collect();
    let renamed = has(&import, "as");
    let others = [&file[..at], &file[at + import.len()..]];
    let redefined = others.iter().any(|part| defines(part, name));
    has(&import, name) && !renamed && !redefined
}

/// Whether something else gets that name.
fn defines(tokens: &[TokenTree], name: &str) -> bool {
    let words: Vec<String> = flat(tokens);
    words.windows(2).any(|two| two[1] == name && ["fn", "as", "let", "mod"].contains(&&*two[0]))
}

/// The one of the two that is awaited in the last statement of a body.
fn last_statement(body: TokenStream, stored: Option<&str>) -> Option<&'static str> {
    let body: Vec<TokenTree> = body.into_iter().collect();
    let [.., before, called, TokenTree::Group(arguments), dot, awaits, end] = body.as_slice()
    else {
        return None;
    };
    let called = called.to_string();
    let called = [SUITE, CORPUS].into_iter().find(|name| *name == called)?;
    let rest = [before, dot, awaits, end].map(ToString::to_string) == [";", ".", "await", ";"];
    let mut first = arguments.stream().into_iter().map(|token| token.to_string());
    let whose = first.next().zip(stored).is_some_and(|(first, name)| first == format!("{name:?}"));
    let calls = arguments.delimiter() == Delimiter::Parenthesis && rest;
    (calls && (called == SUITE || whose)).then_some(called)
}

fn ident(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

/// The words of an attribute before its arguments.
fn path(attribute: TokenStream) -> Vec<String> {
    let before = attribute.into_iter().take_while(|token| !matches!(token, TokenTree::Group(_)));
    before.filter_map(|token| ident(&token)).collect()
}

fn has(tokens: &[TokenTree], word: &str) -> bool {
    flat(tokens).iter().any(|one| one == word)
}

/// All words, in groups too.
fn flat(tokens: &[TokenTree]) -> Vec<String> {
    let words = tokens.iter().flat_map(|token| match token {
        TokenTree::Group(group) => flat(&group.stream().into_iter().collect::<Vec<_>>()),
        other => ident(other).into_iter().collect(),
    });
    words.collect()
}

#[test]
fn whoever_only_pretends_to_run_the_suite_is_found() {
    const HONEST: &str = "
        #![allow(clippy::unwrap_used)]
        use sidekey_conformance::{Launched, assert_conforms};
        #[tokio::test(flavor = \"multi_thread\")]
        async fn conforms() { let plugin = start().await; assert_conforms(&plugin).await; }
        fn helper() {}";
    let judge = |text: &str| {
        let judge = |file| runs_the_suite(file, None);
        text.parse().map_err(|_| String::new()).and_then(judge)
    };
    assert_eq!(judge(HONEST), Ok(()));
    let suite = "assert_conforms(&plugin).await;";
    for (what, instead) in [
        (suite, "// assert_conforms(&plugin).await;"),
        (suite, "let said = \"assert_conforms(&plugin).await;\";"),
        (suite, "if false { assert_conforms(&plugin).await; }"),
        (suite, "drop(assert_conforms(&plugin));"),
        (suite, "let _ = assert_conforms(&plugin).await;"),
        ("let plugin", "return; let plugin"),
        ("fn helper() {}", "#[tokio::test] async fn more() {}"),
        ("fn helper() {}", "async fn assert_conforms(_: &Plugin) {}"),
        (
            "use sidekey_conformance::{Launched, assert_conforms}",
            "use crate::mine::assert_conforms",
        ),
        ("{Launched, assert_conforms}", "{Launched, run as assert_conforms}"),
        ("#[tokio", "# [ignore] #[tokio"),
        ("#[tokio", "#[cfg(feature = \"never\")] #[tokio"),
        ("#![allow(clippy::unwrap_used)]", "#![cfg(any())]"),
        ("#[tokio::test(flavor = \"multi_thread\")]", ""),
    ] {
        let lie = HONEST.replace(what, instead);
        assert_ne!(lie, HONEST);
        assert!(judge(&lie).is_err(), "this passes for a test of conformance:{lie}");
    }
}

#[test]
fn whoever_only_pretends_to_read_the_corpus_is_found() {
    const HONEST: &str = "
        use sidekey_conformance::{assert_conforms, assert_reads_corpus};
        #[test]
        async fn conforms() { let plugin = start().await; assert_conforms(&plugin).await; }
        #[test]
        async fn reads() { let start = start(); assert_reads_corpus(\"local\", start).await; }";
    let judge = |text: &str| runs_the_suite(text.parse().unwrap(), Some("local"));
    assert_eq!(judge(HONEST), Ok(()));
    for (what, instead) in [
        ("assert_reads_corpus(\"local\", start)", "assert_conforms(&start)"),
        ("\"local\"", "\"aws\""),
        ("\"local\", start", "local(), start"),
        ("assert_reads_corpus(\"local\", start).await;", "start.await;"),
        (
            "let plugin = start().await; assert_conforms(&plugin)",
            "let p = 1; assert_reads_corpus(\"local\", p)",
        ),
        ("{assert_conforms, assert_reads_corpus}", "assert_conforms"),
    ] {
        let lie = HONEST.replace(what, instead);
        assert_ne!(lie, HONEST);
        assert!(judge(&lie).is_err(), "this passes for a test that reads the corpus:{lie}");
    }
}
