//! Names of KMS keys: ARNs, bare key ids and aliases.

use std::fmt;

/// What a multi-region key's id begins with: its replicas share id and key material.
const MULTI_REGION: &str = "mrk-";

/// Longest name that KMS takes.
const MAX_NAME: usize = 2048;

/// The ARN of a key (not of an alias).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyArn {
    partition: String,
    region: String,
    account: String,
    id: String,
}

/// A key as a configuration, or the plugin that we replace, names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyName {
    /// `arn:aws:kms:eu-west-1:111122223333:key/…`
    Arn(KeyArn),
    /// `arn:aws:kms:eu-west-1:111122223333:alias/…`: where it is, and `alias/…`.
    AliasArn { scope: KeyArn, alias: String },
    /// A bare key id.
    Id(String),
    /// `alias/…`
    Alias(String),
}

impl KeyArn {
    /// Reads the ARN of a key.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match KeyName::parse(text) {
            Some(KeyName::Arn(arn)) => Some(arn),
            _ => None,
        }
    }

    /// The key's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Where it lies.
    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// Whether the key may have replicas in other regions.
    pub(crate) fn is_multi_region(&self) -> bool {
        self.id.starts_with(MULTI_REGION)
    }

    /// The replica in another region.
    pub(crate) fn in_region(&self, region: &str) -> Self {
        Self { region: region.to_owned(), ..self.clone() }
    }

    /// Whether both name the same key material: equal, or replicas of one multi-region key.
    pub(crate) fn is_same_key(&self, other: &Self) -> bool {
        self == other || (self.is_multi_region() && self.in_region(&other.region) == *other)
    }

    /// Whether both lie in one account and region: an alias can point at no other key.
    pub(crate) fn is_neighbour(&self, other: &Self) -> bool {
        let place = |arn: &Self| (arn.partition.clone(), arn.region.clone(), arn.account.clone());
        place(self) == place(other)
    }
}

impl KeyName {
    /// Reads whatever KMS takes for a key id; `None` if it would take it for nothing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_NAME {
            return None;
        }
        let Some(rest) = text.strip_prefix("arn:") else {
            return match text.strip_prefix("alias/") {
                Some(name) => word(name, "/_-").then(|| Self::Alias(text.to_owned())),
                None => word(text, "-").then(|| Self::Id(text.to_owned())),
            };
        };
        let parts: Vec<&str> = rest.splitn(5, ':').collect();
        let [partition, "kms", region, account, resource] = parts[..] else { return None };
        let digits = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
        if !digits || !word(partition, "-") || !word(region, "-") {
            return None;
        }
        let arn = |id: &str| KeyArn {
            partition: partition.to_owned(),
            region: region.to_owned(),
            account: account.to_owned(),
            id: id.to_owned(),
        };
        match resource.split_once('/')? {
            ("key", id) => word(id, "-").then(|| Self::Arn(arn(id))),
            ("alias", name) => word(name, "/_-")
                .then(|| Self::AliasArn { scope: arn(""), alias: resource.to_owned() }),
            _ => None,
        }
    }

    /// The region that the name itself tells.
    pub(crate) fn region(&self) -> Option<&str> {
        match self {
            Self::Arn(arn) => Some(&arn.region),
            Self::AliasArn { scope, .. } => Some(&scope.region),
            Self::Id(_) | Self::Alias(_) => None,
        }
    }

    /// Whether it names a multi-region key, which can be had in other regions too.
    pub(crate) fn is_multi_region(&self) -> bool {
        matches!(self, Self::Arn(arn) if arn.is_multi_region())
    }

    /// Whether what it points at can be changed.
    pub(crate) fn is_alias(&self) -> bool {
        matches!(self, Self::Alias(_) | Self::AliasArn { .. })
    }

    /// The name as it is used in `region`.
    pub(crate) fn in_region(&self, region: &str) -> Self {
        match self {
            Self::Arn(arn) if arn.is_multi_region() => Self::Arn(arn.in_region(region)),
            other => other.clone(),
        }
    }
}

/// Letters, digits and some others, and at least one of them.
fn word(text: &str, others: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

impl fmt::Display for KeyArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, region, account, id } = self;
        write!(f, "arn:{partition}:kms:{region}:{account}:key/{id}")
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arn(arn) => arn.fmt(f),
            Self::AliasArn { scope: KeyArn { partition, region, account, .. }, alias } => {
                write!(f, "arn:{partition}:kms:{region}:{account}:{alias}")
            }
            Self::Id(text) | Self::Alias(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab";

    #[test]
    fn every_name_that_kms_takes_is_read_and_written_the_same() {
        for text in [
            KEY,
            "arn:aws-us-gov:kms:us-gov-west-1:111122223333:key/mrk-0123",
            "arn:aws:kms:eu-west-1:111122223333:alias/prod/etcd_1",
            "alias/etcd",
            "mrk-1234abcd",
            "1234abcd-12ab-34cd-56ef-1234567890ab",
        ] {
            assert_eq!(KeyName::parse(text).map(|name| name.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_kms_takes_for_no_key_is_refused() {
        for text in [
            "",
            "alias/",
            "a key",
            "arn:",
            "arn:aws:kms:us-east-1:1:key/x",
            "arn:aws:s3:us-east-1:111122223333:key/x",
            "arn:aws:kms::111122223333:key/x",
            "arn:aws:kms:us-east-1:111122223333:key/",
            "arn:aws:kms:us-east-1:111122223333:key/x/y",
            "arn:aws:kms:us-east-1:111122223333:grant/x",
        ] {
            assert_eq!(KeyName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn replicas_are_the_same_key_and_others_are_not() {
        let arn = |text: &str| KeyArn::parse(text).unwrap();
        let here = arn("arn:aws:kms:us-east-1:111122223333:key/mrk-1");
        assert!(here.is_same_key(&arn("arn:aws:kms:eu-west-1:111122223333:key/mrk-1")));
        assert!(!here.is_same_key(&arn("arn:aws:kms:eu-west-1:111122223333:key/mrk-2")));
        assert!(!here.is_same_key(&arn("arn:aws:kms:eu-west-1:999922223333:key/mrk-1")));
        assert!(!arn(KEY).is_same_key(&arn(KEY).in_region("eu-west-1")));
    }
}
