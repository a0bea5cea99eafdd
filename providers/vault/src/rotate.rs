//! A new version of the key, when somebody asks for one: `sidekey-vault rotate`.

use sidekey_core::{Error, Rotate};
use tokio::time::Instant;

use crate::{PATIENCE, Vault};

impl Rotate for Vault {
    /// Vault has made the version when it answers; a replica may know of it later.
    async fn rotate(&self, deadline: Instant) -> Result<(), Error> {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        let answer = self.session.ask(self.transit.rotate(), deadline).await?;
        self.transit.rotated(&answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use sidekey_core::{Kind, Provider};

    use super::*;
    use crate::testing::{MADE, Reply, Simulated, config, connect, document, sound};

    /// Two servers of one cluster, of which the first answers to a rotation with `reply`.
    async fn pair(reply: fn() -> Reply) -> (Simulated, Simulated, tempfile::TempDir) {
        let made = std::sync::Arc::new(Mutex::new(vec![MADE]));
        let answer = move |first: bool| {
            let made = made.clone();
            move |seen: &crate::testing::Seen| {
                let mut made = made.lock().unwrap();
                if !seen.is("/rotate") {
                    return sound(seen, "t", &made);
                }
                made.push(MADE + 60);
                if first { reply() } else { Reply::new(200, &serde_json::json!({})) }
            }
        };
        let (one, two) = (Simulated::start(answer(true)), Simulated::start(answer(false)));
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("secret"), "s").unwrap();
        (one.await, two.await, directory)
    }

    async fn client(one: &Simulated, two: &Simulated, directory: &tempfile::TempDir) -> Vault {
        let urls = [one.url(), two.url()];
        connect(&config(&document(&urls, &directory.path().join("secret")))).await.unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn a_rotation_whose_answer_is_lost_is_not_sent_again() {
        let (one, two, directory) = pair(|| Reply::error(503, "sealed a moment later")).await;
        let vault = client(&one, &two, &directory).await;
        let before = vault.key_id().await.unwrap();
        let error = vault.rotate(soon()).await.unwrap_err();
        assert!(error.kind().is_transient(), "{}", error.report());
        assert_eq!((one.seen("/rotate").len(), two.seen("/rotate").len()), (1, 0));
        // The key tells what became of it.
        assert_ne!(vault.key_id().await.unwrap(), before);
    }

    #[tokio::test]
    async fn a_right_that_is_missing_is_named() {
        let (one, two, directory) = pair(|| Reply::error(403, "permission denied")).await;
        let vault = client(&one, &two, &directory).await;
        let error = vault.rotate(soon()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        let hint = error.hint().unwrap_or_default();
        assert!(hint.contains("update on transit/keys/kms/rotate"), "{hint}");
        assert!(two.seen("/rotate").is_empty());
    }
}
