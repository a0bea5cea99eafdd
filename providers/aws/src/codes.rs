//! What AWS answers when it does not do what it is asked, and what that means for us.
//!
//! The code alone decides the kind, with one exception that the tests pin: trouble with an
//! external key store comes under codes that mean something else, and only the text tells.

use aws_config::meta::ProviderChainError;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::{ConnectorError, SdkError};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use sidekey_core::{Error, Kind};
use sidekey_rest::codes::{Code, Refusal, chain, code};

const ROTATE: &str = "kms:RotateKeyOnDemand";
const STS: &str = "sts:";
const XKS: &str =
    "the external key store does not answer: see to its proxy, or connect the key store";

/// Codes that say that the credentials themselves are no longer any good.
pub(crate) const CREDENTIALS: &str = "ExpiredTokenException|ExpiredToken|TokenRefreshRequired|UnrecognizedClientException|InvalidClientTokenId|InvalidAccessKeyId";
/// Codes that may speak of the time that we told.
pub(crate) const CLOCK: &str =
    "InvalidSignatureException|SignatureDoesNotMatch|RequestTimeTooSkewed|RequestExpired";

/// The one place where codes become kinds: the first line that fits.
#[rustfmt::skip]
const CODES: &[Code] = &[
    // When new material was asked for, where that is not what they mean elsewhere.
    code(ROTATE, "LimitExceededException", Kind::KeyState, "AWS allows each key a fixed number of rotations on demand, and this one has had them: turn on its automatic rotation, or give the control plane a new key"),
    code(ROTATE, "AccessDenied*", Kind::Denied, "allow kms:RotateKeyOnDemand on this key in the role's policy and in the key's; serving does not need it"),
    code(ROTATE, "UnsupportedOperationException", Kind::Config, "keys in custom key stores and managed by AWS cannot be rotated on demand, and of a multi-region key only the primary: ask in its region"),
    code(ROTATE, "ConflictException", Kind::Unavailable, "a rotation is under way, or begins within 20 minutes"),
    // Of the key or of the ciphertext.
    code("", "KMSInternalException|KeyUnavailableException|DependencyTimeoutException|InternalFailure|InternalServerError|ServiceUnavailable*|RequestTimeout*", Kind::Unavailable, ""),
    code("", "DisabledException", Kind::KeyState, "the key is disabled: enable it, as by `aws kms enable-key`"),
    code("", "KMSInvalidStateException", Kind::KeyState, "the key is pending deletion or has no key material: cancel the deletion (`aws kms cancel-key-deletion`, then enable-key) or import the material"),
    code("", "NotFoundException", Kind::KeyState, "no such key or alias in this account and region"),
    code("", "IncorrectKeyException", Kind::KeyState, "another key wrapped this data: serve that one too, as a key of its own"),
    code("", "InvalidKeyUsageException|UnsupportedOperationException", Kind::Config, "only symmetric keys (SYMMETRIC_DEFAULT, ENCRYPT_DECRYPT) can be used"),
    code("", "InvalidCiphertextException", Kind::Corrupt, "the stored data was altered, or was written with another kek.encryptionContext"),
    code("", "CustomKeyStoreInvalidStateException|CloudHsmClusterNotActiveException", Kind::Unavailable, "connect the custom key store"),
    code("", "XksProxy*|XksKey*", Kind::Unavailable, XKS),
    // Of who asks.
    code(STS, "AccessDenied*", Kind::Denied, "the role's trust policy must allow this identity (issuer, audience and subject)"),
    code("", "AccessDenied*", Kind::Denied, "allow kms:Encrypt, kms:Decrypt and kms:DescribeKey on this key in the role's policy and in the key's; a key that does not exist looks the same"),
    code(STS, "ExpiredToken*", Kind::Denied, "the web identity token has expired: see whether what renews its file works"),
    code("", "ExpiredToken*|TokenRefreshRequired", Kind::Denied, "the session has expired and could not be renewed: see to the credentials"),
    code("", "InvalidIdentityToken*|IDPRejectedClaim*", Kind::Denied, "the role's identity provider does not take this token: check issuer, audience and the provider's keys"),
    code("", CREDENTIALS, Kind::Denied, "AWS does not know these keys: they are wrong, deleted or of another partition"),
    code("", CLOCK, Kind::Denied, "check the secret access key and this machine's clock"),
    code("", "IncompleteSignature*|MissingAuthenticationToken*|OptInRequired|NotAuthorized|InvalidGrant*", Kind::Denied, "check the credentials, and the grants of the key"),
    // Of how often.
    code("", "Throttl*|TooManyRequestsException|LimitExceededException|RequestLimitExceeded|RequestThrottled*|SlowDown|BandwidthLimitExceeded|ProvisionedThroughputExceededException|EC2ThrottledException|PriorRequestNotComplete|TransactionInProgressException", Kind::Throttled, "raise the request quota of KMS for this account and region, or spread the load"),
    // Of how it was asked.
    code("", "InvalidArnException|InvalidAliasNameException|InvalidMarkerException", Kind::Config, "check kek.key and kek.region"),
    code("kms:Decrypt", "ValidationException", Kind::Corrupt, "the stored data was altered, or was never written by AWS KMS"),
    code("", "ValidationException", Kind::Config, "check kek.key and kek.encryptionContext"),
    code("", "UnknownOperationException", Kind::Config, "settings.endpoint does not lead to AWS KMS"),
    code("", "RegionDisabledException", Kind::Config, "turn STS on for this region"),
    code("", "IDPCommunicationError*", Kind::Unavailable, "STS cannot reach the issuer of the token"),
];

/// Explains why `action` on `object` failed.
pub(crate) fn explain<E>(action: &str, object: &str, error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match error {
        SdkError::ServiceError(service) => {
            let (status, error) = (service.raw().status().as_u16(), service.err());
            let text = error.message().unwrap_or_default();
            refused(Refusal { action, object, status, code: error.code(), text })
        }
        SdkError::DispatchFailure(failure) => {
            let first = failure.as_connector_error().and_then(std::error::Error::source);
            let mut causes = std::iter::successors(first, |cause| cause.source());
            match causes.find_map(|cause| cause.downcast_ref::<Error>()) {
                // What the transport says is clear by itself.
                Some(ours) => {
                    let error =
                        Error::new(ours.kind(), format!("{action} on {object}: {}", chain(ours)));
                    error.with_hint(ours.hint().unwrap_or("check settings.endpoint"))
                }
                // Credentials that could not be had come as a failure to send.
                None => match first.and_then(|cause| cause.downcast_ref()) {
                    Some(credentials) => no_credentials(credentials),
                    None => {
                        Error::new(Kind::Config, format!("{action} on {object}: {}", chain(error)))
                            .with_hint(ADDRESS)
                    }
                },
            }
        }
        SdkError::TimeoutError(_) => slow(action, object),
        _ => Error::new(
            Kind::Unavailable,
            format!("{action} on {object}: the answer cannot be read"),
        )
        .with_hint("see whether the endpoint is AWS's and whether a proxy stands between"),
    }
}

fn refused(refusal: Refusal<'_>) -> Error {
    if is_one(refusal.code, "KMSInvalidStateException|KMSInternalException")
        && of_key_store(refusal.text)
    {
        return refusal.error(Kind::Unavailable, XKS);
    }
    let error = refusal.explain_of("AWS", CODES);
    if is_one(refusal.code, CREDENTIALS) { error.after_reload() } else { error }
}

/// No answer in the time that one try has.
pub(crate) fn slow(action: &str, object: &str) -> Error {
    Error::new(Kind::Timeout, format!("{action} on {object} was not answered in time"))
        .with_hint("check the network to AWS, and settings.attemptTimeout if it is set")
}

/// What decides about where a call is sent.
const ADDRESS: &str = "check kek.region, settings.endpoint, settings.fips and settings.dualstack";

/// Whether a code is one of those in a line of the table.
pub(crate) fn is_one(code: Option<&str>, of: &str) -> bool {
    code.is_some_and(|code| of.split('|').any(|known| known == code))
}

/// Explains why there are no credentials.
pub(crate) fn no_credentials(error: &CredentialsError) -> Error {
    let object = "the configured role";
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) =
            error.downcast_ref::<SdkError<AssumeRoleWithWebIdentityError, HttpResponse>>()
        {
            return final_word(explain("sts:AssumeRoleWithWebIdentity", object, error));
        }
        if let Some(error) = error.downcast_ref::<SdkError<AssumeRoleError, HttpResponse>>() {
            return final_word(explain("sts:AssumeRole", object, error));
        }
        // What the transport refuses to send.
        if let Some(ours) = error.downcast_ref::<Error>().filter(|e| e.kind() == Kind::Config) {
            let error = Error::new(Kind::Config, format!("AWS credentials cannot be had: {ours}"));
            return error.with_hint(ours.hint().unwrap_or_default()).after_reload();
        }
        cause = error.source();
    }
    let unsent = unsent(error);
    let (kind, what, hint) = match error {
        CredentialsError::ProviderTimedOut(_) => (
            Kind::Timeout,
            "credentials could not be had in time",
            "check the network to STS or IMDS",
        ),
        CredentialsError::CredentialsNotLoaded(_) => (
            // That nothing is set up is also said where the metadata service cannot be reached.
            if unsent.is_some() { Kind::Unavailable } else { Kind::Config },
            "there are no AWS credentials",
            "set credentials in the configuration, or AWS_SHARED_CREDENTIALS_FILE or \
             AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; on EC2 see whether IMDS answers",
        ),
        CredentialsError::InvalidConfiguration(_) => (
            Kind::Config,
            "the AWS credentials cannot be used",
            "check profile, role_arn and the files that the profile names",
        ),
        _ => (
            Kind::Unavailable,
            "AWS credentials cannot be had",
            "check the credential files, and the network to STS or IMDS",
        ),
    };
    let why = chain(unsent.unwrap_or(error));
    Error::new(kind, format!("{what}: {why}")).with_hint(hint).after_reload()
}

/// A cause of an error.
type Cause<'a> = &'a (dyn std::error::Error + 'static);

/// What kept a call from being sent, be it of one that a chain has tried.
fn unsent(error: Cause<'_>) -> Option<Cause<'_>> {
    std::iter::successors(Some(error), |cause| cause.source()).find_map(|cause| {
        let tried = cause.downcast_ref::<ProviderChainError<CredentialsError>>();
        let tried = tried.and_then(|all| all.attempts().iter().find_map(|one| unsent(one.error())));
        tried.or_else(|| cause.is::<ConnectorError>().then_some(cause))
    })
}

/// What STS says: new files may help, and waiting does not where it has refused.
fn final_word(error: Error) -> Error {
    let error = error.after_reload();
    if error.kind().is_transient() { error } else { error.lasting() }
}

/// Trouble with an external or custom key store: KMS gives it no code of its own.
fn of_key_store(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("external key store") || text.contains("custom key store")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(action: &str, code: Option<&str>, status: u16, text: &str) -> Error {
        refused(Refusal { action, object: "the key", status, code, text })
    }

    fn kind(action: &str, code: &str, text: &str) -> Kind {
        error(action, Some(code), 400, text).kind()
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
        ];
        for (code, expected) in all {
            assert_eq!(kind("kms:Encrypt", code, ""), expected, "{code}");
        }
        assert_eq!(kind("kms:Decrypt", "ValidationException", ""), Kind::Corrupt);
        assert_eq!(kind("kms:Encrypt", "ValidationException", ""), Kind::Config);
    }

    #[test]
    fn what_may_pass_is_of_a_kind_that_coasts() {
        // The lists of the SDK's own retries, and what nobody knows yet.
        for code in [
            "RequestTimeout",
            "RequestTimeoutException",
            "PriorRequestNotComplete",
            "ProvisionedThroughputExceededException",
            "TransactionInProgressException",
            "EC2ThrottledException",
            "RequestThrottled",
            "SomethingNew",
        ] {
            assert!(kind("kms:Encrypt", code, "").is_transient(), "{code}");
        }
        for status in [302, 404, 408, 418, 502] {
            assert!(error("kms:Encrypt", None, status, "").kind().is_transient(), "{status}");
        }
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
        let kind = |status| error("kms:Encrypt", None, status, "").kind();
        assert_eq!(kind(503), Kind::Unavailable);
        assert_eq!(kind(429), Kind::Throttled);
    }

    #[test]
    fn a_refusal_without_a_code_is_not_of_aws_and_may_pass() {
        for status in [401, 403] {
            let error = error("kms:Decrypt", None, status, "");
            assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
            assert!(error.report().contains("not AWS that says so"), "{}", error.report());
        }
        assert_eq!(error("sts:AssumeRole", Some("AccessDenied"), 403, "").kind(), Kind::Denied);
    }

    #[test]
    fn every_refusal_says_what_on_which_object_why_and_what_to_do() {
        let text = error("kms:Encrypt", Some("DisabledException"), 400, "no").report();
        for part in ["kms:Encrypt on the key", "DisabledException: no", "aws kms enable-key"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn no_part_of_a_session_token_is_ever_in_a_text() {
        let token = format!("IQoJb3JpZ2luX2VjEJ3{}", "aB3+xYz9".repeat(40));
        let text = format!(
            "The request signature we calculated does not match the signature you provided. \
             Check your AWS Secret Access Key and signing method. Consult the service \
             documentation for details.\n\nThe Canonical String for this request should have been\n\
             'POST\n/\n\ncontent-type:application/x-amz-json-1.1\nhost:kms\n\
             x-amz-security-token:{token}\n'"
        );
        let said = error("kms:Decrypt", Some("InvalidSignatureException"), 400, &text).report();
        assert!(said.contains("does not match"), "{said}");
        for start in 0..token.len() - 8 {
            assert!(!said.contains(&token[start..start + 8]), "{said}");
        }
    }
}
