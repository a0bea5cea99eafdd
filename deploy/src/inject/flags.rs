//! The flags of an API server, where they can be edited.

use serde_json::Value;

use super::record::{Flag, Record};
use super::text::{Draft, Kind, Node, Path};

/// What tells an API server how to encrypt.
pub(super) const CONFIG: &str = "--encryption-provider-config";
/// What makes it follow changes of that file.
pub(super) const RELOAD: &str = "--encryption-provider-config-automatic-reload";

const SHELLS: [&str; 7] = ["sh", "bash", "ash", "dash", "ksh", "zsh", "busybox"];

/// Flags that lead to a file with flags.
const FILES: [&str; 2] = ["--config", "--openshift-config"];

/// Where a container has its flags: in its `args`, or in its `command`.
pub(super) fn field(container: &Node) -> Result<&'static str, String> {
    let words = words(container);
    let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
    let script = |word: &&str| {
        word.contains('\n') || (!word.starts_with('-') && word.contains(' ') && word.contains("--"))
    };
    if SHELLS.contains(&program) || words.iter().any(script) {
        return Err("its flags are inside a shell's command".to_owned());
    }
    let is = |word: &str, flag: &str| {
        word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let file = words.iter().find(|word| FILES.iter().any(|flag| is(word, flag)));
    if let Some(file) = file {
        return Err(format!("its flags are in a file ({file}; apiServerArguments, on OpenShift)"));
    }
    let has = |field: &str| container.get(field).is_some_and(|list| !list.items().is_empty());
    Ok(if !has("args") && has("command") { "command" } else { "args" })
}

fn words(container: &Node) -> Vec<&str> {
    let lists = ["command", "args"].into_iter().filter_map(|field| container.get(field));
    lists.flat_map(Node::items).filter_map(Node::text).collect()
}

/// Whether a flag is there, and more than once.
pub(super) fn given_twice(container: &Node, name: &str) -> bool {
    let is = |word: &&str| {
        word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    words(container).into_iter().filter(is).count() > 1
}

/// Sets a flag: in the place of the one that is there, or as the last one.
pub(super) fn set(
    draft: &mut Draft,
    container: &Path,
    (name, value): (&str, &str),
    record: &mut Record,
) -> Result<(), String> {
    let text = format!("{name}={value}");
    let Some((path, set)) = find(draft, container, name, value) else {
        let node = draft.at(container).ok_or("the container is gone")?;
        let field = field(node)?;
        let origin = draft.append(container, field, &Value::String(text.clone()))?;
        record.field(field, origin);
        record.flags.push(Flag { name: name.to_owned(), set: text, was: None, raw: None });
        return Ok(());
    };
    let was = draft.at(&path).and_then(Node::text).unwrap_or_default().to_owned();
    if was == set {
        return Ok(());
    }
    let raw = draft.raw(&path).filter(|raw| *raw != was).map(str::to_owned);
    draft.rewrite(&path, &set, None)?;
    record.flags.push(Flag { name: name.to_owned(), set, was: Some(was), raw });
    Ok(())
}

/// The item that holds a flag's value, and the text that it should be.
fn find(draft: &Draft, container: &Path, name: &str, value: &str) -> Option<(Path, String)> {
    for field in ["command", "args"] {
        let list = container.key(field);
        let items = draft.at(&list).map_or(&[][..], Node::items);
        for (index, item) in items.iter().enumerate() {
            let Some(rest) = item.text().and_then(|text| text.strip_prefix(name)) else { continue };
            if rest.starts_with('=') {
                return Some((list.index(index), format!("{name}={value}")));
            }
            if !rest.is_empty() {
                continue;
            }
            let next = items.get(index + 1).and_then(Node::text);
            // A switch alone, or a flag with its value behind it.
            return Some(match next.filter(|next| !next.starts_with('-') && name == CONFIG) {
                Some(_) => (list.index(index + 1), value.to_owned()),
                None => (list.index(index), format!("{name}={value}")),
            });
        }
    }
    None
}

/// Takes a flag back. False if somebody has changed it since.
pub(super) fn unset(
    draft: &mut Draft,
    container: &Path,
    flag: &Flag,
    record: &Record,
) -> Result<bool, String> {
    for field in ["command", "args"] {
        let list = container.key(field);
        let items = draft.at(&list).map_or(&[][..], Node::items);
        let before = |index: usize| items.get(index).and_then(Node::text);
        let ours = |index: usize, item: &Node| {
            item.text() == Some(&flag.set)
                && (flag.set.starts_with("--")
                    || index.checked_sub(1).and_then(before) == Some(&flag.name))
        };
        let found = items.iter().enumerate().find(|(index, item)| ours(*index, item));
        let Some(index) = found.map(|(index, _)| index) else { continue };
        match &flag.was {
            Some(was) => {
                let raw = flag.raw.as_deref().unwrap_or(was);
                draft.rewrite(&list.index(index), was, Some(raw))?;
            }
            None => super::strip::take_out(draft, container, field, index, record)?,
        }
        return Ok(true);
    }
    Ok(false)
}

/// Whether a list of flags can be read at all.
pub(super) fn readable(container: &Node) -> bool {
    ["command", "args"].into_iter().filter_map(|field| container.get(field)).all(|list| {
        !matches!(list.kind, Kind::Alias(_))
            && list.items().iter().all(|item| item.text().is_some())
    })
}
