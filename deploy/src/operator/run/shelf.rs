//! What the API server has of one kind, kept in memory: small, and shared by whoever asks.
//!
//! Of each object only what somebody reads is kept: neither the copy that kubectl leaves in an
//! annotation nor, but for foreign objects that are managed, `managedFields`. Foreign objects are
//! looked at rarely and kept as text, which takes a quarter of the space; of their status only what
//! is mirrored there, and of those that nobody has handed over nothing but their metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::operator::api::ANNOTATION_MANAGE;

/// A copy of the spec that kubectl keeps for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Which object. Without a namespace where the kind has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// All objects of one kind; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    form: Form,
    state: Arc<Mutex<State>>,
}

/// An object is there, is another one, or is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: Name,
    pub(crate) what: What,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// What somebody wants: it is new, or its spec, labels or annotations are others.
    Wish,
    /// Something else: its status.
    Status,
    /// It is gone.
    Gone,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Whole,
    Text,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Name, Item>,
    /// What a list that has not ended has named so far.
    listing: Option<BTreeSet<Name>>,
    synced: bool,
    listeners: Vec<UnboundedSender<Change>>,
}

#[derive(Debug)]
struct Item {
    wish: u64,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Whole(Arc<DynamicObject>),
    Text(Box<[u8]>),
}

impl Name {
    pub(crate) fn of(object: &DynamicObject) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl Shelf {
    /// For objects that are looked at with every request.
    pub(crate) fn whole() -> Self {
        Self { form: Form::Whole, state: Arc::default() }
    }

    /// For foreign objects, which only a pass looks at.
    pub(crate) fn text() -> Self {
        Self { form: Form::Text, state: Arc::default() }
    }

    /// Takes in what a watch says.
    pub(crate) fn take(&self, event: Event<DynamicObject>) {
        let mut state = self.state();
        match event {
            Event::Init => state.listing = Some(BTreeSet::new()),
            Event::InitApply(object) => {
                let name = Name::of(&object);
                state.put(name.clone(), self.item(object));
                if let Some(listing) = &mut state.listing {
                    listing.insert(name);
                }
            }
            Event::InitDone => {
                if let Some(listing) = state.listing.take() {
                    let known: Vec<Name> = state.objects.keys().cloned().collect();
                    for name in known.into_iter().filter(|name| !listing.contains(name)) {
                        state.remove(&name);
                    }
                }
                state.synced = true;
            }
            Event::Apply(object) => state.put(Name::of(&object), self.item(object)),
            Event::Delete(object) => state.remove(&Name::of(&object)),
        }
    }

    /// Forgets everything: nobody watches any more.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        let known: Vec<Name> = state.objects.keys().cloned().collect();
        for name in known {
            state.remove(&name);
        }
        (state.listing, state.synced) = (None, false);
    }

    /// Whether everything that there is has been seen.
    pub(crate) fn is_synced(&self) -> bool {
        self.state().synced
    }

    /// One of them.
    pub(crate) fn find(&self, name: &Name) -> Option<Arc<DynamicObject>> {
        self.state().objects.get(name)?.object()
    }

    /// All of a namespace.
    pub(crate) fn within(&self, namespace: &str) -> Vec<Arc<DynamicObject>> {
        let from = Name { namespace: namespace.to_owned(), name: String::new() };
        let state = self.state();
        let there = state.objects.range(from..);
        let there = there.take_while(|(name, _)| name.namespace == namespace);
        there.filter_map(|(_, item)| item.object()).collect()
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> Vec<Arc<DynamicObject>> {
        self.state().objects.values().filter_map(Item::object).collect()
    }

    /// Everything that is there now, and every change from now on.
    pub(crate) fn changes(&self) -> UnboundedReceiver<Change> {
        let (sender, receiver) = unbounded_channel();
        let mut state = self.state();
        for name in state.objects.keys() {
            // The receiver is at hand.
            let _ = sender.send(Change { name: name.clone(), what: What::Wish });
        }
        state.listeners.push(sender);
        receiver
    }

    fn item(&self, mut object: DynamicObject) -> Item {
        // Who mirrors something to a foreign object must know whose its fields are.
        let mirrored =
            matches!(self.form, Form::Text) && object.annotations().contains_key(ANNOTATION_MANAGE);
        if !mirrored {
            object.metadata.managed_fields = None;
        }
        match (self.form, mirrored, object.data.as_object_mut()) {
            (Form::Text, true, Some(fields)) => {
                let status = fields.get_mut("status").and_then(Value::as_object_mut);
                status.into_iter().for_each(|status| status.retain(|name, _| is_mirrored(name)));
            }
            (Form::Text, false, Some(fields)) => fields.clear(),
            _ => {}
        }
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        let wish = wish(&object);
        let kept = match (self.form, serde_json::to_vec(&object)) {
            (Form::Text, Ok(text)) => Kept::Text(text.into_boxed_slice()),
            _ => Kept::Whole(Arc::new(object)),
        };
        Item { wish, kept }
    }

    /// Every critical section leaves the value whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, name: Name, item: Item) {
        let wish = item.wish;
        let before = self.objects.insert(name.clone(), item);
        let same = before.is_some_and(|before| before.wish == wish);
        self.tell(name, if same { What::Status } else { What::Wish });
    }

    fn remove(&mut self, name: &Name) {
        if self.objects.remove(name).is_some() {
            self.tell(name.clone(), What::Gone);
        }
    }

    fn tell(&mut self, name: Name, what: What) {
        let change = Change { name, what };
        self.listeners.retain(|listener| listener.send(change.clone()).is_ok());
    }
}

impl Item {
    fn object(&self) -> Option<Arc<DynamicObject>> {
        match &self.kept {
            Kept::Whole(object) => Some(object.clone()),
            Kept::Text(text) => serde_json::from_slice(text).ok().map(Arc::new),
        }
    }
}

/// Whether it is a field of the status of foreign objects that is read and written here.
fn is_mirrored(field: &str) -> bool {
    ["conditions", "secretEncryption"].contains(&field)
}

/// A hash of what somebody wants of an object: all but its status and its version.
fn wish(object: &DynamicObject) -> u64 {
    let mut hash = Hash(DefaultHasher::new());
    let metadata = &object.metadata;
    let ours = (&metadata.labels, &metadata.annotations, &metadata.deletion_timestamp);
    // Nothing of this can fail: a hash takes everything, and the keys are texts.
    let _ = serde_json::to_writer(&mut hash, &(&metadata.uid, ours, &metadata.finalizers));
    if let Some(fields) = object.data.as_object() {
        for (name, value) in fields.iter().filter(|(name, _)| *name != "status") {
            let _ = serde_json::to_writer(&mut hash, &(name, value));
        }
    }
    hash.0.finish()
}

struct Hash(DefaultHasher);

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, key: u64, revision: u64) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {
                "name": name, "namespace": "clusters-a", "resourceVersion": revision.to_string(),
                "managedFields": [{"manager": "kubectl", "operation": "Update"}],
                "annotations": {LAST_APPLIED: "{}", "note": "kept"},
            },
            "spec": {"key": key}, "status": {"revision": revision},
        }))
        .unwrap()
    }

    fn told(changes: &mut UnboundedReceiver<Change>) -> Vec<(String, What)> {
        std::iter::from_fn(|| changes.try_recv().ok()).map(|c| (c.name.name, c.what)).collect()
    }

    #[test]
    fn what_nobody_reads_is_not_kept_in_either_form() {
        for shelf in [Shelf::whole(), Shelf::text()] {
            shelf.take(Event::Apply(object("a", 1, 7)));
            let name = Name { namespace: "clusters-a".into(), name: "a".into() };
            let kept = shelf.find(&name).unwrap();
            assert_eq!(kept.metadata.managed_fields, None);
            assert_eq!(kept.annotations().keys().collect::<Vec<_>>(), ["note"]);
            assert_eq!(kept.types.as_ref().unwrap().kind, "SecretEncryption");
        }
    }

    #[test]
    fn of_foreign_objects_that_are_managed_it_is_known_whose_their_fields_are() {
        let shelf = Shelf::text();
        let mut managed = object("a", 1, 1);
        managed.annotations_mut().insert(ANNOTATION_MANAGE.into(), "true".into());
        shelf.take(Event::Apply(managed));
        assert!(shelf.all()[0].metadata.managed_fields.is_some());
    }

    #[test]
    fn of_foreign_objects_only_what_a_pass_reads_is_kept() {
        let kept = |shelf: Shelf, managed: bool| {
            let mut object = object("a", 1, 7);
            object.data["status"] = json!({"revision": 7, "conditions": [], "version": {}});
            if managed {
                object.annotations_mut().insert(ANNOTATION_MANAGE.into(), "true".into());
            }
            shelf.take(Event::Apply(object));
            shelf.all()[0].data.clone()
        };
        let (spec, status) = (json!({"key": 1}), json!({"conditions": []}));
        assert_eq!(kept(Shelf::text(), true), json!({"spec": spec, "status": status}));
        assert_eq!(kept(Shelf::text(), false), json!({}), "it is not handed over");
        assert_eq!(kept(Shelf::whole(), false)["status"]["revision"], 7, "this is our own");
    }

    #[test]
    fn a_change_of_status_is_told_from_a_wish() {
        let shelf = Shelf::whole();
        shelf.take(Event::Apply(object("a", 1, 1)));
        let mut changes = shelf.changes();
        shelf.take(Event::Apply(object("a", 1, 2)));
        shelf.take(Event::Apply(object("a", 2, 3)));
        shelf.take(Event::Delete(object("a", 2, 3)));
        let expected = [What::Wish, What::Status, What::Wish, What::Gone];
        let told: Vec<What> = told(&mut changes).into_iter().map(|(_, what)| what).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn what_a_new_list_does_not_name_is_gone_and_the_rest_was_there_all_along() {
        let shelf = Shelf::whole();
        assert!(!shelf.is_synced());
        for event in [
            Event::Init,
            Event::InitApply(object("a", 1, 1)),
            Event::InitApply(object("b", 1, 1)),
            Event::InitDone,
        ] {
            shelf.take(event);
        }
        assert!(shelf.is_synced());
        let mut changes = shelf.changes();
        told(&mut changes);
        shelf.take(Event::Init);
        assert_eq!(shelf.all().len(), 2, "a list that has not ended takes nothing away");
        shelf.take(Event::InitApply(object("b", 1, 1)));
        shelf.take(Event::InitDone);
        let expected = [("b".to_owned(), What::Status), ("a".to_owned(), What::Gone)];
        assert_eq!(told(&mut changes), expected);
        assert_eq!(shelf.all().len(), 1);
    }

    #[test]
    fn a_namespace_whose_name_begins_alike_is_another_one() {
        let shelf = Shelf::whole();
        shelf.take(Event::Apply(object("a", 1, 1)));
        assert_eq!(shelf.within("clusters-a").len(), 1);
        assert!(shelf.within("clusters").is_empty() && shelf.within("clusters-a2").is_empty());
    }
}
