//! OpenShift's APIServer as a SecretEncryption.

use kube::api::DynamicObject;
use serde_json::{Map, Value, json};
use sidekey_core::Secret;

use super::adopt::{self, Past};
use super::apply::Draft;
use super::hosted::{add_past, head};
use super::ledger::Ledger;
use super::numbers::Numbers;
use super::settings::Settings;
use super::sources::{self, Copies};
use super::{Failure, Fault, Front, OPENSHIFT_PLANE};
use crate::Error;
use crate::model::{CipherKind, KeyNumber, SecretEncryption, Writer};
use crate::operator::status::Status;
use crate::render::apiserver::{ApiServer, Mode, parse};
use crate::render::profile::Profile;

/// The namespace that an APIServer's references are in.
pub(super) const SOURCES: &str = "openshift-config";
/// OpenShift's own EncryptionConfiguration, and where it is.
const NATIVE: (&str, &str, &str) =
    ("openshift-config-managed", "encryption-config-openshift-kube-apiserver", "encryption-config");
/// What AES takes at most.
const CIPHER_KEY: usize = 32;

/// What an APIServer comes to; nothing where nothing was encrypted and nothing is to be.
pub(super) async fn draft(
    front: &Front<'_>,
    existing: Option<&DynamicObject>,
) -> Result<Option<Draft>, Failure> {
    front.check_ours(existing)?;
    let mut object = json!({"metadata": {"name": front.name}});
    if let Some(encryption) = front.object.data["spec"].get("encryption") {
        object["spec"]["encryption"] = encryption.clone();
    }
    let server =
        parse(&object).map_err(|problems| Failure::fault(Fault::INVALID, problems.to_string()))?;
    let mut settings = Settings::of(front)?;
    let past = native(front, existing).await?;
    if existing.is_none() && server.mode == Mode::Identity && past.ciphers.is_empty() {
        return Ok(None);
    }
    let numbers = Numbers::of(existing, &head(front, existing).await?);
    let mut encryption = translate(&server, &numbers);
    let mut last = encryption.spec.keys.iter().map(|key| key.id.0).max().unwrap_or_default();
    let mut copies = Copies::load(front, existing).await?;
    encryption.spec.ciphers.clear();
    if let Mode::Cipher(kind) = server.mode {
        let kept = existing.and_then(|existing| writing(existing, kind));
        let name = match kept {
            Some(name) => name,
            None => {
                last = numbers.last() + 1;
                let name = format!("{}-{last}", kind.label());
                let made = copies.made(&name).map_or_else(random, Ok)?;
                encryption.spec.ciphers.push(copies.cipher(&name, kind, made.expose()).await?);
                name
            }
        };
        encryption.spec.write = Writer::Cipher(name);
    }
    add_past(&mut encryption, past, &mut copies).await?;
    front.dress(&mut encryption.spec.keys, &mut settings, &mut copies).await?;
    let (kept, ledger, last) = (Vec::new(), Ledger::default(), last.max(numbers.last()));
    let plane = plane(&encryption);
    Ok(Some(Draft { encryption, kept, plane, ledger, settings, last }))
}

/// Numbers go by the KEK; of a plugin that others run, by where it listens.
fn translate(server: &ApiServer, numbers: &Numbers) -> SecretEncryption {
    let next = numbers.last() + 1;
    let ours = |id: u64, known: &[_]| {
        server.translate(Profile::Sidekey, OPENSHIFT_PLANE, KeyNumber(id), known)
    };
    if let Mode::Endpoint(endpoint) = &server.mode {
        let fingerprint = sidekey_core::fingerprint(&json!({"endpoint": endpoint}));
        let mut encryption = ours(numbers.writer(&fingerprint).unwrap_or(next), &[]);
        for key in &mut encryption.spec.keys {
            key.given_fingerprint = Some(fingerprint.clone());
        }
        return encryption;
    }
    let first = ours(next, &[]).writer().map(|key| key.fingerprint());
    ours(next, &numbers.known(first.as_deref()))
}

/// The cipher of this kind that is to write already.
fn writing(existing: &DynamicObject, kind: CipherKind) -> Option<String> {
    let spec = &existing.data["spec"];
    let mut ciphers = spec["ciphers"].as_array()?.iter();
    let same = |cipher: &&Value| cipher["name"] == spec["write"] && cipher["type"] == kind.label();
    ciphers.find(same)?["name"].as_str().map(str::to_owned)
}

fn random() -> Result<Secret, Error> {
    let mut bytes = vec![0; CIPHER_KEY];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::failed("there is no randomness"))?;
    Ok(Secret::new(bytes))
}

fn plane(encryption: &SecretEncryption) -> Map<String, Value> {
    let plane = &encryption.spec.control_plane;
    let fields = [("selector", json!(plane.selector)), ("container", json!(plane.container))];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What OpenShift encrypted itself, until the SecretEncryption says what writes.
async fn native(front: &Front<'_>, existing: Option<&DynamicObject>) -> Result<Past, Failure> {
    if existing.is_some_and(|existing| Status::of(existing).active_key.is_some()) {
        return Ok(Past::default());
    }
    let (namespace, secret, file) = NATIVE;
    let content = sources::entry(front, namespace, secret, file).await?;
    let Some(content) = content else { return Ok(Past::default()) };
    // Plugins that OpenShift runs itself have names that tell nothing of their key.
    adopt::past(&format!("Secret {namespace}/{secret}"), content.expose(), &[], |_| false)
}
