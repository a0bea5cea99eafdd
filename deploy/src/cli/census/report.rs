//! How a census is shown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sidekey_core::time;

use crate::census::{Census, Kind, Question, Row, Stanzas, Subject, Under, Verdict, blank, by_key};
use crate::snapshot::Integrity;
use crate::{Console, Exit, Report, Table};

/// What was counted.
pub(super) enum Source {
    Etcd(Vec<String>),
    Snapshot(PathBuf, Integrity),
}

/// A census, in a form that does not change.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counted {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<PathBuf>,
    /// Whether the snapshot's own checksum is right.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    revision: i64,
    /// Not the same if etcd compacted it away before all was counted.
    first_revision: i64,
    started: String,
    finished: String,
    objects: u64,
    /// Keys of etcd that are not Kubernetes'.
    other: u64,
    /// Why nothing can be told by it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    /// How many are not under what EncryptionConfiguration writes with.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<u64>,
    keys: Vec<Key>,
    resources: Vec<Resource>,
    /// Older values that a snapshot still holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Key>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listed: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted: Option<u64>,
}

#[derive(Serialize)]
struct Resource {
    resource: String,
    objects: u64,
    under: Vec<Key>,
}

#[derive(Serialize)]
struct Key {
    #[serde(flatten)]
    under: Under,
    objects: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<bool>,
}

impl Counted {
    pub(super) fn new(
        census: Census,
        source: Source,
        stanzas: Option<&Stanzas>,
        lists: bool,
    ) -> Self {
        let objects = census.objects();
        let keys = keys(census.keys());
        let (endpoints, snapshot, verified) = match source {
            Source::Etcd(endpoints) => (Some(endpoints), None, None),
            Source::Snapshot(path, integrity) => {
                (None, Some(path), Some(integrity == Integrity::Verified))
            }
        };
        let reasons: Vec<String> = census.doubt().into_iter().collect();
        let history = snapshot.is_some().then(|| self::keys(by_key(&census.history)));
        let resources = resources(census.rows, stanzas);
        let stale = stanzas.filter(|_| reasons.is_empty()).map(|_| {
            let all = resources.iter().flat_map(|resource| &resource.under);
            all.filter(|key| key.stale == Some(true)).map(|key| key.objects).sum()
        });
        Self {
            kind: "Census",
            endpoints,
            snapshot,
            verified,
            cluster_id: census.cluster.map(|cluster| cluster.to_string()),
            revision: census.revision,
            first_revision: census.first_revision,
            started: time(census.started),
            finished: time(census.finished),
            objects,
            other: census.other,
            reasons,
            stale,
            keys,
            resources,
            history,
            listed: lists.then_some(census.listed),
            unlisted: lists.then_some(census.unlisted),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        if self.reasons.is_empty() { Exit::Success } else { Exit::Failure }
    }

    fn head(&self) -> String {
        let what = match (&self.snapshot, &self.cluster_id) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(cluster)) => format!("etcd cluster {cluster}"),
            (None, None) => "etcd".to_owned(),
        };
        let revision = match self.first_revision == self.revision {
            true => format!("revision {}", self.revision),
            false => format!("revisions {} to {}", self.first_revision, self.revision),
        };
        let unverified = match self.verified {
            Some(false) => ", without a checksum",
            _ => "",
        };
        format!("{what}, {revision}{unverified}: {} objects", self.objects)
    }

    fn list(&self) -> Option<String> {
        let mut text = self.listed.as_ref()?.join("\n");
        if let Some(more) = self.unlisted.filter(|more| *more > 0) {
            let _ = write!(text, "\n... and {more} more (--limit)");
        }
        Some(text)
    }
}

impl Report for Counted {
    fn text(&self, console: &Console) -> String {
        let doubts = self.reasons.iter().map(|why| console.bad(&format!("unknown: {why}")));
        if let Some(list) = self.list() {
            let lines = Some(list).filter(|list| !list.is_empty()).into_iter().chain(doubts);
            return lines.collect::<Vec<_>>().join("\n\n");
        }
        let mut table =
            Table::new(["resource", "stored", "provider", "key", "key_id hash", "objects", ""]);
        for Resource { resource, under, .. } in &self.resources {
            for key in under {
                table.row(row(resource, key, console));
            }
        }
        for key in &self.keys {
            table.row(row("total", key, console));
        }
        let mut text = format!("{}\n\n{}", self.head(), table.render());
        for doubt in doubts {
            let _ = write!(text, "\n\n{doubt}");
        }
        if let Some(stale) = self.stale {
            let _ = match stale {
                0 => write!(text, "\n\n{}", console.good("nothing is stale")),
                stale => write!(text, "\n\n{}", console.bad(&format!("{stale} objects are stale"))),
            };
        }
        if let Some(history) = self.history.as_ref().filter(|_| self.reasons.is_empty()) {
            let _ = write!(text, "\n\n{}", needs(&self.keys, history));
        }
        text
    }
}

/// Which keys a snapshot needs to be readable.
fn needs(keys: &[Key], history: &[Key]) -> String {
    let names = |keys: &[Key]| {
        let kms = keys.iter().filter(|key| !matches!(key.under.kind, Kind::Clear | Kind::Unknown));
        let mut names: Vec<String> = kms.map(|key| name(&key.under)).collect();
        names.sort();
        names.dedup();
        match names.is_empty() {
            true => "no key".to_owned(),
            false => names.join(", "),
        }
    };
    let mut text = format!("needs, once restored: {}", names(keys));
    if !history.is_empty() {
        let objects: u64 = history.iter().map(|key| key.objects).sum();
        let _ = write!(text, "\n{objects} older values (history) are under: {}", names(history));
    }
    text
}

fn name(under: &Under) -> String {
    let provider = under.provider.as_deref().unwrap_or_default();
    match (under.key, under.kind) {
        (Some(key), _) => format!("key {key} (provider {provider})"),
        (None, kind) if kind.is_kms() => format!("provider {provider}"),
        (None, kind) => format!("{} key {provider}", kind.label()),
    }
}

fn row(resource: &str, key: &Key, console: &Console) -> [String; 7] {
    let under = &key.under;
    let stored = match under.kind {
        Kind::Clear => console.dim("clear"),
        Kind::Unknown => console.bad("unknown"),
        kind => kind.label().to_owned(),
    };
    let id = match (under.key, &under.fingerprint) {
        (Some(key), Some(fingerprint)) => format!("{key}-{fingerprint}"),
        _ => String::new(),
    };
    let note = match (key.stale, under.reason) {
        (_, Some(reason)) => reason.to_owned(),
        (Some(true), None) => console.bad("stale"),
        _ => String::new(),
    };
    [
        resource.to_owned(),
        stored,
        under.provider.clone().unwrap_or_default(),
        id,
        under.key_id_hash.as_deref().map(short).unwrap_or_default(),
        key.objects.to_string(),
        note,
    ]
}

/// Enough to find it in a metric.
fn short(hash: &str) -> String {
    hash.get(..19).map_or_else(|| hash.to_owned(), |head| format!("{head}..."))
}

fn keys(counts: Vec<(Under, u64)>) -> Vec<Key> {
    let key = |(under, objects)| Key { under, objects, stale: None };
    counts.into_iter().map(key).collect()
}

fn resources(rows: Vec<Row>, stanzas: Option<&Stanzas>) -> Vec<Resource> {
    let mut found: Vec<Resource> = Vec::new();
    for Row { resource, under, objects } in rows {
        let stale = stanzas.and_then(|stanzas| stanzas.is_stale(&resource, &under));
        let key = Key { under, objects, stale };
        match found.last_mut().filter(|last| last.resource == resource) {
            Some(last) => {
                last.objects += objects;
                last.under.push(key);
            }
            None => found.push(Resource { resource, objects, under: vec![key] }),
        }
    }
    found
}

/// Whether something may go.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    kind: &'static str,
    subject: Subject,
    /// yes, no, not-yet or unknown.
    may_drop: &'static str,
    /// Why, in words.
    reasons: Vec<String>,
    /// Objects that are still under it.
    objects: u64,
    examples: Vec<String>,
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    revision: i64,
    counted: u64,
    finished: String,
    /// Where the first count is kept.
    state: PathBuf,
}

impl Answer {
    pub(super) fn new(
        question: &Question,
        verdict: &Verdict,
        census: &Census,
        state: &Path,
    ) -> Self {
        let subject = &question.subject;
        let (mut objects, mut examples) = (0, Vec::new());
        let (may_drop, reasons) = match verdict {
            Verdict::Yes { first } => ("yes", vec![yes(subject, first.revision, census)]),
            Verdict::Needed { objects: found, examples: some } => {
                (objects, examples) = (*found, some.clone());
                ("no", vec![format!("{found} objects are stored under {subject}")])
            }
            Verdict::NotYet { missing, .. } => {
                ("not-yet", missing.iter().map(ToString::to_string).collect())
            }
            Verdict::Unknown { undecided } => {
                ("unknown", undecided.iter().map(undecided_row).collect())
            }
            Verdict::Blank { prefixes } => ("unknown", vec![blank(prefixes)]),
        };
        Self {
            kind: "MayDrop",
            subject: subject.clone(),
            may_drop,
            reasons,
            objects,
            examples,
            cluster_id: census.cluster.map(|cluster| cluster.to_string()),
            revision: census.revision,
            counted: census.objects(),
            finished: time(census.finished),
            state: state.to_owned(),
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match self.may_drop {
            "yes" => Exit::Success,
            "unknown" => Exit::Failure,
            _ => Exit::No,
        }
    }
}

impl Report for Answer {
    fn text(&self, console: &Console) -> String {
        let subject = &self.subject;
        let head = match self.may_drop {
            "yes" => console.good(&format!("yes: {subject} may go")),
            "no" => console.bad(&format!("no: {subject} is needed")),
            "not-yet" => format!("not yet: nothing is stored under {subject}, but"),
            _ => console.bad(&format!("unknown: it cannot be told whether {subject} is needed")),
        };
        let mut text = head;
        for reason in &self.reasons {
            let _ = write!(text, "\n  {reason}");
        }
        for example in &self.examples {
            let _ = write!(text, "\n    {example}");
        }
        if self.objects > self.examples.len() as u64 && !self.examples.is_empty() {
            let _ = write!(text, "\n    ... (all of them: --list)");
        }
        text
    }
}

fn yes(subject: &Subject, first: i64, census: &Census) -> String {
    format!(
        "nothing was stored under {subject} at revision {first} and at revision {}, among {} objects, and etcd has compacted in between",
        census.revision,
        census.objects()
    )
}

fn undecided_row(Row { resource, under, objects }: &Row) -> String {
    let provider = under.provider.as_deref().unwrap_or_default();
    match under.reason {
        Some(reason) => format!("{objects} {resource}: {reason} (see --list unknown)"),
        None => format!(
            "{objects} {resource} of provider {provider} were written without the shim: say with --legacy-name {provider} that they are this key's, or with --other-name {provider} that they are not"
        ),
    }
}
