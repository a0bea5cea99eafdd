//! The key behind the configured name: which one it is, and which key material it has now.

use std::sync::Arc;
use std::time::SystemTime;

use aws_sdk_kms::types::{KeyMetadata, KeySpec, KeyState, KeyUsageType};
use sidekey_core::{Error, Kind, Secret};

use crate::arn::{KeyArn, KeyName};
use crate::client::{Client, Failure};
use crate::key_id::{Version, is_material};
use crate::{not_kms, own_deadline};

/// A key, as KMS reported it.
#[derive(Clone, Debug)]
pub(crate) struct Kek {
    pub(crate) arn: KeyArn,
    /// The same as text: every call needs it.
    pub(crate) text: Arc<str>,
    pub(crate) material: Material,
    /// What an operator should know.
    remark: Option<String>,
    /// Whether KMS has just been asked.
    fresh: bool,
}

/// What is known of the key material.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Material {
    /// Its id.
    Known(String),
    /// Why it cannot be known: for as long as the configuration is loaded, the key_id is the ARN
    /// alone.
    Unknown(&'static str),
}

const DENIED: &str = "kms:DescribeKey is not allowed";
const UNTOLD: &str = "kms:DescribeKey does not tell it";

impl Kek {
    /// Asks KMS what the configured name stands for. `before` is what the client in use knows;
    /// whether the material can be known is decided once for each configuration, so that key_id
    /// never goes to and fro between its two forms.
    pub(crate) async fn find(
        client: &Client,
        before: Option<&Self>,
        same_configuration: bool,
    ) -> Result<Self, Error> {
        let name = &client.name;
        if let Some(before) = before.filter(|_| same_configuration) {
            // Nothing but files has changed. New credentials must not have to wait for an alias
            // that somebody has pointed at a key which does not work.
            let known = Self { fresh: false, ..before.clone() };
            let known = known.refreshed(client).await?;
            return Ok(Self { fresh: true, ..known });
        }
        // A key that is disabled or dying is taken for what it is: who serves it tells so, with the
        // day of its deletion.
        let described = match client.describe(&name.to_string(), own_deadline()).await {
            Ok(metadata) => Some(Described::new(name, metadata)?),
            Err(failure) if failure.is("AccessDeniedException") || failure.is("AccessDenied") => {
                None
            }
            Err(failure) => return Err(failure.error),
        };
        let arn = match (&described, name) {
            (Some(described), _) => described.arn.clone(),
            (None, KeyName::Arn(arn)) => arn.clone(),
            (None, _) => match before {
                Some(before) => before.arn.clone(),
                None => by_encrypting(client).await?,
            },
        };
        let why = if described.is_some() { UNTOLD } else { DENIED };
        let (told, state) = described.map_or((None, Ok(())), |found| (found.material, found.state));
        let fresh = state.is_ok();
        let material = match (before.map(|before| &before.material), told) {
            (_, Some(material)) => Material::Known(material),
            // What was known of this key is still better than nothing: Decrypt tells the rest.
            (Some(known @ Material::Known(_)), None)
                if before.is_some_and(|before| before.arn == arn) =>
            {
                known.clone()
            }
            (_, None) => {
                // While it has none, that says nothing of what will be told.
                state?;
                tracing::warn!(key = %arn, why, hint = "allow kms:DescribeKey on the key, then load the configuration anew",
                    "key_id is the ARN alone: rotation of the key material will not be noticed");
                Material::Unknown(why)
            }
        };
        Ok(Self { fresh, ..Self::new(arn, material) })
    }

    fn new(arn: KeyArn, material: Material) -> Self {
        let text = arn.to_string().into();
        Self { arn, text, material, remark: None, fresh: false }
    }

    /// What KMS says now. It is asked for the state of the key, for its material, and for where
    /// an alias points; whether the key works, Encrypt and Decrypt tell better.
    pub(crate) async fn refreshed(&self, client: &Client) -> Result<Self, Error> {
        let name = &client.name;
        if self.fresh || (matches!(self.material, Material::Unknown(_)) && !name.is_alias()) {
            return Ok(Self { fresh: false, ..self.clone() });
        }
        let metadata = match client.describe(&name.to_string(), own_deadline()).await {
            Ok(metadata) => metadata,
            Err(failure) => return self.undescribed(name, failure),
        };
        let arn = metadata.arn.as_deref().and_then(KeyArn::parse);
        let described = Described::new(name, metadata);
        if let Some(arn) = arn.filter(|arn| !arn.is_same_key(&self.arn)) {
            return self.moved(client, arn, described).await;
        }
        let described = described?;
        described.state?;
        let material = match (&self.material, described.material) {
            (Material::Known(_), Some(material)) => Material::Known(material),
            (known, _) => known.clone(),
        };
        Ok(Self::new(described.arn, material))
    }

    /// Whether `key_id` names just this key, in one of our own forms.
    pub(crate) fn is_named_by(&self, key_id: &str) -> bool {
        let rest = key_id.strip_prefix(&*self.text);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('/').is_some_and(is_material))
    }

    /// What is announced.
    pub(crate) fn version(&self) -> Version {
        let material = match &self.material {
            Material::Known(material) => Some(material.clone()),
            Material::Unknown(_) => None,
        };
        Version { arn: self.arn.clone(), material }
    }

    /// One line for `/status`.
    pub(crate) fn note(&self, name: &KeyName) -> Option<String> {
        let mut lines = Vec::new();
        if name.is_alias() {
            lines.push(format!("{name} stands for {}", self.arn));
        }
        if let Material::Unknown(why) = &self.material {
            lines.push(format!(
                "key_id is the ARN alone ({why}): rotation of the key material is not noticed"
            ));
        }
        lines.extend(self.remark.clone());
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// DescribeKey failed. The key may work all the same; if it does not, the probe will say so.
    /// An alias that is gone says nothing of the key that it pointed at.
    fn undescribed(&self, name: &KeyName, failure: Failure) -> Result<Self, Error> {
        let lasting = matches!(failure.error.kind(), Kind::KeyState | Kind::Config);
        if lasting && !name.is_alias() {
            return Err(failure.error);
        }
        let remark = format!("what is known of the key is not fresh: {}", failure.error.report());
        if self.remark.is_none() {
            tracing::warn!(key = %self.arn, error = %failure.error.report(), "the key could not be described, going on with what is known");
        }
        Ok(Self { remark: Some(remark), ..self.clone() })
    }

    /// The alias points at another key. That one is tried first: a mistake must not cost the key
    /// that works.
    async fn moved(
        &self,
        client: &Client,
        arn: KeyArn,
        described: Result<Described, Error>,
    ) -> Result<Self, Error> {
        let name = &client.name;
        if !name.is_alias() {
            let what = format!("kms:DescribeKey on {name} was answered for {arn}");
            return Err(Error::new(Kind::KeyState, what));
        }
        let tried = match described {
            Ok(Described { state: Err(error), .. }) | Err(error) => Err(error),
            Ok(new) => round_trip(client, &new.arn).await.map(|()| new),
        };
        let new = match tried {
            Ok(new) => new,
            Err(error) => return Ok(self.stays(name, &arn, &error)),
        };
        tracing::warn!(%name, old = %self.arn, new = %new.arn, hint = "keep the old key until nothing in etcd needs it",
            "the alias points at another key, which is used from now on");
        let material = match (&self.material, new.material) {
            (Material::Known(_), Some(material)) => Material::Known(material),
            (Material::Known(_), None) => Material::Unknown(UNTOLD),
            (unknown, _) => unknown.clone(),
        };
        Ok(Self::new(new.arn, material))
    }

    /// What the alias points at now cannot be used.
    fn stays(&self, name: &KeyName, new: &KeyArn, error: &Error) -> Self {
        let error = error.report();
        let remark = format!("{name} now points at {new}, which cannot be used: {error}");
        if self.remark.as_deref() != Some(remark.as_str()) {
            tracing::error!(%name, old = %self.arn, %new, error, hint = "point the alias at a key that this role may use",
                "the alias points at a key that cannot be used, the old one stays in use");
        }
        Self { remark: Some(remark), ..self.clone() }
    }
}

/// What DescribeKey tells of a key that encrypts and decrypts.
struct Described {
    arn: KeyArn,
    material: Option<String>,
    /// Why it does not now, if so.
    state: Result<(), Error>,
}

impl Described {
    fn new(name: &KeyName, metadata: KeyMetadata) -> Result<Self, Error> {
        let symmetric = metadata.key_spec.is_none_or(|spec| spec == KeySpec::SymmetricDefault)
            && metadata.key_usage.is_none_or(|usage| usage == KeyUsageType::EncryptDecrypt);
        if !symmetric {
            return Err(Error::new(Kind::Config, format!("{name} is not a symmetric key"))
                .with_hint(
                    "only keys of spec SYMMETRIC_DEFAULT and usage ENCRYPT_DECRYPT can be used",
                ));
        }
        let arn = metadata
            .arn
            .as_deref()
            .and_then(KeyArn::parse)
            .ok_or_else(|| not_kms(format!("kms:DescribeKey on {name} gave no ARN")))?;
        let state = match metadata.key_state.as_ref().and_then(unusable) {
            None => Ok(()),
            Some((state, hint)) => {
                let date = metadata.deletion_date.and_then(|date| SystemTime::try_from(date).ok());
                let until = date.map_or_else(String::new, |date| {
                    format!(", to be deleted at {}", sidekey_core::time(date))
                });
                let what = format!("{name} is {state}{until}");
                Err(Error::new(Kind::KeyState, what).with_hint(hint))
            }
        };
        let material = metadata.current_key_material_id.filter(|id| is_material(id));
        Ok(Self { arn, material, state })
    }
}

/// States in which neither Encrypt nor Decrypt works, and what to do about them.
fn unusable(state: &KeyState) -> Option<(&'static str, &'static str)> {
    match state {
        KeyState::Disabled => Some(("disabled", "enable it, as by `aws kms enable-key`")),
        KeyState::PendingDeletion | KeyState::PendingReplicaDeletion => Some((
            "pending deletion",
            "all data under it is lost with it: `aws kms cancel-key-deletion`, then enable-key",
        )),
        KeyState::PendingImport => {
            Some(("without key material", "import the key material, it may have expired"))
        }
        _ => None,
    }
}

/// Encrypt tells which key an alias stands for, too.
async fn by_encrypting(client: &Client) -> Result<KeyArn, Error> {
    let (name, sample) = (&client.name, Secret::random(32)?);
    let answer = client.encrypt(&name.to_string(), sample.expose(), own_deadline()).await?;
    answer.key_id().and_then(KeyArn::parse).ok_or_else(|| {
        Error::new(Kind::Config, format!("what {name} stands for cannot be found out"))
            .with_hint("allow kms:DescribeKey on the key, or name the key by its ARN")
    })
}

async fn round_trip(client: &Client, arn: &KeyArn) -> Result<(), Error> {
    let (key, sample) = (arn.to_string(), Secret::random(32)?);
    let wrapped = client.encrypt(&key, sample.expose(), own_deadline()).await?;
    let blob = wrapped.ciphertext_blob.unwrap_or_default();
    let back = client.decrypt(Some(&key), blob.as_ref(), own_deadline()).await?;
    if Secret::new(back.plaintext.unwrap_or_default().into_inner()) == sample {
        return Ok(());
    }
    Err(Error::new(Kind::Bug, format!("{arn} unwraps something else than what it wrapped")))
}
