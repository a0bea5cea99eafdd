//! Promise: with the command alone a person encrypts a hosted control plane and rotates its key:
//! no request on either kube-apiserver fails, nothing restarts, and a rotation that is killed at
//! any stage is taken up where it was. What the session looks like is in both READMEs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::hosted::{Hosted, NAMESPACE};
use sidekey_e2e::shim::replicas::key_number;
use sidekey_e2e::wait::{PATIENCE, eventually};
use sidekey_e2e::{Kind, Load, LoadOptions};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 100;

/// The stages at whose beginning the command is killed.
const KILLED_AT: [&str; 3] = ["ReadOnlyDeploy", "WritePromote", "Migrating"];

/// A person at a terminal.
struct Person {
    hosted: Hosted,
    dir: PathBuf,
}

#[tokio::test]
async fn a_person_rotates_a_control_plane_and_no_request_fails_however_often_it_is_interrupted() {
    let hosted = Hosted::start("cli-rotate", "token-1").await.unwrap();
    let dir = hosted.cluster.ground().plane().scratch.subdir("person").unwrap();
    let person = Person { hosted, dir };
    let owner = person.hosted.moto.owner();
    let mut keys = Vec::new();
    for _ in 0..3 {
        keys.push(owner.create_key().await.unwrap());
    }
    person.encrypts_what_was_in_clear(&keys).await.unwrap();
    let hosted = &person.hosted;
    let pods = hosted.pods().await.unwrap();
    let servers = pods.iter().map(|pod| hosted.server(pod).unwrap()).collect();
    let rest = Duration::from_millis(50);
    let load = Load::start(servers, LoadOptions { rest, ..LoadOptions::default() }).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    person.rotates_and_the_session_is_as_documented(&keys, &load).await.unwrap();
    person.gives_up_a_key_that_does_not_exist(&keys, &load).await.unwrap();
    person.goes_on_after_being_killed_at_each_stage(&keys, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout two rotations and one that was given up: {report}");
    hosted.nothing_has_restarted(&pods).await.unwrap();
    person.status_is_good().await.unwrap();
}

impl Person {
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The SecretEncryption with these keys, by number and ARN; the first one writes.
    fn document(&self, keys: &[(u64, &str)]) -> Result<PathBuf> {
        let url = self.hosted.aws_url();
        let [aws, shim] = self.hosted.images();
        let keys: Vec<Value> = keys
            .iter()
            .enumerate()
            .map(|(index, (id, arn))| {
                json!({
                    "id": id, "type": "aws", "role": if index == 0 { "write" } else { "read" },
                    "kek": {"key": arn}, "settings": {"endpoint": url, "allowPlaintext": true},
                    "credentials": {"sharedCredentialsFile": "/etc/sidekey/credentials"},
                    "files": [{
                        "name": "credentials",
                        "secret": {"name": "aws-keys", "key": "credentials"},
                    }],
                })
            })
            .collect();
        let document = json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "cluster-a", "namespace": NAMESPACE},
            "spec": {"images": {"aws": aws, "shim": shim}, "keys": keys},
        });
        let path = self.file("cluster-a.yaml");
        std::fs::write(&path, document.to_string())?;
        Ok(path)
    }

    fn arguments(&self, command: &[&str]) -> Result<Vec<String>> {
        let kubeconfig = path(self.hosted.cluster.kubeconfig())?;
        let mut all: Vec<String> = command.iter().map(|&arg| arg.to_owned()).collect();
        all.extend(["--kubeconfig".to_owned(), kubeconfig]);
        Ok(all)
    }

    async fn sidekey(&self, command: &[&str]) -> Result<Outcome> {
        binaries::run("sidekey", &self.arguments(command)?).await
    }

    /// `sidekey rotate`, with all that it needs here.
    async fn rotation(&self, more: &[&str]) -> Result<Vec<String>> {
        let provider = binaries::path_async("sidekey-aws").await?;
        let programs = path(provider.parent().context("a binary lies in a directory")?)?;
        let (file, hosted) =
            (path(&self.file("cluster-a.yaml"))?, path(&self.file("hosted.kubeconfig"))?);
        let mut command = vec!["rotate", "-f", &file, "--hosted-kubeconfig", &hosted];
        command.extend(["--bin-dir", &programs]);
        command.extend(more);
        self.arguments(&command)
    }

    async fn encrypts_what_was_in_clear(&self, keys: &[String]) -> Result<()> {
        let hosted = &self.hosted;
        hosted.moto.check_signatures("person", "secret").await?;
        hosted.moto.accept_access_keys(&["person"]).await?;
        let credentials = "[default]\naws_access_key_id = person\naws_secret_access_key = secret\nregion = us-east-1\n";
        hosted.put_secret("aws-keys", &[("credentials", credentials.to_owned())]).await?;
        hosted.kubeconfig(&self.file("hosted.kubeconfig"))?;
        let document = path(&self.document(&[(1, &keys[0])])?)?;
        self.sidekey(&["publish", "-f", &document]).await?.ok()?;

        let (bare, full) = (self.file("bare.json"), self.file("full.json"));
        std::fs::write(&bare, hosted.bare().to_string())?;
        let (bare, full_path) = (path(&bare)?, path(&full)?);
        let inject = ["inject", "-f", &bare, "--encryption", &document, "--to", &full_path];
        binaries::run("sidekey", &inject).await?.ok()?;
        let deployment: Value = serde_json::from_str(&std::fs::read_to_string(&full)?)?;
        hosted.roll_out_as(&deployment).await?;
        hosted.wait_usable().await
    }

    async fn rotates_and_the_session_is_as_documented(
        &self,
        keys: &[String],
        load: &Load,
    ) -> Result<()> {
        self.document(&[(2, &keys[1]), (1, &keys[0])])?;
        let planned =
            binaries::run("sidekey", &self.rotation(&["--dry-run"]).await?).await?.ok()?;
        ensure!(planned.stdout.contains("WritePromote"), "{}", planned.stdout);
        ensure!(self.written_under().await?.keys().eq([&1]), "a dry run has rotated");
        let done = binaries::run("sidekey", &self.rotation(&[]).await?).await?.ok()?;
        load.more(BETWEEN_STEPS).await?;
        let session = format!("{}{}", done.stderr, done.stdout);
        println!("{session}");
        as_documented(&session)?;
        let under = self.written_under().await?;
        ensure!(under.keys().eq([&2]), "stored under {under:?}");
        Ok(())
    }

    /// The new key cannot be used: nothing changes but a number that is used up.
    async fn gives_up_a_key_that_does_not_exist(&self, keys: &[String], load: &Load) -> Result<()> {
        let missing = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000";
        self.document(&[(3, missing), (2, &keys[1]), (1, &keys[0])])?;
        let refused = binaries::run("sidekey", &self.rotation(&[]).await?).await?;
        ensure!(refused.code == Some(3), "exit {:?}: {}", refused.code, refused.stderr);
        ensure!(refused.stderr.contains("key 3 must not go live"), "{}", refused.stderr);
        let stuck = self.rotation(&["--no-preflight", "--patience", "5s"]).await?;
        let stuck = binaries::run("sidekey", &stuck).await?;
        ensure!(stuck.code == Some(1), "exit {:?}: {}", stuck.code, stuck.stderr);
        load.more(BETWEEN_STEPS).await?;
        let aborted = self.rotation(&["--abort"]).await?;
        let aborted = binaries::run("sidekey", &aborted).await?.ok()?;
        ensure!(aborted.stdout.contains("given up"), "{}", aborted.stdout);
        load.more(BETWEEN_STEPS).await?;
        let under = self.written_under().await?;
        ensure!(under.keys().eq([&2]), "stored under {under:?}");
        Ok(())
    }

    async fn goes_on_after_being_killed_at_each_stage(
        &self,
        keys: &[String],
        load: &Load,
    ) -> Result<()> {
        self.document(&[(4, &keys[2]), (2, &keys[1]), (1, &keys[0])])?;
        for stage in KILLED_AT {
            binaries::kill_at("sidekey", &self.rotation(&[]).await?, stage).await?;
            load.more(BETWEEN_STEPS).await?;
        }
        let done = binaries::run("sidekey", &self.rotation(&[]).await?).await?.ok()?;
        ensure!(done.stderr.starts_with("Migrating"), "it went back: {}", done.stderr);
        load.more(BETWEEN_STEPS).await?;
        let under = self.written_under().await?;
        ensure!(under.keys().eq([&4]), "stored under {under:?}");
        let again = binaries::run("sidekey", &self.rotation(&[]).await?).await?;
        ensure!(again.code == Some(3), "exit {:?}: {}", again.code, again.stderr);
        Ok(())
    }

    async fn status_is_good(&self) -> Result<()> {
        let (file, hosted) =
            (path(&self.file("cluster-a.yaml"))?, path(&self.file("hosted.kubeconfig"))?);
        eventually("status is good", PATIENCE, async || {
            let command = ["status", "-f", &file, "--hosted-kubeconfig", &hosted];
            self.sidekey(&command).await?.ok()
        })
        .await?;
        Ok(())
    }

    /// How many objects of the load are stored under which key.
    async fn written_under(&self) -> Result<BTreeMap<u64, usize>> {
        let mut by_key = BTreeMap::new();
        for kind in Kind::ALL {
            for entry in self.hosted.stored(kind, "default").await? {
                *by_key.entry(key_number(&entry.value)?).or_default() += 1;
            }
        }
        ensure!(!by_key.is_empty(), "nothing is stored");
        Ok(by_key)
    }
}

fn path(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a path is text")?.to_owned())
}

/// The READMEs show a session; this one must look the same but for names, times and counts.
fn as_documented(session: &str) -> Result<()> {
    for name in ["README.md", "deploy/README.md"] {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        let readme = std::fs::read_to_string(readme)?;
        let shown = readme.split("$ sidekey rotate -f cluster-a.yaml").nth(1);
        let shown = shown.and_then(|text| text.split_once('\n')?.1.split_once("```"));
        let (shown, _) = shown.with_context(|| format!("{name} shows no session"))?;
        let (shown, seen) = (shape(shown), shape(session));
        ensure!(shown == seen, "{name} shows\n{shown:#?}\nand the session was\n{seen:#?}");
    }
    Ok(())
}

/// The lines of a session, without what differs from one to the next.
fn shape(session: &str) -> Vec<String> {
    let lasting = session.lines().filter(|line| !line.contains("waiting: "));
    lasting
        .map(|line| {
            let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
            let mut line: String = line.trim_end().chars().map(digits).collect();
            while line.contains("00") {
                line = line.replace("00", "0");
            }
            line.replace("0m 0s", "0s")
        })
        .filter(|line| !line.is_empty())
        .collect()
}
