//! Images that run: read-only root, any user that is not root, nothing but what is in them.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::netns::Host;
use sidekey_e2e::process::Spec;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, packages};

use super::built::{Built, all, one, tar};

/// Mounts the root read-only with what a container runtime puts on top, and becomes that user.
const ENTER: &str = r#"set -e
root=$1 uid=$2; shift 2
mount --bind "$root" "$root"
for name in run etc/hosts etc/resolv.conf etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$root.mounts/$name" ]; then mount --bind "$root.mounts/$name" "$root/$name"; fi
done
mount -o remount,bind,ro "$root"
if touch "$root/written" 2>/dev/null; then echo "the root can be written" >&2; exit 99; fi
exec chroot --userspec="+$uid:+$uid" --groups= "$root" "$@""#;

/// A user that OpenShift would choose.
pub(crate) const ANY_UID: u32 = 1_000_660_000;

/// An image, unpacked.
pub(crate) struct Unpacked {
    root: PathBuf,
    entrypoint: String,
    uid: u32,
}

impl Unpacked {
    /// In a directory of `scratch`, for its own user.
    pub(crate) fn new(image: &Built, scratch: &Scratch) -> Self {
        let root = scratch.subdir(&image.name).unwrap();
        let (layer, to) = (image.layer.to_str().unwrap(), root.to_str().unwrap());
        tar(&["--extract", "--same-permissions", "--file", layer, "--directory", to]);
        let config = &image.config["config"];
        let user = config["User"].as_str().unwrap().split_once(':').unwrap();
        let unpacked = Self {
            entrypoint: config["Entrypoint"][0].as_str().unwrap().to_owned(),
            uid: user.0.parse().unwrap(),
            root,
        };
        // Others must get in; mount points are made by every container runtime.
        fs::set_permissions(&unpacked.root, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        fs::create_dir_all(unpacked.root.join("run")).unwrap();
        fs::create_dir_all(unpacked.mount("run")).unwrap();
        fs::create_dir_all(unpacked.mount("etc/ssl/certs")).unwrap();
        chown(unpacked.mount("run"), Some(unpacked.uid), Some(unpacked.uid)).unwrap();
        for name in ["etc/hosts", "etc/resolv.conf"] {
            fs::write(unpacked.root.join(name), "").unwrap();
        }
        unpacked
    }

    /// The same for another user.
    fn with_uid(self, uid: u32) -> Self {
        chown(self.mount("run"), Some(uid), Some(uid)).unwrap();
        Self { uid, ..self }
    }

    /// What is mounted at a path inside: `run`, a directory that can be written, and whatever
    /// is made here.
    pub(crate) fn mount(&self, path: &str) -> PathBuf {
        self.root.with_added_extension("mounts").join(path)
    }

    /// Writes a file that the program may read.
    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::write(self.mount(path), text).unwrap();
        chown(self.mount(path), Some(self.uid), Some(self.uid)).unwrap();
    }

    /// What runs the image's program: `unshare`, with these arguments.
    fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let root = self.root.display().to_string();
        let enter =
            ["--mount", "sh", "-c", ENTER, "enter", &root, &self.uid.to_string(), &self.entrypoint]
                .map(str::to_owned);
        enter.into_iter().chain(arguments.iter().map(|&text| text.to_owned())).collect()
    }

    /// Runs it to its end, on this host or on another one.
    pub(crate) async fn run(&self, host: Option<&Host>, arguments: &[&str]) -> Output {
        let unshare = packages::program("unshare", "util-linux").await.unwrap();
        let (program, first) = match host {
            Some(host) => host.running(&unshare).await.unwrap(),
            None => (unshare, Vec::new()),
        };
        let mut command = Command::new(program);
        command.args(first).args(self.arguments(arguments)).stdin(Stdio::null());
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    }
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test]
async fn every_binary_runs_in_its_image_as_any_user() {
    for image in all().await {
        let scratch = Scratch::new("version").unwrap();
        let unpacked = Unpacked::new(image, &scratch);
        let expected = format!("{} {}", image.name, env!("CARGO_PKG_VERSION"));
        assert_eq!(unpacked.uid, 65532);
        assert_eq!(stdout(&unpacked.run(None, &["--version"]).await), expected);
        let unpacked = unpacked.with_uid(ANY_UID);
        assert_eq!(stdout(&unpacked.run(None, &["--version"]).await), expected);
    }
}

#[tokio::test]
async fn a_provider_serves_from_a_read_only_root_and_its_own_probe_sees_it() {
    let scratch = Scratch::new("serve").unwrap();
    let unpacked = Unpacked::new(one("local").await, &scratch);
    let socket = "unix:///run/kms.sock";
    let serve = ["--listen", socket, "--key-file", "/run/key", "--create-key"];
    let unshare = packages::program("unshare", "util-linux").await.unwrap();
    let log = scratch.path().join("plugin.log");
    let mut process = Spec::new("the image of sidekey-local", unshare, log)
        .args(unpacked.arguments(&serve))
        .start()
        .unwrap();
    let there = unpacked.mount("run/kms.sock");
    let endpoint = format!("unix://{}", there.display());
    let client = async || {
        let client = KmsClient::connect(&endpoint).await?;
        client.status().await?;
        Ok(client)
    };
    let client = process.wait_until("it answers", PATIENCE, client).await.unwrap();
    client.round_trip(b"word").await.unwrap();
    let probe = ["probe", "--healthy", "--socket", socket];
    stdout(&unpacked.run(None, &probe).await);
    assert_eq!(owner(&there), 65532);
    process.kill().unwrap();
    let gone = unpacked.run(None, &probe).await;
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

fn owner(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).unwrap())
}
