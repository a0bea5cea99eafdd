//! What AWS answers when it does not do what it is asked, and what that means for us.
//!
//! The code alone decides the kind, with one exception that the tests pin: trouble with an
//! external key store comes under codes that mean something else, and only the text tells.

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::{ConnectorError, SdkError};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use sidekey_core::{Error, Kind};

use crate::rotate;
use crate::wire::Refusal;

/// Longest text of AWS that is passed on.
const MAX_TEXT: usize = 400;

/// What the code of an answer means.
struct Meaning {
    kind: Kind,
    hint: &'static str,
}

/// Explains why `action` on `object` failed.
pub(crate) fn explain(action: &str, object: &str, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Said { status, code, message, .. } => {
            refused(action, object, status, code.as_deref(), message.as_deref())
        }
        Refusal::Silent(error) => silent(action, object, &error),
    }
}

/// The same for the calls that the SDK makes.
fn explain_sdk<E>(action: &str, error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let object = "the configured role";
    match error {
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            refused(action, object, status, service.err().code(), service.err().message())
        }
        SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
            Some(error) => silent(action, object, error),
            None => Error::new(Kind::Unavailable, format!("{action} on {object} was not sent")),
        },
        SdkError::TimeoutError(_) => slow(action, object),
        other => {
            let what = format!("{action} on {object} failed: {}", chain(other));
            Error::new(Kind::Unavailable, what)
                .with_hint("see whether the endpoint is AWS STS and whether a proxy stands between")
        }
    }
}

fn silent(action: &str, object: &str, error: &ConnectorError) -> Error {
    let kind = match error {
        error if error.is_timeout() => Kind::Timeout,
        // A URL, a proxy or a certificate that nobody but the operator can mend.
        error if error.is_user() => Kind::Config,
        _ => Kind::Unavailable,
    };
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), chain);
    Error::new(kind, format!("{action} on {object}: {cause}")).with_hint(reach(&cause))
}

/// No answer in the time that one try has.
pub(crate) fn slow(action: &str, object: &str) -> Error {
    Error::new(Kind::Timeout, format!("{action} on {object} was not answered in time"))
        .with_hint("check the network to AWS, and settings.attemptTimeout if it is set")
}

/// Whether the code says that the credentials themselves are no longer any good.
pub(crate) fn concerns_credentials(code: &str) -> bool {
    matches!(
        code,
        "ExpiredTokenException"
            | "ExpiredToken"
            | "TokenRefreshRequired"
            | "UnrecognizedClientException"
            | "InvalidClientTokenId"
            | "InvalidAccessKeyId"
    )
}

/// Whether a permission is missing, and nothing else.
pub(crate) fn lacks_permission(code: &str) -> bool {
    matches!(code, "AccessDeniedException" | "AccessDenied")
}

/// Explains why there are no credentials.
pub(crate) fn no_credentials(error: &CredentialsError) -> Error {
    let source = std::error::Error::source(error);
    if let Some(error) = source
        .and_then(|e| e.downcast_ref::<SdkError<AssumeRoleWithWebIdentityError, HttpResponse>>())
    {
        return explain_sdk("sts:AssumeRoleWithWebIdentity", error).after_reload().lasting();
    }
    if let Some(error) =
        source.and_then(|e| e.downcast_ref::<SdkError<AssumeRoleError, HttpResponse>>())
    {
        return explain_sdk("sts:AssumeRole", error).after_reload().lasting();
    }
    let cause = chain(error);
    match error {
        CredentialsError::ProviderTimedOut(_) => {
            Error::new(Kind::Timeout, format!("credentials could not be had in time: {cause}"))
        }
        CredentialsError::CredentialsNotLoaded(_) => {
            Error::new(Kind::Config, format!("there are no AWS credentials: {cause}")).with_hint(
                "set credentials in the configuration, or AWS_SHARED_CREDENTIALS_FILE or \
                 AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; on EC2 see whether IMDS answers",
            )
        }
        CredentialsError::InvalidConfiguration(_) => {
            Error::new(Kind::Config, format!("the AWS credentials cannot be used: {cause}"))
                .with_hint("check profile, role_arn and the files that the profile names")
        }
        _ => Error::new(Kind::Unavailable, format!("AWS credentials cannot be had: {cause}"))
            .with_hint("check the credential files, and the network to STS or IMDS"),
    }
    .after_reload()
}

fn refused(
    action: &str,
    object: &str,
    status: u16,
    code: Option<&str>,
    message: Option<&str>,
) -> Error {
    let text: String = message.unwrap_or_default().chars().take(MAX_TEXT).collect();
    let Meaning { kind, hint } = meaning(action, status, code.unwrap_or_default(), &text);
    let code = code.map_or_else(|| format!("HTTP {status}"), str::to_owned);
    let colon = if text.is_empty() { "" } else { ": " };
    let error = Error::new(kind, format!("{action} on {object}: {code}{colon}{text}"));
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// The one place where codes become kinds.
fn meaning(action: &str, status: u16, code: &str, text: &str) -> Meaning {
    let mean = |kind, hint| Meaning { kind, hint };
    if let Some((kind, hint)) = rotate::meaning(action, code) {
        return mean(kind, hint);
    }
    if let Some(meaning) = key_meaning(code, text) {
        return meaning;
    }
    if let Some(meaning) = caller_meaning(action, code) {
        return meaning;
    }
    match code {
        "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "LimitExceededException"
        | "RequestLimitExceeded"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "SlowDown"
        | "BandwidthLimitExceeded" => mean(
            Kind::Throttled,
            "raise the request quota of KMS for this account and region, or spread the load",
        ),
        "InvalidArnException" | "InvalidAliasNameException" | "InvalidMarkerException" => {
            mean(Kind::Config, "check kek.key and kek.region")
        }
        "ValidationException" if action == "kms:Decrypt" => {
            mean(Kind::Corrupt, "the stored data was altered, or was never written by AWS KMS")
        }
        "ValidationException" => mean(Kind::Config, "check kek.key and kek.encryptionContext"),
        "UnknownOperationException" => {
            mean(Kind::Config, "settings.endpoint does not lead to AWS KMS")
        }
        "RegionDisabledException" => mean(Kind::Config, "turn STS on for this region"),
        "IDPCommunicationError" => {
            mean(Kind::Unavailable, "STS cannot reach the issuer of the token")
        }
        _ if status == 429 => mean(Kind::Throttled, ""),
        _ if status >= 500 => mean(Kind::Unavailable, ""),
        _ if status == 403 => mean(Kind::Denied, "check the policies of role and key"),
        _ => mean(Kind::Bug, "this answer of AWS is not known here: please report it"),
    }
}

/// Codes that speak of the key or of the ciphertext.
fn key_meaning(code: &str, text: &str) -> Option<Meaning> {
    let mean = |kind, hint| Some(Meaning { kind, hint });
    match code {
        "KMSInvalidStateException" | "KMSInternalException" if of_key_store(text) => mean(
            Kind::Unavailable,
            "the external key store does not answer: see to its proxy, or connect the key store",
        ),
        "KMSInternalException"
        | "KeyUnavailableException"
        | "DependencyTimeoutException"
        | "InternalFailure"
        | "InternalServerError"
        | "ServiceUnavailable"
        | "ServiceUnavailableException" => mean(Kind::Unavailable, ""),
        "DisabledException" => {
            mean(Kind::KeyState, "the key is disabled: enable it, as by `aws kms enable-key`")
        }
        "KMSInvalidStateException" => mean(
            Kind::KeyState,
            "the key is pending deletion or has no key material: cancel the deletion \
             (`aws kms cancel-key-deletion`, then enable-key) or import the material",
        ),
        "NotFoundException" => {
            mean(Kind::KeyState, "no such key or alias in this account and region")
        }
        "IncorrectKeyException" => mean(
            Kind::KeyState,
            "another key wrapped this data: serve that one too, as a key of its own",
        ),
        "InvalidKeyUsageException" | "UnsupportedOperationException" => mean(
            Kind::Config,
            "only symmetric keys (SYMMETRIC_DEFAULT, ENCRYPT_DECRYPT) can be used",
        ),
        "InvalidCiphertextException" => mean(
            Kind::Corrupt,
            "the stored data was altered, or was written with another kek.encryptionContext",
        ),
        "CustomKeyStoreInvalidStateException" | "CloudHsmClusterNotActiveException" => {
            mean(Kind::Unavailable, "connect the custom key store")
        }
        _ if code.starts_with("XksProxy") || code.starts_with("XksKey") => {
            mean(Kind::Unavailable, "the external key store does not answer: see to its proxy")
        }
        _ => None,
    }
}

/// Codes that speak of who asks.
fn caller_meaning(action: &str, code: &str) -> Option<Meaning> {
    let mean = |hint| Some(Meaning { kind: Kind::Denied, hint });
    let sts = action.starts_with("sts:");
    match code {
        "AccessDeniedException" | "AccessDenied" if sts => {
            mean("the role's trust policy must allow this identity (issuer, audience and subject)")
        }
        "AccessDeniedException" | "AccessDenied" => mean(
            "allow kms:Encrypt, kms:Decrypt and kms:DescribeKey on this key in the role's policy \
             and in the key's; a key that does not exist looks the same",
        ),
        "ExpiredTokenException" | "ExpiredToken" | "TokenRefreshRequired" if sts => {
            mean("the web identity token has expired: see whether what renews its file works")
        }
        "ExpiredTokenException" | "ExpiredToken" | "TokenRefreshRequired" => {
            mean("the session has expired and could not be renewed: see to the credentials")
        }
        "InvalidIdentityToken" | "IDPRejectedClaim" => mean(
            "the role's identity provider does not take this token: check issuer, audience and \
             the provider's keys",
        ),
        "UnrecognizedClientException" | "InvalidClientTokenId" | "InvalidAccessKeyId" => {
            mean("AWS does not know these keys: they are wrong, deleted or of another partition")
        }
        "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "RequestExpired"
        | "RequestTimeTooSkewed" => mean("check the secret access key and this machine's clock"),
        "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "OptInRequired"
        | "NotAuthorized"
        | "InvalidGrantTokenException"
        | "InvalidGrantIdException" => mean("check the credentials, and the grants of the key"),
        _ => None,
    }
}

/// Trouble with an external or custom key store: KMS gives it no code of its own.
fn of_key_store(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("external key store") || text.contains("custom key store")
}

fn reach(cause: &str) -> &'static str {
    if cause.contains("certificate") {
        "the endpoint shows a certificate that is not trusted: set settings.caBundle, or check \
         who answers at that address"
    } else if cause.contains("name lookup") {
        "check DNS and settings.endpoint"
    } else {
        "check the network, the VPC endpoint and its security groups, and settings.endpoint"
    }
}

/// An error with its causes, each once.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(action: &str, code: &str, text: &str) -> Kind {
        refused(action, "the key", 400, Some(code), Some(text)).kind()
    }

    #[test]
    fn every_code_of_the_kms_has_its_kind() {
        let all = [
            ("AccessDeniedException", Kind::Denied),
            ("ExpiredTokenException", Kind::Denied),
            ("UnrecognizedClientException", Kind::Denied),
            ("InvalidSignatureException", Kind::Denied),
            ("DisabledException", Kind::KeyState),
            ("KMSInvalidStateException", Kind::KeyState),
            ("NotFoundException", Kind::KeyState),
            ("IncorrectKeyException", Kind::KeyState),
            ("KeyUnavailableException", Kind::Unavailable),
            ("DependencyTimeoutException", Kind::Unavailable),
            ("KMSInternalException", Kind::Unavailable),
            ("XksProxyUriUnreachableException", Kind::Unavailable),
            ("CustomKeyStoreInvalidStateException", Kind::Unavailable),
            ("ThrottlingException", Kind::Throttled),
            ("LimitExceededException", Kind::Throttled),
            ("InvalidCiphertextException", Kind::Corrupt),
            ("InvalidArnException", Kind::Config),
            ("InvalidKeyUsageException", Kind::Config),
            ("SomethingNew", Kind::Bug),
        ];
        for (code, expected) in all {
            assert_eq!(kind("kms:Encrypt", code, ""), expected, "{code}");
        }
        assert_eq!(kind("kms:Decrypt", "ValidationException", ""), Kind::Corrupt);
        assert_eq!(kind("kms:Encrypt", "ValidationException", ""), Kind::Config);
    }

    #[test]
    fn a_sick_external_key_store_is_a_passing_fault_under_whatever_code() {
        let text = "AWS KMS rejected the request because the external key store proxy did not \
                    respond in time. Retry the request.";
        assert_eq!(kind("kms:Encrypt", "KMSInvalidStateException", text), Kind::Unavailable);
        assert_eq!(kind("kms:Encrypt", "KMSInternalException", text), Kind::Unavailable);
        let pending = "arn:aws:kms:us-east-1:1:key/x is pending deletion.";
        assert_eq!(kind("kms:Encrypt", "KMSInvalidStateException", pending), Kind::KeyState);
    }

    #[test]
    fn an_answer_without_a_code_goes_by_its_status() {
        let kind = |status| refused("kms:Encrypt", "the key", status, None, None).kind();
        assert_eq!(kind(503), Kind::Unavailable);
        assert_eq!(kind(429), Kind::Throttled);
        assert_eq!(kind(403), Kind::Denied);
    }

    #[test]
    fn every_refusal_says_what_on_which_object_why_and_what_to_do() {
        let error =
            refused("kms:Encrypt", "alias/etcd", 400, Some("DisabledException"), Some("no"));
        let text = error.report();
        for part in ["kms:Encrypt on alias/etcd", "DisabledException: no", "aws kms enable-key"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
