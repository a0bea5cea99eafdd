//! What was retired comes back to read, and never to write.

use super::super::back::{forget, left_out, note_returned};
use super::super::numbers::{history, returning, wrong};
use super::*;
use crate::operator::status::{Retired, Status};

pub(super) fn retired(id: &str, fingerprint: &str) -> Retired {
    Retired {
        id: id.into(),
        vendor: "aws".into(),
        fingerprint: fingerprint.into(),
        retired_time: "then".into(),
        advice: String::new(),
        left: false,
    }
}

/// Key 1 wrote, key 2 writes, and key 1 is retired.
pub(super) fn rotated() -> (State, Status) {
    let mut state = State::begin(turn(Mode::Key(1)), turn(Mode::Key(2)), "now", None);
    state.stage = Stage::Completed;
    state.completion_time = Some("later".into());
    let retired = vec![retired("1", &turn(Mode::Key(1)).fingerprint)];
    (state, Status { retired, ..Status::default() })
}

pub(super) fn report(status: &impl serde::Serialize) -> Report {
    let mut object = DynamicObject::new("a", &crate::operator::api::secret_encryption());
    object.data = json!({"status": status});
    Report::of(&object)
}

#[test]
fn a_retired_key_comes_back_to_read_and_is_not_retired_then() {
    let (state, status) = rotated();
    let asked = document(json!({"keys": [key(2, "write"), key(1, "read")]}));
    assert_eq!(wrong(&asked, Some(&state), &status), [""; 0]);
    assert_eq!(returning(&asked, &status), BTreeSet::from([KeyNumber(1)]));
    let live = settled(Mode::Key(2));
    let made = draft(&asked, &live, &Stand::of(Writes::Key(KeyNumber(2)))).unwrap();
    assert!(made.document.key(KeyNumber(1)).is_some() && made.retained.is_empty());
    let live = put(&live, &made, &[]).unwrap();
    let mut report = report(&status);
    report.now.encrypted_under = Some("sha256:2".into());
    note_returned(&wanted(Mode::Key(2)), &mut report);
    assert!(report.now.encrypted_under.is_some(), "nothing has come back");
    note_returned(&made.document, &mut report);
    assert!(report.now.retired.is_empty());
    assert_eq!(report.now.encrypted_under, None, "what is under it is to be rewritten");
    // Taken out again it is kept, and goes only after a count.
    let kept = draft(&wanted(Mode::Key(2)), &live, &Stand::of(Writes::Key(KeyNumber(2)))).unwrap();
    assert_eq!(kept.retained.iter().map(Retained::name).collect::<Vec<_>>(), ["1"]);
}

#[test]
fn a_retired_number_is_refused_to_another_kek_and_to_the_writer() {
    let (state, status) = rotated();
    let mut other = key(1, "read");
    other["kek"]["key"] = "another".into();
    let another = document(json!({"keys": [key(2, "write"), other]}));
    let text = wrong(&another, Some(&state), &status).join("; ");
    assert!(text.contains("1 is the number of another key: give it 3"), "{text}");
    let writes = document(json!({"keys": [key(1, "write"), key(2, "read")]}));
    let text = wrong(&writes, Some(&state), &status).join("; ");
    assert!(text.contains("key 1 is retired") && text.contains("3 or higher"), "{text}");
}

#[test]
fn during_a_rotation_a_key_that_comes_back_is_let_in() {
    let live = settled(Mode::Key(2));
    let asked = document(json!({"keys": [key(3, "write"), key(2, "read"), key(1, "read")]}));
    let (_, status) = rotated();
    let mut stand = Stand::of(Writes::Key(KeyNumber(2)));
    let back = returning(&asked, &status);
    stand.newcomers = Some(back.into_iter().chain([KeyNumber(3)]).collect());
    let made = draft(&asked, &live, &stand).unwrap();
    assert!(made.document.key(KeyNumber(1)).is_some());
}

#[test]
fn a_name_comes_back_when_it_is_named_after_it_was_left_out() {
    let named = || {
        let adopted = json!([{"name": "old", "key": 1}]);
        document(json!({"keys": [key(1, "write")], "legacyKey": 1, "adopt": adopted}))
    };
    let status = Status { retired: vec![retired("old", "")], ..Status::default() };
    let mut report = report(&status);
    let mut still = named();
    let out = forget(&mut still, &mut report);
    assert!(still.spec.adopt.is_empty() && !report.now.retired[0].left);
    assert!(left_out(&out).contains("old") && left_out(&[]).is_empty());
    assert!(forget(&mut wanted(Mode::Key(1)), &mut report).is_empty());
    assert!(report.now.retired[0].left);
    let mut again = named();
    assert!(forget(&mut again, &mut report).is_empty());
    assert_eq!(again, named());
    note_returned(&again, &mut report);
    assert!(report.now.retired.is_empty());
}

#[test]
fn a_name_that_looks_like_a_number_is_no_key() {
    let (state, _) = rotated();
    let status = Status { retired: vec![retired("2", "")], ..Status::default() };
    assert_eq!(wrong(&wanted(Mode::Key(2)), Some(&state), &status), [""; 0]);
    assert!(returning(&wanted(Mode::Key(2)), &status).is_empty());
}

#[test]
fn numbers_stand_also_if_the_record_of_rotations_is_lost() {
    let (state, status) = rotated();
    let past = history(Some(&state), &[]);
    let mut other = key(1, "read");
    other["kek"]["key"] = "another".into();
    let another = document(json!({"keys": [key(2, "write"), other]}));
    let writes = wanted(Mode::Key(1));
    let turned = Status { history: past.clone(), ..Status::default() };
    for status in [&status, &turned] {
        let text = wrong(&another, None, status).join("; ");
        assert!(text.contains("1 is the number of another key"), "{text}");
        assert!(!wrong(&writes, None, status).is_empty());
        assert_eq!(wrong(&wanted(Mode::Key(2)), None, status), [""; 0]);
    }
    let loaded = json!({"keys": [{"id": 1, "type": "aws", "role": "read", "fingerprint": "abcd"}]});
    let loaded = serde_json::from_value(loaded).unwrap();
    assert!(!wrong(&another, None, &loaded).is_empty(), "a number that is loaded");
    // And what only the status remembers stays there.
    assert_eq!(history(None, &past), past);
    let next = State::begin(turn(Mode::Key(2)), turn(Mode::Clear), "then", None);
    assert_eq!(history(Some(&next), &past), past);
    assert_eq!(history(Some(&state), &past), past);
}
