//! Takes out what the annotation says was put in.

use super::pods::{Object, named};
use super::record::Record;
use super::text::{Draft, Node, Path};
use super::{Change, flags};

/// Takes everything out that is noted in the pod; nothing, if nothing is.
pub(super) fn strip(
    draft: &mut Draft,
    object: &Object,
    warnings: &mut Vec<String>,
) -> Result<Option<Change>, Vec<String>> {
    let record = match Record::read(draft, object) {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(None),
        Err(problem) => return Err(vec![problem]),
    };
    take(draft, object, &record, warnings).map_err(|problem| vec![problem])?;
    let containers = record.init_containers.iter().chain(&record.containers).cloned().collect();
    let profile = record.profile;
    Ok(Some(Change { object: object.to_string(), containers, profile }))
}

fn take(
    draft: &mut Draft,
    object: &Object,
    record: &Record,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    // In the opposite order, so that each finds the text as it left it.
    record.erase(draft, object)?;
    match object.container(draft, &record.container) {
        Some(container) => {
            for flag in record.flags.iter().rev() {
                if !flags::unset(draft, &container, flag, record)? {
                    let name = &flag.name;
                    warnings.push(format!("{object}: {name} was changed since; it stays as it is"));
                }
            }
            for path in record.mounts.iter().rev() {
                let is = |mount: &Node| mount.get("mountPath").and_then(Node::text) == Some(path);
                take_all(draft, &container, "volumeMounts", is, record)?;
            }
        }
        None => warnings.push(format!(
            "{object}: there is no container {} any more; its flags and mounts were left alone",
            record.container
        )),
    }
    let spec = object.spec();
    let lists = [
        ("volumes", &record.volumes),
        ("containers", &record.containers),
        ("initContainers", &record.init_containers),
    ];
    for (field, names) in lists {
        for name in names.iter().rev() {
            take_all(draft, &spec, field, |item| named(item, name), record)?;
        }
    }
    Ok(())
}

fn take_all(
    draft: &mut Draft,
    map: &Path,
    field: &str,
    is: impl Fn(&Node) -> bool,
    record: &Record,
) -> Result<(), String> {
    let find = |draft: &Draft| draft.at(&map.key(field))?.items().iter().position(&is);
    while let Some(index) = find(draft) {
        take_out(draft, map, field, index, record)?;
    }
    Ok(())
}

/// Takes an item out of a list, and with the last one the list, if it was not there before.
pub(super) fn take_out(
    draft: &mut Draft,
    map: &Path,
    field: &str,
    index: usize,
    record: &Record,
) -> Result<(), String> {
    let list = map.key(field);
    let last = draft.at(&list).is_some_and(|list| list.items().len() == 1);
    match record.fields.get(field).filter(|_| last) {
        Some(None) => draft.remove(map, field),
        Some(Some(raw)) => draft.restore(map, field, raw),
        None => draft.remove_item(&list, index),
    }
}
