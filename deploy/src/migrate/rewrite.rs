//! One object, written again as it is.
//!
//! An empty patch changes nothing, and so kube-apiserver writes nothing, unless what is stored is
//! stale: under another key than the one that writes, or in another version. Then it writes the
//! same object under the write key. Neither content nor `managedFields` nor `generation` change,
//! validation of immutable fields has nothing to object to, and no content comes back to us.

use http::StatusCode;
use serde::Deserialize;

use super::api::{Answer, Api, Call, Lost};
use super::pages::Item;
use super::resources::Resource;

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// How often an object is tried that others change at the same time.
const CONFLICTS: u32 = 10;

/// What became of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was written, by us or by somebody else since it was listed.
    Rewritten,
    /// It is as it was: under the write key already.
    Unchanged,
    /// It is gone.
    Deleted,
    /// It could not be written, for this reason.
    Failed(String),
}

#[derive(Debug, Deserialize)]
struct Object {
    metadata: Version,
}

#[derive(Debug, Deserialize)]
struct Version {
    #[serde(rename = "resourceVersion")]
    version: String,
}

/// Writes an object again.
pub(super) async fn rewrite(api: &Api, resource: &Resource, item: &Item) -> Result<Fate, Lost> {
    let path = resource.object_path(&item.namespace, &item.name);
    let mut patchable = resource.patchable;
    let mut conflicts = 0;
    loop {
        let answer = match patchable {
            true => api.send(&Call::patch(&path, MERGE_PATCH, "{}").accept(METADATA)).await?,
            false => put_back(api, &path).await?,
        };
        match answer.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(Fate::Deleted),
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::UNSUPPORTED_MEDIA_TYPE if patchable => {
                patchable = false;
            }
            StatusCode::CONFLICT if conflicts < CONFLICTS => {
                conflicts += 1;
                tokio::time::sleep(api.rest(conflicts)).await;
            }
            status if status.is_success() => return Ok(compared(&answer, &item.version)),
            _ => return Ok(Fate::Failed(answer.reason())),
        }
    }
}

/// Where there is no patch, what is read is put back byte for byte; the version in it sees to
/// it that nothing is overwritten.
async fn put_back(api: &Api, path: &str) -> Result<Answer, Lost> {
    let read = api.send(&Call::get(path)).await?;
    if !read.is_ok() {
        return Ok(read);
    }
    api.send(&Call::put(path, read.body).accept(METADATA)).await
}

fn compared(answer: &Answer, listed: &str) -> Fate {
    match serde_json::from_slice::<Object>(&answer.body) {
        Ok(object) if object.metadata.version == listed => Fate::Unchanged,
        Ok(_) => Fate::Rewritten,
        Err(error) => Fate::Failed(format!("the server's answer cannot be read: {error}")),
    }
}
