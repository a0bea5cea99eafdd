//! A revision that was written and never turned to does not stand in the way for ever.

use super::super::leftover::left_behind;
use super::*;
use crate::operator::status::Status;

fn three(role: &str) -> Value {
    let mut three = key(2, role);
    three["id"] = 3.into();
    three["kek"]["key"] = "kek-3".into();
    three
}

fn with_three() -> SecretEncryption {
    document(json!({"keys": [three("write"), key(2, "read"), key(1, "read")]}))
}

fn without() -> SecretEncryption {
    document(json!({"keys": [key(2, "write"), key(1, "read")]}))
}

/// The heads have keys 1 and 2, and the newest revision has key 3 besides.
fn half() -> Live {
    let stand = Stand::of(Writes::Key(KeyNumber(2)));
    let made = draft(&without(), &Live::default(), &stand).unwrap();
    let mut live = put(&Live::default(), &made, &[]).unwrap();
    let more = draft(&with_three(), &live, &stand).unwrap();
    let rendered = render(&more.document, 2, &more.files, Phase::Settled).unwrap();
    live.newest = rendered.history(&crate::render::Created::now());
    live.revisions = vec![1, 2];
    live
}

fn state(stage: Stage) -> State {
    let to = Writes::wanted(&with_three()).turn(&with_three());
    State { stage, ..State::begin(turn(Mode::Key(2)), to, "now", None) }
}

/// Publishes another credential, with what the record allows to go.
fn change(state: &State, status: &Status) -> Result<Live, Error> {
    let live = half();
    let files = resolve(&without(), 8);
    let known = Known { files: &files, retained: &BTreeSet::new() };
    let stand = Stand::of(Writes::Key(KeyNumber(2)));
    let made = super::super::draft::draft(&without(), &live, &stand, known).unwrap();
    let left = left_behind(&live, Some(state), status, &made.document).unwrap();
    put(&live, &made, &left.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_key_that_came_into_no_head_and_was_given_up_blocks_nothing() {
    for stage in [Stage::Interrupted, Stage::ReadOnlyDeploy] {
        change(&state(stage), &Status::default()).unwrap();
    }
}

#[test]
fn nor_does_one_that_was_given_up_before_the_rotation_of_now() {
    let mut given_up = state(Stage::Interrupted);
    given_up.completion_time = Some("then".into());
    let other = Turn { id: 4, ..turn(Mode::Key(2)) };
    let now = State::begin(turn(Mode::Key(2)), other, "later", Some(given_up));
    change(&now, &Status::default()).unwrap();
    let mut wrote = now;
    wrote.history[0].state = Stage::Completed;
    assert!(change(&wrote, &Status::default()).is_err(), "it wrote");
}

#[test]
fn a_key_that_may_have_written_is_never_left_behind() {
    let fine = Status::default();
    for stage in [Stage::WritePromote, Stage::Migrating, Stage::Completed] {
        assert!(change(&state(stage), &fine).is_err(), "{stage:?}");
    }
    let mut before = state(Stage::Interrupted);
    before.published_before = true;
    assert!(change(&before, &fine).is_err(), "it was there before");
    let mut wrote = state(Stage::Completed);
    wrote.completion_time = Some("then".into());
    let mut again = State::begin(turn(Mode::Key(2)), wrote.to.clone(), "later", Some(wrote));
    again.stage = Stage::Interrupted;
    assert!(change(&again, &fine).is_err(), "it wrote in an earlier rotation");
    let retired = vec![super::back::retired("3", &again.to.fingerprint)];
    let status = Status { retired, ..Status::default() };
    assert!(change(&state(Stage::Interrupted), &status).is_err(), "backups need it");
}

#[test]
fn what_is_wanted_or_in_a_head_is_not_left_behind() {
    let (state, status) = (state(Stage::Interrupted), Status::default());
    let left = |live: &Live, document: &SecretEncryption| {
        left_behind(live, Some(&state), &status, document).unwrap()
    };
    assert_eq!(left(&half(), &without()), BTreeSet::from(["3".to_owned()]));
    assert!(left(&half(), &with_three()).is_empty());
    assert!(left_behind(&half(), None, &status, &without()).unwrap().is_empty());
    let stand = Stand::of(Writes::Key(KeyNumber(2)));
    let made = draft(&with_three(), &half(), &stand).unwrap();
    let mut turned = put(&half(), &made, &[]).unwrap();
    turned.newest = half().newest;
    assert!(left(&turned, &without()).is_empty());
}
