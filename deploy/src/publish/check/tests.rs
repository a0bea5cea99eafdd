#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::model::SecretEncryption;
use crate::publish::Proof;
use crate::render::{Phase, ResolvedFiles, render};

/// A document with these keys and more of its spec.
fn view(keys: &str, more: &str, phase: Phase) -> View {
    let text = format!(
        "apiVersion: sidekey.dev/v1alpha1\nkind: SecretEncryption\nmetadata: {{name: a}}\nspec: {{{more}keys: [{keys}]}}"
    );
    let encryption = SecretEncryption::parse(&text).unwrap();
    let mut files = ResolvedFiles::default();
    for source in encryption.sources() {
        let byte = source.to_string().len() as u8;
        files.insert(source.clone(), sidekey_core::Secret::new(vec![byte; 32]));
    }
    View::of(&render(&encryption, 1, &files, phase).unwrap()).unwrap()
}

fn settled(keys: &str) -> View {
    view(keys, "", Phase::Settled)
}

fn key(id: u32, role: &str) -> String {
    format!("{{id: {id}, type: vault, role: {role}, kek: {{key: k{id}}}}}")
}

/// What is refused, by what would have to be named, `never` where nothing helps.
fn refused(old: &View, new: &View) -> Vec<String> {
    let list = objections(old, new);
    list.into_iter().map(|objection| objection.subject.unwrap_or_else(|| "never".into())).collect()
}

#[test]
fn a_rotation_in_its_order_is_fine() {
    let one = settled(&key(1, "write"));
    let both = settled(&format!("{}, {}", key(1, "write"), key(2, "read")));
    let turned = settled(&format!("{}, {}", key(1, "read"), key(2, "write")));
    for (old, new) in [(&one, &both), (&both, &turned), (&turned, &both), (&View::default(), &one)]
    {
        assert_eq!(refused(old, new), [""; 0]);
    }
}

#[test]
fn a_key_that_nobody_could_read_with_may_not_write() {
    let one = settled(&key(1, "write"));
    let turned = settled(&format!("{}, {}", key(1, "read"), key(2, "write")));
    assert_eq!(refused(&one, &turned), ["never"]);
    let error = verify(&one, &turned, &Options::default()).unwrap_err();
    assert!(error.report().contains("role read first"), "{}", error.report());
    assert_eq!(error.exit(), crate::Exit::No);
}

#[test]
fn a_key_goes_only_if_proven_or_forced() {
    let both = settled(&format!("{}, {}", key(1, "read"), key(2, "write")));
    let one = settled(&key(2, "write"));
    assert_eq!(refused(&both, &one), ["1"]);
    assert!(verify(&both, &one, &Options::default()).is_err());
    let forced = Options { drop: ["1".to_owned()].into(), ..Options::default() };
    assert!(verify(&both, &one, &forced).is_ok());
    let other = Options { drop: ["2".to_owned()].into(), ..Options::default() };
    assert!(verify(&both, &one, &other).is_err());
    let proof = |unused: Option<&str>| Options {
        proofs: vec![Proof {
            unused: unused.map(str::to_owned),
            counted: [("1".into(), 7)].into(),
        }],
        ..Options::default()
    };
    assert!(verify(&both, &one, &proof(Some("1"))).is_ok());
    assert!(verify(&both, &one, &proof(Some("2"))).is_err());
    let error = verify(&both, &one, &proof(None)).unwrap_err();
    assert!(error.report().contains("7 objects counted"), "{}", error.report());
}

#[test]
fn a_number_is_never_another_kek() {
    let old = settled(&key(1, "write"));
    let new = settled("{id: 1, type: vault, role: write, kek: {key: other}}");
    assert_eq!(refused(&old, &new), ["never"]);
    let named = settled(&format!(
        "{{id: 1, type: vault, role: write, kek: {{key: other}}, fingerprint: '{}'}}",
        old.keys[&KeyNumber(1)].fingerprint
    ));
    assert_eq!(refused(&old, &named), [""; 0], "renamed at the vendor, and said so");
    let unknown = settled("{id: 1, type: vault, role: write}");
    assert_eq!(refused(&unknown, &old), [""; 0], "nothing was known of it");
    assert_eq!(refused(&old, &unknown), ["never"], "what is known is not forgotten");
}

#[test]
fn names_resources_and_identity_stay() {
    let keys = key(1, "write");
    let old = view(&keys, "resources: [secrets, configmaps], ", Phase::Settled);
    let less = view(&keys, "resources: [secrets], ", Phase::Settled);
    assert_eq!(refused(&old, &less), ["configmaps"]);
    let moved = view(
        &keys,
        "resources: [secrets], stanzas: [{name: x, resources: [configmaps]}], ",
        Phase::Settled,
    );
    // The name in the stored data is gone, and the new one is not yet known everywhere.
    assert_eq!(refused(&old, &moved), ["sidekey", "never"]);
    let mut dark = old.clone();
    for stanza in dark.stanzas.iter_mut().flatten() {
        stanza.providers.retain(|provider| *provider != Provider::Identity);
    }
    assert_eq!(refused(&old, &dark), ["identity", "identity"]);
    let adopted = view(&keys, "legacyKey: 1, adopt: [{name: old, key: 1}], ", Phase::Settled);
    assert_eq!(refused(&adopted, &old), ["1", "old", "old"]);
}

#[test]
fn enabling_goes_through_a_phase_that_writes_in_clear() {
    let plain = view("", "write: identity, ", Phase::Settled);
    let keys = key(1, "write");
    let (first, then) = (view(&keys, "", Phase::IdentityFirst), settled(&keys));
    assert_eq!(refused(&plain, &then), ["never", "never"]);
    assert_eq!(refused(&plain, &first), [""; 0]);
    assert_eq!(refused(&first, &then), [""; 0]);
    assert_eq!(refused(&then, &first), [""; 0], "and back");
}

#[test]
fn a_cipher_is_not_exchanged_under_its_name() {
    let spec = |file: &str| {
        let more = format!("write: c, ciphers: [{{name: c, type: aescbc, file: {file}}}], ");
        view("", &more, Phase::Settled)
    };
    assert_eq!(refused(&spec("a"), &spec("a")), [""; 0]);
    assert_eq!(refused(&spec("a"), &spec("longer")), ["never", "never"]);
}

#[test]
fn data_from_before_the_shim_keeps_its_key() {
    let keys = format!("{}, {}", key(1, "read"), key(2, "write"));
    let old = view(&keys, "legacyKey: 1, ", Phase::Settled);
    assert_eq!(refused(&old, &view(&keys, "legacyKey: 2, ", Phase::Settled)), ["never"]);
    assert_eq!(refused(&old, &settled(&keys)), ["1"]);
}

#[test]
fn a_resource_that_a_wildcard_covers_is_still_there_and_what_leaves_one_keeps_its_providers() {
    let keys = key(1, "write");
    let with = |more: &str| view(&keys, more, Phase::Settled);
    let (few, all) = (with("resources: [secrets, configmaps], "), with("resources: ['*.*'], "));
    assert_eq!(refused(&few, &all), [""; 0]);
    assert_eq!(refused(&few, &with("resources: ['*.apps'], ")), ["configmaps", "secrets"]);
    assert_eq!(refused(&all, &few), ["*.*"]);
    // Secrets were the wildcard's, under its name.
    let apart = with("resources: [events, secrets], stanzas: [{name: b, resources: ['*.*']}], ");
    let before = with("resources: [events], stanzas: [{name: b, resources: ['*.*']}], ");
    assert_eq!(refused(&before, &apart), ["sidekey-b", "never"]);
}
