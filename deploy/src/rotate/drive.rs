//! Takes one step after the other, and writes down where it is before each.

use std::time::{Duration, Instant, SystemTime};

use super::{Kept, Stage, State, Step, Store, Turn};
use crate::Error;
use crate::publish::Live;

/// Between two looks at the replicas.
const POLL: Duration = Duration::from_secs(2);

/// What a rotation does to the world. Each of these may be done twice.
#[allow(async_fn_in_trait)]
pub trait World {
    /// Proves the new key; gives what it must be able to read from now on.
    async fn preflight(&mut self, to: &Turn) -> Result<Option<serde_json::Value>, Error>;

    /// Publishes the new key as a reader, or as the writer; gives the revision.
    async fn publish(&mut self, state: &State, as_writer: bool) -> Result<u64, Error>;

    /// Publishes without the new key, if it is certain that nothing is stored under it; gives why
    /// it stays, if it does.
    async fn withdraw(&mut self, state: &State) -> Result<Option<String>, Error>;

    /// Which shims do not read with the new key yet, and why; none: all do.
    async fn missing_readers(&mut self, state: &State) -> Result<Vec<String>, Error>;

    /// Which shims do not write with the new key, and which kube-apiservers do not announce it.
    async fn missing_writers(&mut self, state: &State) -> Result<Vec<String>, Error>;

    /// Rewrites what is stored.
    async fn migrate(&mut self, state: &State) -> Result<(), Error>;
}

/// Who is told how it goes.
pub trait Observer {
    /// A stage begins, or is taken up again.
    fn stage(&mut self, state: &State);
    /// What is being done.
    fn doing(&mut self, text: &str);
    /// Who is still waited for.
    fn waiting(&mut self, missing: &[String]);
}

/// How long and how often to wait.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Between two looks.
    pub poll: Duration,
    /// For all replicas to follow, in each stage.
    pub limit: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { poll: POLL, limit: Duration::from_secs(30 * 60) }
    }
}

/// The rotation to be driven: the one under way, or a new one. `from` is none if `to` writes
/// already, which is so towards the end of a rotation, too.
pub async fn begin(
    store: &Store,
    live: &Live,
    from: Option<Turn>,
    to: Turn,
) -> Result<(Kept, State), Error> {
    let kept = store.load().await?;
    check_number(kept.state.as_ref(), &to)?;
    match &kept.state {
        Some(state) if !state.stage.is_over() => {
            if state.to != to {
                return Err(other_rotation(state));
            }
            let state = state.clone();
            Ok((kept, state))
        }
        before => {
            let Some(from) = from else {
                return Err(Error::refused(format!("key {} writes already", to.id))
                    .hint("there is nothing to rotate; other changes are for `sidekey publish`"));
            };
            let mut state = State::begin(from, to, &now(), before.clone());
            state.note_published(live)?;
            let kept = store.save(&kept, &state).await?;
            Ok((kept, state))
        }
    }
}

/// A number stands for one KEK for ever, also after a rotation that was given up.
fn check_number(state: Option<&State>, to: &Turn) -> Result<(), Error> {
    let Some(state) = state else { return Ok(()) };
    let past = state.history.iter().flat_map(|past| [&past.from, &past.to]);
    let known = [&state.from, &state.to].into_iter().chain(past);
    let mut others = known.filter(|turn| turn.id == to.id && turn.fingerprint != to.fingerprint);
    match others.next() {
        None => Ok(()),
        Some(_) => Err(Error::refused(format!("{} was the number of another key", to.id))
            .hint("numbers are never reused: give the new key the next free one")),
    }
}

/// Goes on to the end.
pub async fn drive(
    store: &Store,
    (mut kept, mut state): (Kept, State),
    world: &mut impl World,
    observer: &mut impl Observer,
    patience: Patience,
) -> Result<State, Error> {
    let mut shown: Option<Stage> = None;
    loop {
        if shown != Some(state.stage) {
            observer.stage(&state);
            shown = Some(state.stage);
        }
        let step = state.next();
        match step {
            Step::Nothing => return Ok(state),
            Step::Preflight => {
                observer.doing("proving the new key");
                state.canary = world.preflight(&state.to).await?;
            }
            Step::PublishRead => {
                state.read_revision = Some(world.publish(&state, false).await?);
                observer.doing(&published(&state, state.read_revision, "read"));
            }
            Step::PublishWrite => {
                state.write_revision = Some(world.publish(&state, true).await?);
                observer.doing(&published(&state, state.write_revision, "write"));
            }
            Step::AwaitReaders | Step::AwaitWriters => {
                wait(world, observer, &state, step, patience).await?;
            }
            Step::Migrate => world.migrate(&state).await?,
        }
        state = state.after(step, &now());
        kept = store.save(&kept, &state).await?;
    }
}

/// Gives the rotation up, if it was never promoted; gives why its key stays, if it does.
pub async fn abort(
    store: &Store,
    world: &mut impl World,
) -> Result<(State, Option<String>), Error> {
    let kept = store.load().await?;
    let Some(state) = &kept.state else {
        return Err(Error::refused("no rotation is under way, and there never was one"));
    };
    let aborted = state.abort(&now())?;
    // Written down only once it is so: until then it can be aborted again, or gone on with.
    let stays = world.withdraw(state).await?;
    store.save(&kept, &aborted).await?;
    Ok((aborted, stays))
}

async fn wait(
    world: &mut impl World,
    observer: &mut impl Observer,
    state: &State,
    step: Step,
    patience: Patience,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut told = None;
    loop {
        let missing = match step {
            Step::AwaitReaders => world.missing_readers(state).await?,
            _ => world.missing_writers(state).await?,
        };
        if missing.is_empty() {
            return Ok(());
        }
        if started.elapsed() >= patience.limit {
            return Err(stuck(state, &missing, patience.limit));
        }
        if told.as_ref() != Some(&missing) {
            observer.waiting(&missing);
            told = Some(missing);
        }
        tokio::time::sleep(patience.poll).await;
    }
}

fn published(state: &State, revision: Option<u64>, role: &str) -> String {
    format!("revision {}: key {} may {role}", revision.unwrap_or_default(), state.to.id)
}

fn stuck(state: &State, missing: &[String], limit: Duration) -> Error {
    let list = missing.join("; ");
    let limit = humantime::format_duration(limit);
    let hint = if state.stage.is_promoted() {
        "nothing is lost: every replica still reads with both keys. Mend what is named, then run \
         the same command again: it goes on from here"
    } else {
        "nothing writes with the new key. Mend what is named and run the same command again, or \
         give it up with --abort"
    };
    Error::failed(format!("not all replicas have followed after {limit}: {list}")).hint(hint)
}

fn other_rotation(state: &State) -> Error {
    let (to, stage) = (state.to.id, state.stage.label());
    let error = Error::refused(format!("a rotation to key {to} is under way ({stage})"));
    if state.stage.is_promoted() {
        error.hint(format!("let it finish first: run rotate with the file that has key {to}"))
    } else {
        error.hint("finish it with the file that it began with, or give it up with --abort")
    }
}

/// RFC 3339 in UTC.
fn now() -> String {
    sidekey_core::time(SystemTime::now())
}

#[cfg(test)]
mod tests;
