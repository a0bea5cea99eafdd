//! A status that was lost is made good from what is published.

use super::super::recall::recall;
use super::back::report;
use super::*;

#[test]
fn a_lost_status_says_again_what_is_published() {
    let live = settled(Mode::Key(2));
    let mut lost = report(&json!({}));
    recall(&mut lost, &live, &wanted(Mode::Clear)).unwrap();
    assert_eq!(lost.now.revision, live.revision());
    assert!(lost.now.revision.is_some());
    let keys: Vec<u64> = lost.now.keys.iter().map(|key| key.id).collect();
    assert_eq!(keys, live.view().unwrap().keys.keys().map(|id| id.0).collect::<Vec<_>>());
    assert!(!keys.is_empty() && lost.now.keys.iter().all(|key| !key.vendor.is_empty()));
}

#[test]
fn what_a_status_says_is_left_alone() {
    let mut known = report(&json!({"revision": 7}));
    recall(&mut known, &settled(Mode::Key(2)), &wanted(Mode::Clear)).unwrap();
    assert_eq!((known.now.revision, known.now.keys.len()), (Some(7), 0));
    let mut first = report(&json!({}));
    recall(&mut first, &Live::default(), &wanted(Mode::Key(1))).unwrap();
    assert_eq!(first.now.revision, None, "nothing is published yet");
}
