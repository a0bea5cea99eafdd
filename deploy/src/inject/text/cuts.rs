//! Where a change cuts into the text, and what it puts there.

use std::ops::Range;

use serde_json::Value;

use super::draft::{Draft, not_a};
use super::places::{colon, column, dash, line_end, line_start, newline, prefix, tail};
use super::tree::{Kind, Node, Path};
use super::{Syntax, write};

#[derive(Default)]
struct Surroundings {
    separator: String,
    prefix: String,
    /// How much further right each level is; none where all is in one line.
    unit: Option<String>,
}

impl Draft {
    pub(super) fn item_to_push(&self, path: &Path, item: &Value) -> Option<(usize, String)> {
        let list = self.at(path)?;
        match &list.kind {
            Kind::List { items, flow: true } => {
                let Some((first, last)) = items.first().zip(items.last()) else {
                    return Some((list.range.start + 1, self.one_line(item)));
                };
                let Surroundings { separator, prefix, unit } =
                    self.surroundings(list, first.range.start);
                let item = match self.syntax {
                    Syntax::Json => write::json(item, &prefix, unit.as_deref()),
                    Syntax::Yaml => write::flow(item),
                };
                Some((last.range.end, format!("{separator}{item}")))
            }
            Kind::List { items, flow: false } => {
                let first = dash(&self.text, items.first()?.range.start)?;
                let at = line_end(&self.text, tail(&self.text, list, list.range.start)?);
                Some((at, self.lines(write::item(item, column(&self.text, first)))))
            }
            _ => None,
        }
    }

    pub(super) fn entry_to_insert(
        &self,
        path: &Path,
        key: &str,
        value: &Value,
    ) -> Option<(usize, String)> {
        let map = self.at(path)?;
        let Kind::Map { entries, flow } = &map.kind else { return None };
        if *flow {
            let around = entries.first().map(|(key, _)| self.surroundings(map, key.range.start));
            let Surroundings { separator, prefix, unit } = around.unwrap_or_default();
            let entry = match self.syntax {
                Syntax::Json => {
                    let space = if unit.is_some() { " " } else { "" };
                    let value = write::json(value, &prefix, unit.as_deref());
                    format!("{}:{space}{value}", write::quoted(key))
                }
                Syntax::Yaml => format!("{}: {}", write::name(key), write::flow(value)),
            };
            let at = entries.last().map_or(map.range.start + 1, |(key, value)| {
                value.range.end.max(colon(&self.text, key).unwrap_or(key.range.end))
            });
            return Some((at, format!("{separator}{entry}")));
        }
        let first = entries.first()?.0.range.start;
        let at = line_end(&self.text, tail(&self.text, map, map.range.start)?);
        let column = column(&self.text, first);
        let lines = write::entry(key, value, column, self.list_offset(entries));
        Some((at, self.lines(lines)))
    }

    /// How much further right than their keys the lists of a map are.
    fn list_offset(&self, entries: &[(Node, Node)]) -> usize {
        entries
            .iter()
            .find_map(|(key, value)| match &value.kind {
                Kind::List { items, flow: false } => {
                    let dash = column(&self.text, dash(&self.text, items.first()?.range.start)?);
                    dash.checked_sub(column(&self.text, key.range.start))
                }
                _ => None,
            })
            .unwrap_or(0)
    }

    pub(super) fn item_to_remove(&self, path: &Path, index: usize) -> Option<Range<usize>> {
        let list = self.at(path)?;
        let item = list.items().get(index)?;
        if let Kind::List { items, flow: true } = &list.kind {
            return Some(cut(
                index,
                |at| items.get(at).map(|item| item.range.clone()),
                items.len(),
            ));
        }
        let dash = dash(&self.text, item.range.start)?;
        let end = line_end(&self.text, tail(&self.text, item, dash + 1)?);
        let start = line_start(&self.text, dash);
        prefix(&self.text, dash).trim().is_empty().then_some(())?;
        Some(self.line_end_before(start)..end)
    }

    pub(super) fn entry_to_remove(
        &self,
        path: &Path,
        key: &str,
    ) -> Option<(Range<usize>, &'static str)> {
        let map = self.at(path)?;
        let Kind::Map { entries, flow } = &map.kind else { return None };
        let index = entries.iter().position(|(name, _)| name.text() == Some(key))?;
        let whole = |at: usize| {
            let (key, value) = entries.get(at)?;
            Some(key.range.start..value.range.end.max(colon(&self.text, key)?))
        };
        if *flow {
            return Some((cut(index, whole, entries.len()), ""));
        }
        let (name, value) = &entries[index];
        let end = line_end(&self.text, tail(&self.text, value, colon(&self.text, name)?)?);
        if prefix(&self.text, name.range.start).trim().is_empty() {
            let start = self.line_end_before(line_start(&self.text, name.range.start));
            return Some((start..end, if entries.len() == 1 { " {}" } else { "" }));
        }
        // Behind a dash: the next one moves up to it.
        match entries.get(index + 1) {
            Some((next, _)) => Some((name.range.start..next.range.start, "")),
            None => Some((name.range.start..end, "{}")),
        }
    }

    pub(super) fn behind_colon(&self, map: &Path, key: &str) -> Result<Range<usize>, String> {
        let find = || {
            let entries = self.at(map)?.entries();
            let (name, value) = entries.iter().find(|(name, _)| name.text() == Some(key))?;
            let start = colon(&self.text, name)?;
            Some(start..tail(&self.text, value, start)?)
        };
        find().ok_or_else(|| not_a(map, "map"))
    }

    pub(super) fn one_line(&self, value: &Value) -> String {
        match self.syntax {
            Syntax::Json => write::json(value, "", None),
            Syntax::Yaml => write::flow(value),
        }
    }

    /// Lines to be put behind the end of another.
    fn lines(&self, lines: Vec<String>) -> String {
        let newline = newline(&self.text);
        lines.into_iter().fold(String::new(), |text, line| text + newline + &line)
    }

    fn line_end_before(&self, line: usize) -> usize {
        let end = line.saturating_sub(1);
        if self.text[..end].ends_with('\r') { end - 1 } else { end }
    }

    /// How children of a collection in brackets are written, from where the first one is.
    fn surroundings(&self, node: &Node, first: usize) -> Surroundings {
        let inside = &self.text[node.range.start + 1..first];
        if !inside.contains('\n') {
            // Without any space between it and its brackets, nor behind commas.
            let tight = self.syntax == Syntax::Json && !self.text.contains(", ");
            let separator = if tight { "," } else { ", " }.to_owned();
            return Surroundings { separator, ..Surroundings::default() };
        }
        let indent = |at: usize| {
            let line = &self.text[line_start(&self.text, at)..at];
            line[..line.len() - line.trim_start().len()].to_owned()
        };
        let prefix = indent(first);
        let outer = indent(node.range.start);
        let unit = prefix.strip_prefix(&outer).unwrap_or("  ").to_owned();
        let separator = format!(",{}{prefix}", newline(&self.text));
        Surroundings { separator, prefix, unit: Some(unit) }
    }
}

/// What to cut from between brackets: with the comma before it, or the one behind the first.
fn cut(index: usize, range: impl Fn(usize) -> Option<Range<usize>>, count: usize) -> Range<usize> {
    let at = |index| range(index).unwrap_or_default();
    match index {
        0 if count > 1 => at(0).start..at(1).start,
        0 => at(0),
        _ => at(index - 1).end..at(index).end,
    }
}
