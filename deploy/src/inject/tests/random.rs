//! Random manifests, written in random ways.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Decisions, drawn from random bytes; when they are used up it is always the first choice.
struct Dice(std::vec::IntoIter<u8>);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.0.next().unwrap_or(0)) % limit
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// A manifest: kube-apiserver is in it, and by chance much else.
fn manifest(dice: &mut Dice) -> Value {
    let mut container = json!({"name": "kube-apiserver", "image": "a:1"});
    if dice.yes() {
        container["args"] = list(dice, &ARGS).into_iter().map(Value::from).collect();
    }
    if dice.yes() {
        container["command"] = json!(["kube-apiserver", "--v=1"]);
    }
    if dice.yes() {
        container["volumeMounts"] = match dice.below(3) {
            0 => Value::Null,
            1 => json!([]),
            _ => json!([{"name": "x", "mountPath": "/x"}]),
        };
    }
    let mut containers = vec![container];
    if dice.yes() {
        let other = json!({"name": "other", "env": [{"name": "TEXT", "value": dice.one(&TEXTS)}]});
        containers.insert(dice.below(2), other);
    }
    let mut spec = json!({"containers": containers, "hostNetwork": true});
    for field in ["initContainers", "volumes"] {
        match dice.below(4) {
            0 => {}
            1 => spec[field] = Value::Null,
            2 => spec[field] = json!([]),
            _ => spec[field] = json!([{"name": "y", "note": dice.one(&TEXTS)}]),
        }
    }
    let mut metadata = json!({"name": "a", "labels": {"note": dice.one(&TEXTS)}});
    match dice.below(4) {
        0 => {}
        1 => metadata["annotations"] = Value::Null,
        2 => metadata["annotations"] = json!({}),
        _ => metadata["annotations"] = json!({"note": dice.one(&TEXTS)}),
    }
    match dice.below(3) {
        0 => json!({"kind": "Pod", "metadata": metadata, "spec": spec}),
        1 => {
            json!({"kind": "DaemonSet", "spec": {"template": {"metadata": metadata, "spec": spec}}})
        }
        _ => {
            json!({"kind": "Deployment", "spec": {"template": {"spec": spec}}, "status": {"x": 1}})
        }
    }
}

const ARGS: [&str; 5] = [
    "--a=b",
    "--encryption-provider-config=/old # x",
    "--encryption-provider-config-automatic-reload",
    "it's: \"quoted\"",
    "",
];

const TEXTS: [&str; 8] = [
    "plain",
    "two\nlines\n",
    "---\nkind: Pod\n- a: b\n",
    "  indented\n\tand tabbed\n",
    "kept\n\n\n",
    "# no comment",
    "ünï 😀",
    "{a: [b]}",
];

fn list(dice: &mut Dice, of: &[&'static str]) -> Vec<&'static str> {
    of.iter().copied().filter(|_| dice.yes()).collect()
}

/// A value in lines, in one of many ways.
fn lines(value: &Value, column: usize, dice: &mut Dice) -> Vec<String> {
    let comment = |dice: &mut Dice, lines: &mut Vec<String>| {
        match dice.below(6) {
            4 => lines.push(format!("{:column$}# - comment: [", "")),
            5 => lines.push(String::new()),
            _ => {}
        };
    };
    let mut out = Vec::new();
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                comment(dice, &mut out);
                let offset = if value.is_array() && dice.yes() { 0 } else { 2 };
                out.extend(under(&format!("{:column$}{key}:", ""), value, column + offset, dice));
            }
        }
        Value::Array(items) => {
            for item in items {
                comment(dice, &mut out);
                if item.is_object() && !dice.yes() {
                    let mut inner = lines(item, column + 2, &mut Dice(vec![].into_iter()));
                    inner[0].replace_range(column..=column, "-");
                    out.extend(inner);
                } else {
                    out.extend(under(&format!("{:column$}-", ""), item, column + 2, dice));
                }
            }
        }
        _ => unreachable!(),
    }
    out
}

/// A value behind a key or a dash.
fn under(head: &str, value: &Value, column: usize, dice: &mut Dice) -> Vec<String> {
    let note = if dice.below(5) == 4 { "   # note" } else { "" };
    let full = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if full && dice.below(4) < 3 {
        let inner = lines(value, column, dice);
        return [format!("{head}{note}")].into_iter().chain(inner).collect();
    }
    match value {
        Value::Null => vec![format!("{head}{}{note}", dice.one(&["", " null", " ~"]))],
        Value::String(text) if text.contains('\n') && !text.starts_with(' ') && dice.yes() => {
            let keep = if text.ends_with("\n\n") { "+" } else { "" };
            let inner = text.lines().map(|line| format!("{:column$}  {line}", ""));
            let inner = inner.map(|line| line.trim_end_matches(' ').to_owned());
            [format!("{head} |{keep}{note}")].into_iter().chain(inner).collect()
        }
        Value::String(text) if dice.yes() && !text.contains('\n') => {
            vec![format!("{head} '{}'{note}", text.replace('\'', "''"))]
        }
        // JSON is YAML.
        _ => vec![format!("{head} {value}{note}")],
    }
}

fn written(value: &Value, dice: &mut Dice) -> String {
    let text = match dice.below(6) {
        0 => return value.to_string(),
        1 => return format!("{value:#}\n"),
        _ => lines(value, 0, dice),
    };
    let newline = dice.one(&["\n", "\n", "\r\n"]);
    let mut text = text.join(newline);
    text.push_str(if dice.below(4) == 3 { "" } else { newline });
    match dice.below(4) {
        0 => format!("---{newline}{text}"),
        1 => format!("# head{newline}{newline}{text}"),
        _ => text,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn out_is_the_opposite_of_in_and_twice_is_once(bytes in vec(any::<u8>(), 0..200)) {
        let mut dice = Dice(bytes.into_iter());
        let value = manifest(&mut dice);
        let text = written(&value, &mut dice);
        let crlf = text.contains("\r\n");
        // What a text says is what was meant: else the test would be of something else.
        let read = document(&text).unwrap();
        prop_assume!(crlf || read == value);
        let vendors: &[&str] = if dice.yes() { &["aws"] } else { &["local", "vault"] };

        let once = inject(&text, &sidekey(vendors));
        prop_assert!(once.is_ok(), "{}\n{text}", once.unwrap_err().report());
        let once = once.unwrap().text;
        prop_assert_eq!(&inject(&once, &sidekey(vendors)).unwrap().text, &once);
        prop_assert_eq!(&uninject(&once).unwrap().text, &text);

        let out = document(&once).unwrap();
        let pod = |value: &Value| match value["kind"].as_str() {
            Some("Pod") => value["spec"].clone(),
            _ => value["spec"]["template"]["spec"].clone(),
        };
        let (before, after) = (pod(&read), pod(&out));
        let mut expected = names(&before["initContainers"]);
        let ours: Vec<String> = vendors.iter().map(|vendor| format!("sidekey-{vendor}")).collect();
        expected.extend(ours.iter().map(String::as_str));
        expected.push("sidekey-shim");
        prop_assert_eq!(names(&after["initContainers"]), expected);
        prop_assert_eq!(names(&after["containers"]), names(&before["containers"]));
        let server = |spec: &Value| {
            let containers = spec["containers"].as_array().unwrap().clone();
            containers.into_iter().find(|item| item["name"] == "kube-apiserver").unwrap()
        };
        let words = ["command", "args"].map(|field| server(&after)[field].to_string()).join(" ");
        for flag in ["=/etc/kubernetes/encryption/encryption.yaml\"", "-automatic-reload=true\""] {
            prop_assert_eq!(words.matches(flag).count(), 1, "{}", words);
        }
    }
}
