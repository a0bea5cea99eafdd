//! Bodies that are wiped when they have been sent, and answers that are read without being quoted.

use std::io::{self, Write};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sidekey_core::{Error, Kind};
use zeroize::Zeroizing;

/// A body in JSON. It is measured first: a buffer that grows leaves copies behind, and one that is
/// large enough for everything is too large for most.
pub fn json(value: &impl Serialize) -> Bytes {
    let mut length = Length(0);
    // Plain structures of text cannot fail, and a server refuses an empty body.
    let _ = serde_json::to_writer(&mut length, value);
    let mut out = Zeroizing::new(Vec::with_capacity(length.0));
    let _ = serde_json::to_writer(&mut *out, value);
    Bytes::from_owner(out)
}

/// A body as HTML's forms are sent, which OAuth's endpoints take.
pub fn form(fields: &[(&str, &str)]) -> Bytes {
    let most: usize = fields.iter().map(|(name, value)| 3 * (name.len() + value.len()) + 2).sum();
    let mut out = Zeroizing::new(Vec::with_capacity(most));
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            out.push(b'&');
        }
        escape(name, &mut out);
        out.push(b'=');
        escape(value, &mut out);
    }
    Bytes::from_owner(out)
}

/// Reads a good answer to `what`. What cannot be read is never quoted, and may pass: a proxy's
/// page, a captive portal.
pub fn read<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| {
        let text = format!("{what}: the answer cannot be read (line {})", error.line());
        Error::new(Kind::Unavailable, text)
            .with_hint("see whether it is the KMS that answers, or a proxy in its place")
    })
}

fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble & 15)];
            out.extend([b'%', digit(byte >> 4), digit(byte)]);
        }
    }
}

/// Counts what is written.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_written_as_servers_read_them() {
        assert_eq!(&json(&serde_json::json!({"a": "b\"c"}))[..], br#"{"a":"b\"c"}"#);
        let body = form(&[("grant_type", "urn:x y"), ("secret", "a+b&c=d/ü")]);
        assert_eq!(&body[..], b"grant_type=urn%3Ax%20y&secret=a%2Bb%26c%3Dd%2F%C3%BC");
    }

    #[test]
    fn what_cannot_be_read_is_not_quoted() {
        let error = read::<u32>(br#""hunter2""#, "token").unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(!error.report().contains("hunter2"), "{}", error.report());
    }
}
