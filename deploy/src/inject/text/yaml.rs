//! YAML as a tree with places.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StructureStyle};

use super::tree::{Kind, Node, Style};

/// The documents of a text, and the names that are referred to.
pub(super) fn parse(text: &str) -> Result<(Vec<Node>, BTreeSet<usize>), String> {
    let options = granit_parser::options! { disallow_directives: false };
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error: ScanError| format!("not YAML: {error}"))?;
        let range = span.byte_range().ok_or("not YAML: a place is unknown")?;
        builder.take(event, &span, range)?;
    }
    Ok((builder.documents, builder.aliases))
}

#[derive(Default)]
struct Builder {
    documents: Vec<Node>,
    open: Vec<Open>,
    scalars: BTreeMap<usize, String>,
    aliases: BTreeSet<usize>,
}

/// A collection that has not ended.
struct Open {
    start: usize,
    anchor: Option<usize>,
    flow: bool,
    map: bool,
    line: usize,
    children: Vec<Node>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: &Span, range: Range<usize>) -> Result<(), String> {
        match event {
            Event::Scalar(value, style, anchor, _) => {
                // The parser writes `~` where there is nothing.
                let value = if range.is_empty() && style == ScalarStyle::Plain {
                    String::new()
                } else {
                    value.into_owned()
                };
                if anchor != 0 {
                    self.scalars.insert(anchor, value.clone());
                }
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                    _ => Style::Quoted,
                };
                self.put(Node { range, anchor: name(anchor), kind: Kind::Scalar { value, style } });
            }
            Event::Alias(id) => {
                self.aliases.insert(id);
                let kind = Kind::Alias(self.scalars.get(&id).cloned());
                self.put(Node { range, anchor: None, kind });
            }
            Event::SequenceStart(style, anchor, _) => self.open(style, anchor, false, span, &range),
            Event::MappingStart(style, anchor, _) => self.open(style, anchor, true, span, &range),
            Event::SequenceEnd | Event::MappingEnd => self.close(range.end)?,
            _ => {}
        }
        Ok(())
    }

    fn open(
        &mut self,
        style: StructureStyle,
        anchor: usize,
        map: bool,
        span: &Span,
        range: &Range<usize>,
    ) {
        let (start, line) = (range.start, span.start.line());
        let flow = style == StructureStyle::Flow;
        self.open.push(Open { start, anchor: name(anchor), flow, map, line, children: Vec::new() });
    }

    fn close(&mut self, end: usize) -> Result<(), String> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let Open { start, anchor, flow, map, line, children } = open;
        let kind = if map {
            let mut entries = Vec::new();
            let mut names = BTreeSet::new();
            let mut children = children.into_iter();
            while let (Some(key), Some(value)) = (children.next(), children.next()) {
                if let Some(name) = key.text().filter(|name| !names.insert((*name).to_owned())) {
                    return Err(format!("the map in line {line} has the key {name} twice"));
                }
                entries.push((key, value));
            }
            Kind::Map { entries, flow }
        } else {
            Kind::List { items: children, flow }
        };
        self.put(Node { range: start..end.max(start), anchor, kind });
        Ok(())
    }

    fn put(&mut self, node: Node) {
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.documents.push(node),
        }
    }
}

fn name(anchor: usize) -> Option<usize> {
    (anchor != 0).then_some(anchor)
}
