//! A text while it is changed.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Map, Value};

use super::tree::{Kind, Node, Path, Step, Style};
use super::{Syntax, json, yaml};

/// A text, and what it says. The first step of every path is the number of a document.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(super) text: String,
    pub(super) syntax: Syntax,
    root: Node,
    /// Anchors that are referred to: what has one means something elsewhere too.
    aliases: BTreeSet<usize>,
}

/// What was there before a list got its first item from us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A list, empty perhaps.
    There,
    /// Nothing.
    Absent,
    /// The key, and behind it what means nothing: this text.
    Null(String),
}

impl Draft {
    /// Reads a text.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let syntax = if text.trim_start().starts_with(['{', '[']) && json::parse(text).is_ok() {
            Syntax::Json
        } else {
            Syntax::Yaml
        };
        Self::parse(text.to_owned(), syntax)
    }

    fn parse(text: String, syntax: Syntax) -> Result<Self, String> {
        let (documents, aliases) = match syntax {
            Syntax::Json => (json::parse(&text)?, BTreeSet::new()),
            Syntax::Yaml => yaml::parse(&text)?,
        };
        let kind = Kind::List { items: documents, flow: false };
        let root = Node { range: 0..text.len(), anchor: None, kind };
        Ok(Self { text, syntax, root, aliases })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The documents, as items.
    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    pub(crate) fn at(&self, path: &Path) -> Option<&Node> {
        self.root.at(path)
    }

    /// The text of a scalar as it is written.
    pub(crate) fn raw(&self, path: &Path) -> Option<&str> {
        let node = self.at(path)?;
        self.text.get(node.range.clone())
    }

    /// Why nothing may be changed below this node, if so.
    pub(crate) fn editable(&self, path: &Path) -> Result<(), String> {
        let mut node = &self.root;
        for (depth, step) in path.0.iter().enumerate() {
            let here = || Path(path.0[..=depth].to_vec());
            let next = match step {
                Step::Key(key) => node.get(key),
                Step::Index(index) => node.items().get(*index),
            };
            let Some(next) = next else { return Ok(()) };
            node = next;
            if matches!(node.kind, Kind::Alias(_)) {
                return Err(format!("{} refers to another part of the file; write it out", here()));
            }
            if node.anchor.is_some_and(|anchor| self.aliases.contains(&anchor)) {
                return Err(format!(
                    "{} is referred to from elsewhere in the file; write it out there",
                    here()
                ));
            }
            if node.get("<<").is_some() {
                return Err(format!("{} merges another map (<<); write it out", here()));
            }
        }
        Ok(())
    }

    /// Adds an item at the end of the list that a key of a map has, or should have.
    pub(crate) fn append(&mut self, map: &Path, key: &str, item: &Value) -> Result<Origin, String> {
        let list = map.key(key);
        let Some(node) = self.at(&list) else {
            self.insert(map, key, &Value::Array(vec![item.clone()]))?;
            return Ok(Origin::Absent);
        };
        if node.is_null() {
            let raw = self.text[self.behind_colon(map, key)?].to_owned();
            let items = Value::Array(vec![item.clone()]);
            let text = format!(" {}", self.one_line(&items));
            self.replace_behind_colon(map, key, &text, items)?;
            return Ok(Origin::Null(raw));
        }
        self.push(&list, item)?;
        Ok(Origin::There)
    }

    fn push(&mut self, path: &Path, item: &Value) -> Result<(), String> {
        self.editable(path)?;
        let (at, text) = self.item_to_push(path, item).ok_or_else(|| not_a(path, "list"))?;
        self.splice(path, at..at, &text, |list| match list {
            Value::Array(items) => items.push(item.clone()),
            _ => *list = Value::Null,
        })
    }

    /// Adds an entry at the end of a map.
    pub(crate) fn insert(&mut self, path: &Path, key: &str, value: &Value) -> Result<(), String> {
        self.editable(path)?;
        let (at, text) =
            self.entry_to_insert(path, key, value).ok_or_else(|| not_a(path, "map"))?;
        self.splice(path, at..at, &text, |map| match map {
            Value::Object(map) => drop(map.insert(key.to_owned(), value.clone())),
            _ => *map = Value::Null,
        })
    }

    /// Takes an item out of a list. The last one that is left leaves `[]`.
    pub(crate) fn remove_item(&mut self, path: &Path, index: usize) -> Result<(), String> {
        self.editable(path)?;
        let range = self.item_to_remove(path, index).ok_or_else(|| not_a(path, "list"))?;
        let list = self.at(path).ok_or_else(|| not_a(path, "list"))?;
        let empties =
            list.items().len() == 1 && matches!(list.kind, Kind::List { flow: false, .. });
        let text = if empties { " []" } else { "" };
        self.splice(path, range, text, |list| {
            if let Value::Array(items) = list {
                items.remove(index);
            }
        })
    }

    /// Takes an entry out of a map. The last one that is left leaves `{}`.
    pub(crate) fn remove(&mut self, path: &Path, key: &str) -> Result<(), String> {
        self.editable(&path.key(key))?;
        let (range, text) = self.entry_to_remove(path, key).ok_or_else(|| not_a(path, "map"))?;
        self.splice(path, range, text, |map| {
            if let Value::Object(map) = map {
                map.remove(key);
            }
        })
    }

    /// Writes an empty map where a key has nothing; gives what was written there.
    pub(crate) fn replace_null(&mut self, map: &Path, key: &str) -> Result<String, String> {
        let raw = self.text[self.behind_colon(map, key)?].to_owned();
        self.replace_behind_colon(map, key, " {}", Value::Object(Map::new()))?;
        Ok(raw)
    }

    /// Puts back what meant nothing in the place of a value.
    pub(crate) fn restore(&mut self, map: &Path, key: &str, raw: &str) -> Result<(), String> {
        self.replace_behind_colon(map, key, raw, Value::Null)
    }

    fn replace_behind_colon(
        &mut self,
        map: &Path,
        key: &str,
        text: &str,
        value: Value,
    ) -> Result<(), String> {
        self.editable(&map.key(key))?;
        let range = self.behind_colon(map, key)?;
        self.splice(&map.key(key), range, text, |node| *node = value)
    }

    /// Writes another text in the place of a scalar; `raw`, where it means that text.
    pub(crate) fn rewrite(
        &mut self,
        path: &Path,
        text: &str,
        raw: Option<&str>,
    ) -> Result<(), String> {
        self.editable(path)?;
        let node = self.at(path).ok_or_else(|| not_a(path, "text"))?;
        let range = match &node.kind {
            Kind::Scalar { style, .. } if *style != Style::Block => node.range.clone(),
            _ => return Err(not_a(path, "text in one line")),
        };
        let value = Value::String(text.to_owned());
        let put = |draft: &mut Self, written: &str| {
            draft.splice(path, range.clone(), written, |node| *node = value.clone())
        };
        if raw.is_some_and(|raw| put(self, raw).is_ok()) {
            return Ok(());
        }
        let written = self.one_line(&value);
        put(self, &written)
    }

    /// Changes the text, and makes sure that it says what it said, but for this change.
    fn splice(
        &mut self,
        path: &Path,
        range: Range<usize>,
        text: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), String> {
        let mut expected = self.root.value();
        let node = path.0.iter().try_fold(&mut expected, |node, step| match step {
            Step::Key(key) => node.get_mut(key),
            Step::Index(index) => node.get_mut(index),
        });
        change(node.ok_or_else(|| not_a(path, "node"))?);
        let line = self.text[..range.start].matches('\n').count() + 1;
        let mut changed = self.text.clone();
        changed.replace_range(range, text);
        match Self::parse(changed, self.syntax) {
            Ok(draft) if draft.root.value() == expected => {
                *self = draft;
                Ok(())
            }
            _ => Err(format!(
                "{path} (line {line}) is written in a way that cannot be changed safely; \
                 write it more plainly"
            )),
        }
    }
}

pub(super) fn not_a(path: &Path, what: &str) -> String {
    format!("{path} is not a {what}")
}
