//! Whether we may do what we are about to do: told before, not by a hundred thousand refusals.

use serde::Deserialize;
use serde_json::json;

use super::api::{Api, Call, Lost};
use super::resources::Resource;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[derive(Debug, Deserialize)]
struct Review {
    status: Verdict,
}

#[derive(Debug, Deserialize)]
struct Verdict {
    allowed: bool,
}

/// Why a resource cannot be rewritten by this user. Who cannot even ask is let try.
pub(super) async fn missing(api: &Api, resource: &Resource) -> Result<Option<String>, Lost> {
    let needed: &[&str] =
        if resource.patchable { &["list", "patch"] } else { &["list", "get", "update"] };
    let mut missing = Vec::new();
    for verb in needed {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb, "group": resource.group, "resource": resource.name,
            }},
        });
        let answer = api.send(&Call::post(REVIEWS, review.to_string())).await?;
        let review = serde_json::from_slice::<Review>(&answer.body);
        if answer.is_ok() && review.is_ok_and(|review| !review.status.allowed) {
            missing.push(*verb);
        }
    }
    let rights = missing.join(" and ");
    let why =
        format!("the user of the kubeconfig lacks the right to {rights} them in all namespaces");
    Ok((!missing.is_empty()).then_some(why))
}
