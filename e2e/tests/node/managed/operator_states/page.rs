//! kubectl shows people what is encrypted, and with what. The operator's page shows a person in a
//! browser every control plane, its keys, its replicas and how far a rotation is, and runs nothing;
//! it is for those whom the cluster lets see SecretEncryptions, and for nobody else.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sidekey_e2e::aws::KmsFault;
use sidekey_e2e::browser::Browser;
use sidekey_e2e::operator::page::Door;
use sidekey_e2e::wait::{PATIENCE, eventually};

use super::Scene;
use super::others::RESOURCES;

/// What somebody could have a vendor say, which the page shows.
const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=alert(1)>";

/// In markup: what is shown as text has none of it.
const MARKUP: [&str; 3] = ["<script", "<img src=x", "<title>owned</title>"];

impl Scene {
    pub(super) async fn people_see_it_with_kubectl(&self) -> Result<()> {
        // Pods that ended a moment ago could not be asked.
        eventually("people see it with kubectl", PATIENCE, async || {
            self.managed.wait_condition("SecretEncryptionHealthy", "True").await?;
            self.kubectl_shows_it().await
        })
        .await
    }

    async fn kubectl_shows_it(&self) -> Result<()> {
        let shown = self.managed.run_kubectl(&["get", "senc", "-A"]).await?;
        println!("{shown}");
        let mut lines = shown.lines();
        let head = lines.next().context("kubectl says nothing")?;
        for column in ["WRITE KEY", "TYPE", "STAGE", "REVISION", "HEALTHY"] {
            ensure!(head.contains(column), "{head}");
        }
        let namespace = self.managed.namespace();
        let row = lines.find(|row| row.starts_with(&format!("{namespace} "))).context("no row")?;
        ensure!(row.contains("aws") && row.contains("True"), "{row}");
        let events = self.managed.run_kubectl(&["get", "events", "-n", namespace]).await?;
        ensure!(events.contains("secretencryption"), "{events}");
        Ok(())
    }

    /// Key 2 of AWS writes and key 1 reads; the next one is refused by AWS, with words that a page
    /// must not take for its own.
    pub(super) async fn people_see_it_on_the_page(&self) -> Result<()> {
        let managed = &self.managed;
        let _calm = managed.calm().await;
        self.strangers_see_nothing().await?;
        let scratch = &managed.hosted.cluster.ground().plane().scratch;
        let mut browser = Browser::find(scratch).await?;
        let token = managed.token_of("viewer", true).await?;
        let door = Door::open(managed.page().await?, token).await?;
        self.all_is_shown(&mut browser, &door).await?;

        let refused = self.keys.arns.last().context("no key")?;
        let hostile = KmsFault::error("AccessDeniedException", HOSTILE).of_key(refused);
        managed.hosted.moto.faults(&[hostile]).await?;
        let more = json!({"resources": RESOURCES});
        self.put_with(&[(3, 2), (2, 1), (1, 0)], more).await?;
        managed.wait_condition("KMSKeyAccessible", "False").await?;
        self.what_is_wrong_is_shown_as_text(&mut browser, &door).await?;
        for (name, path, dark) in [("planes", "/", false), ("plane", &*self.page(), true)] {
            let file = scratch.path().join(format!("{name}.png"));
            browser.screenshot(&door.url(path), &file, dark).await?;
            println!("painted: {}", file.display());
        }
        Ok(())
    }

    async fn strangers_see_nothing(&self) -> Result<()> {
        let managed = &self.managed;
        let page = managed.page().await?;
        let blind = managed.token_of("stranger", false).await?;
        let tokens = [(None, 401), (Some("no token"), 401), (Some(blind.as_str()), 403)];
        for path in ["/", "/metrics"] {
            for (token, status) in tokens {
                let answer = page.get(path, token).await?;
                let text = String::from_utf8_lossy(answer.body()).into_owned();
                ensure!(answer.status() == status, "{path}: {}: {text}", answer.status());
                ensure!(!text.contains(managed.namespace()), "{path} tells all the same: {text}");
            }
        }
        let seeing = managed.token_of("viewer", true).await?;
        let answer = page.get("/metrics", Some(&seeing)).await?;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        ensure!(answer.status() == 200, "{}: {text}", answer.status());
        ensure!(text.contains(managed.namespace()), "{text}");
        Ok(())
    }

    /// The first page has a line for each control plane, which leads to a page of its own.
    async fn all_is_shown(&self, browser: &mut Browser, door: &Door) -> Result<()> {
        let managed = &self.managed;
        let link = format!("href=\"{}\"", self.page());
        let all = ["<title>", managed.namespace(), &link, "key 2 of aws", "2 of 2 healthy"];
        shown(browser, &door.url("/"), &all).await?;
        let pods = managed.hosted.pods().await?;
        let mut all = vec!["key 2", "aws", "write", "EtcdDataEncryptionUpToDate", "Completed"];
        all.extend(pods.iter().map(|pod| pod.name.as_str()));
        shown(browser, &door.url(&self.page()), &all).await
    }

    async fn what_is_wrong_is_shown_as_text(
        &self,
        browser: &mut Browser,
        door: &Door,
    ) -> Result<()> {
        shown(browser, &door.url("/"), &["Preflight"]).await?;
        let all = [
            "Rotation under way: Preflight",
            "needs attention",
            "KMSKeyAccessible",
            "&lt;script&gt;",
        ];
        shown(browser, &door.url(&self.page()), &all).await
    }

    /// The path of the control plane's page.
    fn page(&self) -> String {
        format!("/planes/{}/{}", self.managed.namespace(), self.managed.name())
    }
}

/// Waits until a page has all of this, and never anything that somebody else made markup of. It is
/// the operator's last look that is shown, in which a shim may have been too busy to answer.
async fn shown(browser: &mut Browser, url: &str, all: &[&str]) -> Result<()> {
    let wait = eventually(format!("{url} shows {all:?}"), PATIENCE, async || {
        let document = browser.document(url).await?;
        if let Some(found) = MARKUP.iter().find(|found| document.contains(**found)) {
            return Ok(Err(anyhow::anyhow!("{found} is in {document}")));
        }
        for text in all {
            ensure!(document.contains(text), "no {text}: {document}");
        }
        Ok(Ok(()))
    });
    wait.await?
}
