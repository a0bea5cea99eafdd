use clap::{Args, FromArgMatches};
use serde_json::json;

use super::*;

struct Replaced;

const fn flag(name: &'static str, value: &'static str, use_: Use) -> Flag {
    Flag { name, aliases: &[], value, help: "Something", use_ }
}

impl Plugin for Replaced {
    const FLAGS: &'static [Flag] = &[
        flag("address", "URL", Use::Text("settings.endpoint")),
        Flag { aliases: &["vault-token"], ..flag("token", "SECRET", Use::Named) },
        flag("ca-file", "FILE", Use::Text("settings.tls.caFile")),
        flag("skip-verify", "", Use::Refused("give a CA bundle")),
        flag("old", "", Use::Ignored),
        flag("port", "PORT", Use::Named),
    ];
    const PREFIXES: &'static [&'static str] = &["REPLACED_"];
    const VARIABLES: &'static [(&'static str, &'static str)] = &[("token", "THE_TOKEN")];
    const COMMON: &'static [(&'static str, &'static str)] = &[("address", "KMS_ADDR")];
}

fn parse(arguments: &[&str]) -> Flags<Replaced> {
    let command = Flags::<Replaced>::augment_args(Command::new("plugin"));
    let all = std::iter::once("plugin").chain(arguments.iter().copied());
    Flags::from_arg_matches(&command.try_get_matches_from(all).unwrap()).unwrap()
}

#[test]
fn what_the_table_places_is_in_the_document() {
    let flags = parse(&["--address=https://kms", "--ca-file", "/ca", "--old", "--vault-token=x"]);
    let mut document = json!({"id": "1"});
    flags.fill(&mut document).unwrap();
    let settings = json!({"endpoint": "https://kms", "tls": {"caFile": "/ca"}});
    assert_eq!(document, json!({"id": "1", "settings": settings}));
    assert_eq!(flags.get("token"), Some("x"));
    assert!(!format!("{flags:?}").contains('x'), "{flags:?}");
    assert_eq!(parse(&["--port", "-1"]).get("port"), Some("-1"));
    assert_eq!(parse(&["--port=1", "--port=2"]).all("port"), ["1", "2"]);
}

#[test]
fn what_is_refused_is_refused_only_where_it_is_true() {
    let mut document = json!({});
    let error = parse(&["--skip-verify"]).fill(&mut document).unwrap_err();
    assert!(error.to_string().contains("--skip-verify"));
    assert!(parse(&["--skip-verify=false"]).fill(&mut document).is_ok());
    assert!(parse(&["--skip-verify=true"]).fill(&mut document).is_err());
}

#[test]
fn variables_stand_for_missing_flags_and_the_vendors_own_only_fill_in() {
    let with = |flags: &Flags<Replaced>, set: &'static [(&str, &str)], file| {
        let variable = move |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        flags.with(&variable, file)
    };
    let none = parse(&[]);
    assert!(with(&none, &[("KMS_ADDR", "https://a")], false).is_none());
    let found = with(&none, &[("KMS_ADDR", "https://a"), ("REPLACED_CA_FILE", "/ca")], false);
    let found = found.unwrap();
    assert_eq!((found.get("address"), found.get("ca-file")), (Some("https://a"), Some("/ca")));
    assert!(with(&none, &[("REPLACED_CA_FILE", "/ca")], true).is_none(), "a file counts alone");
    let given = parse(&["--ca-file=/own", "--address="]);
    let found = with(&given, &[("REPLACED_CA_FILE", "/ca"), ("THE_TOKEN", "t")], true).unwrap();
    assert_eq!((found.get("ca-file"), found.get("token")), (Some("/own"), Some("t")));
    assert_eq!(found.get("address"), None, "empty is not given");
    assert_eq!(parse(&["--old"]).first(), Some("old"));
}

#[test]
fn a_configuration_file_is_told_from_other_arguments() {
    let named = |line: &str| names_a_file(line.split(' ').map(str::to_owned));
    assert!(named("x --config f") && named("x -config=f") && named("x --config=f"));
    assert!(!named("x -vault-address --configs"));
}
