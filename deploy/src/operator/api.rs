//! The kinds that the operator watches, as the API server knows them.
//!
//! Documents are kept as they are written ([`DynamicObject`]): the strict reading of
//! [`model`](crate::model) says every mistake at once, which a schema alone cannot.

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;

/// On a HostedCluster or APIServer: Sidekey manages its encryption.
pub const ANNOTATION_MANAGE: &str = "sidekey.dev/manage";
/// On a namespace: pods of kube-apiserver in it get sidecars by the webhook.
pub const LABEL_INJECT: &str = "sidekey.dev/inject";

/// `SecretEncryption` of `sidekey.dev/v1alpha1`.
pub fn secret_encryption() -> ApiResource {
    resource("sidekey.dev", "v1alpha1", "SecretEncryption", "secretencryptions")
}

/// `HostedCluster` of `hypershift.openshift.io/v1beta1`.
pub fn hosted_cluster() -> ApiResource {
    resource("hypershift.openshift.io", "v1beta1", "HostedCluster", "hostedclusters")
}

/// `APIServer` of `config.openshift.io/v1`.
pub fn api_server() -> ApiResource {
    resource("config.openshift.io", "v1", "APIServer", "apiservers")
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// The SecretEncryptions of a namespace.
pub fn encryptions(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &secret_encryption())
}

#[cfg(test)]
mod tests;
