//! Providers of a KMS elsewhere, with a fake one behind them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Launch, SHIM, Subject, Yardstick, given, key_socket, shim_text};
use crate::bench::bars;
use crate::bench::fake::{AWS_KEYS, Fake, FakeKind, ROLE_ID, SECRET_ID, VAULT_KEY};
use crate::{aws, binaries, vault};

/// One key at a fake AWS KMS.
pub(super) fn aws(dir: &Path) -> Result<Subject> {
    Ok(Subject { bars: bars::AWS, ..one_key_at(FakeKind::Aws, dir)? })
}

/// One key at a fake AWS KMS that takes its time.
pub(super) fn slow_aws(dir: &Path) -> Result<Subject> {
    let name = super::SLOW_AWS.to_owned();
    Ok(Subject { name, bars: bars::SLOW_AWS, ..one_key_at(FakeKind::SlowAws, dir)? })
}

fn one_key_at(kind: FakeKind, dir: &Path) -> Result<Subject> {
    let fake = Fake::start(kind)?;
    let config = aws_config(dir, &fake, &[dir.join("kms.sock")])?;
    let subject = configured(aws::PROGRAM, &config, dir)?;
    Ok(Subject { fake: Some(fake), yardstick: Yardstick::Direct, ..subject })
}

/// One key in a fake transit engine, with a login by AppRole.
pub(super) fn vault(dir: &Path) -> Result<Subject> {
    let fake = Fake::start(FakeKind::Vault)?;
    let secret_id = written(dir, "secret-id", SECRET_ID)?;
    let key = json!({
        "id": 1,
        "listen": dir.join("kms.sock"),
        "kek": {"key": VAULT_KEY},
        "settings": {"address": format!("http://{}", fake.address())},
        "credentials": {"appRole": {"roleId": ROLE_ID, "secretIdFile": secret_id}},
    });
    let config = written(dir, "vault.yaml", &process(&[key]))?;
    let subject = configured(vault::PROGRAM, &config, dir)?;
    let yardstick = Yardstick::Direct;
    Ok(Subject { fake: Some(fake), yardstick, bars: bars::VAULT, ..subject })
}

/// The shim before one AWS provider that serves an active and a backup key.
pub(super) fn shim_and_aws(dir: &Path) -> Result<Subject> {
    let fake = Fake::start(FakeKind::Aws)?;
    let sockets = [2, 1].map(|id| key_socket(dir, id));
    let config = aws_config(dir, &fake, &sockets)?;
    let args = vec!["--config".to_owned(), config.to_string_lossy().into_owned()];
    let mut provider = Launch::on_socket(binaries::path(aws::PROGRAM)?, args, &sockets[0])?;
    provider.isolated = true;
    let text = shim_text(dir, &[2, 1]).replace("{revision}", "1");
    written(dir, "shim.yaml", &text)?;
    let subject = given(SHIM, &["--config", "{dir}/shim.yaml"].map(str::to_owned), dir)?;
    Ok(Subject {
        name: super::SHIM_AND_AWS.to_owned(),
        behind: vec![provider],
        fake: Some(fake),
        yardstick: Yardstick::Behind,
        bars: bars::SHIM_AND_AWS,
        ..subject
    })
}

/// Keys of a fake AWS KMS, one for each socket, with static credentials.
fn aws_config(dir: &Path, fake: &Fake, sockets: &[PathBuf]) -> Result<PathBuf> {
    let credentials = json!({
        "accessKeyIdFile": written(dir, "access-key-id", "fake-access-key")?,
        "secretAccessKeyFile": written(dir, "secret-access-key", "fake-secret-access-key")?,
    });
    let settings = json!({"endpoint": format!("http://{}", fake.address())});
    let keys = sockets.iter().zip(AWS_KEYS).enumerate().map(|(index, (socket, key))| {
        json!({
            "id": sockets.len() - index,
            "listen": socket,
            "kek": {"key": key},
            "settings": settings,
            "credentials": credentials,
        })
    });
    written(dir, "aws.yaml", &process(&keys.collect::<Vec<_>>()))
}

fn process(keys: &[Value]) -> String {
    json!({"admin": "127.0.0.1:0", "keys": keys}).to_string()
}

/// A provider with just this configuration: variables and files of who runs the benchmark, such
/// as a proxy or a profile, must not change what is measured.
fn configured(program: &str, config: &Path, dir: &Path) -> Result<Subject> {
    let config = config.to_string_lossy().into_owned();
    let mut subject = given(program, &["--config".to_owned(), config], dir)?;
    subject.measured.isolated = true;
    Ok(subject)
}

fn written(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
