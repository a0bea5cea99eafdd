//! What is never shown.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use sidekey_core::hex;
use sidekey_e2e::aws::KmsFault;

use crate::support::{Aws, PLAINTEXT, SECRET_KEY, kms, until};

/// The ways in which bytes find their way into a log.
fn forms(bytes: &[u8]) -> Vec<String> {
    // A part is as bad as the whole, and nothing shorter is there by chance.
    let middle = |text: String| text[text.len() / 4..][..16].to_owned();
    let list = format!("{bytes:?}");
    let mut forms = vec![
        middle(hex(bytes)),
        middle(hex(bytes).to_uppercase()),
        middle(STANDARD.encode(bytes)),
        middle(URL_SAFE.encode(bytes)),
        middle(list.trim_matches(['[', ']']).to_owned()),
        middle(bytes.escape_ascii().to_string()),
    ];
    if let Ok(text) = std::str::from_utf8(bytes) {
        forms.push(middle(text.to_owned()));
    }
    forms
}

#[tokio::test]
async fn nothing_ever_shows_plaintext_ciphertext_tokens_or_keys() {
    const TOKEN: &str = "eyJhbGciOi-web-identity-token-never-to-be-seen";
    let aws = Aws::alone("logs").await;
    let token = aws.scratch.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let before = aws.moto.session_secrets().await.unwrap().len();
    let (path, role) = (token.display().to_string(), "arn:aws:iam::123456789012:role/kms");
    let mut flags = aws.flags(&aws.key);
    flags.push("--log-level=trace".to_owned());
    let env = [("AWS_WEB_IDENTITY_TOKEN_FILE", path.as_str()), ("AWS_ROLE_ARN", role)];
    let mut plugin = aws.launch_bare(&flags, &env).await;
    plugin.wait_ready().await.unwrap();
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    // Everything that goes wrong goes through the log.
    let mut broken = sealed.clone();
    broken.ciphertext = sealed.ciphertext.iter().rev().copied().collect::<Vec<u8>>().into();
    client.decrypt(&broken).await.unwrap_err();
    broken = sealed.clone();
    broken.key_id.push_str("/another");
    client.decrypt(&broken).await.unwrap_err();
    aws.moto.faults(&[KmsFault::error("AccessDeniedException", "no")]).await.unwrap();
    client.decrypt(&sealed).await.unwrap_err();
    client.encrypt(&PLAINTEXT).await.unwrap_err();
    aws.moto
        .faults(&[KmsFault::error("InvalidIdentityToken", "no").on("AssumeRoleWithWebIdentity")])
        .await
        .unwrap();
    fs::write(&token, TOKEN.to_uppercase()).unwrap();
    until("the new token is refused", async || {
        let status = plugin.status().await?;
        anyhow::ensure!(status["keys"][0]["refused"].is_object(), "{status}");
        Ok(())
    })
    .await;
    let mut shown = plugin.process().log().unwrap();
    assert!(shown.contains("DEBUG"), "the whole log was asked for");
    shown.push_str(&plugin.status().await.unwrap().to_string());
    shown.push_str(&plugin.admin().get("/metrics").await.unwrap().text());
    let mut secrets: Vec<Vec<u8>> = vec![PLAINTEXT.to_vec(), sealed.ciphertext[1..].to_vec()];
    secrets.extend([TOKEN.into(), TOKEN.to_uppercase().into_bytes()]);
    let sessions = aws.moto.session_secrets().await.unwrap();
    assert!(sessions.len() >= before + 2, "a session has a secret key and a token");
    secrets.extend(sessions.into_iter().map(String::into_bytes));
    for secret in secrets {
        for form in forms(&secret) {
            assert!(!shown.contains(&form), "{form} of {} bytes was shown", secret.len());
        }
    }
}

#[tokio::test]
async fn keys_in_the_environment_are_warned_of_and_never_shown() {
    const NAME: &str = "AWS_SECRET_ACCESS_KEY";
    let aws = Aws::start("environment").await;
    let mut flags = aws.flags(&aws.key);
    flags.push("--log-level=trace".to_owned());
    let mut plugin = aws.serve_with(&flags).await;
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    let log = plugin.process().log().unwrap();
    let warned = log.lines().any(|line| line.starts_with("warning") && line.contains(NAME));
    assert!(warned, "nobody is told that keys belong into files");
    for form in forms(SECRET_KEY.as_bytes()) {
        assert!(!log.contains(&form), "{form} was shown");
    }
}
