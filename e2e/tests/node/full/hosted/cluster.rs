//! The cluster that tests run pods on: a real node, and nothing left of it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::cluster::{NODE, POD_IMAGE, Pod};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Cluster, Ground, Kind, eventually, images};

/// Set, `a_killed_test_…` plays the one that is killed.
const VICTIM: &str = "SIDEKEY_E2E_VICTIM";

#[tokio::test]
async fn a_cluster_runs_pods_as_users_do() {
    let mut cluster = Cluster::start("cluster").await.unwrap();
    let web = a_deployment_with_a_native_sidecar_runs_from_a_local_image(&cluster).await.unwrap();
    a_pod_reaches_a_service_by_its_name(&cluster, &web).await.unwrap();
    a_pod_reaches_what_this_host_exposes(&cluster, &web).await.unwrap();
    kubelet_swaps_a_patched_secret_into_a_running_pod(&cluster, &web).await.unwrap();
    a_killed_container_is_started_again(&cluster, &web).await.unwrap();
    a_static_pod_runs_and_outlives_kubelet_and_containerd(&mut cluster).await.unwrap();
    an_image_of_ours_runs_from_its_archive(&cluster).await.unwrap();
    cluster.check_running().unwrap();
}

async fn a_deployment_with_a_native_sidecar_runs_from_a_local_image(
    cluster: &Cluster,
) -> Result<Pod> {
    let client = cluster.client();
    client.create(Kind::Secret, "default", "word", &[("word", "first"), ("other", "same")]).await?;
    client.apply(&deployment()).await?;
    client
        .apply_text(
            "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
",
        )
        .await?;
    let pods = client.wait_deployment("default", "web").await?;
    ensure!(pods.len() == 2, "{} pods", pods.len());
    let web = pods.into_iter().next().context("no pod")?;
    let names: Vec<&str> = web.containers.iter().map(|known| known.name.as_str()).collect();
    ensure!(names == ["sidecar", "web"], "{names:?}");
    ensure!(web.restarts() == 0 && !web.container("sidecar")?.id.is_empty(), "{}", web.summary());

    // Both are there, on the pod's own address and in its own files.
    let hostname = cluster.pod_http(&web, 8080)?.get("/hostname").await?.ok()?.text();
    ensure!(hostname == web.name, "{hostname}");
    cluster.pod_http(&web, 9090)?.get("/hostname").await?.ok()?;
    ensure!(cluster.logs(&web, "web")?.contains("serving on"), "{}", cluster.logs(&web, "web")?);
    let who = fetch_file(cluster, &web, "/proc/self/status").await?;
    ensure!(who.contains("Uid:\t65532"), "{who}");
    Ok(web)
}

async fn a_pod_reaches_a_service_by_its_name(cluster: &Cluster, web: &Pod) -> Result<()> {
    let http = cluster.pod_http(web, 9090)?;
    let pods = cluster.client().pods("default", "app=web").await?;
    // The whole name, and as a pod's own search list completes it.
    for name in ["web.default.svc.cluster.local", "web"] {
        let path = format!("/fetch?url=http://{name}/hostname");
        let mut seen = Vec::new();
        eventually("both pods of the Service have answered", PATIENCE, async || {
            seen.push(http.get(&path).await?.ok()?.text());
            ensure!(pods.iter().all(|pod| seen.contains(&pod.name)), "only {seen:?}");
            Ok(())
        })
        .await?;
    }
    let missing = http.get("/lookup?name=nobody.default.svc.cluster.local").await?;
    ensure!(missing.status == 502 && missing.text().contains("no such host"), "{missing:?}");
    let api = http.get("/lookup?name=kubernetes.default.svc.cluster.local").await?.ok()?.text();
    ensure!(api == cluster.ground().addresses().service(1).to_string(), "{api}");
    Ok(())
}

async fn a_pod_reaches_what_this_host_exposes(cluster: &Cluster, web: &Pod) -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let exposed = cluster.expose(listener.local_addr()?).await?;
    let answer = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await?;
        ensure!(stream.read(&mut [0; 1024]).await? > 0, "no request");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await?;
        Ok(())
    });
    let path = format!("/fetch?url=http://{}/", exposed.address());
    let text = cluster.pod_http(web, 9090)?.get(&path).await?.ok()?.text();
    ensure!(text == "hello", "{text}");
    answer.await??;
    Ok(())
}

async fn kubelet_swaps_a_patched_secret_into_a_running_pod(
    cluster: &Cluster,
    web: &Pod,
) -> Result<()> {
    let volume = cluster.volume(web, "secret", "word");
    let before = std::fs::read_link(volume.join("..data"))?;
    ensure!(fetch_file(cluster, web, "/word/word").await? == "first");
    cluster.client().patch_secret("default", "word", &[("word", "second")]).await?;
    eventually("the pod reads the new word", PATIENCE, async || {
        let word = fetch_file(cluster, web, "/word/word").await?;
        ensure!(word == "second", "{word}");
        Ok(())
    })
    .await?;
    let after = std::fs::read_link(volume.join("..data"))?;
    ensure!(before != after, "..data is still {}", after.display());
    ensure!(std::fs::read_to_string(volume.join("other"))? == "same");
    let now = cluster.client().pod("default", &web.name).await?;
    ensure!(now.containers == web.containers, "{}", now.summary());
    Ok(())
}

async fn a_killed_container_is_started_again(cluster: &Cluster, web: &Pod) -> Result<()> {
    cluster.kill_container(&web.container("sidecar")?.id).await?;
    eventually("the sidecar runs again", PATIENCE, async || {
        let now = cluster.client().pod("default", &web.name).await?;
        let sidecar = now.container("sidecar")?;
        ensure!(sidecar.restarts == 1 && sidecar.state == "running", "{}", now.summary());
        ensure!(sidecar.id != web.container("sidecar")?.id, "it has the same id");
        ensure!(now.container("web")? == web.container("web")?, "{}", now.summary());
        Ok(())
    })
    .await
}

async fn a_static_pod_runs_and_outlives_kubelet_and_containerd(
    cluster: &mut Cluster,
) -> Result<()> {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "static", "namespace": "kube-system"},
        "spec": {
            "priorityClassName": "system-node-critical",
            "containers": [server("static", 8080)],
        },
    });
    cluster.ground().put_static_pod("static", &manifest)?;
    let name = format!("static-{NODE}");
    let pod = cluster.client().wait_pod_ready("kube-system", &name).await?;
    cluster.kubelet().stop().await?;
    cluster.pod_http(&pod, 8080)?.get("/hostname").await?.ok()?;
    cluster.restart_containerd().await?;
    cluster.kubelet().resume().await?;
    cluster.wait_node_ready().await?;
    let now = cluster.client().wait_pod_ready("kube-system", &name).await?;
    ensure!(now.containers == pod.containers, "{} after {}", now.summary(), pod.summary());
    ensure!(cluster.logs(&now, "static")?.contains("serving on"), "no log");
    cluster.ground().remove_static_pod("static")?;
    cluster.client().wait_pod_gone(&now).await
}

async fn an_image_of_ours_runs_from_its_archive(cluster: &Cluster) -> Result<()> {
    let output = cluster.ground().plane().scratch.subdir("images")?;
    let image = images::ready(&["local"], &output).await?.pop().context("no image")?;
    let loaded = cluster.load_image(&image.archive).await?;
    ensure!(loaded == [image.reference.as_str()], "{loaded:?}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ours"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "ours", "image": image.reference, "imagePullPolicy": "Never",
                "args": ["--version"], "securityContext": {"runAsNonRoot": true},
            }],
        },
    });
    cluster.client().apply(&pod).await?;
    let pod = cluster.client().wait_pod_succeeded("default", "ours").await?;
    let said = cluster.logs(&pod, "ours")?;
    ensure!(said.contains("sidekey-local"), "{said}");
    Ok(())
}

#[tokio::test]
async fn kube_apiserver_itself_can_be_a_static_pod() {
    let ground = Ground::prepare("static").await.unwrap();
    let manifest = ground.static_apiserver().await.unwrap();
    ground.put_static_pod("kube-apiserver", &manifest).unwrap();
    let mut cluster = ground.start_static().await.unwrap();
    assert!(cluster.apiserver().is_none());
    let name = format!("kube-apiserver-{NODE}");
    let before = cluster.client().wait_pod_ready("kube-system", &name).await.unwrap();
    let container = before.container("kube-apiserver").unwrap();
    assert_eq!(container.restarts, 0, "{}", before.summary());
    let created = cluster.client().create(Kind::Secret, "default", "x", &[("word", "y")]);
    created.await.unwrap();

    cluster.kill_container(&container.id).await.unwrap();
    eventually("kubelet has started it again", PATIENCE, async || {
        let now = cluster.client().pod("kube-system", &name).await?;
        let now_container = now.container("kube-apiserver")?;
        ensure!(now.ready && now_container.restarts == 1, "{}", now.summary());
        Ok(())
    })
    .await
    .unwrap();
    let word = cluster.client().read(Kind::Secret, "default", "x").await.unwrap();
    assert_eq!(word["word"], "y");
    cluster.check_running().unwrap();
}

#[tokio::test]
async fn two_clusters_run_side_by_side_and_leave_nothing() {
    let (one, two) = tokio::join!(Cluster::start("one"), Cluster::start("two"));
    let (one, two) = (one.unwrap(), two.unwrap());
    let (a, b) = tokio::join!(run_one_pod(&one, "of-one"), run_one_pod(&two, "of-two"));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_ne!(a.address, b.address);
    one.client().pod("default", "of-two").await.expect_err("each has its own objects");
    let (of_one, of_two) = (Traces::of(&one), Traces::of(&two));
    assert_seen(&of_one);
    assert_seen(&of_two);

    drop(one);
    wait_gone(&of_one).await.unwrap();
    let hostname = two.pod_http(&b, 8080).unwrap().get("/hostname").await.unwrap();
    assert_eq!(hostname.ok().unwrap().text(), "of-two", "the other one lives on");
    assert_seen(&of_two);
    drop(two);
    wait_gone(&of_two).await.unwrap();
}

async fn run_one_pod(cluster: &Cluster, name: &str) -> Result<Pod> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [server("it", 8080)]},
    });
    cluster.client().apply(&pod).await?;
    cluster.client().wait_pod_ready("default", name).await
}

#[tokio::test]
async fn a_killed_test_leaves_nothing_of_its_cluster() {
    if std::env::var_os(VICTIM).is_some() {
        return be_the_victim().await;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::a_killed_test_leaves_nothing_of_its_cluster");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut said = lines.map_while(Result::ok).filter_map(|line| {
        let (_, rest) = line.split_once("victim:")?;
        Traces::parse(rest)
    });
    let traces = said.next().expect("the victim's cluster has started");
    assert_seen(&traces);

    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_gone(&traces).await.unwrap();
}

async fn wait_gone(traces: &Traces) -> Result<()> {
    eventually("everything is gone", PATIENCE, async || {
        let left = traces.left();
        ensure!(left.is_empty(), "left behind: {left:#?}");
        Ok(())
    })
    .await
}

async fn be_the_victim() {
    let cluster = Cluster::start("victim").await.unwrap();
    run_one_pod(&cluster, "victim").await.unwrap();
    println!("\nvictim:{}", Traces::of(&cluster).to_line());
    // Ends when the one who is to kill it has failed before.
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
        .await
        .unwrap()
        .unwrap();
}

/// What finds everything of one cluster on this host, while it runs and after.
#[derive(Debug)]
struct Traces {
    scratch: String,
    machine: u32,
    /// The machine's process namespace, held open: the kernel gives the number
    /// of one that is gone to the next, which may be a container's of another cluster.
    namespace: File,
    address: String,
}

impl Traces {
    fn of(cluster: &Cluster) -> Self {
        let machine = cluster.ground().machine();
        let scratch = cluster.ground().plane().scratch.path().display().to_string();
        Self::new(scratch, machine.pid(), machine.addresses().host().to_string()).unwrap()
    }

    fn new(scratch: String, machine: u32, address: String) -> Result<Self> {
        let namespace = File::open(format!("/proc/{machine}/ns/pid"))?;
        Ok(Self { scratch, machine, namespace, address })
    }

    fn to_line(&self) -> String {
        format!("{} {} {}", self.scratch, self.machine, self.address)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(' ').map(str::to_owned);
        let (scratch, machine) = (parts.next()?, parts.next()?.parse().ok()?);
        Self::new(scratch, machine, parts.next()?).ok()
    }

    /// Whatever is there of it: processes, mounts, links, control groups, rules, files.
    fn left(&self) -> Vec<String> {
        let mut left = self.processes();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(lines_with(&mounts, &self.scratch, "mount"));
        let links = output("ip", &["-o", "address"]);
        left.extend(lines_with(&links, &format!(" {}/", self.address), "link"));
        let network = self.address.trim_end_matches('1');
        let rules = output("iptables-save", &[]);
        left.extend(lines_with(&rules, network, "rule"));
        let path = Path::new(&self.scratch);
        let names = path.parent().and_then(Path::file_name).zip(path.file_name());
        let (process, cluster) = names.unwrap();
        let root = Path::new("/sys/fs/cgroup");
        for place in std::fs::read_dir(root).unwrap().flatten().map(|entry| entry.path()) {
            let groups = [place.join(process).join(cluster), root.join(process).join(cluster)];
            let there = groups.iter().filter(|group| group.exists());
            left.extend(there.map(|group| format!("control group {}", group.display())));
        }
        left.extend(path.exists().then(|| format!("directory {}", self.scratch)));
        left
    }

    /// The node's programs are in its namespace, its containers in its control
    /// group, the others name its directory.
    fn processes(&self) -> Vec<String> {
        let group = Path::new(&self.scratch).file_name().unwrap().to_string_lossy();
        let group = format!("/{group}/");
        let own = self.namespace.metadata().unwrap().ino();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| {
                let bytes = std::fs::read(entry.path().join(name)).unwrap_or_default();
                String::from_utf8_lossy(&bytes).replace('\0', " ")
            };
            let home = std::fs::metadata(entry.path().join("ns/pid"));
            let inside = home.is_ok_and(|home| home.ino() == own);
            let line = read("cmdline");
            if inside || line.contains(&self.scratch) || read("cgroup").contains(&group) {
                found.push(format!("process {} {line}", entry.file_name().display()));
            }
        }
        found
    }
}

fn lines_with(text: &str, part: &str, kind: &str) -> Vec<String> {
    text.lines().filter(|line| line.contains(part)).map(|line| format!("{kind} {line}")).collect()
}

fn output(program: &str, args: &[&str]) -> String {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program}: {ran:?}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// A running cluster is seen in each of these ways: else its absence proves nothing.
fn assert_seen(traces: &Traces) {
    let left = traces.left();
    for kind in ["process", "link", "control group", "directory"] {
        assert!(left.iter().any(|trace| trace.starts_with(kind)), "no {kind} in {left:#?}");
    }
    for program in ["kubelet", "containerd-shim", "/pod serve", "kube-scheduler"] {
        assert!(left.iter().any(|trace| trace.contains(program)), "no {program} in {left:#?}");
    }
}

async fn fetch_file(cluster: &Cluster, pod: &Pod, path: &str) -> Result<String> {
    let file = format!("/file?path={path}");
    Ok(cluster.pod_http(pod, 8080)?.get(&file).await?.ok()?.text())
}

/// A container that shows what its pod sees.
fn server(name: &str, port: u16) -> Value {
    json!({
        "name": name, "image": POD_IMAGE, "imagePullPolicy": "Never",
        "args": ["serve", format!(":{port}")],
        "readinessProbe": {"httpGet": {"path": "/hostname", "port": port}, "periodSeconds": 1},
        "securityContext": {
            "runAsUser": 65532, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

fn deployment() -> Value {
    let mut sidecar = server("sidecar", 9090);
    sidecar["restartPolicy"] = "Always".into();
    let mut web = server("web", 8080);
    web["volumeMounts"] = json!([{"name": "word", "mountPath": "/word", "readOnly": true}]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "initContainers": [sidecar],
                    "containers": [web],
                    "volumes": [{"name": "word", "secret": {"secretName": "word"}}],
                },
            },
        },
    })
}
