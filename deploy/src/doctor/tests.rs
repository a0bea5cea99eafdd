use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use tempfile::TempDir;

use super::*;

struct Node {
    directory: TempDir,
    options: Options,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("sockets")).unwrap();
        fs::create_dir(at("config")).unwrap();
        chmod(&at("sockets"), 0o750);
        let options = Options {
            config_dir: at("config"),
            socket_dir: at("sockets"),
            manifest: at("kube-apiserver.yaml"),
            encryption_config: None,
            bin_dir: Some(at("bin")),
            timeout: Duration::from_secs(5),
            ..Default::default()
        };
        Self { directory, options }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn encryption(&self, providers: &str) {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n\
             resources:\n- resources: [secrets]\n  providers: {providers}\n"
        );
        self.write("config/kube-apiserver/encryption.yaml", &text);
    }

    async fn bad(&self) -> Vec<String> {
        let found = examine(&self.options).await;
        let bad = found.into_iter().filter(|finding| finding.level != Level::Ok);
        bad.inspect(|finding| assert!(finding.fix.is_some(), "{finding:?}"))
            .map(|finding| {
                format!("{}: {}: {}", finding.area.label(), finding.subject, finding.text)
            })
            .collect()
    }

    async fn finds(&self, wanted: &str) {
        let bad = self.bad().await;
        assert!(bad.iter().any(|line| line.contains(wanted)), "no {wanted:?} in {bad:#?}");
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

const KMS: &str =
    "{kms: {apiVersion: v2, name: sidekey, endpoint: 'unix:///@nobody', timeout: 5s}}";

#[tokio::test]
async fn an_empty_node_has_no_problems_and_a_missing_directory_is_one() {
    let mut node = Node::new();
    assert_eq!(node.bad().await, Vec::<String>::new());
    chmod(&node.options.socket_dir, 0o755);
    node.finds("mode 0755").await;
    node.options.socket_dir = node.directory.path().join("nowhere");
    node.options.config_dir = node.directory.path().join("nowhere");
    node.finds("nowhere: cannot be looked at").await;
    node.finds("nowhere: cannot be read").await;
}

#[tokio::test]
async fn sockets_that_do_not_listen_or_are_none_are_named() {
    let mut node = Node::new();
    node.options.timeout = Duration::from_millis(300);
    let at = |name: &str| node.options.socket_dir.join(name);
    drop(UnixListener::bind(at("stale.sock")).unwrap());
    fs::write(at("file.sock"), "").unwrap();
    let open = UnixListener::bind(at("open.sock")).unwrap();
    chmod(&at("open.sock"), 0o666);
    node.finds("stale.sock: cannot connect").await;
    node.finds("file.sock: is no socket").await;
    node.finds("open.sock: mode 0666").await;
    drop(open);
    node.write(
        "config/shim/config.yaml",
        "keys: [{endpoints: ['unix:///var/run/kmsplugin/kms-7.sock']}]",
    );
    node.finds("kms-7.sock: is not there").await;
    node.write("config/shim/config.yaml", "keys: [{endpoints: ['unix:///@sidekey-nobody']}]");
    node.finds("unix:///@sidekey-nobody: cannot connect").await;
}

#[tokio::test]
async fn a_socket_that_hangs_or_speaks_something_else_is_named() {
    let mut node = Node::new();
    node.options.timeout = Duration::from_millis(300);
    let path = node.options.socket_dir.join("silent.sock");
    let silent = UnixListener::bind(&path).unwrap();
    node.finds("silent.sock: does not answer Status").await;
    drop(silent);
    fs::remove_file(&path).unwrap();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let talking = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail ready\r\n").await;
        }
    });
    let bad = node.bad().await;
    assert!(bad.iter().any(|line| line.starts_with("key: ")), "{bad:?}");
    talking.abort();
}

#[tokio::test]
async fn every_fault_of_an_encryption_configuration_is_named() {
    let node = Node::new();
    for (providers, wanted) in [
        (format!("[{{identity: {{}}}}, {KMS}]"), "identity is first"),
        (format!("[{KMS}, {{identity: {{}}}}, {KMS}]"), "identity is not last"),
        (format!("[{KMS}, {{identity: {{}}}}, {KMS}]"), "is there more than once"),
        (format!("[{KMS}]"), "there is no identity"),
        ("[]".to_owned(), "has no providers"),
        (KMS.replace("timeout", "cachesize: 100, timeout"), "has a cachesize"),
        (KMS.replace("5s", "0s"), "its timeout is zero"),
        (KMS.replace("5s", "soon"), "its timeout cannot be read"),
        (KMS.replace("v2", "v1"), "is not KMS v2"),
        (KMS.replace("sidekey", "'a:b'"), "is no name"),
        (KMS.replace("unix:///@nobody", "tcp://1"), "is not a unix socket"),
        (KMS.replace("unix:///@nobody", "/run/x.sock"), "must begin with unix://"),
        (KMS.replace("@nobody", "var/run/kmsplugin/kms.sock"), "kms.sock is not there"),
    ] {
        let list = if providers.starts_with('[') {
            providers
        } else {
            format!("[{providers}, {{identity: {{}}}}]")
        };
        node.encryption(&list);
        node.finds(wanted).await;
    }
    node.write("config/kube-apiserver/encryption.yaml", "kind: Pod\n");
    node.finds("is no EncryptionConfiguration").await;
    node.write("config/kube-apiserver/encryption.yaml", "{");
    node.finds("cannot be read as YAML").await;
}

#[tokio::test]
async fn a_sound_encryption_configuration_is_called_so() {
    let node = Node::new();
    let name = format!("sidekey-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    node.encryption(&format!("[{}, {{identity: {{}}}}]", KMS.replace("nobody", &name)));
    let found = examine(&node.options).await;
    let sound = found.iter().any(|f| f.area == Area::Encryption && f.level == Level::Ok);
    assert!(sound, "{found:?}");
}

#[tokio::test]
async fn flags_that_a_manifest_lacks_are_named() {
    let node = Node::new();
    let manifest = |args: &str, mount: &str| {
        let text = format!(
            "spec: {{containers: [{{name: kube-apiserver, command: [kube-apiserver], args: [{args}], \
             volumeMounts: [{{mountPath: {mount}}}]}}]}}"
        );
        node.write("kube-apiserver.yaml", &text);
    };
    let (config, reload) =
        ("--encryption-provider-config=/x", "--encryption-provider-config-automatic-reload=true");
    manifest("", "/var/run/kmsplugin");
    node.finds("nothing is encrypted").await;
    manifest(config, "/var/run/kmsplugin");
    node.finds("needs a restart").await;
    manifest(&format!("{config}, {reload}"), "/data");
    node.finds("does not mount").await;
    manifest(&format!("{config}, {reload}"), "/var/run/kmsplugin");
    assert_eq!(node.bad().await, Vec::<String>::new());
}
