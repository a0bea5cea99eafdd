//! Promise: the shim's page tells a person in a browser what is loaded, what is
//! sick and what was refused, and runs nothing that others have written; and
//! what the shim tells of itself is for loopback, or for callers with a
//! certificate that was allowed.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::browser::Browser;
use sidekey_e2e::faulty::{Fault, FaultyKms};
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::pki::{Authority, CertificateFiles};
use sidekey_e2e::ports::Port;
use sidekey_e2e::process::Spec;
use sidekey_e2e::shim::{FILE, PROGRAM, ShimConfig, ShimKey, canary};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{LocalPlugin, Scratch, Shim};
use tonic::Code;

/// What a hostile plugin or file would write, if it could reach the page.
const HOSTILE: &str =
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\"'</td>";

#[tokio::test]
async fn the_page_shows_everything_and_runs_nothing() {
    let scratch = Scratch::new("page").unwrap();
    let mut browser = Browser::find(&scratch).await.unwrap();
    the_browser_runs_scripts_where_there_are_some(&mut browser).await.unwrap();

    let plugins = [
        LocalPlugin::start(&scratch, "one").await.unwrap(),
        LocalPlugin::start(&scratch, "two").await.unwrap(),
        LocalPlugin::start(&scratch, "three").await.unwrap(),
    ];
    let way = scratch.subdir("way").unwrap();
    let way = FaultyKms::start(&way, plugins[0].socket()).await.unwrap();
    let config = ShimConfig::new(41)
        .probe("300ms", "2s")
        .key(ShimKey::write(3, plugins[2].endpoint()).with("fingerprint", "c0ffee00"))
        .read(2, plugins[1].endpoint())
        .key(ShimKey::read(1, way.endpoint()).canary(canary(&plugins[0]).await.unwrap()))
        .legacy(1)
        .adopt("old", 2);
    let mut shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    let url = format!("http://{}/", shim.admin().address());
    let well = shim.wait_status("all keys are well", |status| {
        let keys = status["keys"].as_array().context("no keys")?;
        ensure!(keys.iter().all(|key| key["healthy"] == true), "{status}");
        Ok(())
    });
    well.await.unwrap();

    all_is_well(&mut browser, &url, &shim).await.unwrap();
    way.inject(Fault::Fail(Code::PermissionDenied, HOSTILE.to_owned()));
    let bad = format!("revision: 42\n\"{}\": 1\nkeys: []\n", HOSTILE.replace('"', "\\\""));
    shim.swap_files(&[(FILE, &bad)]).unwrap();
    let sick = shim.wait_status("key 1 is down and a revision is refused", |status| {
        ensure!(status["keys"][0]["healthy"] == false && !status["config"]["refused"].is_null());
        Ok(())
    });
    sick.await.unwrap();
    what_is_sick_and_refused_is_shown_as_text(&mut browser, &url, &shim).await.unwrap();

    for (name, dark) in [("page.png", false), ("page-dark.png", true)] {
        let file = scratch.path().join(name);
        browser.screenshot(&url, &file, dark).await.unwrap();
        println!("painted: {}", file.display());
    }
}

/// Otherwise the rest would prove nothing.
async fn the_browser_runs_scripts_where_there_are_some(browser: &mut Browser) -> Result<()> {
    let document = browser.document(&format!("data:text/html,<title>x</title>{HOSTILE}")).await?;
    ensure!(document.contains("<title>owned</title>"), "{document}");
    Ok(())
}

async fn all_is_well(browser: &mut Browser, url: &str, shim: &Shim) -> Result<()> {
    let document = browser.document(url).await?;
    let status = shim.status().await?;
    ensure!(document.contains("<title>Sidekey shim</title>"), "{document}");
    ensure!(text_of(&document, "id=\"revision\"")? == "41", "{document}");
    ensure!(text_of(&document, "id=\"writer\"")? == "3", "{document}");
    ensure!(!document.contains("id=\"refused\""), "nothing is refused: {document}");
    ensure!(!document.contains("class=\"badge bad\""), "nothing is bad: {document}");
    for key in status["keys"].as_array().context("no keys")? {
        let row = row(&document, key)?;
        ensure!(row.contains("class=\"badge ok\""), "{row}");
        ensure!(row.contains(key["since"].as_str().context("no since")?), "{row}");
        ensure!(row.contains(key["key_id_hash"].as_str().context("no hash")?), "{row}");
    }
    for listener in status["config"]["listeners"].as_array().context("no listeners")? {
        ensure!(document.contains(listener.as_str().context("no text")?), "{listener}");
    }
    Ok(())
}

async fn what_is_sick_and_refused_is_shown_as_text(
    browser: &mut Browser,
    url: &str,
    shim: &Shim,
) -> Result<()> {
    let document = browser.document(url).await?;
    ensure!(document.contains("<title>Sidekey shim</title>"), "a script ran: {document}");
    ensure!(!document.contains("<script") && !document.contains("<img"), "{document}");
    let status = shim.status().await?;
    let row_of = |index: usize| row(&document, &status["keys"][index]);
    let sick = row_of(0)?;
    ensure!(sick.contains("class=\"badge bad\"") && sick.contains("&lt;script&gt;"), "{sick}");
    ensure!(row_of(1)?.contains("class=\"badge ok\""), "{document}");
    ensure!(row_of(2)?.contains("class=\"badge ok\""), "{document}");
    // A dead read key does not make the shim sick, and the old revision is in use.
    ensure!(text_of(&document, "id=\"revision\"")? == "41", "{document}");
    let health = part(&document, "id=\"health\"", "</header>")?;
    ensure!(health.contains("class=\"badge ok\""), "{health}");
    let refused = part(&document, "id=\"refused\"", "</section>")?;
    ensure!(refused.contains("&lt;script&gt;"), "{refused}");
    Ok(())
}

/// The row of a key, which must tell its number and its role.
fn row<'a>(document: &'a str, key: &Value) -> Result<&'a str> {
    let id = key["id"].as_str().context("no id")?;
    let role = key["role"].as_str().context("no role")?;
    part(document, &format!("data-key=\"{id}\" data-role=\"{role}\""), "</tr>")
}

fn text_of<'a>(document: &'a str, attribute: &str) -> Result<&'a str> {
    let element = part(document, attribute, "<")?;
    element.split_once('>').map(|(_, text)| text).context("no text")
}

fn part<'a>(document: &'a str, from: &str, to: &str) -> Result<&'a str> {
    let absent = || format!("the page has no {from}: {document}");
    let (_, rest) = document.split_once(from).with_context(absent)?;
    Ok(rest.split_once(to).with_context(absent)?.0)
}

#[tokio::test]
async fn off_loopback_only_probes_are_answered_without_a_certificate() {
    let scratch = Scratch::new("reach").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let dir = scratch.subdir("shim").unwrap();
    let document = json!({
        "listen": format!("unix://{}/kms.sock", dir.display()), "admin": "0.0.0.0:0",
        "keys": [{"id": 1, "role": "write", "endpoints": [plugin.endpoint()]}],
    });
    std::fs::write(dir.join(FILE), document.to_string()).unwrap();
    let program = binaries::path_async(PROGRAM).await.unwrap();
    let spec = Spec::new(PROGRAM, program, dir.join("shim.log"));
    let mut shim = spec.arg("--config").arg(dir.join(FILE)).start().unwrap();
    let port =
        |line: &str| line.split_once("address=0.0.0.0:")?.1.split_whitespace().next()?.parse().ok();
    let port = shim.wait_for_log("it tells its port", PATIENCE, port).await.unwrap();
    let admin = HttpClient::plain(SocketAddr::from(([127, 0, 0, 1], port)));
    let answer = async |path| admin.get(path).await.unwrap();
    let ready = shim.wait_until("it is ready", PATIENCE, async || {
        ensure!(admin.get("/readyz").await?.status == 200, "not yet");
        Ok(())
    });
    ready.await.unwrap();
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(answer(path).await.status, 200, "{path}");
    }
    for path in ["/", "/status", "/metrics", "/log-level"] {
        let told = answer(path).await;
        assert_eq!(told.status, 403, "{path}: {}", told.text());
        assert!(!told.text().contains("sidekey/1-"), "{path} tells all the same");
    }
}

#[tokio::test]
async fn with_mutual_tls_only_allowed_callers_are_answered() {
    let scratch = Scratch::new("mutual").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let dir = scratch.subdir("tls").unwrap();
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let serving = ours.peer(&dir, "shim", &["localhost", "127.0.0.1"]).unwrap();
    let port = Port::free().unwrap();
    let config = |revision: u64, allow: &str| {
        ShimConfig::new(revision).write(1, plugin.endpoint()).with(
            "adminTls",
            json!({
                "listen": port.address().to_string(), "ca": ours.file(&dir).unwrap(),
                "cert": serving.certificate, "key": serving.key, "allow": [allow],
            }),
        )
    };
    let first = config(1, "Operator.sidekey.test");
    let mut shim = Shim::start(&scratch, "shim", &first).await.unwrap();
    let allowed = ours.peer(&dir, "allowed", &["operator.sidekey.test"]).unwrap();
    let other = ours.peer(&dir, "other", &["somebody.sidekey.test"]).unwrap();
    let stranger = theirs.peer(&dir, "stranger", &["operator.sidekey.test"]).unwrap();

    let ask = async |files: Option<&CertificateFiles>, path: &str| {
        let tls = match files {
            Some(files) => ours.connector_with(files).unwrap(),
            None => ours.connector().unwrap(),
        };
        HttpClient::tls(port.address(), tls, None).get(path).await
    };
    for path in ["/status", "/metrics", "/", "/livez"] {
        assert_eq!(ask(Some(&allowed), path).await.unwrap().status, 200, "{path}");
        for files in [Some(&other), Some(&stranger), None] {
            let refused = ask(files, path).await;
            assert!(refused.is_err(), "{path} for {files:?}: {refused:?}");
        }
    }
    // What changes something is for the admin socket alone.
    assert_eq!(ask(Some(&allowed), "/log-level").await.unwrap().status, 403);
    let plain = HttpClient::plain(port.address()).get("/status").await;
    assert!(plain.is_err(), "without TLS: {plain:?}");

    // The list and the level of the log follow the file; what only a start takes over is named.
    let second = config(2, "somebody.sidekey.test")
        .with("log", json!({"level": "debug"}))
        .with("drain", "20s");
    shim.load(&second).await.unwrap();
    assert!(ask(Some(&allowed), "/status").await.is_err(), "it was taken off the list");
    let status = ask(Some(&other), "/status").await.unwrap().text();
    assert!(status.contains("drain: this field changed"), "{status}");
    let log = shim.process().log().unwrap();
    assert!(log.contains("drain: this field changed"), "{log}");
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    client.round_trip(b"x").await.unwrap();
    let log = shim.process().log().unwrap();
    assert!(log.contains("request served"), "the level is debug now:\n{log}");
}
