//! Clients in this process, before the fake of the end-to-end tests.

mod answers;
mod data;
mod keys;
mod logins;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use sidekey_core::config::Problems;
use sidekey_e2e::fakes::gcp::{self as service, DECRYPT, ENCRYPT, LOOK};
use sidekey_e2e::fakes::{Asked, Service};
use sidekey_rest::testing::{Fake, Reply, Seen};

use super::*;

pub(super) const ACCOUNT: &str = "kms@example.iam.gserviceaccount.com";
pub(super) const PLAINTEXT: &[u8] = b"Zq3!promised-never-to-be-seen#7x";

/// A fake of Cloud KMS with one key, and the files of a client.
pub(super) struct Stage {
    pub(super) server: Fake,
    pub(super) key: String,
    service: Arc<Mutex<service::Gcp>>,
    dir: tempfile::TempDir,
    ca: PathBuf,
}

impl Stage {
    pub(super) async fn start() -> Self {
        let service = Arc::new(Mutex::new(service::Gcp::default()));
        let served = service.clone();
        let server = Fake::https(move |seen| reply(&mut served.lock().unwrap(), seen)).await;
        let dir = tempfile::tempdir().unwrap();
        let ca = server.write_ca(dir.path()).unwrap();
        let key = service.lock().unwrap().create_key("kms");
        let stage = Self { server, key, service, dir, ca };
        stage.service().allow(ACCOUNT, &[ENCRYPT, DECRYPT, LOOK]);
        let file = stage.service().tokens.service_account(ACCOUNT, &stage.server.url());
        stage.write("credentials.json", &file.to_string());
        stage
    }

    pub(super) fn service(&self) -> MutexGuard<'_, service::Gcp> {
        self.service.lock().unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    pub(super) fn document(&self) -> Value {
        json!({
            "kek": {"key": self.key},
            "settings": {"endpoint": self.server.url(), "caFile": self.ca},
            "credentials": {"file": self.path("credentials.json")},
        })
    }

    pub(super) async fn connect(&self) -> Gcp {
        connect(&self.document()).await.unwrap()
    }

    /// How often paths that end so were asked for.
    pub(super) fn asked(&self, end: &str) -> usize {
        self.server.seen().iter().filter(|seen| seen.path.ends_with(end)).count()
    }
}

pub(super) async fn connect(document: &Value) -> Result<Gcp, Error> {
    let (config, files) = read(document)?;
    Gcp::connect(&config, &files, None).await
}

/// The configuration and all the files that it names.
pub(super) fn read(document: &Value) -> Result<(Config, Files), Error> {
    let config: Config = serde_json::from_value(document.clone()).unwrap();
    let mut problems = Problems::default();
    Gcp::check(&config, &mut problems);
    assert!(problems.is_empty(), "{problems}");
    let paths = Gcp::files(&config);
    let files = Files::read(paths.iter().map(PathBuf::as_path))?;
    let all = [paths, Gcp::named_files(&config, &files)].concat();
    Ok((config, Files::read(all.iter().map(PathBuf::as_path))?))
}

pub(super) fn call() -> Call<'static> {
    Call { uid: "test", deadline: soon() }
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn reply(service: &mut service::Gcp, seen: &Seen) -> Reply {
    let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    let asked = Asked {
        method: seen.method.clone(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: seen.headers.clone(),
        body: seen.body.clone(),
        client: None,
    };
    let answer = match service.operation(&asked) {
        Some(operation) => service.answer(operation, &asked),
        None => service.unknown(&asked),
    };
    let (status, headers) = (answer.status, answer.headers);
    let hangs = path.contains("/cryptoKeys/hangs");
    let delay = if hangs { Duration::from_secs(86_400) } else { Duration::ZERO };
    Reply { status, headers, body: answer.body.into(), delay }
}

#[test]
fn every_mistake_of_a_configuration_is_reported_at_once() {
    let document = json!({"keys": [{
        "id": 1,
        "kek": {"key": "projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"},
        "settings": {
            "endpoint": "http://kms.example", "caFile": "ca.pem", "colour": "red",
            "alsoReads": ["projects/p"],
        },
        "credentials": {"file": "a", "gceConfig": "/b", "anonymous": true},
    }, {"id": 2}]});
    let problems = sidekey_core::config::parse::<Gcp>(&document).err().unwrap();
    let found: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    for path in [
        "kek.key",
        "settings.endpoint",
        "settings.caFile",
        "settings.colour",
        "settings.alsoReads[0]",
        "credentials.file",
        "credentials.anonymous",
    ] {
        assert!(found.contains(&format!("keys[0].{path}").as_str()), "{path}: {problems}");
    }
    assert!(found.contains(&"keys[1].kek.key"), "{problems}");
}
