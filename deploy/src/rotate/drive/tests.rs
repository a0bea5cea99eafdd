use super::*;

/// A world that remembers what was done to it, and ends the process, as it were, when told to.
#[derive(Default)]
struct Tape {
    done: Vec<String>,
    /// After so many deeds the next one is done, and then the process dies.
    lives: usize,
    /// Looks until a replica follows.
    lag: usize,
}

struct Silent;

impl Observer for Silent {
    fn stage(&mut self, _: &State) {}
    fn doing(&mut self, _: &str) {}
    fn waiting(&mut self, _: &[String]) {}
}

impl Tape {
    fn deed(&mut self, text: &str) -> Result<(), Error> {
        self.done.push(text.to_owned());
        match self.lives.checked_sub(1) {
            Some(left) => self.lives = left,
            None => return Err(Error::failed("killed")),
        }
        Ok(())
    }

    fn look(&mut self) -> Vec<String> {
        match self.lag.checked_sub(1) {
            Some(left) => {
                self.lag = left;
                vec!["kube-apiserver-0: at revision 7".to_owned()]
            }
            None => Vec::new(),
        }
    }
}

impl World for Tape {
    async fn preflight(&mut self, to: &Turn) -> Result<Option<serde_json::Value>, Error> {
        self.deed("preflight")?;
        Ok(Some(serde_json::json!({"key": to.id})))
    }

    async fn publish(&mut self, state: &State, as_writer: bool) -> Result<u64, Error> {
        assert!(state.stage.is_promoted() == as_writer, "published before it was written down");
        self.deed(if as_writer { "write" } else { "read" })?;
        Ok(if as_writer { 9 } else { 8 })
    }

    async fn withdraw(&mut self, _: &State) -> Result<Option<String>, Error> {
        self.deed("withdraw").map(|()| None)
    }

    async fn missing_readers(&mut self, _: &State) -> Result<Vec<String>, Error> {
        self.deed("readers?")?;
        Ok(self.look())
    }

    async fn missing_writers(&mut self, _: &State) -> Result<Vec<String>, Error> {
        self.deed("writers?")?;
        Ok(self.look())
    }

    async fn migrate(&mut self, _: &State) -> Result<(), Error> {
        self.deed("migrate")
    }
}

fn turn(id: u64) -> Turn {
    Turn { id, vendor: "local".into(), fingerprint: "00000000".into() }
}

const EAGER: Patience = Patience { poll: Duration::ZERO, limit: Duration::from_secs(60) };

async fn run(store: &Store, tape: &mut Tape) -> Result<State, Error> {
    let begun = begin(store, &Live::default(), Some(turn(1)), turn(2)).await?;
    drive(store, begun, tape, &mut Silent, EAGER).await
}

#[tokio::test]
async fn the_order_is_read_everywhere_then_write_everywhere_then_migrate() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::directory(directory.path());
    let mut tape = Tape { lives: 99, lag: 2, ..Tape::default() };
    let state = run(&store, &mut tape).await.unwrap();
    assert_eq!(state.stage, Stage::Completed);
    let expected = "preflight read readers? readers? readers? write writers? migrate";
    assert_eq!(tape.done.join(" "), expected);
}

#[tokio::test]
async fn killed_after_any_deed_it_goes_on_and_never_back() {
    for lives in 0..6 {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::directory(directory.path());
        let mut tape = Tape { lives, ..Tape::default() };
        run(&store, &mut tape).await.unwrap_err();
        tape.lives = 99;
        assert_eq!(run(&store, &mut tape).await.unwrap().stage, Stage::Completed);
        let order = ["preflight", "read", "readers?", "write", "writers?", "migrate"];
        let places: Vec<usize> = tape
            .done
            .iter()
            .map(|deed| order.iter().position(|known| known == deed).unwrap())
            .collect();
        assert!(places.is_sorted(), "after {lives} deeds: {:?}", tape.done);
    }
}

#[tokio::test]
async fn a_replica_that_never_follows_stops_it_before_promotion() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::directory(directory.path());
    let mut tape = Tape { lives: usize::MAX, lag: usize::MAX, ..Tape::default() };
    let begun = begin(&store, &Live::default(), Some(turn(1)), turn(2)).await.unwrap();
    let impatient = Patience { limit: Duration::ZERO, ..EAGER };
    let error = drive(&store, begun, &mut tape, &mut Silent, impatient).await.unwrap_err();
    assert!(error.report().contains("kube-apiserver-0: at revision 7"), "{}", error.report());
    assert!(!tape.done.contains(&"write".to_owned()));
    let (aborted, _) = abort(&store, &mut tape).await.unwrap();
    assert_eq!(aborted.stage, Stage::Interrupted);
    assert_eq!(tape.done.last().map(String::as_str), Some("withdraw"));
}

#[tokio::test]
async fn another_rotation_must_wait_for_the_one_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::directory(directory.path());
    let mut tape = Tape { lives: 2, ..Tape::default() };
    run(&store, &mut tape).await.unwrap_err();
    let error = begin(&store, &Live::default(), Some(turn(1)), turn(3)).await.unwrap_err();
    assert!(error.report().contains("a rotation to key 2 is under way"), "{}", error.report());
}

#[tokio::test]
async fn what_is_aborted_or_done_makes_room_for_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::directory(directory.path());
    let mut tape = Tape { lives: 99, ..Tape::default() };
    begin(&store, &Live::default(), Some(turn(1)), turn(2)).await.unwrap();
    abort(&store, &mut tape).await.unwrap();
    let (_, state) = begin(&store, &Live::default(), Some(turn(1)), turn(3)).await.unwrap();
    assert_eq!(state.history.len(), 1);
    assert_eq!(state.history[0].state, Stage::Interrupted);
}

#[tokio::test]
async fn a_number_that_was_given_up_never_stands_for_another_key() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::directory(directory.path());
    let mut tape = Tape { lives: 99, ..Tape::default() };
    begin(&store, &Live::default(), Some(turn(1)), turn(2)).await.unwrap();
    abort(&store, &mut tape).await.unwrap();
    let other = Turn { fingerprint: "ffffffff".into(), ..turn(2) };
    let error = begin(&store, &Live::default(), Some(turn(1)), other).await.unwrap_err();
    assert!(error.report().contains("was the number of another key"), "{}", error.report());
    begin(&store, &Live::default(), Some(turn(1)), turn(2)).await.unwrap();
}

#[tokio::test]
async fn with_nothing_to_rotate_nothing_begins() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::directory(directory.path());
    let error = begin(&store, &Live::default(), None, turn(2)).await.unwrap_err();
    assert!(error.report().contains("key 2 writes already"), "{}", error.report());
    assert!(store.load().await.unwrap().state.is_none());
}
