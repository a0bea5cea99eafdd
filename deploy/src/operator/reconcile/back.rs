//! What was retired, and how it comes back: etcd restored from a backup may need it again.

use super::numbers::number;
use super::report::Report;
use super::writes::Writes;
use crate::model::SecretEncryption;
use crate::operator::status::Retired;

/// Names that nothing stored carries any more are not brought back by a document that has had them
/// all along; one that was left out and is named again is. What writes has not been retired.
/// Gives the names that are left out.
pub(super) fn forget(wanted: &mut SecretEncryption, report: &mut Report) -> Vec<String> {
    let retired = &mut report.now.retired;
    for one in retired.iter_mut().filter(|one| number(one).is_none()) {
        one.left |= !names(wanted, &one.id);
    }
    let writes = Writes::wanted(wanted);
    let kept = |one: &&Retired| !one.left && number(one).is_none();
    let gone = retired.iter().filter(kept).map(|one| one.id.clone());
    let gone: Vec<String> =
        gone.filter(|name| names(wanted, name) && writes != Writes::Name(name.clone())).collect();
    wanted.spec.adopt.retain(|adoption| !gone.contains(&adoption.name));
    wanted.spec.ciphers.retain(|cipher| !gone.contains(&cipher.name));
    gone
}

/// What people are told of names that are left out.
pub(super) fn left_out(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(
        "; left out, because nothing stored carries it: {} (should a backup bring such data back, \
         take the name out of the spec, and put it in again)",
        names.join(", ")
    )
}

/// What is published again is not retired any more; and what is stored under it, which nobody has
/// counted since, is to be rewritten.
pub(super) fn note_returned(published: &SecretEncryption, report: &mut Report) {
    let back = |one: &Retired| match number(one) {
        Some(id) => published.spec.keys.iter().any(|key| key.id.0 == id),
        None => names(published, &one.id),
    };
    let (back, retired) = std::mem::take(&mut report.now.retired).into_iter().partition(back);
    report.now.retired = retired;
    let back: Vec<Retired> = back;
    if !back.is_empty() {
        report.now.encrypted_under = None;
    }
    for one in back {
        let note = format!("{} ({}) was retired, and reads again", one.id, one.vendor);
        report.event(false, "Returned", note);
    }
}

/// Whether a document has a cipher or an adopted provider of this name.
fn names(document: &SecretEncryption, name: &str) -> bool {
    document.spec.adopt.iter().any(|adoption| adoption.name == name)
        || document.spec.ciphers.iter().any(|cipher| cipher.name == name)
}
