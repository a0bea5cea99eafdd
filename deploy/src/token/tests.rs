use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::Exit;

const ACCOUNTS: &str = "/api/v1/namespaces/kube-system/serviceaccounts";
const TOKEN: &str = "/api/v1/namespaces/kube-system/serviceaccounts/kms-provider/token";

/// Quick enough for tests, and slow enough to be seen.
const PACE: Pace = Pace {
    first: Duration::from_millis(5),
    longest: Duration::from_millis(20),
    look: Duration::from_millis(10),
    attempt: Duration::from_secs(20),
};
const WAIT: Duration = Duration::from_secs(20);

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// An API server on a port of this machine; gives what it was asked.
async fn serve(
    listener: TcpListener,
    answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> Seen {
    let (answer, seen) = (Arc::new(answer), Seen::default());
    let log = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, log) = (answer.clone(), log.clone());
            let handle = service_fn(move |request: Request<Incoming>| {
                let (answer, log) = (answer.clone(), log.clone());
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let (status, said) = answer(&path, &body);
                    log.lock().unwrap().push((path, body));
                    let said = Full::new(Bytes::from(said.to_string()));
                    let response = Response::builder().status(status);
                    let response = response.header("content-type", "application/json");
                    Ok::<_, Infallible>(response.body(said).unwrap())
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), handle));
        }
    });
    seen
}

async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn refusal(code: u16, message: &str) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Invalid" };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, status)
}

/// As an API server answers a TokenRequest.
fn granted(asked: &Value, token: &str, seconds: u64) -> (u16, Value) {
    let mut answer = asked.clone();
    let end = SystemTime::now() + Duration::from_secs(seconds);
    answer["spec"]["expirationSeconds"] = seconds.into();
    answer["status"] = json!({
        "token": token, "expirationTimestamp": humantime::format_rfc3339_seconds(end).to_string(),
    });
    (201, answer)
}

fn write_kubeconfig(path: &Path, server: SocketAddr) {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    files::replace(path, text.to_string().as_bytes(), 0o600).unwrap();
}

struct Scene {
    directory: TempDir,
    order: Order,
}

impl Scene {
    fn new(server: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        write_kubeconfig(&kubeconfig, server);
        let tokens = directory.path().join("tokens");
        std::fs::create_dir(&tokens).unwrap();
        let order = Order {
            access: Access { kubeconfig: Some(kubeconfig), context: None },
            server: None,
            account: Account { namespace: "kube-system".into(), name: "kms-provider".into() },
            audience: "openshift".into(),
            expiry: Duration::from_secs(3600),
            file: tokens.join("token"),
            create: true,
        };
        Self { directory, order }
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.directory.path().join("kubeconfig")
    }

    fn content(&self) -> String {
        std::fs::read_to_string(&self.order.file).unwrap()
    }

    async fn once(&self) -> Result<Written, Error> {
        once(&self.order, PACE, WAIT, |_| {}).await
    }

    /// Keeps the file fresh in the background; gives what happens: none for a token, or why not.
    fn keep(&self) -> UnboundedReceiver<Option<String>> {
        let (sender, receiver) = unbounded_channel();
        let order = self.order.clone();
        tokio::spawn(async move {
            keep(&order, PACE, |event| {
                let told = match event {
                    Event::Written(_) => None,
                    Event::Failed { error, .. } => Some(error.report()),
                };
                drop(sender.send(told));
            })
            .await;
        });
        receiver
    }
}

async fn next(events: &mut UnboundedReceiver<Option<String>>) -> Option<String> {
    tokio::time::timeout(WAIT, events.recv()).await.unwrap().unwrap()
}

async fn written(events: &mut UnboundedReceiver<Option<String>>) {
    while next(events).await.is_some() {}
}

#[tokio::test]
async fn a_token_is_asked_for_as_ordered_and_written_for_its_user_alone() {
    let (listener, address) = bind().await;
    let seen = serve(listener, |_, asked| granted(asked, "secret-token", 3600)).await;
    let scene = Scene::new(address);
    let written = scene.once().await.unwrap();
    assert_eq!(scene.content(), "secret-token");
    assert!(!written.created && written.life > Duration::from_secs(3500));
    let mode = std::fs::metadata(&scene.order.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let beside = std::fs::read_dir(scene.order.file.parent().unwrap()).unwrap().count();
    assert_eq!(beside, 1, "nothing is left behind");
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].0, TOKEN);
    assert_eq!(seen[0].1["spec"]["audiences"], json!(["openshift"]));
    assert_eq!(seen[0].1["spec"]["expirationSeconds"], 3600);
}

#[tokio::test]
async fn an_account_that_is_not_there_is_made_first() {
    let (listener, address) = bind().await;
    let made = Arc::new(Mutex::new(false));
    let seen = serve(listener, move |path, asked| {
        let mut made = made.lock().unwrap();
        match path {
            ACCOUNTS => {
                *made = true;
                (201, asked.clone())
            }
            _ if *made => granted(asked, "t", 3600),
            _ => refusal(404, "serviceaccounts \"kms-provider\" not found"),
        }
    })
    .await;
    assert!(Scene::new(address).once().await.unwrap().created);
    let seen = seen.lock().unwrap();
    let paths: Vec<&str> = seen.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, [TOKEN, ACCOUNTS, TOKEN]);
    assert_eq!(seen[1].1["metadata"]["name"], "kms-provider");
}

#[tokio::test]
async fn an_account_that_may_not_be_made_is_named() {
    let (listener, address) = bind().await;
    serve(listener, |path, _| match path {
        ACCOUNTS => refusal(403, "may not"),
        _ => refusal(404, "not found"),
    })
    .await;
    let mut scene = Scene::new(address);
    let short = Duration::from_millis(1);
    let error = once(&scene.order, PACE, short, |_| {}).await.unwrap_err();
    assert!(error.report().contains("cannot create service account kube-system/kms-provider"));
    scene.order.create = false;
    let error = once(&scene.order, PACE, short, |_| {}).await.unwrap_err();
    assert!(error.report().contains("kube-system/kms-provider"), "{}", error.report());
    assert_eq!(error.exit(), Exit::Failure);
}

#[tokio::test]
async fn an_audience_that_is_refused_is_told_at_once() {
    let (listener, address) = bind().await;
    let seen = serve(listener, |_, _| refusal(422, "spec.audiences: Invalid value")).await;
    let error = Scene::new(address).once().await.unwrap_err();
    let text = error.report();
    assert!(text.contains("\"openshift\"") && text.contains("spec.audiences: Invalid"), "{text}");
    assert!(error.advice().is_some_and(|hint| hint.contains("--token-audience")));
    assert_eq!(error.exit(), Exit::Usage);
    assert_eq!(seen.lock().unwrap().len(), 1, "it was asked again");
}

#[tokio::test]
async fn a_token_for_another_audience_does_not_take_the_place_of_a_good_one() {
    let (listener, address) = bind().await;
    serve(listener, |_, asked| {
        let mut answer = granted(asked, "wrong", 3600);
        answer.1["spec"]["audiences"] = json!(["https://kubernetes.default.svc"]);
        answer
    })
    .await;
    let scene = Scene::new(address);
    std::fs::write(&scene.order.file, "good").unwrap();
    let error = scene.once().await.unwrap_err();
    assert!(error.report().contains("https://kubernetes.default.svc"), "{}", error.report());
    assert!(!error.report().contains("wrong"), "the token is told");
    assert_eq!(scene.content(), "good");
}

#[tokio::test]
async fn an_api_server_that_comes_late_is_waited_for() {
    // Bound and not listening: connections are refused, and nobody else gets the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let scene = Scene::new(socket.local_addr().unwrap());
    let mut events = scene.keep();
    let failed = next(&mut events).await.expect("nobody answers yet");
    assert!(failed.contains("kube-system/kms-provider"), "{failed}");
    assert!(!scene.order.file.exists());
    let busy = Mutex::new(3);
    serve(socket.listen(16).unwrap(), move |_, asked| {
        let mut busy = busy.lock().unwrap();
        *busy = i32::max(*busy - 1, 0);
        if *busy > 0 { refusal(503, "starting") } else { granted(asked, "late", 3600) }
    })
    .await;
    written(&mut events).await;
    assert_eq!(scene.content(), "late");
}

#[tokio::test]
async fn a_kubeconfig_that_comes_late_or_changes_is_read_anew() {
    let ((one, first), (other, second)) = (bind().await, bind().await);
    serve(one, |_, asked| granted(asked, "of the first", 3600)).await;
    serve(other, |_, asked| granted(asked, "of the second", 3600)).await;
    let scene = Scene::new(first);
    std::fs::remove_file(scene.kubeconfig()).unwrap();
    let mut events = scene.keep();
    assert!(next(&mut events).await.is_some_and(|why| why.contains("kubeconfig")));
    write_kubeconfig(&scene.kubeconfig(), first);
    written(&mut events).await;
    assert_eq!(scene.content(), "of the first");
    write_kubeconfig(&scene.kubeconfig(), second);
    written(&mut events).await;
    assert_eq!(scene.content(), "of the second");
    std::fs::remove_file(&scene.order.file).unwrap();
    written(&mut events).await;
    assert_eq!(scene.content(), "of the second", "a token that is gone comes back");
}

#[tokio::test]
async fn a_token_is_renewed_before_its_end_and_replaced_in_one_step() {
    let (listener, address) = bind().await;
    let count = Mutex::new(0);
    serve(listener, move |_, asked| {
        let mut count = count.lock().unwrap();
        *count += 1;
        granted(asked, &format!("token {count}"), 2)
    })
    .await;
    let scene = Scene::new(address);
    let mut events = scene.keep();
    written(&mut events).await;
    let (held, inode) = (
        std::fs::File::open(&scene.order.file).unwrap(),
        std::fs::metadata(&scene.order.file).unwrap().ino(),
    );
    written(&mut events).await;
    assert_eq!(scene.content(), "token 2");
    assert_ne!(std::fs::metadata(&scene.order.file).unwrap().ino(), inode);
    let old = std::io::read_to_string(held).unwrap();
    assert_eq!(old, "token 1", "whoever had it open still reads it whole");
}

#[test]
fn a_token_is_renewed_well_before_its_end_and_a_dying_one_is_not_asked_for_without_end() {
    let pace = Pace::default();
    for _ in 0..100 {
        let life = Duration::from_secs(3600);
        let wait = keep::due(life, pace);
        assert!(wait <= life * 9 / 10 && wait >= life / 2, "{wait:?}");
        assert_eq!(keep::due(Duration::ZERO, pace), pace.longest);
    }
}

#[test]
fn another_address_keeps_the_name_that_the_certificate_has() {
    let config = Config::new("https://[fd00::1]:6443".parse().unwrap());
    let other = redirected(&config, &"https://apis.clusters-a.svc:6443".parse().unwrap());
    assert_eq!(other.tls_server_name.as_deref(), Some("fd00::1"));
    assert_eq!(other.cluster_url.host(), Some("apis.clusters-a.svc"));
}
