//! What ovh/okms-k8s-encryption-provider writes and reads.
//!
//! By REST it stores the ciphertext as OKMS gave it, without a `context`. Its key_id is the id of the
//! key, as it was typed or as OKMS writes it. When it reads it takes the key from the key_id,
//! whatever key it was started with.

use sidekey_core::config::Problems;
use sidekey_core::{Error, KeyId};

use crate::Okms;
use crate::config::Settings;

/// The data of every key that the certificate may use: OVHcloud's IAM alone decides.
pub(crate) const ANY: &str = "*";

/// An id as OKMS writes it, from any of the forms that Go reads: in upper case, in braces, without
/// dashes, as a URN.
pub(crate) fn uuid(text: &str) -> Option<String> {
    let braced = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let urn = text.get(..9).filter(|head| head.eq_ignore_ascii_case("urn:uuid:"));
    let bare = braced.or(urn.map(|_| &text[9..])).unwrap_or(text);
    let parts: Vec<&str> = bare.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let undashed = braced.is_none() && urn.is_none() && lengths == [32];
    let hex = parts.concat();
    let sound = (undashed || lengths == [8, 4, 4, 4, 12])
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let at = |from: usize, to: usize| hex[from..to].to_ascii_lowercase();
    sound.then(|| [at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32)].join("-"))
}

/// Reports mistakes in what is there for the sake of that plugin.
pub(crate) fn check(settings: &Settings, problems: &mut Problems) {
    for (index, id) in settings.also_reads.iter().enumerate() {
        if id != ANY && uuid(id).is_none() {
            let text =
                "is no id of a key: write a UUID, or * for every key that the certificate may use";
            problems.add(&format!("settings.alsoReads[{index}]"), text);
        }
    }
}

impl Okms {
    /// The key_id of a key in that plugin's form: an id that was configured is as it was typed.
    pub(crate) fn plugin_key_id(&self, id: &str) -> Result<KeyId, Error> {
        KeyId::new(self.config.kek.key.as_deref().unwrap_or(id))
    }

    /// The key that a key_id of that plugin's names, if that is ours or one that the configuration
    /// allows. Whoever writes in its form under a label has written with keys that had it before.
    pub(crate) fn adopted(&self, key_id: &KeyId) -> Option<String> {
        let Settings { also_reads, plugin_format, .. } = &self.config.settings;
        let id = uuid(key_id.as_str())?;
        let named = |other: &String| other == ANY || uuid(other).as_ref() == Some(&id);
        let own = self.key.as_ref().map_or(*plugin_format, |key| *key == id);
        (own || also_reads.iter().any(named)).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_in_every_form_that_go_reads_and_in_no_other() {
        let id = "70001308-5674-43fe-93dd-6270ecac0710";
        for text in [
            id.to_owned(),
            id.to_uppercase(),
            format!("{{{id}}}"),
            format!("urn:uuid:{id}"),
            format!("URN:UUID:{}", id.to_uppercase()),
            id.replace('-', ""),
        ] {
            assert_eq!(uuid(&text).as_deref(), Some(id), "{text}");
        }
        for text in [
            "",
            "*",
            "70001308",
            &format!("{id}0"),
            &format!("{{{id}"),
            &format!("urn:uuid:{{{id}}}"),
            &format!("{{{}}}", id.replace('-', "")),
            &id.replace('0', "g"),
            &id.replace("43fe", "43é"),
            &id.replacen('-', "", 1),
            "urn:uuid:",
            "ürn:uuid:70001308-5674-43fe-93dd-6270ecac0710",
        ] {
            assert_eq!(uuid(text), None, "{text}");
        }
    }
}
