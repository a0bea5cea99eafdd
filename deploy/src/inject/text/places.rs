//! Where a node begins and ends among lines.

use std::ops::Range;

use super::tree::{Kind, Node, Style};

/// Where the line begins that this is in.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Where the line ends that this is in: before its line end.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    if end > at && text.as_bytes()[end - 1] == b'\r' { end - 1 } else { end }
}

/// What is in the line before this.
pub(super) fn prefix(text: &str, at: usize) -> &str {
    &text[line_start(text, at)..at]
}

/// How many characters are in the line before this.
pub(super) fn column(text: &str, at: usize) -> usize {
    prefix(text, at).chars().count()
}

/// How lines end in this text.
pub(super) fn newline(text: &str) -> &'static str {
    let first = text.find('\n').unwrap_or(0);
    if text[..first].ends_with('\r') { "\r\n" } else { "\n" }
}

/// Where the dash of an item is that begins here.
pub(super) fn dash(text: &str, item: usize) -> Option<usize> {
    let mut end = item;
    loop {
        let start = line_start(text, end);
        let line = before_item(&text[start..end]);
        if line.ends_with('-') {
            return Some(start + line.len() - 1);
        }
        if !line.is_empty() || start == 0 {
            return None;
        }
        end = start - 1;
    }
}

/// A line without what may stand between a dash and its item: white space, a comment, an anchor,
/// a tag, the `|` of a block.
fn before_item(line: &str) -> &str {
    let comment = line.find('#').filter(|&at| line[..at].trim_end().len() < at || at == 0);
    let mut line = line[..comment.unwrap_or(line.len())].trim_end();
    while let Some((rest, word)) = line.rsplit_once([' ', '\t']) {
        if !word.starts_with(['&', '!', '|', '>']) {
            break;
        }
        line = rest.trim_end();
    }
    line.trim_end()
}

/// Where the colon behind a key ends.
pub(super) fn colon(text: &str, key: &Node) -> Option<usize> {
    let rest = &text[key.range.end..];
    let skipped = rest.len() - rest.trim_start_matches([' ', '\t']).len();
    rest[skipped..].starts_with(':').then_some(key.range.end + skipped + 1)
}

/// Where a node ends; `before`: where it begins at the earliest, for those that are nothing.
pub(super) fn tail(text: &str, node: &Node, before: usize) -> Option<usize> {
    match &node.kind {
        Kind::Scalar { value, style: Style::Plain } if value.is_empty() => {
            let same_line = node.range.end <= line_end(text, before);
            Some(if same_line { node.range.end.max(before) } else { before })
        }
        Kind::Scalar { style: Style::Block, .. } => Some(block_end(text, &node.range, before)),
        Kind::List { items, flow: false } => {
            let last = items.last()?;
            tail(text, last, dash(text, last.range.start)? + 1)
        }
        Kind::Map { entries, flow: false } => {
            let (key, value) = entries.last()?;
            tail(text, value, colon(text, key)?)
        }
        _ => Some(node.range.end),
    }
}

/// The lines of a block, blank ones at its end included: they may belong to it.
fn block_end(text: &str, range: &Range<usize>, before: usize) -> usize {
    let block = &text[range.clone()];
    if block.trim().is_empty() {
        return line_end(text, before);
    }
    let last = block.rfind('\n').filter(|&at| block[at..].trim().is_empty());
    let end = last.map_or(range.end, |at| range.start + at);
    if text[..end].ends_with('\r') { end - 1 } else { end }
}
