//! JSON as a tree with places.
//!
//! Not through the YAML parser, although JSON looks like YAML: the two differ in escapes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::tree::{Kind, Node, Style};

/// The documents of a text, one behind the other.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, String> {
    // First by a parser that knows every mistake; what follows needs to know none.
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        document.map_err(|error| format!("not JSON: {error}"))?;
    }
    let mut scanner = Scanner { text, at: 0 };
    let mut documents = Vec::new();
    while scanner.peek().is_some() {
        documents.push(scanner.node()?);
    }
    Ok(documents)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let skip = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += skip;
        rest.get(skip).copied()
    }

    fn node(&mut self) -> Result<Node, String> {
        let first = self.peek();
        let start = self.at;
        let kind = match first {
            Some(b'{') => self.map(start)?,
            Some(b'[') => self.list()?,
            Some(b'"') => Kind::Scalar { value: self.string()?, style: Style::Quoted },
            _ => Kind::Scalar { value: self.word(), style: Style::Plain },
        };
        Ok(Node { range: start..self.at, anchor: None, kind })
    }

    fn map(&mut self, start: usize) -> Result<Kind, String> {
        let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
        self.at += 1;
        while self.peek() != Some(b'}') {
            let key = self.node()?;
            if let Some(name) = key.text().filter(|name| !names.insert((*name).to_owned())) {
                return Err(format!("the map at byte {start} has the key {name} twice"));
            }
            self.skip(b':');
            entries.push((key, self.node()?));
            self.skip(b',');
        }
        self.at += 1;
        Ok(Kind::Map { entries, flow: true })
    }

    fn list(&mut self) -> Result<Kind, String> {
        let mut items = Vec::new();
        self.at += 1;
        while self.peek() != Some(b']') {
            items.push(self.node()?);
            self.skip(b',');
        }
        self.at += 1;
        Ok(Kind::List { items, flow: true })
    }

    fn skip(&mut self, byte: u8) {
        if self.peek() == Some(byte) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let start = self.at;
        let mut escaped = false;
        self.at += 1;
        for byte in &self.text.as_bytes()[self.at..] {
            self.at += 1;
            match byte {
                b'"' if !escaped => break,
                b'\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        serde_json::from_str(&self.text[start..self.at]).map_err(|error| error.to_string())
    }

    /// A number, true, false or null.
    fn word(&mut self) -> String {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| c.is_whitespace() || ",]}:".contains(c));
        let word = &rest[..end.unwrap_or(rest.len())];
        // Never without getting on, whatever it is.
        self.at += word.len().max(usize::from(!rest.is_empty()));
        word.to_owned()
    }
}
