//! Promise: `sidekey preflight` runs the provider with the given settings and says whether its key
//! may go live. What stays wrong (3) is told from what may pass (1), the canaries of old keys must
//! be read, and nothing of it is left: no process, no copy of a credential.
//!
//! Vault is a real OpenBao over TLS.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::{PATIENCE, eventually};
use sidekey_e2e::{LocalPlugin, OpenBao, Scratch};

/// The program's name.
const PROGRAM: &str = "sidekey";

/// Where a document lies and what is tried with it.
struct Desk {
    scratch: Scratch,
    bin_dir: PathBuf,
}

/// How it ended, and what it said.
struct Said {
    code: Option<i32>,
    json: Value,
    all: String,
}

impl Desk {
    async fn new(name: &str, provider: &'static str) -> Result<Self> {
        let binary = binaries::path_async(provider).await?;
        let bin_dir = binary.parent().context("no directory")?.to_owned();
        let scratch = Scratch::new(name)?;
        scratch.subdir("trials")?;
        Ok(Self { scratch, bin_dir })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.file(name), text)?)
    }

    fn document(&self, keys: &Value) -> Result<()> {
        let document = json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "cluster-a"}, "spec": {"keys": keys},
        });
        self.write("document.yaml", &document.to_string())
    }

    /// Starts it without waiting for its end.
    async fn start(&self, args: &[&str]) -> Result<Process> {
        let program = binaries::path_async(PROGRAM).await?;
        let spec = Spec::new("sidekey preflight", program, self.file("preflight.log"))
            .args(["preflight", "-o", "json", "--bin-dir"])
            .arg(&self.bin_dir)
            .env("TMPDIR", self.file("trials"))
            .args(args.iter().copied());
        let _ = std::fs::remove_file(self.file("preflight.log"));
        spec.start()
    }

    async fn end(&self, mut process: Process) -> Result<Said> {
        let ended =
            eventually("it ends", PATIENCE * 2, async || process.ended()?.context("it runs"));
        let code = ended.await?.code();
        let all = process.log()?;
        let json = serde_json::from_str(&all).unwrap_or_default();
        self.nothing_is_left()?;
        Ok(Said { code, json, all })
    }

    async fn preflight(&self, args: &[&str]) -> Result<Said> {
        self.end(self.start(args).await?).await
    }

    async fn of_document(&self, more: &[&str]) -> Result<Said> {
        let path = self.file("document.yaml").display().to_string();
        let args: Vec<&str> = ["-f", &path].into_iter().chain(more.iter().copied()).collect();
        self.preflight(&args).await
    }

    fn nothing_is_left(&self) -> Result<()> {
        let trials = self.file("trials");
        let left: Vec<_> = std::fs::read_dir(&trials)?.flatten().map(|e| e.path()).collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        let running = processes_in(&trials)?;
        ensure!(running.is_empty(), "still running: {running:?}");
        Ok(())
    }
}

/// Command lines that name the directory.
fn processes_in(directory: &Path) -> Result<Vec<String>> {
    let name = directory.display().to_string();
    let entries = std::fs::read_dir("/proc")?.flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    Ok(lines.filter(|line| line.contains(&name)).collect())
}

impl Said {
    /// The result of one check of the first key.
    fn check(&self, name: &str) -> (&str, &str) {
        let steps = self.json["keys"][0]["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
        let step = steps.iter().find(|step| step["check"] == name);
        let text = |field: &str| step.and_then(|step| step[field].as_str()).unwrap_or("none");
        (text("result"), text("detail"))
    }

    fn expect(&self, code: i32, check: &str, result: &str, detail: &str) -> Result<()> {
        let (found, said) = self.check(check);
        let right = self.code == Some(code) && found == result && said.contains(detail);
        ensure!(right, "exit {:?}, {check} is {found}: {said}\n{}", self.code, self.all);
        Ok(())
    }
}

#[tokio::test]
async fn keys_of_the_embedded_provider() {
    let desk = Desk::new("preflight", "sidekey-local").await.unwrap();
    let plugins = [
        LocalPlugin::start(&desk.scratch, "one").await.unwrap(),
        LocalPlugin::start(&desk.scratch, "two").await.unwrap(),
    ];
    for (plugin, name) in plugins.iter().zip(["key-1", "key-2"]) {
        std::fs::copy(plugin.key_file(), desk.file(name)).unwrap();
    }
    let canary = a_sound_key_may_go_live_and_gets_a_canary(&desk).await.unwrap();
    the_canary_of_another_key_is_refused(&desk, &canary).await.unwrap();
    mistakes_are_terminal_and_named(&desk).await.unwrap();
    a_running_plugin_of_any_vendor_is_asked(&desk, &plugins, &canary).await.unwrap();
}

fn local(id: u64, role: &str, file: &str) -> Value {
    json!({
        "id": id, "type": "local", "role": role,
        "credentials": {"keyFile": format!("/etc/sidekey/key-{id}")},
        "files": [{"name": format!("key-{id}"), "file": file}],
    })
}

async fn a_sound_key_may_go_live_and_gets_a_canary(desk: &Desk) -> Result<Value> {
    desk.document(&json!([local(1, "write", "./key-1")]))?;
    let said = desk.of_document(&[]).await?;
    said.expect(0, "canary", "warning", "none")?;
    for check in ["configuration", "status", "encrypt", "decrypt", "key_id"] {
        ensure!(said.check(check).0 == "ok", "{}", said.all);
    }
    let first = said.json["keys"][0].clone();
    let hash = first["configHash"].as_str().context("no hash")?;
    ensure!(hash.len() == "sha256:".len() + 64, "{hash}");
    let canary = first["canary"].clone();
    let mut key = local(1, "write", "./key-1");
    key["canary"] = canary.clone();
    desk.document(&json!([key, local(2, "read", "./key-2")]))?;
    let said = desk.of_document(&["--key", "1"]).await?;
    said.expect(0, "canary", "ok", "very KEK")?;
    let keys = said.json["keys"].as_array().map_or(0, Vec::len);
    ensure!(keys == 1 && said.json["keys"][0]["configHash"] != first["configHash"], "{}", said.all);
    let said = desk.of_document(&[]).await?;
    ensure!(
        said.code == Some(0) && said.json["keys"].as_array().map_or(0, Vec::len) == 2,
        "{}",
        said.all
    );
    Ok(canary)
}

/// A fresh round trip works; that it is another key only the canary tells.
async fn the_canary_of_another_key_is_refused(desk: &Desk, canary: &Value) -> Result<()> {
    let mut key = local(1, "write", "./key-2");
    key["canary"] = canary.clone();
    desk.document(&json!([key.clone()]))?;
    let said = desk.of_document(&[]).await?;
    said.expect(3, "canary", "terminal", "")?;
    ensure!(said.check("decrypt").0 == "ok", "{}", said.all);
    key["role"] = "read".into();
    desk.document(&json!([key, local(2, "write", "./key-2")]))?;
    desk.of_document(&["--key", "1"]).await?.expect(3, "canary", "terminal", "")
}

async fn mistakes_are_terminal_and_named(desk: &Desk) -> Result<()> {
    let mut key = local(1, "write", "./key-1");
    key["credentials"]["keyFyle"] = "/etc/sidekey/key-1".into();
    desk.document(&json!([key]))?;
    let said = desk.of_document(&[]).await?;
    said.expect(3, "configuration", "terminal", "credentials.keyFyle: unknown field")?;
    desk.write("broken", "this is no key file\n")?;
    desk.document(&json!([local(1, "write", "./broken")]))?;
    let said = desk.of_document(&[]).await?;
    ensure!(said.code == Some(3), "{}", said.all);
    ensure!(!said.all.contains("this is no key file"), "{}", said.all);
    desk.document(&json!([{"id": 1, "type": "local"}]))?;
    let said = desk.of_document(&[]).await?;
    ensure!(said.code == Some(64) && said.all.contains("role"), "{}", said.all);
    desk.document(&json!([local(1, "write", "./nowhere")]))?;
    let said = desk.of_document(&[]).await?;
    ensure!(said.code == Some(1) && said.all.contains("not found"), "{}", said.all);
    Ok(())
}

async fn a_running_plugin_of_any_vendor_is_asked(
    desk: &Desk,
    plugins: &[LocalPlugin; 2],
    canary: &Value,
) -> Result<()> {
    desk.write("canary.json", &canary.to_string())?;
    let file = desk.file("canary.json").display().to_string();
    let [right, wrong] = [0, 1].map(|index: usize| plugins[index].endpoint());
    let said = desk.preflight(&["--socket", &right, "--canary", &file]).await?;
    said.expect(0, "canary", "ok", "very KEK")?;
    let said = desk.preflight(&["--socket", &wrong, "--canary", &file, "--read-only"]).await?;
    said.expect(3, "canary", "terminal", "")
}

#[tokio::test]
async fn what_vault_refuses_stays_and_what_is_away_may_come_back() {
    let desk = Desk::new("preflight-vault", "sidekey-vault").await.unwrap();
    let mut bao = OpenBao::start(&desk.scratch, "bao").await.unwrap();
    let role = vault_is_ready(&desk, &bao).await.unwrap();
    wrong_credentials_are_terminal(&desk, &role).await.unwrap();
    permissions_are_told_apart(&desk, &bao).await.unwrap();
    a_vault_that_is_away_is_not_known_until_it_is_back(&desk, &mut bao).await.unwrap();
    who_is_interrupted_leaves_nothing(&desk, &mut bao).await.unwrap();
}

async fn allow(bao: &OpenBao, verbs: &[&str]) -> Result<()> {
    let paths: Vec<String> = verbs.iter().map(|verb| format!("transit/{verb}/kms")).collect();
    let mut rules: Vec<(&str, &[&str])> = vec![("transit/keys/kms", &["read"])];
    rules.extend(paths.iter().map(|path| (path.as_str(), ["update"].as_slice())));
    bao.root().policy("kms", &rules).await
}

async fn vault_is_ready(desk: &Desk, bao: &OpenBao) -> Result<AppRole> {
    let root = bao.root();
    root.enable("transit", "transit").await?;
    root.enable_auth("approle", "approle").await?;
    root.make_key("transit", "kms").await?;
    allow(bao, &["encrypt", "decrypt"]).await?;
    let role = AppRole::create(&root, "approle", "kms", &["kms"], &json!({})).await?;
    std::fs::copy(bao.ca(), desk.file("ca.crt"))?;
    desk.write("role-id", &role.role_id)?;
    desk.write("secret-id", &role.secret_id().await?)?;
    let files = ["ca.crt", "role-id", "secret-id"];
    let files = files.map(|name| json!({"name": name, "file": format!("./{name}")}));
    desk.document(&json!([{
        "id": 1, "type": "vault", "role": "write", "kek": {"mount": "transit", "key": "kms"},
        "settings": {"addresses": [bao.address()], "tls": {"caFile": "/etc/sidekey/ca.crt"}},
        "credentials": {"appRole": {
            "roleIdFile": "/etc/sidekey/role-id", "secretIdFile": "/etc/sidekey/secret-id",
        }},
        "files": files,
    }]))?;
    let said = desk.of_document(&[]).await?;
    said.expect(0, "decrypt", "ok", "")?;
    Ok(role)
}

async fn wrong_credentials_are_terminal(desk: &Desk, role: &AppRole) -> Result<()> {
    let good = std::fs::read_to_string(desk.file("secret-id"))?;
    let wrong = "3b9f4c1e-0000-4000-8000-5a1c0ffee000";
    desk.write("secret-id", wrong)?;
    let said = desk.of_document(&[]).await?;
    said.expect(3, "status", "terminal", "PermissionDenied")?;
    let log = said.json["keys"][0]["log"].as_array().map_or(0, Vec::len);
    ensure!(log > 0 && !said.all.contains(wrong), "{}", said.all);
    role.revoke(&good).await?;
    desk.write("secret-id", &good)?;
    desk.of_document(&[]).await?.expect(3, "status", "terminal", "PermissionDenied")?;
    desk.write("secret-id", &role.secret_id().await?)
}

async fn permissions_are_told_apart(desk: &Desk, bao: &OpenBao) -> Result<()> {
    for (may, may_not) in [("decrypt", "encrypt"), ("encrypt", "decrypt")] {
        allow(bao, &[may]).await?;
        let said = desk.of_document(&[]).await?;
        said.expect(3, "status", "terminal", may_not)?;
    }
    allow(bao, &["encrypt", "decrypt"]).await?;
    desk.of_document(&[]).await?.expect(0, "decrypt", "ok", "")
}

async fn a_vault_that_is_away_is_not_known_until_it_is_back(
    desk: &Desk,
    bao: &mut OpenBao,
) -> Result<()> {
    bao.process().kill()?;
    let said = desk.of_document(&["--timeout", "30s"]).await?;
    said.expect(1, "status", "transient", "Unavailable")?;
    let path = desk.file("document.yaml").display().to_string();
    let trial = desk.start(&["-f", &path, "--timeout", "10m"]).await?;
    let trials = desk.file("trials");
    eventually("the provider runs", PATIENCE, async || {
        ensure!(!processes_in(&trials)?.is_empty(), "not yet");
        Ok(())
    })
    .await?;
    bao.revive().await?;
    desk.end(trial).await?.expect(0, "decrypt", "ok", "")
}

async fn who_is_interrupted_leaves_nothing(desk: &Desk, bao: &mut OpenBao) -> Result<()> {
    bao.process().kill()?;
    let path = desk.file("document.yaml").display().to_string();
    let mut trial = desk.start(&["-f", &path, "--timeout", "10m"]).await?;
    let trials = desk.file("trials");
    eventually("the provider serves", PATIENCE, async || {
        let sockets = std::fs::read_dir(&trials)?.flatten().map(|e| e.path().join("kms.sock"));
        ensure!(sockets.into_iter().any(|socket| socket.exists()), "not yet");
        Ok(())
    })
    .await?;
    let ended = trial.terminate(PATIENCE).await?;
    ensure!(ended.code() == Some(1), "{ended}");
    eventually("nothing is left", PATIENCE, async || desk.nothing_is_left()).await
}
