//! Promise: the operator may be killed in every state of a rotation, and while a resource or a
//! retired key comes in, and whoever comes after it goes on; no new key writes before every replica
//! can read with it; and what is missing, refused or moved elsewhere is told, waited for and taken
//! up again by itself.
//!
//! Each state is held until the operator was killed in it: by a fault of AWS, by a replica that
//! cannot be asked, or by the cluster, which refuses the write that would end the state.

mod others;
mod page;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::Load;
use sidekey_e2e::aws::KmsFault;
use sidekey_e2e::cluster::{Cut, Partition};
use sidekey_e2e::operator::{
    AwsKeys, BETWEEN_STEPS, Lease, Managed, Refusal, condition, run, stage_of,
};
use sidekey_e2e::wait::LONG_PATIENCE;

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

/// What keeps a rotation in one state.
enum Held {
    /// AWS has no time for the new key.
    Busy,
    /// One replica cannot be asked.
    Cut(Partition),
    /// That the next state is reached cannot be written down.
    Unwritten(Refusal),
    /// Nothing: it is the last state.
    Over,
}

/// How far the operator is: what it has written down, published and had done.
#[derive(Debug, PartialEq)]
struct Mark {
    kept: Value,
    published: Vec<u64>,
    migration: Value,
}

struct Scene {
    managed: Managed,
    keys: AwsKeys,
}

#[test]
fn killed_in_every_state_it_goes_on() {
    run(rotations()).unwrap();
}

async fn rotations() {
    let scene = Scene::start("states", 2).await.unwrap();
    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.one_rotation_is_killed_in_each_of_its_states(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

#[test]
fn killed_in_a_rotation_that_is_given_up_it_goes_back() {
    run(given_up()).unwrap();
}

async fn given_up() {
    let scene = Scene::start("given-up", 2).await.unwrap();
    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.one_that_is_given_up_is_killed_too(&load).await.unwrap();
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
    /// A control plane whose data is under the first of so many keys.
    async fn start(name: &str, keys: usize) -> Result<Self> {
        let managed = Managed::start_unbalanced(name).await?;
        let keys = AwsKeys::create(&managed, managed.namespace(), keys).await?;
        let scene = Self { managed, keys };
        scene.put(&[(1, 0)]).await?;
        scene.managed.wait_written_with(1).await?;
        Ok(scene)
    }

    /// These keys, by number and ARN; the first one writes.
    async fn put(&self, keys: &[(u64, usize)]) -> Result<()> {
        self.put_with(keys, json!({})).await
    }

    /// The same, with more of the spec.
    async fn put_with(&self, keys: &[(u64, usize)], mut more: Value) -> Result<()> {
        let keys: Vec<Value> = keys.iter().map(|(id, index)| self.keys.key(*id, *index)).collect();
        // A key that moves at the vendor is followed at once, in the place of after five minutes.
        more["convergence"] = "1s".into();
        self.managed.put_encryption(&self.managed.document(&keys, &more)).await?;
        Ok(())
    }

    /// Keeps the rotation in a state, which it reaches when the one before is let go.
    async fn hold(&self, stage: Stage) -> Result<Held> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        Ok(match stage {
            Stage::Preflight => {
                let busy = KmsFault::error("ThrottlingException", "simulated");
                hosted.moto.faults(&[busy.of_key(&self.keys.arns[1])]).await?;
                self.put(&[(2, 1), (1, 0)]).await?;
                Held::Busy
            }
            Stage::ReadOnlyDeploy => {
                let pods = hosted.pods().await?;
                Held::Cut(hosted.cluster.cut(&pods[0], SHIM_ADMIN_TLS_PORT, Cut::Lost).await?)
            }
            Stage::WritePromote => {
                Held::Unwritten(managed.refuse_stage(Stage::Migrating.label()).await?)
            }
            Stage::Migrating => {
                Held::Unwritten(managed.refuse_stage(Stage::Completed.label()).await?)
            }
            Stage::Completed | Stage::Interrupted => Held::Over,
        })
    }

    async fn release(&self, held: Held) -> Result<()> {
        match held {
            Held::Busy => self.managed.hosted.moto.faults(&[]).await,
            Held::Cut(partition) => self.managed.hosted.cluster.heal(partition).await,
            Held::Unwritten(refusal) => self.managed.allow(refusal).await,
            Held::Over => Ok(()),
        }
    }

    /// Waits until the operator is in the state, and can do no more in it.
    async fn wait_held(&self, stage: Stage, held: &Held) -> Result<()> {
        let managed = &self.managed;
        managed.wait_stage(&stage.label()).await?;
        match held {
            Held::Busy => managed.wait_condition("KMSKeyAccessible", "False").await.map(drop),
            Held::Cut(_) => {
                let what = "it says whom it waits for";
                let waits = |encryption: &Value| {
                    let waiting = &encryption["status"]["rotation"]["waitingFor"];
                    ensure!(waiting[0].is_string(), "{}", encryption["status"]);
                    Ok(())
                };
                managed.wait_encryption(what, LONG_PATIENCE, waits).await
            }
            Held::Unwritten(refusal) => managed.wait_refused(refusal).await.map(drop),
            Held::Over => managed.wait_written_with(2).await.map(drop),
        }
    }

    async fn mark(&self) -> Result<Mark> {
        let (managed, client) = (&self.managed, self.managed.hosted.cluster.client());
        let published = managed.published().await?.into_iter().map(|(number, _)| number).collect();
        let job = format!("/apis/batch/v1/namespaces/{}/jobs/sidekey-migrate", managed.namespace());
        let job = client.raw(&job).await?;
        let migration = if job.status == 404 {
            Value::Null
        } else {
            job.ok()?.json()?["metadata"]["uid"].take()
        };
        Ok(Mark { kept: managed.kept_rotation().await?, published, migration })
    }

    /// Kills the operator. Whoever comes after has looked, and is just as far.
    async fn killed_it_is_as_far_as_before(&self, lease: Lease, load: &Load) -> Result<Mark> {
        // A state that is over has nothing left to do then.
        self.managed.wait_looked().await?;
        let before = self.mark().await?;
        self.managed.replace_operator(lease).await?;
        load.more(BETWEEN_STEPS).await?;
        self.managed.wait_looked().await?;
        let now = self.mark().await?;
        ensure!(now == before, "it was at {before:#?}, and is at {now:#?}");
        Ok(now)
    }

    async fn one_rotation_is_killed_in_each_of_its_states(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let mut before = Held::Over;
        for stage in FORWARD {
            // What holds the next state is there before this one is let go.
            let held = self.hold(stage).await?;
            self.release(before).await?;
            self.wait_held(stage, &held).await.with_context(|| stage.label())?;
            let lease = if stage == Stage::Preflight { Lease::RunsOut } else { Lease::TakenAway };
            let mark = self.killed_it_is_as_far_as_before(lease, load).await;
            let mark = mark.with_context(|| stage.label())?;
            ensure!(mark.kept["stage"] == stage.label(), "{}", mark.kept);
            self.it_has_done_this_and_no_more(stage, &mark).await.with_context(|| stage.label())?;
            println!("killed at {}", stage.label());
            before = held;
        }
        managed.all_is_under(2).await?;
        let history = managed.encryption().await?["status"]["history"].clone();
        let past = history.as_array().map(Vec::len);
        // The enablement, and one rotation: it was never begun anew.
        ensure!(history[0]["to"]["id"] == 2 && past == Some(2), "{history}");
        Ok(())
    }

    async fn it_has_done_this_and_no_more(&self, stage: Stage, mark: &Mark) -> Result<()> {
        let managed = &self.managed;
        let status = managed.encryption().await?["status"].clone();
        let loaded = status["keys"].as_array().into_iter().flatten().any(|key| key["id"] == 2);
        let (read, write) = (&mark.kept["readRevision"], &mark.kept["writeRevision"]);
        match stage {
            Stage::Preflight => {
                ensure!(!loaded && read.is_null(), "{mark:?} {status}");
                managed.all_is_under(1).await
            }
            Stage::ReadOnlyDeploy => {
                ensure!(loaded && read.is_u64() && write.is_null(), "{mark:?} {status}");
                ensure!(status["activeKey"]["id"] == 1, "{status}");
                managed.all_is_under(1).await
            }
            Stage::WritePromote => {
                ensure!(write.is_u64() && mark.migration.is_null(), "{mark:?}");
                let under = managed.written_under().await?;
                ensure!(under.contains_key(&1), "it was rewritten: {under:?}");
                Ok(())
            }
            Stage::Migrating => {
                ensure!(mark.migration.is_string(), "{mark:?}");
                managed.all_is_under(2).await
            }
            Stage::Completed => managed.all_is_under(2).await,
            Stage::Interrupted => Ok(()),
        }
    }

    /// It goes back while one replica cannot be asked, so that it was never promoted.
    async fn one_that_is_given_up_is_killed_too(&self, load: &Load) -> Result<()> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let pods = hosted.pods().await?;
        let cut = hosted.cluster.cut(&pods[1], SHIM_ADMIN_TLS_PORT, Cut::Refused).await?;
        self.put(&[(2, 1), (1, 0)]).await?;
        managed.wait_stage(&Stage::ReadOnlyDeploy.label()).await?;
        load.more(BETWEEN_STEPS).await?;
        let refusal = managed.refuse_stage(Stage::Interrupted.label()).await?;
        self.put(&[(1, 0)]).await?;
        managed.wait_refused(&refusal).await?;
        let mark = self.killed_it_is_as_far_as_before(Lease::TakenAway, load).await?;
        ensure!(mark.kept["stage"] == Stage::ReadOnlyDeploy.label(), "{}", mark.kept);
        managed.allow(refusal).await?;
        managed.wait_stage(&Stage::Interrupted.label()).await?;
        hosted.cluster.heal(cut).await?;
        managed.wait_written_with(1).await?;
        let mark = self.killed_it_is_as_far_as_before(Lease::TakenAway, load).await?;
        ensure!(mark.kept["stage"] == Stage::Interrupted.label(), "{}", mark.kept);
        let now = managed.encryption().await?;
        ensure!(stage_of(&now) == Some(&*Stage::Interrupted.label()), "{}", now["status"]);
        managed.all_is_under(1).await
    }

    async fn a_deleted_secret_is_named_and_waited_for(&self, load: &Load) -> Result<()> {
        let (managed, kind) = (&self.managed, "SecretEncryptionConfigured");
        let path = format!("/api/v1/namespaces/{}/secrets/aws-keys", managed.namespace());
        let before = managed.encryption().await?["status"]["revision"].clone();
        managed.hosted.cluster.client().send(Method::DELETE, &path, None).await?;
        let what = "the missing Secret is named";
        managed
            .wait_encryption(what, LONG_PATIENCE, |encryption| {
                let found = condition(encryption, kind).context("none")?;
                let named = found["message"].as_str().is_some_and(|text| text.contains("aws-keys"));
                ensure!(found["status"] == "False" && named, "{found}");
                Ok(())
            })
            .await?;
        load.more(BETWEEN_STEPS).await?;
        self.keys.put_credentials(managed, managed.namespace(), "first").await?;
        managed.wait_condition(kind, "True").await?;
        let now = managed.encryption().await?["status"]["revision"].clone();
        ensure!(now == before, "{before} was published, and now {now}");
        load.more(BETWEEN_STEPS).await
    }

    async fn a_key_that_moves_at_the_vendor_is_followed(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let before = managed.encrypted_under().await?;
        managed.hosted.moto.owner().rotate(&self.keys.arns[0]).await?;
        // Providers ask for the version every five minutes, and at once when they log in anew.
        self.keys.admit_both(managed, ["first", "second"]).await?;
        self.keys.put_credentials(managed, managed.namespace(), "second").await?;
        managed.wait_followed(1, &before).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(1).await
    }
}
