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
const ENUMERATION: u8 = 5;
const TEXT: u8 = 7;
const BYTES: u8 = 8;

/// What messages are written of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Structure(&'a [(u32, Value<'a>)]),
    Integer(i32),
    Enumeration(u32),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// One item of a message that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) tag: u32,
    kind: u8,
    value: &'a [u8],
}

/// One item, in a buffer that is wiped. It never grows: that would leave a copy behind.
pub(crate) fn encode(tag: u32, value: Value<'_>) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(value.space()));
    value.write(tag, &mut bytes);
    bytes
}

impl Value<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Structure(items) => items.iter().map(|(_, value)| value.space()).sum(),
            Self::Integer(_) | Self::Enumeration(_) => 4,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    fn space(&self) -> usize {
        HEADER + self.len().next_multiple_of(HEADER)
    }

    fn write(&self, tag: u32, to: &mut Vec<u8>) {
        let kind = match self {
            Self::Structure(_) => STRUCTURE,
            Self::Integer(_) => INTEGER,
            Self::Enumeration(_) => ENUMERATION,
            Self::Text(_) => TEXT,
            Self::Bytes(_) => BYTES,
        };
        to.extend_from_slice(&(tag << 8 | u32::from(kind)).to_be_bytes());
        to.extend_from_slice(&(self.len() as u32).to_be_bytes());
        match self {
            Self::Structure(items) => items.iter().for_each(|(tag, value)| value.write(*tag, to)),
            Self::Integer(number) => to.extend_from_slice(&number.to_be_bytes()),
            Self::Enumeration(number) => to.extend_from_slice(&number.to_be_bytes()),
            Self::Text(text) => to.extend_from_slice(text.as_bytes()),
            Self::Bytes(bytes) => to.extend_from_slice(bytes),
        }
        to.resize(to.len().next_multiple_of(HEADER), 0);
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
        let mut rest = self.inner();
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

    /// An integer or an enumeration.
    pub(crate) fn number(self) -> Option<u32> {
        let number = self.value.try_into().map(u32::from_be_bytes);
        number.ok().filter(|_| [INTEGER, ENUMERATION].contains(&self.kind))
    }

    pub(crate) fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.value).ok().filter(|_| self.kind == TEXT)
    }

    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        (self.kind == BYTES).then_some(self.value)
    }

    fn inner(self) -> &'a [u8] {
        if self.is_structure() { self.value } else { &[] }
    }

    /// The first item, and what follows it.
    fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        const SHORT: &str = "it breaks off";
        let (&[a, b, c, kind, l0, l1, l2, l3], rest) =
            bytes.split_first_chunk::<HEADER>().ok_or(SHORT)?;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let fits = match kind {
            STRUCTURE => length.is_multiple_of(HEADER),
            // Integers, enumerations, intervals; long integers, booleans, times; big integers.
            2 | 5 | 10 => length == 4,
            3 | 6 | 9 => length == 8,
            4 => length > 0 && length.is_multiple_of(HEADER),
            TEXT | BYTES => true,
            _ => false,
        };
        if !fits {
            return Err("a type is none of KMIP's, or has another length");
        }
        let value = rest.get(..length).ok_or(SHORT)?;
        let rest = rest.get(length.next_multiple_of(HEADER)..).ok_or(SHORT)?;
        Ok((Self { tag: u32::from_be_bytes([0, a, b, c]), kind, value }, rest))
    }

    fn check(self, depth: usize) -> Result<(), &'static str> {
        let mut rest = self.inner();
        while !rest.is_empty() {
            let deeper = depth.checked_sub(1).ok_or("it is nested too deeply")?;
            let (item, after) = Self::split(rest)?;
            item.check(deeper)?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
