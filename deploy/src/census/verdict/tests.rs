use bytes::Bytes;

use super::*;
use crate::etcd::ClusterId;

const START: Duration = Duration::from_secs(1_000_000);

fn census(rows: Vec<Row>, revision: i64, at: u64) -> Census {
    let at = SystemTime::UNIX_EPOCH + START + Duration::from_secs(at);
    let blank = if rows.is_empty() { vec!["/wrong".to_owned()] } else { Vec::new() };
    Census {
        cluster: Some(ClusterId(7)),
        revision,
        first_revision: revision,
        started: at,
        finished: at,
        rows,
        history: Vec::new(),
        other: 0,
        blank,
        listed: Vec::new(),
        unlisted: 0,
    }
}

fn row(value: &'static [u8], objects: u64) -> Row {
    let under = Under::of(&Bytes::from_static(value));
    Row { resource: "secrets".into(), under, objects }
}

fn ours() -> Row {
    row(b"k8s:enc:kms:v2:sidekey:\x0a\x01d\x12\x10sidekey/2-abcd/x\x1a\x01s\x28\x01", 3)
}

fn adopted() -> Row {
    row(b"k8s:enc:kms:v2:old:\x0a\x01d\x12\x01x\x1a\x01s\x28\x01", 2)
}

fn question(key: u64) -> Question {
    Question::new(Subject::Key(key))
}

#[test]
fn one_object_under_the_key_is_a_no() {
    let (verdict, keep) = question(2).judge(None, false, &census(vec![ours()], 10, 0));
    assert_eq!(verdict, Verdict::Needed { objects: 3, examples: Vec::new() });
    assert_eq!(keep, None, "counting starts anew");
    let named = Question::new(Subject::Name("sidekey".into()));
    let (verdict, _) = named.judge(None, false, &census(vec![ours()], 10, 0));
    assert!(matches!(verdict, Verdict::Needed { objects: 3, .. }));
}

#[test]
fn yes_takes_two_counts_three_minutes_apart_and_a_compaction_in_between() {
    let zero = |revision, at| census(vec![ours()], revision, at);
    let (verdict, first) = question(1).judge(None, false, &zero(10, 0));
    assert!(matches!(&verdict, Verdict::NotYet { missing, .. } if missing.len() == 2));
    let judge = |compacted, at| question(1).judge(first.clone(), compacted, &zero(20, at)).0;
    let missing = |verdict| match verdict {
        Verdict::NotYet { missing, .. } => missing,
        other => unreachable!("{other:?}"),
    };
    assert!(matches!(missing(judge(true, 180))[..], [Missing::Time(_)]), "not more than");
    assert_eq!(missing(judge(false, 181)), [Missing::Compaction(10)]);
    assert_eq!(missing(judge(false, 1)).len(), 2);
    assert!(matches!(judge(true, 181), Verdict::Yes { .. }));
}

#[test]
fn a_first_count_that_proves_nothing_is_replaced() {
    let (_, first) = question(1).judge(None, false, &census(vec![ours()], 10, 5000));
    let first = first.unwrap_or_else(|| unreachable!());
    let other_cluster = Sighting { cluster: "8".into(), ..first.clone() };
    let other_key = Sighting { subject: Subject::Key(3), ..first.clone() };
    let future = Sighting { revision: 99, ..first.clone() };
    for (first, at) in [
        (other_cluster, 6000),
        (other_key, 6000),
        (future, 6000),
        (first.clone(), 4000),
        (first, 5000 + 3601),
    ] {
        let (verdict, keep) = question(1).judge(Some(first), true, &census(vec![ours()], 20, at));
        assert!(matches!(verdict, Verdict::NotYet { .. }), "{verdict:?}");
        assert_eq!(keep.map(|keep| keep.revision), Some(20));
    }
}

#[test]
fn what_cannot_be_told_is_never_a_yes() {
    for rows in [vec![row(b"k8s:enc:new:v9:x:y", 1)], vec![adopted()]] {
        let (_, first) = question(1).judge(None, false, &census(vec![ours()], 10, 0));
        let (verdict, keep) = question(1).judge(first, true, &census(rows, 20, 600));
        assert!(matches!(verdict, Verdict::Unknown { .. }), "{verdict:?}");
        assert_eq!(keep, None);
    }
}

#[test]
fn a_count_that_found_nothing_at_all_is_never_a_yes() {
    let (_, first) = question(1).judge(None, false, &census(vec![ours()], 10, 0));
    for first in [None, first] {
        let (verdict, keep) = question(1).judge(first, true, &census(vec![], 20, 600));
        assert_eq!(verdict, Verdict::Blank { prefixes: vec!["/wrong".into()] });
        assert_eq!(keep, None, "nor is it the first of two");
    }
}

#[test]
fn data_from_before_the_shim_belongs_to_whom_the_administrator_says() {
    let zero = census(vec![adopted()], 10, 0);
    let mut asked = question(1);
    asked.legacy.insert("old".into());
    assert!(matches!(asked.judge(None, false, &zero).0, Verdict::Needed { objects: 2, .. }));
    let mut asked = question(1);
    asked.others.insert("old".into());
    assert!(matches!(asked.judge(None, false, &zero).0, Verdict::NotYet { .. }));
}

#[test]
fn what_is_missing_is_said_exactly() {
    let at = SystemTime::UNIX_EPOCH + START + Duration::from_millis(1);
    assert_eq!(Missing::Time(at).to_string(), "count again after 1970-01-12T13:46:41Z");
    let text = Missing::Compaction(1234).to_string();
    assert!(text.starts_with("etcd has not compacted past revision 1234 yet"), "{text}");
}
