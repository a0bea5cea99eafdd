use std::collections::BTreeMap;

use serde_json::{Value, json};
use sidekey_core::Secret;

use super::back::forget;
use super::draft::Retained;
use super::numbers::wrote_before;
use super::retire::{last_names, occasion};
use super::writes::promote;
use super::*;
use crate::model::{FileSource, KeyNumber, ObjectKey, Role};
use crate::publish::{LivePart, Options};
use crate::render::{Phase, ResolvedFiles, render};
use crate::rotate::{Stage, Step, Turn};

mod back;
mod given_up;
mod half;
mod newcomers;
mod recall;

/// What a control plane may be written with, in all tests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Clear,
    Cipher,
    Key(u64),
}

const MODES: [Mode; 4] = [Mode::Clear, Mode::Cipher, Mode::Key(1), Mode::Key(2)];

pub(super) fn key(id: u64, role: &str) -> Value {
    json!({
        "id": id, "type": if id == 1 { "aws" } else { "vault" }, "role": role,
        "kek": {"key": format!("kek-{id}")},
        "credentials": {"file": format!("/etc/sidekey/token-{id}")},
        "files": [{
            "name": format!("token-{id}"), "secret": {"name": format!("token-{id}"), "key": "token"},
        }],
    })
}

pub(super) fn document(spec: Value) -> SecretEncryption {
    SecretEncryption::from_document(&json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "metadata": {"name": "a", "namespace": "clusters-a"}, "spec": spec,
    }))
    .unwrap()
}

/// The document that asks for this mode and names nothing else.
fn wanted(mode: Mode) -> SecretEncryption {
    document(match mode {
        Mode::Clear => json!({"keys": [], "write": "identity"}),
        Mode::Cipher => json!({
            "ciphers": [{"name": "c1", "type": "aescbc", "secret": {"name": "cipher", "key": "key"}}],
            "write": "c1",
        }),
        Mode::Key(id) => json!({"keys": [key(id, "write")]}),
    })
}

/// What the cluster has: every source of a document, with this content.
fn resolve(document: &SecretEncryption, byte: u8) -> ResolvedFiles {
    let mut files = ResolvedFiles::default();
    for source in document.sources() {
        files.insert(source.clone(), Secret::new(vec![byte; 32]));
    }
    files
}

/// The draft, with nothing retained before.
fn draft(wanted: &SecretEncryption, live: &Live, stand: &Stand) -> Result<Draft, Error> {
    let (files, retained) = (resolve(wanted, 7), BTreeSet::new());
    super::draft::draft(wanted, live, stand, Known { files: &files, retained: &retained })
}

/// Publishes a draft as [`publish`] does: checked against what is live, then live.
fn put(live: &Live, draft: &Draft, drop: &[&str]) -> Result<Live, Error> {
    let rendered = render(&draft.document, 1, &draft.files, Phase::Settled)?;
    let drop = drop.iter().map(|name| (*name).to_owned()).collect();
    publish::verify(live, &rendered, &Options { drop, ..Options::default() })?;
    let mut next = live.clone();
    for part in rendered.parts {
        next.parts.insert(part.name, LivePart { files: part.files, version: None });
    }
    next.newest = BTreeMap::new();
    Ok(next)
}

fn turn(mode: Mode) -> Turn {
    Writes::wanted(&wanted(mode)).turn(&wanted(mode))
}

/// The draft of a rotation at a stage.
fn at(state: &State, live: &Live, to: Mode, promoted: bool) -> Draft {
    staged(state, live, &wanted(to), promoted)
}

fn staged(state: &State, live: &Live, wanted: &SecretEncryption, promoted: bool) -> Draft {
    let (from, new) = (Writes::of_turn(&state.from), Writes::of_turn(&state.to));
    let mut stand = Stand::of(if promoted { new.clone() } else { from });
    if !promoted {
        stand.promoted = None;
    }
    stand.newcomers = Some(new.key().into_iter().collect());
    stand.proven = resources::proven(state, live, promoted);
    draft(wanted, live, &stand).unwrap()
}

/// From nothing published to this mode, with nothing retained.
fn settled(mode: Mode) -> Live {
    let state = State::begin(turn(Mode::Clear), turn(mode), "now", None);
    let live = put(&Live::default(), &at(&state, &Live::default(), mode, false), &[]).unwrap();
    put(&live, &at(&state, &live, mode, true), &[]).unwrap()
}

#[test]
fn every_change_of_mode_passes_stages_that_publishing_never_refuses() {
    for from in MODES {
        for to in MODES.into_iter().filter(|to| *to != from) {
            let live = settled(from);
            assert_eq!(Writes::live(&live).unwrap(), Some(Writes::of_turn(&turn(from))));
            let state = State::begin(turn(from), turn(to), "now", None);
            let readers = at(&state, &live, to, false);
            let live = put(&live, &readers, &[])
                .unwrap_or_else(|error| panic!("{from:?} to {to:?}: {}", error.report()));
            assert_eq!(Writes::live(&live).unwrap(), Some(Writes::of_turn(&turn(from))));
            let writers = at(&state, &live, to, true);
            let live = put(&live, &writers, &[])
                .unwrap_or_else(|error| panic!("{from:?} to {to:?}: {}", error.report()));
            assert_eq!(Writes::live(&live).unwrap(), Some(Writes::of_turn(&turn(to))));
            let left: Vec<String> = writers.retained.iter().map(Retained::name).collect();
            let expected = match from {
                Mode::Clear => vec![],
                Mode::Cipher => vec!["c1".to_owned()],
                Mode::Key(id) => vec![id.to_string()],
            };
            assert_eq!(left, expected, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn what_is_not_wanted_any_more_goes_only_when_it_is_named() {
    for from in [Mode::Cipher, Mode::Key(1)] {
        for to in [Mode::Key(2), Mode::Clear, Mode::Cipher] {
            if from != to {
                goes_when_it_is_named(from, to);
            }
        }
    }
}

fn goes_when_it_is_named(from: Mode, to: Mode) {
    let live = settled(from);
    let state = State::begin(turn(from), turn(to), "now", None);
    let live = put(&live, &at(&state, &live, to, false), &[]).unwrap();
    let live = put(&live, &at(&state, &live, to, true), &[]).unwrap();
    let mut stand = Stand::of(Writes::of_turn(&turn(to)));
    let kept = draft(&wanted(to), &live, &stand).unwrap();
    let retained = &kept.retained[0];
    let names = last_names(retained, &kept.document);
    let last = from == Mode::Key(1) && to != Mode::Key(2);
    assert_eq!(names, if last { vec!["sidekey"] } else { vec![] }, "{from:?} to {to:?}");
    stand.leaving = BTreeSet::from([retained.name()]);
    let gone = draft(&wanted(to), &live, &stand).unwrap();
    assert!(gone.retained.is_empty());
    assert!(put(&live, &gone, &[]).is_err(), "{from:?}: nothing has allowed it");
    let name = retained.name();
    let drop: Vec<&str> = names.iter().chain([&name]).map(String::as_str).collect();
    assert_eq!(put(&live, &gone, &[&name]).is_err(), last, "a name goes only if it was counted");
    let live = put(&live, &gone, &drop).unwrap();
    // The shim's head stays as it was while pods mount it.
    let mut stand = Stand::of(Writes::of_turn(&turn(to)));
    let retired = vec![back::retired(&name, &turn(from).fingerprint)];
    let status = crate::operator::status::Status { retired, ..Default::default() };
    stand.leaving = leftover::idle(&live, &status, &wanted(to)).unwrap();
    assert_eq!(stand.leaving.len(), usize::from(last), "{from:?} to {to:?}");
    assert!(draft(&wanted(to), &live, &stand).unwrap().retained.is_empty());
}

#[test]
fn a_count_of_before_other_servers_or_another_rotation_is_another_one() {
    let pods = |uids: &[&str]| -> Vec<Replica> {
        let one = |uid: &&str| Replica {
            name: "kas-0".into(),
            uid: Some((*uid).to_owned()),
            ending: false,
            ip: None,
            trouble: None,
        };
        uids.iter().map(one).collect()
    };
    let first = occasion(Some("now"), &pods(&["a", "b"]));
    assert_eq!(first, occasion(Some("now"), &pods(&["b", "a"])));
    assert_ne!(first, occasion(Some("now"), &pods(&["a", "c"])));
    assert_ne!(first, occasion(Some("then"), &pods(&["a", "b"])));
}

#[test]
fn a_retained_key_keeps_its_credentials_from_the_head_and_a_cipher_its_content() {
    let live = settled(Mode::Key(1));
    let made = draft(&wanted(Mode::Cipher), &live, &Stand::of(Writes::Name("c1".into()))).unwrap();
    let kept = made.document.key(KeyNumber(1)).unwrap();
    let head = ObjectKey { name: "sidekey-provider-aws".into(), key: "token-1".into() };
    assert_eq!(kept.files[0].source, FileSource::Secret(head));
    assert_eq!(kept.role, Role::Write, "somebody must write behind the shim");

    let live = settled(Mode::Cipher);
    let made = draft(&wanted(Mode::Key(1)), &live, &Stand::of(Writes::Key(KeyNumber(1)))).unwrap();
    let source = &made.document.spec.ciphers[0].source;
    assert!(made.files.contains(source), "the Secret it came from may be gone");
    assert_eq!(made.files.content(source).expose(), [7; 32]);
}

#[test]
fn a_shared_credential_is_followed_and_one_that_became_another_is_kept_apart() {
    let shared = |id: u64, secret: &str| {
        json!({
            "id": id, "type": "aws", "role": "write", "kek": {"key": format!("kek-{id}")},
            "credentials": {"deep": [{"file": "/etc/sidekey/token"}]},
            "files": [{"name": "token", "secret": {"name": secret, "key": "token"}}],
        })
    };
    let one = document(json!({"keys": [shared(1, "t")]}));
    let stand = Stand::of(Writes::Key(KeyNumber(1)));
    let live = put(&Live::default(), &draft(&one, &Live::default(), &stand).unwrap(), &[]).unwrap();
    let two = document(json!({"keys": [shared(2, "t")]}));
    let with = |byte: u8, retained: &[u64]| {
        let (files, retained) = (resolve(&two, byte), retained.iter().copied().collect());
        let known = Known { files: &files, retained: &retained };
        super::draft::draft(&two, &live, &stand, known).unwrap()
    };
    // The same content, or one that changed while the key was retained: one credential.
    for draft in [with(7, &[]), with(8, &[1])] {
        let kept = draft.document.key(KeyNumber(1)).unwrap();
        assert_eq!(kept.files[0], draft.document.key(KeyNumber(2)).unwrap().files[0]);
    }
    // Another content in the same edit: two credentials, each key has its own.
    let apart = with(8, &[]);
    let kept = apart.document.key(KeyNumber(1)).unwrap();
    assert_eq!(kept.credentials["deep"][0]["file"], "/etc/sidekey/key-1-token");
    assert_eq!(apart.files.content(&kept.files[0].source).expose(), [7; 32]);
    let live = put(&live, &apart, &[]).unwrap();
    let files = &live.parts[&crate::render::PartName::Provider("aws".into())].files;
    assert_eq!((files["token"].expose()[0], files["key-1-token"].expose()[0]), (8, 7));
}

#[test]
fn while_a_key_is_rotated_in_no_other_new_key_comes_along() {
    let live = settled(Mode::Key(1));
    let later = document(json!({"keys": [key(3, "write"), key(2, "read"), key(1, "read")]}));
    let mut stand = Stand::of(Writes::Key(KeyNumber(1)));
    stand.newcomers = Some(BTreeSet::from([KeyNumber(2)]));
    let made = draft(&later, &live, &stand).unwrap();
    let mut ids: Vec<u64> = made.document.spec.keys.iter().map(|key| key.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn a_key_that_was_given_up_leaves_nothing_behind() {
    let live = settled(Mode::Key(1));
    let state = State::begin(turn(Mode::Key(1)), turn(Mode::Key(2)), "now", None);
    let live = put(&live, &at(&state, &live, Mode::Key(2), false), &[]).unwrap();
    let mut stand = Stand::of(Writes::Key(KeyNumber(1)));
    stand.newcomers = Some(BTreeSet::new());
    stand.leaving = BTreeSet::from(["2".to_owned()]);
    // Edited back, and still asked for: both ways it goes.
    for asked in [wanted(Mode::Key(1)), wanted(Mode::Key(2))] {
        let made = draft(&asked, &live, &stand).unwrap();
        assert!(made.document.key(KeyNumber(2)).is_none());
        assert_eq!(made.document.writer().unwrap().id, KeyNumber(1));
        put(&live, &made, &["2"]).unwrap();
    }
}

#[test]
fn a_resource_that_was_encrypted_stays_in_the_configuration() {
    let mut more = wanted(Mode::Key(1));
    more.spec.resources.push("widgets.example.com".into());
    let stand = Stand::of(Writes::Key(KeyNumber(1)));
    let live =
        put(&Live::default(), &draft(&more, &Live::default(), &stand).unwrap(), &[]).unwrap();
    let made = draft(&wanted(Mode::Key(1)), &live, &stand).unwrap();
    assert!(made.document.spec.resources.contains(&"widgets.example.com".to_owned()));
    // And is rewritten with the rest.
    let selection = super::steps::selection(&made).unwrap();
    assert!(selection.patterns.iter().any(|one| one.to_string() == "widgets.example.com"));
}

#[test]
fn a_wildcard_takes_the_place_of_what_it_covers_and_of_nothing_else() {
    let of = |list: &[&str]| {
        let mut document = wanted(Mode::Clear);
        document.spec.resources = list.iter().map(|name| (*name).to_owned()).collect();
        document
    };
    let stand = Stand::of(Writes::Clear);
    for (before, after, expected) in [
        (vec!["secrets", "configmaps"], vec!["*.*"], vec!["*.*"]),
        (vec!["secrets", "deployments.apps"], vec!["*."], vec!["*.", "deployments.apps"]),
        (vec!["secrets", "deployments.apps"], vec!["*.apps"], vec!["*.apps", "secrets"]),
        (vec!["*.*"], vec!["secrets"], vec!["*.*"]),
        (vec!["*.apps"], vec!["secrets", "deployments.apps"], vec!["secrets", "*.apps"]),
    ] {
        let first = draft(&of(&before), &Live::default(), &stand).unwrap();
        let live = put(&Live::default(), &first, &[]).unwrap();
        let made = draft(&of(&after), &live, &stand).unwrap();
        assert_eq!(made.document.spec.resources, expected, "{before:?} to {after:?}");
        put(&live, &made, &[]).unwrap_or_else(|error| panic!("{before:?}: {}", error.report()));
    }
}

#[test]
fn adopted_names_stay_with_their_key() {
    let adopted = document(json!({
        "keys": [key(1, "write")],
        "adopt": [{"name": "awskmskey-1", "listen": "unix:///var/run/kmsplugin/old.sock", "key": 1}],
    }));
    let stand = Stand::of(Writes::Key(KeyNumber(1)));
    let first = draft(&adopted, &Live::default(), &Stand::of(Writes::before(&adopted))).unwrap();
    let live = put(&Live::default(), &first, &[]).unwrap();
    assert_eq!(Writes::live(&live).unwrap(), Some(Writes::Name("awskmskey-1".into())));
    let live = put(&live, &draft(&adopted, &live, &stand).unwrap(), &[]).unwrap();
    let made = draft(&wanted(Mode::Key(1)), &live, &stand).unwrap();
    assert_eq!(made.retained.iter().map(Retained::name).collect::<Vec<_>>(), ["awskmskey-1"]);
    assert_eq!(made.document.spec.adopt, adopted.spec.adopt);
}

#[test]
fn a_name_that_is_retired_is_not_brought_back_by_a_document_that_still_has_it() {
    let adopted = || {
        document(json!({
            "keys": [key(1, "write")],
            "ciphers": [{"name": "c1", "type": "aescbc", "secret": {"name": "c", "key": "k"}}],
            "legacyKey": 1,
            "adopt": [{"name": "awskmskey-1", "key": 1}],
        }))
    };
    let retired = |names: &[&str]| {
        let retired: Vec<Value> = names
            .iter()
            .map(|id| json!({"id": id, "type": "", "fingerprint": "", "retiredTime": "", "advice": ""}))
            .collect();
        let mut object = DynamicObject::new("a", &crate::operator::api::secret_encryption());
        object.data = json!({"status": {"retired": retired}});
        Report::of(&object)
    };
    let mut wanted = adopted();
    forget(&mut wanted, &mut retired(&["7"]));
    assert_eq!(wanted, adopted());
    forget(&mut wanted, &mut retired(&["awskmskey-1", "c1"]));
    assert!(wanted.spec.adopt.is_empty() && wanted.spec.ciphers.is_empty());
    let mut writes = adopted();
    writes.spec.write = crate::model::Writer::Cipher("c1".into());
    forget(&mut writes, &mut retired(&["c1"]));
    assert_eq!(writes.spec.ciphers.len(), 1, "what writes is needed, whatever was counted once");
}

#[test]
fn a_name_leaves_also_if_the_document_still_has_it() {
    let adopted = document(json!({
        "keys": [key(1, "write")],
        "adopt": [{"name": "awskmskey-1", "listen": "unix:///var/run/kmsplugin/old.sock", "key": 1}],
    }));
    let mut stand = Stand::of(Writes::Key(KeyNumber(1)));
    let live = put(&Live::default(), &draft(&adopted, &Live::default(), &stand).unwrap(), &[]);
    let live = live.unwrap();
    stand.leaving = BTreeSet::from(["awskmskey-1".to_owned()]);
    let made = draft(&adopted, &live, &stand).unwrap();
    assert!(made.document.spec.adopt.is_empty());
    assert!(put(&live, &made, &["awskmskey-1"]).is_err(), "its socket's data is key 1's");
    put(&live, &made, &["awskmskey-1", "1"]).unwrap();
}

#[test]
fn what_a_turn_says_is_what_writes() {
    for mode in MODES {
        assert_eq!(Writes::of_turn(&turn(mode)), Writes::wanted(&wanted(mode)), "{mode:?}");
    }
}

#[test]
fn a_number_that_wrote_and_was_left_never_writes_again() {
    let mut state = State::begin(turn(Mode::Key(1)), turn(Mode::Key(2)), "now", None);
    assert!(!wrote_before(Some(&state), &[], 1), "it still writes");
    state.stage = Stage::WritePromote;
    assert!(wrote_before(Some(&state), &[], 1));
    assert!(!wrote_before(Some(&state), &[], 2), "it writes now");
    state.stage = Stage::Interrupted;
    assert!(!wrote_before(Some(&state), &[], 1) && !wrote_before(Some(&state), &[], 2));
    state = state.after(Step::Nothing, "later");
    state.stage = Stage::Completed;
    state.completion_time = Some("later".into());
    let next = State::begin(turn(Mode::Key(2)), turn(Mode::Clear), "then", Some(state));
    assert!(wrote_before(Some(&next), &[], 1));
}

#[test]
fn the_writer_behind_the_shim_is_one() {
    let mut document = document(json!({"keys": [key(1, "write"), key(2, "read")]}));
    promote(&mut document, KeyNumber(2));
    let writers = document.spec.keys.iter().filter(|key| key.role == Role::Write).count();
    assert_eq!((writers, document.writer().unwrap().id), (1, KeyNumber(2)));
}

#[test]
fn a_canary_that_was_made_takes_the_place_of_the_published_one_and_stays() {
    let canary = |version: u64| json!({"keyId": format!("v/{version}"), "ciphertext": "AAAA", "sha256": "0".repeat(64)});
    let of = |draft: &Draft| draft.document.key(KeyNumber(1)).unwrap().canary.clone();
    let mut stand = Stand::of(Writes::Key(KeyNumber(1)));
    stand.canary = Some((KeyNumber(1), canary(1)));
    let first = draft(&wanted(Mode::Key(1)), &Live::default(), &stand).unwrap();
    let live = put(&Live::default(), &first, &[]).unwrap();
    stand.canary = Some((KeyNumber(1), canary(2)));
    let renewed = draft(&wanted(Mode::Key(1)), &live, &stand).unwrap();
    assert_eq!(of(&renewed), Some(canary(2)));
    let live = put(&live, &renewed, &[]).unwrap();
    // A later pass has made none, and so has one that made another key's.
    for made in [None, Some((KeyNumber(2), canary(3)))] {
        stand.canary = made;
        assert_eq!(of(&draft(&wanted(Mode::Key(1)), &live, &stand).unwrap()), Some(canary(2)));
    }
}
