//! What ovh/okms-k8s-encryption-provider writes and reads.
//!
//! By REST it stores the ciphertext as OKMS gave it, without a `context`. By KMIP it stores ciphertext
//! and tag, without additional authenticated data, and in annotations the IV and the algorithm. Its
//! key_id is the id of the key, as it was typed or as OKMS writes it. When it reads it takes the key
//! from the key_id, whatever key it was started with.

use std::collections::BTreeMap;

use bytes::Bytes;
use sidekey_core::config::Problems;
use sidekey_core::{Error, KeyId, Kind, Sealed};

use crate::Okms;
use crate::config::{Config, Settings};

/// Of AES-GCM.
pub(crate) const IV_LEN: usize = 12;
const IV: &str = "iv.okms.ovh.com";
const ALGORITHM: &str = "alg.okms.ovh.com";
/// The only one that there is; also where none is named.
const AES_GCM: &[u8] = b"AES_GCM";

/// The data of every key that the certificate may use: OVHcloud's IAM alone decides.
pub(crate) const ANY: &str = "*";

/// An id as OKMS writes it, from any of the forms that Go reads: in upper case, in braces, without
/// dashes, as a URN.
pub(crate) fn uuid(text: &str) -> Option<String> {
    let braced = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let is_urn = text.get(..9).is_some_and(|head| head.eq_ignore_ascii_case("urn:uuid:"));
    let urn = is_urn.then(|| &text[9..]);
    let bare = braced.or(urn).unwrap_or(text);
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
pub(crate) fn check(config: &Config, problems: &mut Problems) {
    for (index, id) in config.settings.also_reads.iter().enumerate() {
        if id != ANY && config.kek.id(id).is_none() {
            let text =
                "is no id of a key: write a UUID, or * for every key that the certificate may use";
            problems.add(&format!("settings.alsoReads[{index}]"), text);
        }
    }
}

/// What goes along with data by KMIP.
pub(crate) fn annotations(iv: &[u8]) -> BTreeMap<String, Bytes> {
    let noted = [(IV, Bytes::copy_from_slice(iv)), (ALGORITHM, Bytes::from_static(AES_GCM))];
    noted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The IV of data by KMIP; annotations come from etcd and may be forged.
pub(crate) fn iv(sealed: &Sealed) -> Result<&[u8], Error> {
    let noted = |name| sealed.annotations.get(name);
    let known = noted(ALGORITHM).is_none_or(|algorithm| &algorithm[..] == AES_GCM);
    let iv = noted(IV).filter(|iv| known && iv.len() == IV_LEN);
    let text = "the annotations are not those of data that was encrypted by KMIP";
    iv.map(|iv| &iv[..]).ok_or_else(|| Error::new(Kind::Corrupt, text))
}

impl Okms {
    /// The key_id of a key in that plugin's form: an id that was configured is as it was typed.
    pub(crate) fn plugin_key_id(&self, id: &str) -> Result<KeyId, Error> {
        KeyId::new(self.config.kek.key.as_deref().unwrap_or(id))
    }

    /// The key that a key_id of that plugin's names, if that is ours or one that the configuration
    /// allows. Whoever writes in its form under a label has written with keys that had it before.
    pub(crate) fn adopted(&self, key_id: &KeyId) -> Option<String> {
        let Config { kek, settings: Settings { also_reads, plugin_format, .. }, .. } = &self.config;
        let id = kek.id(key_id.as_str())?;
        let named = |other: &String| other == ANY || kek.id(other).as_ref() == Some(&id);
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
