#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use super::*;
use crate::kms::server::Incoming;
use crate::{Listener, SocketOptions};

fn told(slots: &[Slot]) -> Vec<Option<CloseOrder>> {
    slots.iter().map(|slot| slot.0.order()).collect()
}

#[tokio::test]
async fn who_never_asked_goes_first_then_the_longest_idle_and_nobody_who_is_served() {
    let connections = Connections::limited("test", 4);
    let enter = || connections.enter();
    let mut slots: Vec<Slot> = (0..4).map(|_| enter().unwrap()).collect();
    // The first is at work, the second and third have asked, the fourth never has.
    let mut served = slots[0].counter()();
    served.work();
    drop(slots[2].counter()());
    drop(slots[1].counter()());
    slots.push(enter().unwrap());
    assert_eq!(told(&slots), [None, None, None, Some(CloseOrder::Gone), None]);
    drop(slots.pop());
    // Asked to leave in good order: they may be about to ask again.
    for _ in 0..2 {
        slots.push(enter().unwrap());
        drop(slots.last().unwrap().counter()());
    }
    let polite = Some(CloseOrder::Leave);
    assert_eq!(told(&slots), [None, None, polite, Some(CloseOrder::Gone), None, None]);
    let slow = slots[1].counter()();
    let mut busy: Vec<_> = slots[4..].iter().map(|slot| slot.counter()()).collect();
    for request in &mut busy {
        request.work();
    }
    slots.push(enter().unwrap());
    assert_eq!(slots[1].0.order(), polite, "it keeps us waiting");
    drop(slow);
    let mut last = slots.last().unwrap().counter()();
    last.work();
    assert!(enter().is_none(), "all are at work");
    assert_eq!(connections.count(), 7);
    drop((served, busy, last, slots));
    assert_eq!((connections.count(), connections.0.metrics.unfinished.get()), (0, 0));
}

#[tokio::test]
async fn of_those_with_more_than_their_share_the_longest_waiting_is_closed() {
    let connections = Connections::default();
    let [honest, hostile, other] = [(); 3].map(|()| connections.enter().unwrap());
    let mut at_work = honest.counter()();
    at_work.work();
    // Since before all others; but it is one alone.
    let early = honest.counter()();
    let mut waiting: Vec<_> = (0..1500).map(|_| hostile.counter()()).collect();
    waiting.extend((0..500).map(|_| other.counter()()));
    let asked = honest.counter()();
    assert_eq!([&honest, &hostile, &other].map(|slot| slot.0.order()), [None; 3]);
    waiting.extend((0..100).map(|_| other.counter()()));
    assert_eq!(hostile.ordered().await, CloseOrder::Gone);
    assert_eq!([&honest, &other].map(|slot| slot.0.order()), [None; 2], "one is enough");
    drop((asked, early));
    let mut long = other.counter()();
    long.hold(MAX_HELD + 1).unwrap();
    assert_eq!(other.ordered().await, CloseOrder::Gone);
    assert_eq!(honest.0.order(), None);
    at_work.hold(1).unwrap();
    drop((long, waiting));
    at_work.hold(MAX_HELD).unwrap_err();
}

#[tokio::test]
async fn a_socket_that_was_lost_is_told_of_for_as_long_as_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kms.sock");
    let (endpoint, options) = (Endpoint::Path(path.clone()), SocketOptions::default());
    let (mut listener, _) = Listener::bind(&endpoint, &options).await.unwrap();
    let connections = Connections::default();
    listener.report_to(connections.clone());
    std::fs::remove_file(&path).unwrap();
    let _theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let lost = || connections.status()["sockets_lost"].clone();
    let told = async {
        while lost() == json!([]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        _ = listener.next() => panic!("nobody can come"),
        () = told => {}
    }
    // Its key was removed.
    drop(listener);
    assert_eq!(lost(), json!([]));
}
