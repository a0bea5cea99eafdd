//! A HostedCluster as a SecretEncryption.

use kube::api::DynamicObject;
use serde_json::{Value, json};
use sidekey_core::config::document;

use super::adopt::{self, Past};
use super::apply::Draft;
use super::ledger::Ledger;
use super::numbers::{Numbers, fingerprint};
use super::owners::{Owners, Step};
use super::settings::Settings;
use super::sources::{self, Copies};
use super::{Failure, Fault, Front};
use crate::Error;
use crate::model::{
    API_VERSION, FileSource, KIND, Key, KeyNumber, SecretEncryption, Token, names, resources,
};
use crate::operator::status::Status;
use crate::render::ResolvedFiles;
use crate::render::hosted::{Hosted, Identity, KnownKey, parse};

/// HyperShift's own EncryptionConfiguration, in the control plane's namespace.
const NATIVE: (&str, &str) = ("kas-secret-encryption-config", "config.yaml");
/// The entry of a Secret with an AWS configuration.
const AWS_ENTRY: &str = "credentials";

/// What a HostedCluster comes to.
pub(super) async fn draft(
    front: &Front<'_>,
    existing: Option<&DynamicObject>,
) -> Result<Draft, Failure> {
    front.check_ours(existing)?;
    let mut hosted = read(front, existing)?;
    let mut settings = Settings::of(front)?;
    if let Some((vendor, text)) = hosted.unsaid_login()
        && !settings.logs_in(vendor)
    {
        return Err(Failure::fault(Fault::INVALID, text));
    }
    find_role(front, &mut hosted).await?;
    let contents = contents(front, &hosted).await?;
    let numbers = Numbers::of(existing, &head(front, existing).await?);
    let wanted = hosted.keys.iter().find(|key| key.wanted);
    let wanted = wanted.and_then(|key| key.identity.kek_fingerprint());
    let mut encryption = hosted.translate(&contents, &numbers.known(wanted.as_deref()))?;
    let mut ledger = Ledger::of(existing);
    note(&mut ledger, &hosted, &encryption, &contents);
    let last = encryption.spec.keys.iter().map(|key| key.id.0).max().unwrap_or_default();
    let kept = set_aside(front, &hosted, &mut encryption, existing, &settings)?;
    let mut copies = Copies::load(front, existing).await?;
    for cipher in &mut encryption.spec.ciphers {
        let content = contents.content(&cipher.source);
        *cipher = copies.cipher(&cipher.name, cipher.kind, content.expose()).await?;
    }
    let keys: Vec<Key> = encryption.spec.keys.iter().chain(&kept).cloned().collect();
    let past = native(front, existing, &keys, &settings).await?;
    add_past(&mut encryption, past, &mut copies).await?;
    front.dress(&mut encryption.spec.keys, &mut settings, &mut copies).await?;
    encryption.spec.tokens = tokens(&encryption.spec.keys, &settings);
    let (plane, last) = (serde_json::Map::new(), last.max(numbers.last()));
    Ok(Draft { encryption, kept, plane, ledger, settings, last })
}

/// What nobody makes in managed mode but us: the tokens and files that HyperShift has providers log
/// in with. Whoever says how to log in otherwise needs none.
fn tokens(keys: &[Key], settings: &Settings) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for token in keys.iter().filter_map(Token::told) {
        let needed = token.is_hypershifts() || !settings.logs_in(&token.vendor);
        if needed && tokens.iter().all(|other| other.vendor != token.vendor) {
            tokens.push(token);
        }
    }
    tokens
}

/// Reads it strictly, with what its spec wants as the writer.
fn read(front: &Front<'_>, existing: Option<&DynamicObject>) -> Result<Hosted, Failure> {
    let wrong = |problems: sidekey_core::config::Problems| {
        Failure::fault(Fault::INVALID, problems.to_string())
    };
    let mut object = json!({"metadata": {"name": front.name, "namespace": front.sources}});
    let field = "secretEncryption";
    for field in [field, "platform"] {
        object["spec"][field] = front.object.data["spec"][field].clone();
    }
    let named = parse(&object).map_err(wrong)?;
    object["status"][field] = front.object.data["status"][field].clone();
    let mut hosted = parse(&object).map_err(wrong)?.as_wanted();
    // A cipher that only the status names is in the SecretEncryption once there is one, and the
    // Secret that it came from may hold another key by now.
    hosted.keys.retain(|key| {
        let cipher = matches!(key.identity, Identity::Aescbc { .. });
        let same = |other: &Identity| other.fingerprint() == key.identity.fingerprint();
        existing.is_none() || !cipher || named.keys.iter().any(|key| same(&key.identity))
    });
    Ok(hosted)
}

/// `arn-from-secret::<name>`: the role stands in an AWS configuration.
async fn find_role(front: &Front<'_>, hosted: &mut Hosted) -> Result<(), Failure> {
    let Some(name) = hosted.auth.aws_role_secret.clone() else { return Ok(()) };
    let namespace = &front.sources;
    let content = sources::entry(front, namespace, &name, AWS_ENTRY).await?;
    let Some(content) = content else {
        let text = format!(
            "it refers to what is not there\nSecret {namespace}/{name}, key {AWS_ENTRY}: not found"
        );
        return Err(Failure::fault(Fault::MISSING, text));
    };
    let lines = content.as_text().unwrap_or_default().lines().filter_map(|l| l.split_once('='));
    let mut pairs = lines.map(|(name, value)| (name.trim(), value.trim()));
    let role = pairs.find(|(name, value)| *name == "role_arn" && !value.is_empty());
    let Some((_, role)) = role else {
        let text = format!("Secret {namespace}/{name}, key {AWS_ENTRY}: names no role_arn");
        return Err(Failure::fault(Fault::MISSING, text));
    };
    hosted.auth.aws_role = Some(role.to_owned());
    Ok(())
}

/// The keys of kube-apiserver's own.
async fn contents(front: &Front<'_>, hosted: &Hosted) -> Result<ResolvedFiles, Failure> {
    let wanted = hosted.sources();
    let files = sources::resolve(front, &wanted).await?;
    let missing = wanted.iter().filter(|source| !files.contains(source));
    let missing: Vec<String> = missing
        .map(|source| match source {
            FileSource::Secret(object) => {
                format!("Secret {}/{}, key {}: not found", front.sources, object.name, object.key)
            }
            other => format!("{other}: not found"),
        })
        .collect();
    if missing.is_empty() {
        return Ok(files);
    }
    let text = format!("it refers to what is not there\n{}", missing.join("\n"));
    Err(Failure::fault(Fault::MISSING, text))
}

/// The keys that shims have loaded, and whether they write: where a SecretEncryption was deleted,
/// this is all that is left to tell their numbers.
pub(super) async fn head(
    front: &Front<'_>,
    existing: Option<&DynamicObject>,
) -> Result<Vec<(KnownKey, bool)>, Error> {
    if existing.is_some() {
        return Ok(Vec::new());
    }
    let (secret, file) = (names::SHIM_SECRET, names::CONFIG_FILE);
    let Some(content) = sources::entry(front, &front.namespace, secret, file).await? else {
        return Ok(Vec::new());
    };
    let config = content.as_text().and_then(|text| document(text).ok()).unwrap_or_default();
    let keys = config["keys"].as_array().into_iter().flatten().filter_map(|key| {
        let id = KeyNumber(key["id"].as_u64()?);
        let fingerprint = key["fingerprint"].as_str()?.to_owned();
        Some((KnownKey { id, fingerprint }, key["role"] == "write"))
    });
    Ok(keys.collect())
}

/// Remembers what HyperShift calls these keys.
fn note(
    ledger: &mut Ledger,
    hosted: &Hosted,
    encryption: &SecretEncryption,
    contents: &ResolvedFiles,
) {
    for key in &hosted.keys {
        let of_key = key.identity.kek_fingerprint();
        let numbered = encryption.spec.keys.iter().find(|k| Some(k.fingerprint()) == of_key);
        if let Some(numbered) = numbered {
            ledger.key(numbered.id.0, &key.identity);
        }
    }
    for (cipher, source) in encryption.spec.ciphers.iter().map(|cipher| (cipher, &cipher.source)) {
        if let FileSource::Secret(object) = source {
            ledger.cipher(&cipher.name, &object.name, contents.content(source).expose());
        }
    }
}

/// Takes keys of other vendors than the spec's out: only HyperShift's status names them, and
/// nothing there says how to log in. They stay as they stand in the SecretEncryption.
fn set_aside(
    front: &Front<'_>,
    hosted: &Hosted,
    encryption: &mut SecretEncryption,
    existing: Option<&DynamicObject>,
    settings: &Settings,
) -> Result<Vec<Key>, Failure> {
    let vendor = hosted.keys.iter().find(|key| key.wanted).map(|key| key.identity.vendor());
    let mut kept = Vec::new();
    let keys = std::mem::take(&mut encryption.spec.keys);
    for key in keys {
        if Some(key.vendor.as_str()) == vendor || settings.logs_in(&key.vendor) {
            encryption.spec.keys.push(key);
        } else if let Some(before) = existing.and_then(|existing| published(existing, &key)) {
            kept.push(before);
        } else if !is_loaded(front, existing, &key) {
            let text = format!(
                "status.secretEncryption names a key of {vendor}, and spec says nothing of how to \
                 log in there: say it in the annotation {} as vendors: {{{vendor}: {{credentials: \
                 {{…}}}}}}",
                super::ANNOTATION_SETTINGS,
                vendor = key.vendor,
            );
            return Err(Failure::fault(Fault::INVALID, text));
        }
    }
    Ok(kept)
}

/// The same key as it stands in the SecretEncryption.
fn published(existing: &DynamicObject, key: &Key) -> Option<Key> {
    let mut list = existing.data["spec"]["keys"].as_array()?.iter();
    let found =
        list.find(|other| other["id"] == json!(key.id) && fingerprint(other) == key.fingerprint())?;
    let mut found = found.clone();
    found["role"] = "write".into();
    let metadata = json!({"name": "kept"});
    let spec = json!({"keys": [found]});
    let document: Value =
        json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec});
    SecretEncryption::from_document(&document).ok()?.spec.keys.into_iter().next()
}

/// Whether the core has the key, or it is only our own mirror that speaks of it.
fn is_loaded(front: &Front<'_>, existing: Option<&DynamicObject>, key: &Key) -> bool {
    let Some(existing) = existing else { return false };
    let loaded = Status::of(existing).keys;
    let fingerprint = key.fingerprint();
    let owners = Owners::of(front.object, front.manager);
    let path = [Step::Field("status"), Step::Field("secretEncryption")];
    loaded.iter().any(|other| other.fingerprint == fingerprint) || !owners.others(&path)
}

/// What HyperShift encrypted itself, until the SecretEncryption says what writes.
async fn native(
    front: &Front<'_>,
    existing: Option<&DynamicObject>,
    keys: &[Key],
    settings: &Settings,
) -> Result<Past, Failure> {
    if existing.is_some_and(|existing| Status::of(existing).active_key.is_some()) {
        return Ok(Past::default());
    }
    let (secret, file) = NATIVE;
    let content = sources::entry(front, &front.namespace, secret, file).await?;
    let Some(content) = content else { return Ok(Past::default()) };
    let title = format!("Secret {}/{secret}", front.namespace);
    adopt::past(&title, content.expose(), keys, |vendor| settings.is_own_data(vendor))
}

/// Keeps what stored data needs.
pub(super) async fn add_past(
    encryption: &mut SecretEncryption,
    past: Past,
    copies: &mut Copies<'_>,
) -> Result<(), Failure> {
    let spec = &mut encryption.spec;
    spec.adopt.extend(past.adopt);
    for (name, kind, content) in past.ciphers {
        if spec.ciphers.iter().all(|cipher| cipher.name != name) {
            spec.ciphers.push(copies.cipher(&name, kind, content.expose()).await?);
        }
    }
    for resource in past.resources {
        if !spec.resources.iter().any(|name| resources::covers(name, &resource)) {
            spec.resources.retain(|name| !resources::covers(&resource, name));
            spec.resources.push(resource);
        }
    }
    Ok(())
}
