//! New key material behind the same ARN, when somebody asks for it: `sidekey-aws rotate`.

use sidekey_core::{Error, Kind, Rotate};
use tokio::time::Instant;

use crate::calls;
use crate::kek::Material;
use crate::{Aws, own_deadline};

const ROTATE: (&str, &str) = ("kms:RotateKeyOnDemand", "TrentService.RotateKeyOnDemand");
const STATUS: (&str, &str) = ("kms:GetKeyRotationStatus", "TrentService.GetKeyRotationStatus");

impl Rotate for Aws {
    /// AWS begins, and is done a while later. It counts rotations, and allows few of them: while
    /// one is under way no other is asked for.
    async fn rotate(&self, _deadline: Instant) -> Result<(), Error> {
        let kek = self.kek().clone();
        if let Material::Unknown(why) = kek.material {
            let what = format!("new key material of {} would not be seen: {why}", kek.arn);
            return Err(Error::new(Kind::Config, what)
                .with_hint("allow kms:DescribeKey on the key; nothing was asked for"));
        }
        if self.is_rotating(&kek.text).await? {
            return Ok(());
        }
        match self.client.on_key(ROTATE, &kek.text, own_deadline()).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.under_way => Ok(()),
            Err(failure) => Err(failure.error),
        }
    }
}

impl Aws {
    /// Whether AWS says that it is at it; who may not know that asks.
    async fn is_rotating(&self, key: &str) -> Result<bool, Error> {
        match self.client.on_key(STATUS, key, own_deadline()).await {
            Ok(answer) => Ok(calls::is_rotating(answer.expose()).unwrap_or(false)),
            Err(failure) if failure.error.kind().is_transient() => Err(failure.error),
            Err(_) => Ok(false),
        }
    }
}

/// What codes mean when new material was asked for, where that is not what they mean elsewhere.
pub(crate) fn meaning(action: &str, code: &str) -> Option<(Kind, &'static str)> {
    if action != ROTATE.0 {
        return None;
    }
    match code {
        "LimitExceededException" => Some((
            Kind::KeyState,
            "AWS allows each key a fixed number of rotations on demand, and this one has had \
             them: turn on its automatic rotation, or give the control plane a new key",
        )),
        "AccessDeniedException" | "AccessDenied" => Some((
            Kind::Denied,
            "allow kms:RotateKeyOnDemand on this key in the role's policy and in the key's; \
             serving does not need it",
        )),
        "UnsupportedOperationException" => Some((
            Kind::Config,
            "keys in custom key stores and managed by AWS cannot be rotated on demand, and of a \
             multi-region key only the primary: ask in its region",
        )),
        "ConflictException" => {
            Some((Kind::Unavailable, "a rotation is under way, or begins within 20 minutes"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sidekey_core::Provider;

    use super::*;
    use crate::testing::{A, Fake};

    async fn rotate(fake: &Fake, name: &str) -> Result<bool, Error> {
        let key = fake.key(name).await;
        let before = key.key_id().await?;
        key.rotate(own_deadline()).await?;
        Ok(key.key_id().await? != before)
    }

    #[tokio::test]
    async fn the_key_behind_an_alias_gets_new_material_and_key_id_moves() {
        let fake = Fake::start().await;
        assert!(rotate(&fake, "alias/etcd").await.unwrap());
        let calls = fake.state().calls.clone();
        let asked: Vec<_> = calls.iter().filter(|(name, ..)| name == "RotateKeyOnDemand").collect();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].1, A, "a key, not an alias, is what AWS takes");
    }

    #[tokio::test]
    async fn while_a_rotation_is_under_way_no_other_is_asked_for() {
        let fake = Fake::start().await;
        fake.state().rotating = true;
        assert!(!rotate(&fake, A).await.unwrap());
        assert_eq!(fake.count("RotateKeyOnDemand"), 0);
        // Who may not ask for the status is told by the refusal.
        fake.state().refuse.insert("GetKeyRotationStatus".into(), "AccessDeniedException");
        fake.state().refuse.insert("RotateKeyOnDemand".into(), "ConflictException");
        assert!(!rotate(&fake, A).await.unwrap());
    }

    #[tokio::test]
    async fn what_aws_refuses_for_good_is_told_with_what_to_do() {
        for (code, kind, words) in [
            ("LimitExceededException", Kind::KeyState, "new key"),
            ("AccessDeniedException", Kind::Denied, "kms:RotateKeyOnDemand"),
            ("UnsupportedOperationException", Kind::Config, "primary"),
        ] {
            let fake = Fake::start().await;
            fake.state().refuse.insert("RotateKeyOnDemand".into(), code);
            let error = rotate(&fake, A).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.hint().unwrap_or_default().contains(words), "{}", error.report());
        }
    }

    #[tokio::test]
    async fn where_new_material_would_not_be_seen_none_is_asked_for() {
        let fake = Fake::start().await;
        fake.state().tells = false;
        assert_eq!(rotate(&fake, A).await.unwrap_err().kind(), Kind::Config);
        assert_eq!(fake.count("RotateKeyOnDemand"), 0);
    }
}
