use std::sync::Mutex;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use kube::runtime::watcher::Event;

use super::*;
use crate::operator::run::fake;

/// What a hostile plugin, file or user would write, if it could reach the page.
const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=\"alert(1)\">'\"&\u{202e}\u{7}";

/// What the API server was asked: `token` or the right, one line each.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Knows `admin` (sees everything), `team` (sees namespace clusters-a), `scraper` (reads metrics),
/// `nobody` (may do nothing), and breaks for `broken`.
fn page() -> (Page, Asked) {
    let asked = Asked::default();
    let client = fake::client({
        let asked = asked.clone();
        move |method, path, body| {
            assert_eq!(method, "POST");
            let (line, answer) = match path.rsplit('/').next().unwrap() {
                "tokenreviews" => review_token(body),
                "subjectaccessreviews" => review_access(body),
                other => panic!("{other}"),
            };
            asked.0.lock().unwrap().push(line);
            answer
        }
    });
    let shelf = Shelf::whole();
    shelf.take(Event::Init);
    for object in [object("clusters-a", "a", "plain"), object("clusters-b", "b", HOSTILE)] {
        shelf.take(Event::InitApply(object));
    }
    shelf.take(Event::InitDone);
    (Page::new(&client, shelf, Metrics::default()), asked)
}

fn review_token(body: &Value) -> (String, (u16, Value)) {
    let token = body["spec"]["token"].as_str().unwrap();
    let status = match token {
        "broken" => return ("token".into(), (500, json!({"kind": "Status", "code": 500}))),
        "admin" | "team" | "scraper" | "nobody" => json!({
            "authenticated": true,
            "user": {"username": token, "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}},
        }),
        "half" => json!({"authenticated": true, "error": "expired", "user": {"username": "admin"}}),
        "anonymous" => json!({"authenticated": true, "user": {"username": ""}}),
        _ => json!({"authenticated": false, "error": "no"}),
    };
    let answer = json!({"metadata": {}, "spec": {}, "status": status});
    ("token".into(), (201, answer))
}

fn review_access(body: &Value) -> (String, (u16, Value)) {
    let spec = &body["spec"];
    assert_eq!((&spec["uid"], &spec["groups"][0]), (&json!("7"), &json!("g")));
    assert_eq!(spec["extra"]["k"][0], "v");
    let user = spec["user"].as_str().unwrap();
    let asked = &spec["resourceAttributes"];
    let (line, allowed) = if asked.is_null() {
        let path = spec["nonResourceAttributes"]["path"].as_str().unwrap();
        assert_eq!(spec["nonResourceAttributes"]["verb"], "get");
        (path.to_owned(), matches!(user, "admin" | "scraper") && path == "/metrics")
    } else {
        assert_eq!(
            (&asked["group"], &asked["resource"]),
            (&json!("sidekey.dev"), &json!("secretencryptions"))
        );
        let namespace = asked["namespace"].as_str().unwrap_or_default();
        let verb = asked["verb"].as_str().unwrap();
        let may = user == "admin" || (user == "team" && verb == "get" && namespace == "clusters-a");
        (format!("{verb} {namespace}"), may)
    };
    (line, (201, json!({"metadata": {}, "spec": {}, "status": {"allowed": allowed}})))
}

fn object(namespace: &str, name: &str, text: &str) -> DynamicObject {
    let turn = |id: u64| json!({"id": id, "vendor": text, "fingerprint": text});
    serde_json::from_value(json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {"name": name, "namespace": namespace, "generation": 4},
        "spec": {"keys": [{"credentials": "never shown"}]},
        "status": {
            "observedGeneration": 3, "revision": 12, "encryptedUnder": text,
            "activeKey": turn(2), "targetKey": turn(3),
            "moved": {"keyIdHash": text, "since": text},
            "rotation": {
                "stage": "Migrating", "startedTime": text,
                "progress": format!("412 of 3000 objects {text}"), "waitingFor": [text],
            },
            "history": [{
                "from": turn(1), "to": turn(2), "state": "Completed",
                "startedTime": text, "completionTime": text,
            }],
            "keys": [
                {"id": 2, "type": text, "role": "write", "fingerprint": text},
                {"id": 1, "type": text, "role": text, "fingerprint": text, "retained": true},
            ],
            "retired": [{
                "id": text, "type": text, "fingerprint": text, "retiredTime": text, "advice": text,
            }],
            "replicas": [
                {"name": "kas-0", "revision": "12", "healthy": true, "keyIdHash": text},
                {"name": text, "healthy": false, "reason": text},
            ],
            "healthReports": [
                {"nodeName": text, "keyID": text, "status": "Error", "detail": text},
                {"nodeName": "kas-0", "keyID": "1", "status": "Healthy"},
            ],
            "conditions": [
                condition("SecretEncryptionHealthy", "False", text),
                condition("KMSPluginDegraded", "True", text),
                condition(text, text, text),
            ],
        },
    }))
    .unwrap()
}

fn condition(kind: &str, status: &str, text: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": text, "message": text,
        "lastTransitionTime": text, "observedGeneration": 3,
    })
}

struct Shown {
    status: u16,
    headers: HeaderMap,
    body: String,
}

async fn ask(page: &Page, path: &str, authorization: Option<&str>) -> Shown {
    let mut headers = HeaderMap::new();
    if let Some(text) = authorization {
        headers.insert(AUTHORIZATION, HeaderValue::from_str(text).unwrap());
    }
    let answer = page.respond(&Method::GET, path, &headers).await;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Shown { status: parts.status.as_u16(), headers: parts.headers, body }
}

async fn as_user(page: &Page, path: &str, user: &str) -> Shown {
    ask(page, path, Some(&format!("Bearer {user}"))).await
}

const PATHS: [&str; 5] =
    ["/", "/status.json", "/metrics", "/planes/clusters-a/a", "/planes/clusters-b/b"];

#[tokio::test]
async fn nobody_sees_anything_without_a_token_that_the_cluster_accepts() {
    let (page, _) = page();
    for path in PATHS.iter().chain(&["/nothing", "/planes/x"]) {
        for authorization in [
            None,
            Some("Bearer stolen"),
            Some("Bearer half"),
            Some("Bearer anonymous"),
            Some("Basic x"),
        ] {
            let shown = ask(&page, path, authorization).await;
            assert_eq!(shown.status, 401, "{path} {authorization:?}");
            assert!(
                !shown.body.contains("clusters-") && shown.body.contains("password"),
                "{}",
                shown.body
            );
            let ways: Vec<_> = shown.headers.get_all(WWW_AUTHENTICATE).iter().collect();
            assert_eq!(ways.len(), 2, "a browser is asked, and so are programs");
        }
    }
}

#[tokio::test]
async fn a_browser_may_show_a_token_as_its_password() {
    let (page, _) = page();
    let basic = format!("Basic {}", STANDARD.encode("anybody:admin"));
    assert_eq!(ask(&page, "/", Some(&basic)).await.status, 200);
}

#[tokio::test]
async fn everybody_sees_what_the_cluster_lets_him_see_and_no_more() {
    let (page, _) = page();
    let status = async |user: &str| {
        let mut all = Vec::new();
        for path in PATHS {
            all.push(as_user(&page, path, user).await.status);
        }
        all
    };
    assert_eq!(status("admin").await, [200; 5]);
    assert_eq!(status("team").await, [200, 200, 403, 200, 403]);
    assert_eq!(status("scraper").await, [403, 403, 200, 403, 403]);
    assert_eq!(status("nobody").await, [403; 5]);
    for path in ["/", "/status.json"] {
        let shown = as_user(&page, path, "team").await;
        assert!(
            shown.body.contains("clusters-a") && !shown.body.contains("clusters-b"),
            "{}",
            shown.body
        );
    }
    // Whether there is such a thing is told to those alone who may see it.
    assert_eq!(as_user(&page, "/planes/clusters-c/c", "nobody").await.status, 403);
    assert_eq!(as_user(&page, "/planes/clusters-c/c", "admin").await.status, 404);
    let refused = as_user(&page, "/planes/clusters-b/b", "team").await;
    assert!(refused.body.contains("kubectl auth can-i get secretencryptions.sidekey.dev/b"));
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_lets_nobody_in() {
    let (page, _) = page();
    assert_eq!(as_user(&page, "/", "broken").await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn answers_of_the_api_server_are_kept_for_a_moment_and_not_longer() {
    let (page, asked) = page();
    as_user(&page, "/", "admin").await;
    assert_eq!(asked.take(), ["token", "list "]);
    as_user(&page, "/", "admin").await;
    as_user(&page, "/status.json", "admin").await;
    assert!(asked.take().is_empty());
    as_user(&page, "/", "nobody").await;
    assert_eq!(asked.take()[..2], ["token", "list "], "another one is asked for");
    tokio::time::advance(std::time::Duration::from_secs(31)).await;
    as_user(&page, "/", "admin").await;
    assert_eq!(asked.take(), ["token", "list "]);
}

#[tokio::test]
async fn nothing_that_others_write_is_markup() {
    let (page, _) = page();
    for path in ["/", "/planes/clusters-b/b"] {
        let shown = as_user(&page, path, "admin").await;
        assert!(shown.body.contains("&lt;script&gt;"), "{path} shows it");
        for bad in ["<script", "<img", "\u{202e}", "\u{7}", "onerror=\"", "'\"&"] {
            assert!(!shown.body.contains(bad), "{path} has {bad:?}: {}", shown.body);
        }
        assert_eq!(opened(&shown.body), closed(&shown.body), "{path}");
    }
    let shown = as_user(&page, "/status.json", "admin").await;
    let document: Value = serde_json::from_str(&shown.body).unwrap();
    assert_eq!(document["controlPlanes"][1]["status"]["encryptedUnder"], HOSTILE);
    assert_eq!(shown.headers["content-type"], "application/json");
    assert!(!shown.body.contains("never shown"), "the spec is not there");
}

fn opened(html: &str) -> usize {
    let tags =
        ["section", "table", "tr", "td", "th", "ul", "ol", "li", "dl", "dd", "small", "code"];
    tags.iter()
        .map(|tag| {
            html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count()
        })
        .sum()
}

fn closed(html: &str) -> usize {
    let tags =
        ["section", "table", "tr", "td", "th", "ul", "ol", "li", "dl", "dd", "small", "code"];
    tags.iter().map(|tag| html.matches(&format!("</{tag}>")).count()).sum()
}

#[tokio::test]
async fn a_plane_shows_keys_replicas_rotation_conditions_history_and_what_is_retired() {
    let (page, _) = page();
    let body = as_user(&page, "/planes/clusters-a/a", "admin").await.body;
    for part in [
        "<title>Sidekey: clusters-a/a</title>",
        "The last edit has not been looked at yet",
        "<li aria-current=\"step\">Migrating</li>",
        "max=\"3000\" value=\"412\"",
        "412 of 3000 objects plain",
        "<th scope=\"row\">key 2</th><td>plain</td><td>write</td>",
        "kept until etcd was counted",
        "<th scope=\"row\">kas-0</th><td>12</td>",
        "id=\"conditions\"",
        "id=\"history\"",
        "id=\"retired\"",
        "id=\"reports\"",
        "SecretEncryptionHealthy",
    ] {
        assert!(body.contains(part), "{part}: {body}");
    }
    let reports = body.split("id=\"reports\"").nth(1).unwrap().split("</section>").next().unwrap();
    assert!(!reports.contains("kas-0"), "who is well is not in it: {reports}");
    let body = as_user(&page, "/", "admin").await.body;
    for part in
        ["href=\"/planes/clusters-a/a\"", "1 of 2 healthy", "2 with trouble", "2 in rotation"]
    {
        assert!(body.contains(part), "{part}: {body}");
    }
}

#[tokio::test]
async fn a_browser_is_told_to_run_and_to_fetch_nothing() {
    let (page, _) = page();
    for (path, user) in
        [("/", "admin"), ("/planes/clusters-a/a", "admin"), ("/", "x"), ("/", "nobody")]
    {
        let shown = as_user(&page, path, user).await;
        let policy = shown.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(shown.headers["cache-control"], "no-store");
        assert_eq!(shown.headers["x-content-type-options"], "nosniff");
        assert!(
            !shown.body.contains("<script") && !shown.body.contains("src=\""),
            "{}",
            shown.body
        );
        assert!(
            !shown.body.contains("style=\"") && !shown.body.contains("http:"),
            "{}",
            shown.body
        );
        // The hash is that of the one style there is.
        let style = shown.body.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        let hash = STANDARD.encode(sidekey_core::sha256(style.as_bytes()));
        assert!(policy.contains(&hash), "{policy}");
    }
}

#[tokio::test]
async fn only_reading_is_possible_and_strange_paths_lead_nowhere() {
    let (page, _) = page();
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        let answer = page.respond(&method, "/", &HeaderMap::new()).await;
        assert_eq!(answer.status(), 405);
    }
    for path in [
        "/planes/",
        "/planes/a",
        "/planes//a",
        "/planes/a/",
        "/planes/a/b/c",
        "/planes/../etc",
        "/planes/%61/b",
        "/planes/a/<script>",
        "/metrics/",
        "//",
        "/planes/A/b",
    ] {
        let shown = as_user(&page, path, "admin").await;
        assert!(matches!(shown.status, 404), "{path}: {}", shown.status);
        assert!(!shown.body.contains("<script>"));
    }
}

#[tokio::test]
async fn metrics_are_those_of_the_whole_operator() {
    let (page, _) = page();
    let shown = as_user(&page, "/metrics", "scraper").await;
    assert!(shown.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics"));
    assert!(shown.body.contains("sidekey_operator_control_planes 2"), "{}", shown.body);
    assert!(shown.body.ends_with("# EOF\n"));
}
