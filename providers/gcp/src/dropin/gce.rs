//! The file of `--gce-config`, as GCE's cloud provider has it: where the machine's token is
//! exchanged for another one.

use std::collections::BTreeMap;

use bytes::Bytes;
use sidekey_core::{Error, Files, Kind};

use crate::config::Config;

/// The address and the body of the exchange, if one is configured.
pub(crate) fn exchange(config: &Config, files: &Files) -> Result<Option<(String, Bytes)>, Error> {
    let Some(path) = &config.credentials.gce_config else { return Ok(None) };
    let text = files.secret(path)?;
    let text = text.as_text().ok_or_else(|| bad("is not text"))?;
    let global = global(text)?;
    let set = |name| global.get(name).filter(|value: &&String| !value.is_empty());
    match (set("token-url"), set("token-body")) {
        (None, None) => Ok(None),
        (Some(url), body) => {
            let body = body.cloned().unwrap_or_default();
            Ok(Some((url.clone(), body.into())))
        }
        (None, Some(_)) => Err(bad("has a token-body and no token-url")),
    }
}

/// What stands in the section `global`.
fn global(text: &str) -> Result<BTreeMap<String, String>, Error> {
    let (mut values, mut counts) = (BTreeMap::new(), false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = || bad(&format!("cannot be read in line {}", index + 1));
        if line.is_empty() || line.starts_with(['#', ';']) {
        } else if let Some(section) = line.strip_prefix('[') {
            let (section, _) = section.split_once(']').ok_or_else(wrong)?;
            counts = section.trim().eq_ignore_ascii_case("global");
        } else if counts {
            // A name alone is a switch.
            let (name, text) = line.split_once('=').unwrap_or((line, ""));
            let value = value(text.trim()).ok_or_else(wrong)?;
            values.insert(name.trim().to_ascii_lowercase(), value);
        }
    }
    Ok(values)
}

/// A value in quotes, without them, or in parts; a comment ends it.
fn value(text: &str) -> Option<String> {
    let (mut value, mut quoted, mut kept) = (String::new(), false, 0);
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '"' => quoted = !quoted,
            '\\' => value.push(match signs.next()? {
                'n' => '\n',
                't' => '\t',
                'b' => '\u{8}',
                sign @ ('\\' | '"') => sign,
                _ => return None,
            }),
            '#' | ';' if !quoted => break,
            sign => value.push(sign),
        }
        if quoted || !sign.is_whitespace() {
            kept = value.len();
        }
    }
    value.truncate(kept);
    (!quoted).then_some(value)
}

fn bad(what: &str) -> Error {
    Error::new(Kind::Config, format!("credentials.gceConfig {what}"))
        .with_hint("write [global], token-url and token-body, as GCE's cloud provider reads them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_the_cloud_provider_reads_it() {
        let text = r#"
# a comment
[Global]
token-url = https://container.googleapis.com/v1/masterProjects/1:authenticate ; another
token-body = "{\"name\": \"c # 1\"}"
Multizone
[other]
token-url = https://stranger
"#;
        let values = global(text).unwrap();
        let url = "https://container.googleapis.com/v1/masterProjects/1:authenticate";
        assert_eq!(values["token-url"], url);
        assert_eq!(values["token-body"], r#"{"name": "c # 1"}"#);
        for bad in ["[global", "[global]\ntoken-url = \"open", "[global]\na = \\x"] {
            assert_eq!(global(bad).unwrap_err().kind(), Kind::Config, "{bad}");
        }
        assert!(global("token-url = before any section").unwrap().is_empty());
    }
}
