//! Promise: the operator may be killed in every state of a rotation and whoever comes after it goes
//! on; no new key writes before every replica can read with it; and what is missing, refused or
//! moved elsewhere is told, waited for and taken up again by itself.

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::aws::KmsFault;
use sidekey_e2e::cluster::Partition;
use sidekey_e2e::operator::{
    AwsKeys, BETWEEN_STEPS, Managed, NAMESPACE, Options, encryption, stage_of,
};
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{Load, eventually};

/// Where every shim answers the operator.
const SHIM_ADMIN_TLS_PORT: u16 = 8094;

/// A state of a rotation. `deploy` has a test that none is missing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preflight,
    ReadOnlyDeploy,
    WritePromote,
    Migrating,
    Completed,
    Interrupted,
}

/// The states of a rotation that is not given up, in their order.
const FORWARD: [Stage; 5] = [
    Stage::Preflight,
    Stage::ReadOnlyDeploy,
    Stage::WritePromote,
    Stage::Migrating,
    Stage::Completed,
];

/// A rotation held in one state.
enum Held {
    /// AWS has no time for the new key.
    Busy,
    /// One replica cannot be asked.
    Cut(Partition),
    /// Nothing holds it: it stays long enough to be met.
    Passing,
}

struct Scene {
    managed: Managed,
    keys: AwsKeys,
}

#[tokio::test]
async fn killed_in_every_state_it_goes_on() {
    let managed = Managed::start("op-states", Options::default()).await.unwrap();
    let keys = AwsKeys::create(&managed, NAMESPACE, 3).await.unwrap();
    let scene = Scene { managed, keys };
    scene.put(&[(1, 0)]).await.unwrap();
    scene.managed.wait_written_with(1).await.unwrap();

    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.one_rotation_is_killed_in_each_of_its_states(&load).await.unwrap();
    scene.one_that_is_given_up_is_killed_too(&load).await.unwrap();
    scene.a_deleted_secret_is_named_and_waited_for(&load).await.unwrap();
    scene.a_key_that_moves_at_the_vendor_is_followed(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

impl Stage {
    fn label(self) -> String {
        format!("{self:?}")
    }
}

impl Scene {
    /// These keys, by number and ARN; the first one writes.
    async fn put(&self, keys: &[(u64, usize)]) -> Result<()> {
        let keys: Vec<Value> = keys.iter().map(|(id, index)| self.keys.key(*id, *index)).collect();
        // A key that moves at the vendor is followed at once, in the place of after five minutes.
        let document = encryption(&keys, &json!({"convergence": "1s"}));
        self.managed.put_encryption(&document).await?;
        Ok(())
    }

    /// Brings the rotation to a state and keeps it there, if it would not stay by itself.
    async fn hold(&self, stage: Stage) -> Result<Held> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let held = match stage {
            Stage::Preflight => {
                let busy = KmsFault::error("ThrottlingException", "simulated");
                hosted.moto.faults(&[busy.of_key(&self.keys.arns[1])]).await?;
                self.put(&[(2, 1), (1, 0)]).await?;
                managed.wait_condition("KMSKeyAccessible", "False").await?;
                Held::Busy
            }
            Stage::ReadOnlyDeploy => {
                let pods = hosted.pods().await?;
                let cut = hosted.cluster.cut(&pods[0], SHIM_ADMIN_TLS_PORT).await?;
                Held::Cut(cut)
            }
            Stage::WritePromote | Stage::Migrating | Stage::Completed => Held::Passing,
            // Back again, before it was promoted.
            Stage::Interrupted => {
                self.put(&[(2, 1)]).await?;
                Held::Passing
            }
        };
        Ok(held)
    }

    async fn release(&self, held: Held) -> Result<()> {
        match held {
            Held::Busy => self.managed.hosted.moto.faults(&[]).await,
            Held::Cut(partition) => self.managed.hosted.cluster.heal(partition).await,
            Held::Passing => Ok(()),
        }
    }

    async fn one_rotation_is_killed_in_each_of_its_states(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let mut before = Held::Passing;
        for stage in FORWARD {
            // What holds the next state is there before this one is let go.
            let held = self.hold(stage).await?;
            self.release(before).await?;
            managed.wait_stage(&stage.label()).await?;
            managed.replace_operator().await?;
            println!("killed at {}", stage.label());
            if !matches!(held, Held::Passing) {
                load.more(BETWEEN_STEPS).await?;
                self.it_stays_and_does_not_promote(stage).await?;
            }
            before = held;
        }
        managed.wait_written_with(2).await?;
        managed.all_is_under(2).await?;
        let history = managed.encryption().await?["status"]["history"].clone();
        let past = history.as_array().map(Vec::len);
        // The enablement, and one rotation: it was never begun anew.
        ensure!(history[0]["to"]["id"] == 2 && past <= Some(2), "{history}");
        Ok(())
    }

    /// Whoever came after looked again, and is no further.
    async fn it_stays_and_does_not_promote(&self, stage: Stage) -> Result<()> {
        let managed = &self.managed;
        let before = managed.passes().await?;
        eventually("the new operator has looked at it", PATIENCE, async || {
            let now = managed.passes().await?;
            ensure!(now >= before + 2.0, "{now} passes after {before}");
            Ok(())
        })
        .await?;
        let now = managed.encryption().await?;
        ensure!(stage_of(&now) == Some(stage.label().as_str()), "{}", now["status"]);
        ensure!(now["status"]["activeKey"]["id"] == 1, "{}", now["status"]);
        let kept = managed.kept_rotation().await?;
        ensure!(kept["stage"] == stage.label(), "{kept}");
        if stage == Stage::ReadOnlyDeploy {
            let waiting = &now["status"]["rotation"]["waitingFor"];
            ensure!(waiting[0].is_string(), "it does not say whom it waits for: {now}");
        }
        managed.all_is_under(1).await
    }

    /// It goes back while one replica cannot be asked, so that it was never promoted.
    async fn one_that_is_given_up_is_killed_too(&self, load: &Load) -> Result<()> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let pods = hosted.pods().await?;
        let cut = hosted.cluster.cut(&pods[1], SHIM_ADMIN_TLS_PORT).await?;
        self.put(&[(3, 2), (2, 1)]).await?;
        managed.wait_stage(&Stage::ReadOnlyDeploy.label()).await?;
        load.more(BETWEEN_STEPS).await?;
        let held = self.hold(Stage::Interrupted).await?;
        managed.wait_stage(&Stage::Interrupted.label()).await?;
        managed.replace_operator().await?;
        self.release(held).await?;
        hosted.cluster.heal(cut).await?;
        managed.wait_written_with(2).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(2).await
    }

    async fn a_deleted_secret_is_named_and_waited_for(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/aws-keys");
        let before = managed.encryption().await?["status"]["revision"].clone();
        managed.hosted.cluster.client().send(Method::DELETE, &path, None).await?;
        let what = "the missing Secret is named";
        managed
            .wait_encryption(what, LONG_PATIENCE, |encryption| {
                let kind = "SecretEncryptionConfigured";
                let found = sidekey_e2e::operator::condition(encryption, kind).context("none")?;
                let named = found["message"].as_str().is_some_and(|text| text.contains("aws-keys"));
                ensure!(found["status"] == "False" && named, "{found}");
                Ok(())
            })
            .await?;
        load.more(BETWEEN_STEPS).await?;
        self.keys.put_credentials(managed, NAMESPACE, "first").await?;
        managed.wait_condition("SecretEncryptionConfigured", "True").await?;
        let now = managed.encryption().await?["status"]["revision"].clone();
        ensure!(now == before, "{before} was published, and now {now}");
        load.more(BETWEEN_STEPS).await
    }

    async fn a_key_that_moves_at_the_vendor_is_followed(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let before = managed.encrypted_under().await?;
        managed.hosted.moto.owner().rotate(&self.keys.arns[1]).await?;
        managed.wait_followed(2, &before).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(2).await
    }
}
