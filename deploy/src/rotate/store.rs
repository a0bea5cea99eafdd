//! Where the state of a rotation is kept: in the cluster, or beside the files of a node.
//!
//! Every write names what it follows: of two that rotate at the same time, one is told so.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};

use super::State;
use crate::{Error, cluster, files};

/// Name of the ConfigMap.
const NAME: &str = "sidekey-rotation";
/// The state within it, and the name of the file.
const ENTRY: &str = "rotation.json";

/// The state, and what it was read from.
#[derive(Clone, Debug)]
pub struct Kept {
    /// None if there never was a rotation.
    pub state: Option<State>,
    version: Version,
}

/// Tells one write from the next.
#[derive(Clone, Debug)]
enum Version {
    Object(Option<Box<ConfigMap>>),
    Text(Option<String>),
}

/// Where it is kept.
pub enum Store {
    /// As a ConfigMap.
    Cluster(Box<Api<ConfigMap>>),
    /// As a file.
    File(PathBuf),
}

impl Store {
    /// In the namespace of the control plane.
    pub fn cluster(client: kube::Client, namespace: &str) -> Self {
        Self::Cluster(Box::new(Api::namespaced(client, namespace)))
    }

    /// In the directory that `sidekey publish --to-dir` fills.
    pub fn directory(directory: &Path) -> Self {
        Self::File(directory.join(ENTRY))
    }

    /// Reads it.
    pub async fn load(&self) -> Result<Kept, Error> {
        match self {
            Self::Cluster(api) => {
                let found = api.get_opt(NAME).await;
                let found =
                    found.map_err(|e| cluster::refused(format!("cannot read {NAME}"), e))?;
                let text = found.as_ref().and_then(|map| map.data.as_ref()?.get(ENTRY));
                let state = text.map(|text| parse(text, NAME)).transpose()?;
                Ok(Kept { state, version: Version::Object(found.map(Box::new)) })
            }
            Self::File(path) => {
                let text = read(path)?;
                let name = path.display().to_string();
                let state = text.as_deref().map(|text| parse(text, &name)).transpose()?;
                Ok(Kept { state, version: Version::Text(text) })
            }
        }
    }

    /// Writes what follows `kept`; it is durable when this returns.
    pub async fn save(&self, kept: &Kept, state: &State) -> Result<Kept, Error> {
        let text = serde_json::to_string_pretty(state)
            .map_err(|error| Error::failed("cannot write the rotation's state").because(error))?;
        let version = match (self, &kept.version) {
            (Self::Cluster(api), Version::Object(before)) => {
                Version::Object(Some(Box::new(put(api, before.as_deref(), &text).await?)))
            }
            (Self::File(path), Version::Text(before)) => {
                if read(path)? != *before {
                    return Err(overtaken());
                }
                files::replace(path, text.as_bytes(), 0o600)?;
                Version::Text(Some(text))
            }
            _ => return Err(Error::failed("the rotation's state is of another store")),
        };
        Ok(Kept { state: Some(state.clone()), version })
    }
}

/// Creates it, or replaces just the version that was read.
async fn put(
    api: &Api<ConfigMap>,
    before: Option<&ConfigMap>,
    text: &str,
) -> Result<ConfigMap, Error> {
    let mut map = before.cloned().unwrap_or_default();
    map.data.get_or_insert_default().insert(ENTRY.to_owned(), text.to_owned());
    let parameters = PostParams { field_manager: Some("sidekey".into()), ..Default::default() };
    let written = match before {
        Some(_) => api.replace(NAME, &parameters, &map).await,
        None => {
            map.metadata.name = Some(NAME.to_owned());
            let label = ("app.kubernetes.io/managed-by".to_owned(), "sidekey".to_owned());
            map.metadata.labels.get_or_insert_default().extend([label]);
            api.create(&parameters, &map).await
        }
    };
    written.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 409 => overtaken(),
        _ => cluster::refused(format!("cannot write {NAME}"), error),
    })
}

fn overtaken() -> Error {
    Error::failed("somebody else has just gone on with this rotation")
        .hint("see that only one `sidekey rotate` runs, then run it again: it goes on where it was")
}

fn parse(text: &str, name: &str) -> Result<State, Error> {
    serde_json::from_str(text).map_err(|error| {
        Error::failed(format!("{name} holds no state of a rotation"))
            .because(error)
            .hint("if you are sure that no rotation is under way, remove it")
    })
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::failed(format!("cannot read {}", path.display())).because(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Stage, Turn};
    use super::*;

    fn state(stage: Stage) -> State {
        let turn = |id| Turn { id, vendor: "local".into(), fingerprint: "00000000".into() };
        State { stage, ..State::begin(turn(1), turn(2), "now", None) }
    }

    #[tokio::test]
    async fn of_two_who_go_on_at_once_one_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::directory(directory.path());
        let (mine, other) = (store.load().await.unwrap(), store.load().await.unwrap());
        let mine = store.save(&mine, &state(Stage::Preflight)).await.unwrap();
        let late = store.save(&other, &state(Stage::Preflight)).await.unwrap_err();
        assert!(late.report().contains("somebody else"), "{}", late.report());
        store.save(&mine, &state(Stage::ReadOnlyDeploy)).await.unwrap();
        let now = store.load().await.unwrap().state.unwrap();
        assert_eq!(now.stage, Stage::ReadOnlyDeploy);
    }

    #[tokio::test]
    async fn a_damaged_state_is_named_and_never_taken_for_none() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["", "{", "{}"] {
            std::fs::write(directory.path().join(ENTRY), text).unwrap();
            let error = Store::directory(directory.path()).load().await.unwrap_err();
            assert!(error.report().contains("rotation.json"), "{}", error.report());
        }
    }
}
