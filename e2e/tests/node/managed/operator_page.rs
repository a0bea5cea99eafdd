//! Promise: the operator's page shows a person in a browser every control plane, its keys, its
//! replicas and how far a rotation is, and runs nothing; it is for those whom the cluster lets see
//! SecretEncryptions, and for nobody else.

use anyhow::{Result, ensure};
use serde_json::json;
use sidekey_e2e::aws::KmsFault;
use sidekey_e2e::browser::Browser;
use sidekey_e2e::eventually;
use sidekey_e2e::operator::page::Door;
use sidekey_e2e::operator::{AwsKeys, Managed, NAME, NAMESPACE, Options, encryption};
use sidekey_e2e::wait::PATIENCE;

/// What somebody could have a vendor say, which the page shows.
const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=alert(1)>";

#[tokio::test]
async fn the_page_shows_everything_to_those_who_may_see_it() {
    let managed = Managed::start("op-page", Options::default()).await.unwrap();
    let keys = AwsKeys::create(&managed, NAMESPACE, 2).await.unwrap();
    let first = encryption(&[keys.key(1, 0)], &json!({}));
    managed.put_encryption(&first).await.unwrap();
    managed.wait_written_with(1).await.unwrap();

    strangers_see_nothing(&managed).await.unwrap();
    let scratch = &managed.hosted.cluster.ground().plane().scratch;
    let mut browser = Browser::find(scratch).await.unwrap();
    let token = managed.token_of("viewer", true).await.unwrap();
    let door = Door::open(managed.page().await.unwrap(), token).await.unwrap();
    all_is_shown(&managed, &mut browser, &door).await.unwrap();

    // A key that is refused, with words that a page must not take for its own.
    let hostile = KmsFault::error("AccessDeniedException", HOSTILE).of_key(&keys.arns[1]);
    managed.hosted.moto.faults(&[hostile]).await.unwrap();
    let both = [keys.key(2, 1), keys.key(1, 0)];
    managed.put_encryption(&encryption(&both, &json!({}))).await.unwrap();
    managed.wait_condition("KMSKeyAccessible", "False").await.unwrap();
    what_is_wrong_is_shown_as_text(&mut browser, &door).await.unwrap();
    for (name, path, dark) in [("planes", "/", false), ("plane", &*plane(), true)] {
        let file = scratch.path().join(format!("{name}.png"));
        browser.screenshot(&door.url(path), &file, dark).await.unwrap();
        println!("painted: {}", file.display());
    }
}

async fn strangers_see_nothing(managed: &Managed) -> Result<()> {
    let page = managed.page().await?;
    let blind = managed.token_of("stranger", false).await?;
    for path in ["/", "/metrics"] {
        for (token, status) in [(None, 401), (Some("no token"), 401), (Some(blind.as_str()), 403)] {
            let answer = page.get(path, token).await?;
            let text = String::from_utf8_lossy(answer.body()).into_owned();
            ensure!(answer.status() == status, "{path}: {}: {text}", answer.status());
            ensure!(!text.contains(NAMESPACE), "{path} tells all the same: {text}");
        }
    }
    let seeing = managed.token_of("viewer", true).await?;
    let answer = page.get("/metrics", Some(&seeing)).await?;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    ensure!(answer.status() == 200, "{}: {text}", answer.status());
    ensure!(text.contains("sidekey_operator_control_planes 1"), "{text}");
    Ok(())
}

/// The first page has a line for each control plane, which leads to a page of its own.
async fn all_is_shown(managed: &Managed, browser: &mut Browser, door: &Door) -> Result<()> {
    let link = format!("href=\"{}\"", plane());
    // What it shows is the operator's last look, in which a shim may have been too busy to answer.
    let first = eventually("the first page shows it", PATIENCE, async || {
        let first = browser.document(&door.url("/")).await?;
        for text in ["<title>", NAMESPACE, &link, "key 1 of aws", "2 of 2 healthy"] {
            ensure!(first.contains(text), "no {text}: {first}");
        }
        Ok(first)
    })
    .await?;
    let own = browser.document(&door.url(&plane())).await?;
    for pod in managed.hosted.pods().await? {
        ensure!(own.contains(&pod.name), "no {}: {own}", pod.name);
    }
    for text in ["key 1", "aws", "write", "EtcdDataEncryptionUpToDate", "Completed"] {
        ensure!(own.contains(text), "no {text}: {own}");
    }
    for document in [first, own] {
        ensure!(!document.contains("<script"), "{document}");
    }
    Ok(())
}

async fn what_is_wrong_is_shown_as_text(browser: &mut Browser, door: &Door) -> Result<()> {
    for path in ["/", &plane()] {
        let document = browser.document(&door.url(path)).await?;
        ensure!(!document.contains("<title>owned</title>"), "a script ran: {document}");
        ensure!(!document.contains("<script") && !document.contains("<img src=x"), "{document}");
    }
    let own = browser.document(&door.url(&plane())).await?;
    for text in
        ["Rotation under way: Preflight", "needs attention", "KMSKeyAccessible", "&lt;script&gt;"]
    {
        ensure!(own.contains(text), "no {text}: {own}");
    }
    Ok(())
}

/// The path of the control plane's page.
fn plane() -> String {
    format!("/planes/{NAMESPACE}/{NAME}")
}
