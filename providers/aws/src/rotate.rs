//! New key material behind the same ARN, when somebody asks for it: `sidekey-aws rotate`.

use sidekey_core::{Error, Kind, Rotate};
use tokio::time::Instant;

use crate::client::Deed;
use crate::kek::Material;
use crate::{Aws, own_deadline, same_key};

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
        self.ask_for_material(&kek.text).await
    }
}

impl Aws {
    /// AWS counts each of them, so a connection that breaks is no reason to ask again.
    pub(crate) async fn ask_for_material(&self, key: &str) -> Result<(), Error> {
        let (action, deadline) = ("kms:RotateKeyOnDemand", own_deadline());
        let send = || {
            let call = self.client.kms.rotate_key_on_demand().key_id(key).customize();
            call.config_override(self.client.once()).send()
        };
        match self.client.run(Deed { action, object: key, deadline }, send).await {
            Ok(answer) => same_key(action, key, answer.key_id()),
            Err(failure) if failure.is("ConflictException") => Ok(()),
            Err(failure) => Err(failure.error),
        }
    }

    /// Whether AWS says that it is at it; who may not know that asks.
    async fn is_rotating(&self, key: &str) -> Result<bool, Error> {
        let (action, deadline) = ("kms:GetKeyRotationStatus", own_deadline());
        let send = || self.client.kms.get_key_rotation_status().key_id(key).send();
        match self.client.run(Deed { action, object: key, deadline }, send).await {
            Ok(status) => Ok(status.on_demand_rotation_start_date.is_some()),
            Err(failure) if failure.error.kind().is_transient() => Err(failure.error),
            Err(_) => Ok(false),
        }
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
    async fn it_is_asked_for_over_a_new_connection_which_cannot_have_gone_stale() {
        let fake = Fake::start().await;
        let key = fake.key(A).await;
        for _ in 0..2 {
            let before = fake.server.connections();
            key.ask_for_material(A).await.unwrap();
            assert_eq!(fake.server.connections(), before + 1);
        }
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
