//! The steps of a rotation. Each may be taken twice, and none counts before it is written down.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::reason;
use super::draft::{Draft, Stand};
use super::numbers::{history, returning};
use super::outlook::{pace, refusals};
use super::report::{Subject, age, now};
use super::resources::{encrypted, proven};
use super::writes::{Writes, say};
use super::{Halt, Pass, Published};
use crate::Error;
use crate::fleet::Observation;
use crate::migrate::Selection;
use crate::model::names;
use crate::operator::jobs::{self, GateTask, MigrateTask, PreflightTask, Task};
use crate::operator::status::Rotation;
use crate::render::PartName;
use crate::rotate::{Stage, State, Step, Turn};
use sidekey_core::{hex, sha256};

/// So long may a shim refuse a new file: its provider may get it later than the shim does.
const REFUSED: Duration = Duration::from_secs(90);
/// So long after a refused file the same key is not tried again, unless somebody edits something.
const REST: Duration = Duration::from_secs(300);
/// How long a Job waits for kube-apiservers, which look for a new file once a minute.
const GATE: Duration = Duration::from_secs(600);

impl Pass<'_> {
    /// Begins a rotation. Nothing of it is published yet.
    pub(super) async fn start(&mut self, from: Writes, to: Writes) -> Result<Duration, Halt> {
        let before = self.kept.state.clone();
        let (from, to) = (self.known(&from)?, to.turn(&self.wanted));
        if let Some(rest) = before.as_ref().and_then(|before| self.rests(before, &to)) {
            return Ok(rest);
        }
        // What an earlier rotation has found out says nothing of this one.
        jobs::clear(&self.ctx.client, &self.wanted).await?;
        let mut state = State::begin(from, to, &now(), before);
        state.note_published(&self.live)?;
        self.save(&state).await?;
        let note = format!("from {} to {}", say(&state.from), say(&state.to));
        self.report.event(false, "RotationStarted", note);
        self.show(&state, None, Vec::new());
        Ok(Duration::ZERO)
    }

    /// A rotation that shims refused is tried again after a while, or when somebody has edited it.
    fn rests(&mut self, before: &State, to: &Turn) -> Option<Duration> {
        let refused = before.stage == Stage::Interrupted && before.to.fingerprint == to.fingerprint;
        if !refused || self.report.edited() {
            return None;
        }
        let left = REST.checked_sub(age(before.completion_time.as_ref()?)?)?;
        let text = format!("{} is tried again in {} s", say(to), left.as_secs());
        self.report.set(Subject::Configured, Some(false), "HeadRefused", text);
        Some(left.min(Duration::from_secs(10)))
    }

    /// The turn of what is published.
    fn known(&self, from: &Writes) -> Result<Turn, Halt> {
        let mut turn = from.turn(&self.wanted);
        if let Writes::Key(id) = from {
            let view = self.live.view()?;
            if let Some(key) = view.keys.get(id) {
                turn.vendor.clone_from(&key.vendor);
                turn.fingerprint.clone_from(&key.fingerprint);
            }
        }
        Ok(turn)
    }

    /// Takes the next step.
    pub(super) async fn go_on(&mut self, state: State) -> Result<Duration, Halt> {
        let wanted = Writes::wanted(&self.wanted).turn(&self.wanted);
        if wanted != state.to {
            let text = format!("{} was promoted and is finished first", say(&state.to));
            self.report.set(Subject::Configured, Some(false), reason::OTHER_ROTATION, text);
        }
        match state.next() {
            Step::Preflight => self.prove(state).await,
            Step::PublishRead | Step::AwaitReaders => self.deploy(state).await,
            Step::PublishWrite | Step::AwaitWriters => self.promote(state).await,
            Step::Migrate => self.migrate(state).await,
            Step::Nothing => Ok(since(&state)),
        }
    }

    /// What is published while a rotation is under way: its own key is the only new one, besides
    /// those that come back.
    fn stand(&self, state: &State, promoted: bool) -> Stand {
        let (from, to) = (Writes::of_turn(&state.from), Writes::of_turn(&state.to));
        let mut stand = Stand::of(if promoted { to.clone() } else { from });
        if !promoted {
            stand.promoted = None;
        }
        // What a backup has brought back is to be readable now, and rewritten with the rest.
        let returning = returning(&self.wanted, &self.report.now);
        stand.newcomers = Some(to.key().into_iter().chain(returning).collect());
        stand.canary = to.key().zip(state.canary.clone());
        stand.proven = proven(state, &self.live, promoted);
        stand
    }

    /// Proves the new key with the provider's own image.
    async fn prove(&mut self, mut state: State) -> Result<Duration, Halt> {
        let to = Writes::of_turn(&state.to);
        let key = to.key().and_then(|id| self.wanted.key(id).cloned());
        let Some(mut key) = key.filter(|key| !key.is_external()) else {
            return self.done(state, Step::Preflight).await;
        };
        if key.canary.is_none() {
            // A key that comes back must be the one that it was.
            key.canary = self.live.canary(&key)?;
        }
        let files = match self.files_of(&key).await {
            Ok(files) => files,
            Err(halt) => {
                self.show(&state, None, Vec::new());
                return Err(halt);
            }
        };
        let host_aliases = self.host_aliases().await?;
        let task = Task::Preflight(PreflightTask { key, files, occasion: None, host_aliases });
        let waited = since(&state);
        match self.work(&state, &task, Subject::Configured, "PreflightFailed").await? {
            Some(report) => {
                state.canary = Some(report["canary"].clone()).filter(|canary| !canary.is_null());
                self.done(state, Step::Preflight).await
            }
            None => Ok(waited),
        }
    }

    /// Lets every replica read with what is new, before anything is written with it.
    async fn deploy(&mut self, mut state: State) -> Result<Duration, Halt> {
        let stand = self.stand(&state, false);
        let published = self.publish(&stand, BTreeSet::new()).await?;
        if state.read_revision != Some(published.revision) {
            state.read_revision = Some(published.revision);
            self.save(&state).await?;
        }
        let missing = self.place(&published).await?;
        if !missing.is_empty() {
            return self.wait(&state, reason::ROLL_OUT, missing);
        }
        let seen = self.observe(&published).await?.seen;
        if !published.draft.document.spec.keys.is_empty() {
            let to = Writes::of_turn(&state.to).key();
            let missing = seen.missing_readers(published.revision, to);
            if !missing.is_empty() {
                return self.revert_or_wait(state, &seen, published.revision, missing).await;
            }
        }
        if changes_mode(&state) {
            let gate = self.gate(&published, None).await?;
            let task = Task::Gate(gate);
            if self.work(&state, &task, Subject::Rotating, "Waiting").await?.is_none() {
                return Ok(since(&state));
            }
        }
        self.done(state, Step::AwaitReaders).await
    }

    /// What shims refuse to load is taken back; what they have not seen yet is waited for.
    async fn revert_or_wait(
        &mut self,
        state: State,
        seen: &Observation,
        revision: u64,
        missing: Vec<String>,
    ) -> Result<Duration, Halt> {
        let refused = refusals(seen, revision);
        if refused.is_empty() {
            return self.wait(&state, reason::READ_ONLY, missing);
        }
        let known = self.report.since(Subject::Configured, "HeadRefused");
        let text = refused.join("; ");
        self.report.set(Subject::Configured, Some(false), "HeadRefused", text.clone());
        self.show(&state, None, missing);
        if known.is_none_or(|known| known < REFUSED) {
            return Ok(since(&state));
        }
        self.report.event(true, "HeadReverted", text);
        self.give_up(state).await
    }

    /// Writes with what is new, from here on. That it is so was written down before.
    async fn promote(&mut self, mut state: State) -> Result<Duration, Halt> {
        let stand = self.stand(&state, true);
        let published = self.publish(&stand, BTreeSet::new()).await?;
        if state.write_revision != Some(published.revision) {
            state.write_revision = Some(published.revision);
            self.save(&state).await?;
        }
        let missing = self.place(&published).await?;
        if !missing.is_empty() {
            return self.wait(&state, reason::ROLL_OUT, missing);
        }
        let seen = self.observe(&published).await?.seen;
        let missing = match Writes::of_turn(&state.to) {
            Writes::Key(_) => match seen.all_loaded(published.revision) {
                Ok(()) => seen.announced().err().unwrap_or_default(),
                Err(missing) => missing,
            },
            _ => Vec::new(),
        };
        if !missing.is_empty() {
            return self.wait(&state, reason::PROMOTION, missing);
        }
        self.done(state, Step::AwaitWriters).await
    }

    /// Rewrites what is stored, once every kube-apiserver writes with what is new.
    async fn migrate(&mut self, state: State) -> Result<Duration, Halt> {
        let stand = self.stand(&state, true);
        let published = self.publish(&stand, BTreeSet::new()).await?;
        let missing = self.place(&published).await?;
        if !missing.is_empty() {
            return self.wait(&state, reason::ROLL_OUT, missing);
        }
        let seen = self.observe(&published).await?.seen;
        let mut hash = None;
        if Writes::of_turn(&state.to).key().is_some() {
            match seen.announced() {
                Ok(announced) => hash = Some(announced),
                Err(missing) => {
                    return self.wait(&state, reason::CONVERGENCE, missing);
                }
            }
        }
        let target = format!("{} since {}", say(&state.to), state.started_time);
        let mut gate = self.gate(&published, hash.clone()).await?;
        if !changes_mode(&state) {
            gate.config_hash = None;
        }
        let task = Task::Migrate(MigrateTask { gate, target });
        if self.work(&state, &task, Subject::UpToDate, "ReEncryptionFailed").await?.is_none() {
            return Ok(since(&state));
        }
        self.report.now.encrypted_under.clone_from(&hash);
        self.report.now.encrypted_resources = encrypted(&published.draft.document);
        self.report.now.moved = None;
        // Only the status says so. The rotation is over once that is known to be written: whoever
        // found it over, and the status of before, would take all for a rotation at the vendor.
        if self.report.encrypted_under_before() != hash.as_deref() {
            self.show(&state, None, Vec::new());
            return Ok(Duration::ZERO);
        }
        let next = self.done(state, Step::Migrate).await?;
        self.tell_unread(&published);
        Ok(next)
    }

    /// Goes back to what wrote before: the new key has never been promoted.
    pub(super) async fn give_up(&mut self, state: State) -> Result<Duration, Halt> {
        let (from, to) = (Writes::of_turn(&state.from), Writes::of_turn(&state.to));
        let aborted = state.abort(&now())?;
        if to.key().is_some() {
            state.refuse_if_it_writes(&self.live)?;
        }
        let half = !self.left_behind(&self.wanted)?.is_empty();
        if state.read_revision.is_some() || half {
            let needed = state.may_hold_data(&self.live)?.is_some();
            let mut stand = Stand::of(from);
            stand.promoted = stand.promoted.filter(|_| state.from.id != 0);
            stand.newcomers = Some(BTreeSet::new());
            let unwanted = to.key().filter(|_| !needed).filter(|id| {
                let same = |key: &crate::model::Key| key.fingerprint() == state.to.fingerprint;
                !self.wanted.key(*id).is_some_and(same) || Writes::wanted(&self.wanted) == to
            });
            stand.leaving = unwanted.iter().map(ToString::to_string).collect();
            let drop = stand.leaving.clone();
            match self.publish(&stand, drop).await {
                // Nobody reads what was left half published: it is told of, and tried again, when
                // something is published next.
                Err(Halt::Refused(..)) if state.read_revision.is_none() => {}
                published => {
                    published?;
                }
            }
        }
        self.save(&aborted).await?;
        let note = format!("{} was given up; {} goes on", say(&state.to), say(&state.from));
        self.report.event(false, "RotationInterrupted", note);
        self.report.now.rotation = None;
        self.report.now.target_key = None;
        Ok(Duration::ZERO)
    }

    /// What every kube-apiserver must say of itself.
    pub(super) async fn gate(
        &self,
        published: &Published,
        key_id_hash: Option<String>,
    ) -> Result<GateTask, Halt> {
        let servers = self.servers().await?;
        Ok(GateTask {
            servers,
            key_id_hash,
            config_hash: configuration_hash(published),
            selection: selection(&published.draft)?,
            wait: GATE,
        })
    }

    /// A step is done: that is written down before anything else happens.
    async fn done(&mut self, state: State, step: Step) -> Result<Duration, Halt> {
        let next = state.after(step, &now());
        self.save(&next).await?;
        if next.stage != state.stage {
            let note = format!("{}: {}", next.stage.label(), say(&next.to));
            self.report.event(false, "RotationProgress", note);
        }
        if !next.stage.is_over() {
            self.goes_on(&next);
        }
        self.show(&next, None, Vec::new());
        Ok(Duration::ZERO)
    }

    /// What was waited for is there.
    pub(super) fn goes_on(&mut self, state: &State) {
        let text = format!("from {} to {}", say(&state.from), say(&state.to));
        self.report.set(Subject::Configured, Some(false), reason::ROTATION, text);
    }

    fn wait(
        &mut self,
        state: &State,
        reason: &str,
        missing: Vec<String>,
    ) -> Result<Duration, Halt> {
        self.report.set(Subject::Configured, Some(false), reason, missing.join("; "));
        self.show(state, None, missing);
        Ok(since(state))
    }

    /// Tells how far the rotation is.
    pub(super) fn show(&mut self, state: &State, progress: Option<String>, waiting: Vec<String>) {
        let over = state.stage.is_over();
        let now = &mut self.report.now;
        now.history = history(Some(state), &now.history);
        now.active_key =
            Some(if state.stage.is_promoted() { state.to.clone() } else { state.from.clone() });
        now.target_key = (!over).then(|| state.to.clone());
        now.rotation = (!over).then(|| Rotation {
            stage: state.stage,
            started_time: state.started_time.clone(),
            progress,
            waiting_for: waiting,
        });
        let text = format!("from {} to {}", say(&state.from), say(&state.to));
        self.report.set(Subject::Rotating, Some(!over), state.stage.label(), text.clone());
        let (reason, fine) = match state.stage {
            Stage::Preflight | Stage::ReadOnlyDeploy => (reason::READ_ONLY, false),
            Stage::WritePromote => (reason::PROMOTION, false),
            Stage::Migrating => (reason::RE_ENCRYPTION, false),
            Stage::Completed => ("ReEncryptionCompleted", true),
            Stage::Interrupted => return,
        };
        if self.report.said(Subject::UpToDate) != Some("ReEncryptionFailed") || fine {
            self.report.set(Subject::UpToDate, Some(fine), reason, text);
        }
    }
}

/// When to look at a rotation again.
fn since(state: &State) -> Duration {
    pace(age(&state.started_time))
}

/// Whether kube-apiserver itself must learn something: between keys behind the shim it need not.
pub(super) fn changes_mode(state: &State) -> bool {
    state.from.id == 0 || state.to.id == 0
}

/// What is encrypted as it is published.
pub(super) fn selection(draft: &Draft) -> Result<Selection, Error> {
    Selection::of(&draft.document).map_err(|problems| {
        let name = &draft.document.name;
        Error::usage(format!("SecretEncryption {name} names bad resources")).because(problems)
    })
}

/// As kube-apiserver's metrics tell it.
fn configuration_hash(published: &Published) -> Option<String> {
    let draft = &published.draft;
    let phase = crate::render::Phase::Settled;
    let rendered = crate::render::render(&draft.document, 0, &draft.files, phase).ok()?;
    let part = rendered.part(&PartName::KubeApiserver)?;
    let text = part.files.get(names::ENCRYPTION_FILE)?;
    Some(format!("sha256:{}", hex(&sha256(text.expose()))))
}
