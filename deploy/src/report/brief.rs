//! Answers that fit a container's termination message.
//!
//! Kubernetes keeps 4 KiB of it. Long lists lose their ends first, then long texts; what was
//! taken away is said. Something that is of use only when it is whole is kept so, or left out.

use serde_json::Value;

/// The most that Kubernetes keeps.
const LIMIT: usize = 4096;
/// Of use only when they are whole.
const WHOLE: [&str; 1] = ["canary"];
/// What lists and texts are cut to, from one attempt to the next.
const CUTS: [(usize, usize); 6] = [(50, 1024), (20, 512), (10, 256), (5, 160), (2, 120), (1, 60)];

/// The document on one line, cut as little as it takes.
pub(super) fn fit(document: Value) -> String {
    let text = document.to_string();
    if text.len() <= LIMIT {
        return text;
    }
    for (items, chars) in CUTS {
        let text = marked(cut(&document, items, chars)).to_string();
        if text.len() <= LIMIT {
            return text;
        }
    }
    let mut bare = cut(&document, 0, 60);
    drop_whole(&mut bare);
    let text = marked(bare).to_string();
    if text.len() <= LIMIT { text } else { r#"{"shortened":true}"#.to_owned() }
}

fn marked(mut document: Value) -> Value {
    if let Value::Object(map) = &mut document {
        map.insert("shortened".to_owned(), true.into());
    }
    document
}

fn cut(value: &Value, items: usize, chars: usize) -> Value {
    match value {
        Value::Array(list) => list.iter().take(items).map(|one| cut(one, items, chars)).collect(),
        Value::Object(map) => {
            let entries = map.iter().map(|(name, value)| {
                let whole = WHOLE.contains(&name.as_str());
                (name.clone(), if whole { value.clone() } else { cut(value, items, chars) })
            });
            Value::Object(entries.collect())
        }
        Value::String(text) if text.chars().count() > chars => {
            let head: String = text.chars().take(chars).collect();
            format!("{head}…").into()
        }
        other => other.clone(),
    }
}

fn drop_whole(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !WHOLE.contains(&name.as_str()));
            map.values_mut().for_each(drop_whole);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_whole),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        assert!(text.len() <= LIMIT, "{} bytes", text.len());
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let document = json!({"verdict": "ready", "keys": [{"steps": vec!["x"; 60]}]});
        assert_eq!(read(&fit(document.clone())), document);
    }

    #[test]
    fn lists_and_texts_lose_their_ends_and_a_canary_stays_whole() {
        let canary = json!({"ciphertext": "c".repeat(1300), "sha256": "00"});
        let failures: Vec<Value> = (0..1000)
            .map(|n| json!({"object": format!("default/{n}"), "reason": "é".repeat(700)}))
            .collect();
        let document = json!({"complete": false, "canary": canary, "failures": failures});
        let brief = read(&fit(document));
        assert_eq!(brief["canary"], canary);
        assert_eq!(brief["complete"], false);
        assert_eq!(brief["shortened"], true);
        assert_eq!(brief["failures"][0]["object"], "default/0");
        assert!(brief["failures"][0]["reason"].as_str().unwrap().ends_with('…'));
    }

    #[test]
    fn what_is_too_large_to_be_whole_is_left_out() {
        let document = json!({"verdict": "ready", "canary": {"ciphertext": "c".repeat(9000)}});
        assert_eq!(read(&fit(document)), json!({"verdict": "ready", "shortened": true}));
        let many: serde_json::Map<String, Value> =
            (0..1000).map(|n| (format!("field-{n}"), n.into())).collect();
        assert_eq!(read(&fit(many.into())), json!({"shortened": true}));
    }
}
