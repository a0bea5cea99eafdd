//! What a text says, and where it says it.

use std::fmt;
use std::ops::Range;

use serde_json::{Map, Value};

/// A node of a document.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// From its first byte to behind its last. Of a block collection only the start means
    /// something: its end is that of its last child.
    pub(crate) range: Range<usize>,
    /// It has a name that others may refer to.
    pub(crate) anchor: Option<usize>,
    pub(crate) kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar {
        value: String,
        style: Style,
    },
    List {
        items: Vec<Node>,
        flow: bool,
    },
    Map {
        entries: Vec<(Node, Node)>,
        flow: bool,
    },
    /// A reference to another node; to its text, if that is a scalar.
    Alias(Option<String>),
}

/// How a scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// As it is: it may be a number, or nothing at all.
    Plain,
    Quoted,
    /// Lines below a `|` or `>`.
    Block,
}

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// The way from a document's root to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(pub(crate) Vec<Step>);

impl Node {
    /// The value of an entry of a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    pub(crate) fn entries(&self) -> &[(Node, Node)] {
        match &self.kind {
            Kind::Map { entries, .. } => entries,
            _ => &[],
        }
    }

    pub(crate) fn items(&self) -> &[Node] {
        match &self.kind {
            Kind::List { items, .. } => items,
            _ => &[],
        }
    }

    /// The text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { value, .. } => Some(value),
            Kind::Alias(text) => text.as_deref(),
            _ => None,
        }
    }

    /// Nothing is written there, or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { .. }) && self.value() == Value::Null
    }

    /// What it says, without where. References are not followed: they may grow without bounds.
    pub(crate) fn value(&self) -> Value {
        match &self.kind {
            Kind::Scalar { value, style: Style::Plain } => plain(value),
            Kind::Scalar { value, .. } => Value::String(value.clone()),
            Kind::List { items, .. } => items.iter().map(Node::value).collect(),
            Kind::Map { entries, .. } => {
                let entries = entries.iter().map(|(key, value)| {
                    let key = key.text().map_or_else(|| key.value().to_string(), str::to_owned);
                    (key, value.value())
                });
                Value::Object(entries.collect::<Map<String, Value>>())
            }
            Kind::Alias(Some(text)) => Value::String(text.clone()),
            Kind::Alias(None) => Value::String("(a reference)".to_owned()),
        }
    }

    /// The node at the end of a path.
    pub(crate) fn at(&self, path: &Path) -> Option<&Node> {
        path.0.iter().try_fold(self, |node, step| match step {
            Step::Key(key) => node.get(key),
            Step::Index(index) => node.items().get(*index),
        })
    }
}

impl Path {
    pub(crate) fn key(&self, key: &str) -> Self {
        let step = Step::Key(key.to_owned());
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    pub(crate) fn keys(&self, keys: &[&str]) -> Self {
        keys.iter().fold(self.clone(), |path, key| path.key(key))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        Self(self.0.iter().cloned().chain([Step::Index(index)]).collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first step is the number of a document: who reads this knows which.
        for (depth, step) in self.0.iter().skip(1).enumerate() {
            match step {
                Step::Key(key) if depth == 0 => write!(f, "{key}")?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        if self.0.len() < 2 { f.write_str("the document") } else { Ok(()) }
    }
}

/// A plain scalar: null, true, false, a number, or text.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "Null" | "NULL" => Value::Null,
        _ => serde_json::from_str(text)
            .ok()
            .filter(|value: &Value| !value.is_array() && !value.is_object() && !value.is_string())
            .unwrap_or_else(|| Value::String(text.to_owned())),
    }
}
