//! The few lines of kube-apiserver's `/metrics` that are of use, out of some megabytes.

use std::collections::BTreeMap;

use http_body_util::BodyExt;
use hyper::body::Body;

use crate::Error;

/// No line that is of use is longer.
const MAX_LINE: usize = 8 * 1024;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Sample {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

/// Reads a body as it comes, and keeps the samples whose names begin so. A server has more to
/// tell than should be held in memory.
pub(crate) async fn read<B>(mut body: B, prefixes: &[&str]) -> Result<Vec<Sample>, Error>
where
    B: Body + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut samples = Vec::new();
    let mut line: Vec<u8> = Vec::new();
    let mut take = |line: &mut Vec<u8>| {
        let text = std::str::from_utf8(line).unwrap_or_default();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            samples.extend(sample(text));
        }
        line.clear();
    };
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Error::failed("/metrics broke off").because(error.into()))?;
        let Ok(mut data) = frame.into_data() else { continue };
        while bytes::Buf::has_remaining(&data) {
            let chunk = bytes::Buf::chunk(&data);
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            line.extend(&part[..part.len().min(MAX_LINE - line.len().min(MAX_LINE))]);
            let used = part.len() + usize::from(end.is_some());
            bytes::Buf::advance(&mut data, used);
            if end.is_some() {
                take(&mut line);
            }
        }
    }
    take(&mut line);
    Ok(samples)
}

fn sample(line: &str) -> Option<Sample> {
    let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(key.to_owned(), value);
            rest = after;
        }
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the closing quote, unescaped, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    #[tokio::test]
    async fn lines_are_read_however_they_are_cut() {
        let text = "# HELP key x\nkey_id{a=\"b,c}\",d=\"q\\\"\\n\"} 1.7e9\nother 1\nkey_total 3 99\n\
                    key_bad{a=\"x} 1\nkey_last 4";
        let whole = read(Full::new(Bytes::from(text)), &["key_"]).await.unwrap();
        assert_eq!(whole.len(), 3, "{whole:?}");
        assert_eq!(whole[0].label("a"), Some("b,c}"));
        assert_eq!(whole[0].label("d"), Some("q\"\n"));
        assert_eq!((whole[0].value, whole[1].value, whole[2].value), (1.7e9, 3.0, 4.0));
        let bytes = text.as_bytes().chunks(1).map(|byte| {
            Ok::<_, std::convert::Infallible>(Frame::data(Bytes::copy_from_slice(byte)))
        });
        let cut = StreamBody::new(futures_util::stream::iter(bytes.collect::<Vec<_>>()));
        assert_eq!(read(cut, &["key_"]).await.unwrap(), whole);
    }

    #[tokio::test]
    async fn an_endless_line_is_not_kept() {
        let text = format!("key_a{{x=\"{}\"}} 1\nkey_b 2\n", "y".repeat(MAX_LINE * 2));
        let found = read(Full::new(Bytes::from(text)), &["key_"]).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "key_b");
    }
}
