//! What Key Vault answers when it does not do what it is asked, and what that means for us.
//!
//! Its own code is one of few; the inner one, where there is one, says what is wrong.

use serde::Deserialize;
use sidekey_core::{Error, Kind};
use sidekey_rest::Answer;
use sidekey_rest::codes::{Code, Refusal, code};

use crate::client::Deed;

#[rustfmt::skip]
const CODES: &[Code] = &[
    // Of the key.
    code("", "KeyDisabled|KeyNotYetValid|KeyExpired", Kind::KeyState, "see the state and the dates of the key and of its version: enable it until all data has been written anew"),
    code("", "KeyNotFound|ObjectIsDeletedButRecoverable|ObjectIsBeingDeleted", Kind::KeyState, "the key or this version of it was deleted: recover it before it is purged, as by `az keyvault key recover`; a key of the same name is another one"),
    code("", "VaultNotFound|VaultDisabled", Kind::KeyState, "see whether the vault was deleted: recover it before it is purged"),
    code("", "KeyOperationForbidden|KeyOperationNotAllowed", Kind::Config, "allow the operations encrypt and decrypt on the key itself"),
    // Of us.
    code("", "ForbiddenByFirewall|ForbiddenByConnection|ForbiddenByNetwork*", Kind::Denied, "the vault's firewall lets nobody in from here: use its private endpoint, or allow this network"),
    code("keys/get", "Forbidden|ForbiddenByRbac|ForbiddenByPolicy|AccessDenied|NotAuthorized", Kind::Denied, "allow keys/read (access policy: get) on the key"),
    code("", "Forbidden|ForbiddenByRbac|ForbiddenByPolicy|AccessDenied|NotAuthorized", Kind::Denied, "allow keys/encrypt/action and keys/decrypt/action on the key (access policy: encrypt, decrypt), as the role Key Vault Crypto User does"),
    code("", "Unauthorized|AKV10*", Kind::Denied, "the vault does not take this token: see that its tenant is the tenant of the identity, and the cloud is right"),
    // Of how often.
    code("", "Throttled|TooManyRequests|RequestThrottled", Kind::Throttled, "the vault's limit is shared by all who use it: give this key a vault of its own, or spread the load"),
    // Of how it was asked.
    code("keys/decrypt", "BadParameter|InvalidParameter", Kind::Corrupt, "the stored data was altered, or another version of the key wrapped it"),
    code("keys/encrypt", "BadParameter|InvalidParameter", Kind::Config, "see that the key is RSA of 2048 to 4096 bits, or AES of 256 bits in a Managed HSM, and that the data is no larger than it can wrap"),
    code("", "BadParameter|InvalidParameter", Kind::Config, "check kek.key and kek.version"),
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    error: Refused,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refused {
    code: Option<String>,
    message: String,
    #[serde(rename = "innererror")]
    inner: Inner,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Inner {
    code: Option<String>,
}

/// The error that a bad answer is.
pub(crate) fn refused(deed: &Deed, answer: &Answer) -> Error {
    let Body { error } = serde_json::from_slice(&answer.body).unwrap_or_default();
    let refusal = |code| Refusal {
        action: deed.action,
        object: &deed.object,
        status: answer.status.as_u16(),
        code,
        text: &error.message,
    };
    let inner = refusal(error.inner.code.as_deref());
    let said = if inner.is_known(CODES) { inner } else { refusal(error.code.as_deref()) };
    let explained = said.explain_of("Key Vault", CODES);
    if answer.status.as_u16() == 401 { explained.after_reload() } else { explained }
}

/// An answer that makes no sense may pass: a proxy may have given it.
pub(crate) fn odd(deed: &Deed, what: &str) -> Error {
    Error::new(Kind::Unavailable, format!("{} on {}: {what}", deed.action, deed.object))
        .with_hint("see whether it is Key Vault that answers, or a proxy in its place")
}
