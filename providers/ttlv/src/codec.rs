//! TTLV: tag, type, length and value, the value drawn out to eight bytes.
//!
//! What is read was sent by somebody else. All of it is checked once, before any of it is used:
//! lengths against what is there and against their types, the depth, and that nothing is left
//! over. No value is copied: what is secret stays in the one buffer that is wiped.

use zeroize::Zeroizing;

/// The deepest answer of KMIP that we ask for has six levels.
const MAX_DEPTH: usize = 16;
const HEADER: usize = 8;

const STRUCTURE: u8 = 1;
const INTEGER: u8 = 2;
const LONG_INTEGER: u8 = 3;
const BIG_INTEGER: u8 = 4;
const ENUMERATION: u8 = 5;
const BOOLEAN: u8 = 6;
const TEXT: u8 = 7;
const BYTES: u8 = 8;
const DATE_TIME: u8 = 9;
const INTERVAL: u8 = 10;

/// Writes a message into a buffer that is wiped.
pub(crate) struct Writer(Zeroizing<Vec<u8>>);

/// One item of a message that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) tag: u32,
    kind: u8,
    value: &'a [u8],
}

impl Writer {
    /// `size` is more than will be written: a buffer that grows leaves a copy behind.
    pub(crate) fn new(size: usize) -> Self {
        Self(Zeroizing::new(Vec::with_capacity(size)))
    }

    pub(crate) fn finish(self) -> Zeroizing<Vec<u8>> {
        self.0
    }

    pub(crate) fn structure<T>(&mut self, tag: u32, fill: impl FnOnce(&mut Self) -> T) -> T {
        let start = self.0.len();
        self.item(tag, STRUCTURE, &[]);
        let done = fill(self);
        let length = (self.0.len() - start - HEADER) as u32;
        self.0[start + 4..start + HEADER].copy_from_slice(&length.to_be_bytes());
        done
    }

    pub(crate) fn integer(&mut self, tag: u32, value: i32) {
        self.item(tag, INTEGER, &value.to_be_bytes());
    }

    pub(crate) fn enumeration(&mut self, tag: u32, value: u32) {
        self.item(tag, ENUMERATION, &value.to_be_bytes());
    }

    pub(crate) fn text(&mut self, tag: u32, value: &str) {
        self.item(tag, TEXT, value.as_bytes());
    }

    pub(crate) fn bytes(&mut self, tag: u32, value: &[u8]) {
        self.item(tag, BYTES, value);
    }

    fn item(&mut self, tag: u32, kind: u8, value: &[u8]) {
        self.0.extend_from_slice(&tag.to_be_bytes()[1..]);
        self.0.push(kind);
        self.0.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.0.extend_from_slice(value);
        let padded = self.0.len().next_multiple_of(HEADER);
        self.0.resize(padded, 0);
    }
}

impl<'a> Item<'a> {
    /// The one item that these bytes are, with all that is in it; or what is wrong with them.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (item, rest) = Self::split(bytes)?;
        if !rest.is_empty() {
            return Err("there is more behind its end");
        }
        item.check(MAX_DEPTH)?;
        Ok(item)
    }

    /// The items of a structure; none of anything else.
    pub(crate) fn items(self) -> impl Iterator<Item = Item<'a>> {
        let mut rest = if self.kind == STRUCTURE { self.value } else { &[] };
        std::iter::from_fn(move || {
            let (item, after) = Self::split(rest).ok()?;
            rest = after;
            Some(item)
        })
    }

    /// The first item of a structure that has this tag.
    pub(crate) fn find(self, tag: u32) -> Option<Self> {
        self.items().find(|item| item.tag == tag)
    }

    pub(crate) fn is_structure(self) -> bool {
        self.kind == STRUCTURE
    }

    pub(crate) fn integer(self) -> Option<i32> {
        self.number(INTEGER).map(i32::from_be_bytes)
    }

    pub(crate) fn enumeration(self) -> Option<u32> {
        self.number(ENUMERATION).map(u32::from_be_bytes)
    }

    pub(crate) fn text(self) -> Option<&'a str> {
        let text = std::str::from_utf8(self.value);
        text.ok().filter(|_| self.kind == TEXT)
    }

    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        (self.kind == BYTES).then_some(self.value)
    }

    fn number(self, kind: u8) -> Option<[u8; 4]> {
        self.value.try_into().ok().filter(|_| self.kind == kind)
    }

    /// The first item, and what follows it.
    fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        const SHORT: &str = "it breaks off";
        let (&[a, b, c, kind, l0, l1, l2, l3], rest) =
            bytes.split_first_chunk::<HEADER>().ok_or(SHORT)?;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let fits = match kind {
            STRUCTURE => length.is_multiple_of(HEADER),
            INTEGER | ENUMERATION | INTERVAL => length == 4,
            LONG_INTEGER | BOOLEAN | DATE_TIME => length == 8,
            BIG_INTEGER => length > 0 && length.is_multiple_of(HEADER),
            TEXT | BYTES => true,
            _ => return Err("a type is none of KMIP's"),
        };
        if !fits {
            return Err("a length does not fit its type");
        }
        let value = rest.get(..length).ok_or(SHORT)?;
        let rest = rest.get(length.next_multiple_of(HEADER)..).ok_or(SHORT)?;
        Ok((Self { tag: u32::from_be_bytes([0, a, b, c]), kind, value }, rest))
    }

    fn check(self, depth: usize) -> Result<(), &'static str> {
        let mut rest = if self.kind == STRUCTURE { self.value } else { &[] };
        while !rest.is_empty() {
            if depth == 0 {
                return Err("it is nested too deeply");
            }
            let (item, after) = Self::split(rest)?;
            item.check(depth - 1)?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
