//! Promise: `sidekey publish --to-dir` leaves every directory whole, old or new, whenever it is
//! killed and however full the disk is; running sidecars take over what it publishes, and `sidekey
//! rotate --to-dir` rotates a node by it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::shim::replicas::key_number;
use sidekey_e2e::sidecar::Sidecar;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, KubeApiserver, Load, LoadOptions, LocalPlugin,
    Scratch, packages,
};

/// Calls that change something on a disk; no machine has all of them.
const CHANGES: [&str; 17] = [
    "mkdir",
    "mkdirat",
    "write",
    "fsync",
    "fchmod",
    "chmod",
    "fchmodat",
    "chown",
    "fchownat",
    "symlink",
    "symlinkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
];

struct Bench {
    scratch: Scratch,
    directory: PathBuf,
    document: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let directory = scratch.path().join("etc");
        let document = scratch.path().join("encryption.yaml");
        Self { scratch, directory, document }
    }

    fn describe(&self, keys: &[Value]) {
        let document = json!({
            "apiVersion": "sidekey.dev/v1alpha1",
            "kind": "SecretEncryption",
            "metadata": {"name": "a"},
            "spec": {"keys": keys},
        });
        std::fs::write(&self.document, document.to_string()).unwrap();
    }

    fn args(&self) -> Vec<OsString> {
        let gid = rustix::process::getegid().as_raw().to_string();
        let mut args: Vec<OsString> =
            ["publish", "--gid", &gid, "-o", "json", "-f"].map(Into::into).into();
        args.extend([self.document.clone().into(), "--to-dir".into()]);
        args.push(self.directory.clone().into());
        args
    }

    async fn publish(&self) -> Outcome {
        binaries::run("sidekey", &self.args()).await.unwrap()
    }

    fn read(&self, path: &str) -> String {
        let path = self.directory.join(path);
        let read = std::fs::read_to_string(&path);
        read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// A key whose file and settings both say which version they are of.
fn marked(bench: &Bench, mark: &str) -> Value {
    let file = bench.scratch.path().join(mark);
    std::fs::write(&file, mark.repeat(20_000)).unwrap();
    json!({
        "id": 1,
        "type": "vault",
        "role": "write",
        "kek": {"key": "kms"},
        "settings": {"mark": mark},
        // The name changes too, so that a link must be made for it.
        "files": [{"name": format!("file-{mark}"), "file": file}],
        "credentials": {"file": format!("/etc/sidekey/file-{mark}")},
    })
}

/// That the provider's directory is of one version, and which.
fn version(bench: &Bench) -> String {
    let config = bench.read("vault/config.yaml");
    let marks = ["one", "two"].iter().filter(|mark| config.contains(&format!("mark: {mark}")));
    let marks: Vec<&&str> = marks.collect();
    let [mark] = marks.as_slice() else { panic!("{config}") };
    assert_eq!(bench.read(&format!("vault/file-{mark}")), mark.repeat(20_000));
    bench.read("shim/config.yaml");
    bench.read("kube-apiserver/encryption.yaml");
    (**mark).to_string()
}

/// Publishes, and kills at the `nth` call of that name, before the kernel has done it; false if
/// there were fewer.
async fn publish_and_kill_at(bench: &Bench, strace: &Path, call: &str, nth: u32) -> bool {
    let program = binaries::path_async("sidekey").await.unwrap();
    let ended = tokio::process::Command::new(strace)
        .args(["-qq", "-o", "/dev/null", "-e", &format!("trace=?{call}")])
        .args(["-e", &format!("inject=?{call}:signal=SIGKILL:when={nth}")])
        .arg(program)
        .args(bench.args())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let killed = ended.status.signal() == Some(Signal::KILL.as_raw());
    assert!(killed || ended.status.success(), "{call} {nth}: {ended:?}");
    killed
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_leaves_every_directory_whole() {
    let bench = Bench::new("kill");
    let strace = packages::program("strace", "strace").await.unwrap();
    let (one, two) = (marked(&bench, "one"), marked(&bench, "two"));
    bench.describe(std::slice::from_ref(&one));
    bench.publish().await.ok().unwrap();
    let (mut killed, mut turned) = (BTreeMap::new(), 0);
    for call in CHANGES {
        for nth in 1.. {
            let before = version(&bench);
            let wanted = if before == "one" { &two } else { &one };
            bench.describe(std::slice::from_ref(wanted));
            let in_time = publish_and_kill_at(&bench, &strace, call, nth).await;
            let after = version(&bench);
            if !in_time {
                assert_ne!(after, before, "what was not killed has published");
                break;
            }
            *killed.entry(call).or_insert(0) += 1;
            turned += u32::from(after != before);
        }
    }
    eprintln!("killed at {killed:?}; {turned} had turned the first directory");
    // The history and three directories are each turned to their new content by one.
    let renames: u32 =
        killed.iter().filter(|(call, _)| call.starts_with("rename")).map(|x| x.1).sum();
    assert_eq!(renames, 4, "{killed:?}");
    assert!((1..killed.values().sum()).contains(&turned), "kills hit one side of the rename only");

    let wanted = if version(&bench) == "one" { &two } else { &one };
    bench.describe(std::slice::from_ref(wanted));
    bench.publish().await.ok().unwrap();
    // Nothing of the killed is left: the link, what it leads to, and two files.
    let left = std::fs::read_dir(bench.directory.join("vault")).unwrap().count();
    assert_eq!(left, 4);
    let history = std::fs::read_dir(bench.directory.join("revisions")).unwrap();
    for entry in history {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.parse::<u64>().is_ok(), "{name} was left behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_the_old_files_and_is_told() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts a small disk, which takes root: run it as root"
    );
    let bench = Bench::new("full");
    std::fs::create_dir(&bench.directory).unwrap();
    let unshare = packages::program("unshare", "util-linux").await.unwrap();
    let sidekey = binaries::path_async("sidekey").await.unwrap();
    let (one, two) = (marked(&bench, "one"), marked(&bench, "two"));
    let documents = [("one", &one), ("two", &two)].map(|(name, key)| {
        bench.describe(std::slice::from_ref(key));
        let path = bench.scratch.path().join(format!("{name}.yaml"));
        std::fs::copy(&bench.document, &path).unwrap();
        path
    });
    let script = r#"
set -eu
publish() { code=0; "$SIDEKEY" publish --gid 0 -f "$1" --to-dir "$DIR" || code=$?; echo "exit $code"; }
mount -t tmpfs -o size=1m tmpfs "$DIR"
publish "$ONE"
head -c 2000000 /dev/zero > "$DIR/ballast" 2>/dev/null || true
before=$(readlink "$DIR/vault/..data")
publish "$TWO"
test "$before" = "$(readlink "$DIR/vault/..data")"
cmp "$DIR/vault/file-one" "$FILE"
ls "$DIR/revisions"
rm "$DIR/ballast"
publish "$TWO"
grep -c 'mark: two' "$DIR/vault/config.yaml"
"#;
    let output = tokio::process::Command::new(unshare)
        .args(["--mount", "sh", "-c", script])
        .env("SIDEKEY", sidekey)
        .env("DIR", &bench.directory)
        .env("ONE", &documents[0])
        .env("TWO", &documents[1])
        .env("FILE", bench.scratch.path().join("one"))
        .output()
        .await
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let codes: Vec<&str> = stdout.lines().filter(|line| line.starts_with("exit")).collect();
    assert_eq!(codes, ["exit 0", "exit 1", "exit 0"], "{stdout}\n{stderr}");
    assert!(stderr.contains("nothing was changed"), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
}

/// A key of sidekey-local, served and mounted below the bench's directories.
fn local(bench: &Bench, id: u32, role: &str, key_file: &Path) -> Value {
    let name = format!("key-{id}");
    let mounted = bench.directory.join("local").join(&name);
    let socket = bench.scratch.path().join(format!("kms-{id}.sock"));
    json!({
        "id": id,
        "type": "local",
        "role": role,
        "listen": format!("unix://{}", socket.display()),
        "credentials": {"keyFile": mounted},
        "files": [{"name": name, "file": key_file}],
    })
}

/// Two, of different keys.
async fn key_files(bench: &Bench) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for name in ["first", "second"] {
        // Makes a key file; the plugin itself is not needed any longer.
        let plugin = LocalPlugin::start(&bench.scratch, name).await.unwrap();
        files.push(plugin.key_file().to_owned());
    }
    files
}

/// A sidecar that reads its file of the bench's directories, as its static pod does.
async fn sidecar(bench: &Bench, name: &'static str, directory: &str) -> Result<Sidecar> {
    let program = binaries::path_async(name).await?;
    let log = bench.scratch.path().join(format!("{name}.log"));
    let spec = Spec::new(name, program, log)
        .arg("--config")
        .arg(bench.directory.join(directory).join("config.yaml"))
        .args(["--admin", "127.0.0.1:0"]);
    let socket = |file: &str| format!("unix://{}", bench.scratch.path().join(file).display());
    let spec = match directory {
        "shim" => spec.arg("--listen").arg(socket("kms.sock")),
        _ => spec.arg("--admin-socket").arg(socket("admin.sock")),
    };
    let mut sidecar = Sidecar::start(spec).await?;
    sidecar.wait_ready().await?;
    Ok(sidecar)
}

#[tokio::test(flavor = "multi_thread")]
async fn running_sidecars_take_a_rotation_over_as_it_is_published() {
    let bench = Bench::new("live");
    let files = key_files(&bench).await;
    bench.describe(&[local(&bench, 1, "write", &files[0])]);
    bench.publish().await.ok().unwrap();
    let _provider = sidecar(&bench, "sidekey-local", "local").await.unwrap();
    let mut shim = sidecar(&bench, "sidekey-shim", "shim").await.unwrap();
    let endpoint = format!("unix://{}", bench.scratch.path().join("kms.sock").display());
    let kms = KmsClient::connect(&endpoint).await.unwrap();
    let old = kms.round_trip(b"written with key 1").await.unwrap();
    assert!(old.key_id.starts_with("sidekey/1-"), "{}", old.key_id);

    let keys =
        |one: &str, two: &str| [local(&bench, 1, one, &files[0]), local(&bench, 2, two, &files[1])];
    for (revision, roles) in [(2, ("write", "read")), (3, ("read", "write"))] {
        bench.describe(&keys(roles.0, roles.1));
        bench.publish().await.ok().unwrap();
        let wanted = Value::from(revision.to_string());
        shim.wait_status(&format!("revision {revision} is in use"), |status| {
            ensure!(status["revision"] == wanted, "{status}");
            Ok(())
        })
        .await
        .unwrap();
    }
    assert_eq!(kms.decrypt(&old).await.unwrap().as_ref(), b"written with key 1");
    let new = kms.round_trip(b"written with key 2").await.unwrap();
    assert!(new.key_id.starts_with("sidekey/2-"), "{}", new.key_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_rotated_by_one_command_that_may_be_killed() {
    let plane = ControlPlane::start("rotate-dir").await.unwrap();
    let bench = Bench::new("rotate");
    let files = key_files(&bench).await;
    bench.describe(&[local(&bench, 1, "write", &files[0])]);
    bench.publish().await.ok().unwrap();
    let _provider = sidecar(&bench, "sidekey-local", "local").await.unwrap();
    let shim = sidecar(&bench, "sidekey-shim", "shim").await.unwrap();
    let endpoint = format!("unix://{}", bench.scratch.path().join("kms.sock").display());
    let encryption = EncryptionConfiguration::kms("sidekey", endpoint);
    let options = sidekey_e2e::apiserver::Options::new("a").encryption(encryption);
    let mut server = KubeApiserver::start(&plane, options).await.unwrap();
    let pid = server.process().pid();
    let load = Load::start(vec![server.client()], LoadOptions::default()).unwrap();
    load.more(100).await.unwrap();

    let keys = [local(&bench, 1, "read", &files[0]), local(&bench, 2, "write", &files[1])];
    bench.describe(&keys);
    let args = rotation(&bench, &server, &shim);
    for stage in ["ReadOnlyDeploy", "WritePromote", "Migrating"] {
        binaries::kill_at("sidekey", &args, stage).await.unwrap();
        load.more(30).await.unwrap();
    }
    let done = binaries::run("sidekey", &args).await.unwrap().ok().unwrap();
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&answer["stage"], &answer["to"]["id"]), (&json!("Completed"), &json!(2)));
    load.more(30).await.unwrap();
    load.stop().await.unwrap().without_failures().unwrap();
    assert_eq!(server.process().pid(), pid, "kube-apiserver has restarted");
    let mut under: BTreeMap<u64, usize> = BTreeMap::new();
    for kind in Kind::ALL {
        let prefix = format!("/registry/{}/", kind.plural());
        for entry in plane.etcd.list(&prefix).await.unwrap() {
            *under.entry(key_number(&entry.value).unwrap()).or_default() += 1;
        }
    }
    assert!(under.keys().eq([&2]), "stored under {under:?}");
    let state: Value = serde_json::from_str(&bench.read("rotation.json")).unwrap();
    assert_eq!(state["stage"], "Completed");
    assert_eq!(binaries::run("sidekey", &args).await.unwrap().code, Some(3), "it is done");
}

/// `sidekey rotate` on this node. The paths of keys are those of this host, not of a pod, so the
/// shim alone proves them.
fn rotation(bench: &Bench, server: &KubeApiserver, shim: &Sidecar) -> Vec<String> {
    let kubeconfig = bench.scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    let gid = rustix::process::getegid().as_raw().to_string();
    let paths = [&bench.document, &bench.directory, &kubeconfig];
    let [document, directory, kubeconfig] = paths.map(|path| path.display().to_string());
    let server = format!("https://{}", server.address());
    let words = ["rotate", "-o", "json", "--no-preflight", "--gid", &gid, "-f", &document];
    let more = ["--to-dir", &directory, "--kubeconfig", &kubeconfig, "--server", &server];
    let last = ["--shim".to_owned(), shim.admin_url()];
    words.into_iter().chain(more).map(str::to_owned).chain(last).collect()
}
