//! Every provider's tests run the conformance suite. It is read as the compiler reads it, so that
//! no comment, string, condition or attribute can pretend it.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::layout::{providers, root};
use crate::metadata::Metadata;
use crate::{assert_none, metadata};

const SUITE: &str = "assert_conforms";

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
        let seen = text.parse().map_err(|error| format!("{error}")).and_then(runs_the_suite);
        wrong.extend(seen.err().map(|problem| format!("{file}: {problem}")));
    }
    assert_none("every provider's tests run sidekey_conformance::assert_conforms", &wrong);
}

/// Whether every test of that file ends by running the suite.
fn runs_the_suite(file: TokenStream) -> Result<(), String> {
    let file: Vec<TokenTree> = file.into_iter().collect();
    if !imports(&file) {
        return Err(format!("{SUITE} is not sidekey_conformance's"));
    }
    if let Some(evasion) = EVASIONS.iter().find(|word| has(&file, word)) {
        return Err(format!("{evasion} could leave the suite out"));
    }
    let (mut tests, mut attributes) = (0, Vec::new());
    for (at, token) in file.iter().enumerate() {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                attributes.push(path(group.stream()));
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let is_test =
                    attributes.iter().any(|path| path.last().is_some_and(|w| w == "test"));
                if is_test && !ends_with_the_suite(group.stream()) {
                    let name = file[..at].iter().rev().find_map(ident).unwrap_or_default();
                    return Err(format!("the test {name} does not end with {SUITE}(…).await"));
                }
                tests += usize::from(is_test);
                attributes.clear();
            }
            _ => {}
        }
        let switch = attributes.iter().flatten().find(|word| SWITCHES.contains(&word.as_str()));
        if let Some(switch) = switch {
            return Err(format!("{switch} could leave the suite out"));
        }
    }
    if tests == 0 { Err("it has no test".to_owned()) } else { Ok(()) }
}

/// `use sidekey_conformance::…` names it, and nothing else does.
fn imports(file: &[TokenTree]) -> bool {
    let word = |token: &TokenTree| ident(token).unwrap_or_default();
    let begins =
        |two: &[TokenTree]| word(&two[0]) == "use" && word(&two[1]) == "sidekey_conformance";
    let Some(at) = file.windows(2).position(begins) else { return false };
    let import: Vec<TokenTree> =
        file[at..].iter().take_while(|token| token.to_string() != ";").cloned().collect();
    let renamed = has(&import, "as");
    let others = [&file[..at], &file[at + import.len()..]];
    let redefined = others.iter().any(|part| defines(part));
    has(&import, SUITE) && !renamed && !redefined
}

/// Whether something else gets that name.
fn defines(tokens: &[TokenTree]) -> bool {
    let words: Vec<String> = flat(tokens);
    words.windows(2).any(|two| two[1] == SUITE && ["fn", "as", "let", "mod"].contains(&&*two[0]))
}

/// The last statement of a body is the suite, awaited.
fn ends_with_the_suite(body: TokenStream) -> bool {
    let body: Vec<TokenTree> = body.into_iter().collect();
    let [.., before, suite, TokenTree::Group(arguments), dot, awaits, end] = body.as_slice() else {
        return false;
    };
    arguments.delimiter() == Delimiter::Parenthesis
        && [before, suite, dot, awaits, end].map(ToString::to_string)
            == [";", SUITE, ".", "await", ";"]
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
    let judge = |text: &str| text.parse().map_err(|_| String::new()).and_then(runs_the_suite);
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
