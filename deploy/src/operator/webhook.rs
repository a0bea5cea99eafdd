//! The admission webhook that puts sidecars into pods whose template another operator owns.
//!
//! It is asked about every pod of kube-apiserver that is made in a namespace with the label
//! `sidekey.dev/inject`, and answers from what is cached: it calls nobody. It changes a pod only
//! where a SecretEncryption asks for that, and only once the Secrets that the sidecars mount have
//! been published: a pod that mounts what is not there would wait for ever. The label is set after
//! that; so where nothing is known of what was published, because a SecretEncryption or its status
//! was lost, a pod is refused and not let through without sidecars.
//!
//! Why a webhook and no MutatingAdmissionPolicy: what is put in depends on the SecretEncryption,
//! on what has been published and on the command line of each kube-apiserver, and taking it out
//! again must give back what was there. That is the work of [`inject`](crate::inject), which CEL
//! cannot do; and policies are not in every API server that hosts control planes.
//!
//! **Fail, not Ignore.** Without its sidecars a kube-apiserver cannot read what is encrypted. With
//! every operator down no pod of kube-apiserver is made in those namespaces; those that run are
//! not touched, and the ReplicaSet makes the missing ones as soon as one operator answers.
//!
//! A second one, which is off unless the command line names an image, exchanges the image of a
//! plugin that HyperShift runs itself: see [`native`].

mod certificate;
mod decide;
mod native;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use certificate::{Certificate, Keeper};
use decide::{Decision, decide};
pub(crate) use native::NativeImages;

use super::context::Options;
use super::run::{Answer, Shelf, Site, text, typed};

/// Where it answers.
const PATH: &str = "/mutate";
/// Where it answers about the images of others.
const NATIVE_PATH: &str = "/native-image";
/// The same, where the payload's plugin reads the older of two formats alone.
const NATIVE_TEXT_PATH: &str = "/native-image/text";
/// The longest question. A pod of kube-apiserver has some ten kilobytes.
const MAX_REVIEW: usize = 1024 * 1024;
/// Time for a question to arrive.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Questions that are thought about at once.
const AT_ONCE: usize = 2;

/// Answers the API server.
pub(crate) struct Webhook {
    encryptions: Shelf,
    options: Arc<Options>,
    turns: Semaphore,
}

/// What is asked, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Review {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    request: Asked,
}

#[derive(Debug, Deserialize)]
struct Asked {
    uid: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    kind: AskedKind,
    #[serde(default)]
    object: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AskedKind {
    group: String,
    kind: String,
}

impl Webhook {
    /// For the SecretEncryptions on this shelf.
    pub(crate) fn new(encryptions: Shelf, options: Options) -> Self {
        Self { encryptions, options: Arc::new(options), turns: Semaphore::new(AT_ONCE) }
    }

    async fn respond(&self, request: Request<Incoming>) -> Answer {
        let native = match request.uri().path() {
            PATH => None,
            NATIVE_PATH => Some(native::Format::Binary),
            NATIVE_TEXT_PATH => Some(native::Format::Text),
            _ => return text(StatusCode::NOT_FOUND, "not found: the webhook is at /mutate\n"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
        }
        let body = Limited::new(request.into_body(), MAX_REVIEW).collect();
        let body = match timeout(ARRIVAL, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return text(StatusCode::PAYLOAD_TOO_LARGE, "the review is longer than 1 MiB\n");
            }
            Ok(Err(_)) => return text(StatusCode::BAD_REQUEST, "the review did not arrive\n"),
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the review did not arrive\n"),
        };
        match native {
            Some(format) => self.review_native(body, format).await,
            None => self.review(body).await,
        }
    }

    /// The answer to a review.
    async fn review(&self, body: Bytes) -> Answer {
        if !self.encryptions.is_synced() {
            return unready();
        }
        let (encryptions, options) = (self.encryptions.clone(), self.options.clone());
        self.think(body, move |namespace, pod| {
            decide(namespace, pod, &encryptions.within(namespace), &options)
        })
        .await
    }

    /// The answer where only an image may change: nothing must be known for it.
    async fn review_native(&self, body: Bytes, format: native::Format) -> Answer {
        let options = self.options.clone();
        self.think(body, move |_, pod| options.native_images.decide(pod, format)).await
    }

    /// What takes time to think runs beside what must go on.
    async fn think(
        &self,
        body: Bytes,
        decide: impl FnOnce(&str, &Value) -> Decision + Send + 'static,
    ) -> Answer {
        let Ok(_turn) = self.turns.acquire().await else { return unready() };
        let thinking = tokio::task::spawn_blocking(move || answer(&body, decide));
        thinking.await.unwrap_or_else(|_| unready())
    }
}

fn unready() -> Answer {
    let why = "the list of SecretEncryptions is not there yet; try again in a moment\n";
    text(StatusCode::SERVICE_UNAVAILABLE, why)
}

impl Site for Webhook {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer> {
        async move { self.respond(request).await }.boxed()
    }
}

fn answer(body: &[u8], decide: impl FnOnce(&str, &Value) -> Decision) -> Answer {
    let review: Review = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => {
            return text(StatusCode::BAD_REQUEST, format!("no AdmissionReview: {error}\n"));
        }
    };
    if (&*review.api_version, &*review.kind) != ("admission.k8s.io/v1", "AdmissionReview") {
        let why = "only AdmissionReviews of admission.k8s.io/v1 are answered\n";
        return text(StatusCode::BAD_REQUEST, why);
    }
    let Asked { uid, operation, namespace, kind, object } = review.request;
    let is_pod = kind.kind == "Pod" && kind.group.is_empty() && operation == "CREATE";
    let decision = if is_pod && !namespace.is_empty() {
        decide(&namespace, &object)
    } else {
        Decision::Untouched
    };
    tell(&namespace, &object, &decision);
    let answer = json!({
        "apiVersion": review.api_version,
        "kind": review.kind,
        "response": response(&uid, &decision),
    });
    typed(StatusCode::OK, "application/json", answer.to_string())
}

fn response(uid: &str, decision: &Decision) -> Value {
    use base64::Engine;
    match decision {
        Decision::Untouched => json!({"uid": uid, "allowed": true}),
        Decision::Changed { patch, warnings } => {
            let patch = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
            json!({
                "uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch,
                "warnings": warnings,
            })
        }
        Decision::Refused(why) => json!({
            "uid": uid, "allowed": false,
            "status": {"code": 403, "reason": "Forbidden", "message": why},
        }),
    }
}

fn tell(namespace: &str, pod: &Value, decision: &Decision) {
    let pod = title(pod);
    match decision {
        Decision::Untouched => tracing::debug!(namespace, pod, "pod left as it is"),
        Decision::Changed { .. } => tracing::info!(namespace, pod, "pod changed"),
        Decision::Refused(error) => tracing::error!(namespace, pod, error, "pod refused"),
    }
}

/// Its name, or what its name will begin with.
fn title(pod: &Value) -> &str {
    let metadata = &pod["metadata"];
    metadata["name"].as_str().or_else(|| metadata["generateName"].as_str()).unwrap_or_default()
}
