//! What Google's APIs answer when they do not do what they are asked, and what that means for us.
//!
//! A refusal has a status by name, and may have a reason beside it: both are the code here, as
//! `PERMISSION_DENIED/SERVICE_DISABLED`.

use serde_json::Value;
use sidekey_core::{Error, Kind};
use sidekey_rest::Answer;
use sidekey_rest::codes::{Code, Refusal, code};

#[rustfmt::skip]
const CODES: &[Code] = &[
    code("iam:", "PERMISSION_DENIED*|NOT_FOUND*", Kind::Denied, "grant this identity roles/iam.workloadIdentityUser (a federated one) or roles/iam.serviceAccountTokenCreator on the service account, and see whether that exists"),
    code("", "PERMISSION_DENIED/SERVICE_DISABLED|FAILED_PRECONDITION/SERVICE_DISABLED", Kind::Denied, "turn on the Cloud KMS API in the project: gcloud services enable cloudkms.googleapis.com"),
    code("", "PERMISSION_DENIED/ACCESS_TOKEN_SCOPE_INSUFFICIENT", Kind::Denied, "give the machine's service account the scope cloud-platform"),
    code("", "PERMISSION_DENIED*", Kind::Denied, "grant roles/cloudkms.cryptoKeyEncrypterDecrypter on the key; a key that does not exist may look the same"),
    code("", "UNAUTHENTICATED*", Kind::Denied, "Google does not take the token: check the credentials"),
    code("", "NOT_FOUND*", Kind::KeyState, "no such key or version in that project, location and key ring: check kek.key; it is never made by this provider"),
    code("", "FAILED_PRECONDITION*", Kind::KeyState, "the version is disabled, or is or will be destroyed: gcloud kms keys versions enable, or restore; while its destruction is scheduled nothing is lost"),
    code("decrypt", "INVALID_ARGUMENT*", Kind::Corrupt, "the stored data was altered, or another key wrapped it"),
    code("", "INVALID_ARGUMENT*|UNIMPLEMENTED*|OUT_OF_RANGE*", Kind::Config, "check kek.key and settings.endpoint, and that the key is symmetric and for encryption"),
    code("", "RESOURCE_EXHAUSTED*", Kind::Throttled, "raise the quota of Cloud KMS for the project that pays for the calls, or spread the load"),
    code("", "DEADLINE_EXCEEDED*", Kind::Timeout, "Cloud KMS, or the external key manager behind it, was too slow"),
    code("", "UNAVAILABLE*|INTERNAL*|UNKNOWN*|ABORTED*|CANCELLED*|DATA_LOSS*", Kind::Unavailable, "it may pass; see the status page of Google Cloud"),
];

/// The error that a bad answer is.
pub(crate) fn refused(action: &str, object: &str, answer: &Answer) -> Error {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let error = &body["error"];
    let mut details = error["details"].as_array().into_iter().flatten();
    let reason = details.find_map(|detail| detail["reason"].as_str());
    let reason = reason.map_or_else(String::new, |reason| format!("/{reason}"));
    let code = error["status"].as_str().map(|status| format!("{status}{reason}"));
    let (status, text) = (answer.status.as_u16(), error["message"].as_str().unwrap_or_default());
    Refusal { action, object, status, code: code.as_deref(), text }.explain_of("Google", CODES)
}

/// An answer that makes no sense may pass: it was altered on the way, or a proxy has given it.
pub(crate) fn odd(action: &str, object: &str, what: &str) -> Error {
    Error::new(Kind::Unavailable, format!("{action} on {object}: {what}"))
        .with_hint("nothing of it is used; see whether it is Cloud KMS that answers, or a proxy")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use serde_json::json;

    use super::*;
    use crate::adc::IMPERSONATE;

    fn explained(action: &str, status: u16, body: &Value) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer { status, headers: HeaderMap::new(), body: body.to_string().into() };
        refused(action, "the key", &answer)
    }

    fn kind(action: &str, status: u16, name: &str) -> Kind {
        explained(action, status, &json!({"error": {"code": status, "status": name}})).kind()
    }

    #[test]
    fn every_status_has_its_kind() {
        for (status, name, expected) in [
            (400, "FAILED_PRECONDITION", Kind::KeyState),
            (400, "INVALID_ARGUMENT", Kind::Config),
            (401, "UNAUTHENTICATED", Kind::Denied),
            (403, "PERMISSION_DENIED", Kind::Denied),
            (404, "NOT_FOUND", Kind::KeyState),
            (409, "ABORTED", Kind::Unavailable),
            (429, "RESOURCE_EXHAUSTED", Kind::Throttled),
            (500, "INTERNAL", Kind::Unavailable),
            (503, "UNAVAILABLE", Kind::Unavailable),
            (504, "DEADLINE_EXCEEDED", Kind::Timeout),
            (400, "SOMETHING_NEW", Kind::Unavailable),
        ] {
            assert_eq!(kind("encrypt", status, name), expected, "{name}");
        }
        assert_eq!(kind("decrypt", 400, "INVALID_ARGUMENT"), Kind::Corrupt);
        assert_eq!(kind(IMPERSONATE, 404, "NOT_FOUND"), Kind::Denied);
    }

    #[test]
    fn what_google_did_not_say_may_pass() {
        for status in [302, 400, 401, 403, 404, 418, 502] {
            let error = explained("encrypt", status, &json!("<html>not found</html>"));
            assert!(error.kind().is_transient(), "{status}: {}", error.report());
        }
    }

    #[test]
    fn a_reason_says_more_than_the_status() {
        let details = json!([
            {"@type": "type.googleapis.com/google.rpc.Help", "links": []},
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED"},
        ]);
        let body = json!({"error": {"status": "PERMISSION_DENIED", "message": "Cloud KMS API has not been used", "details": details}});
        let text = explained("encrypt", 403, &body).report();
        for part in ["encrypt on the key", "SERVICE_DISABLED", "not been used", "gcloud services"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
