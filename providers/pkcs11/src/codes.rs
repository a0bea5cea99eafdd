//! What is wrong, and what to do: the codes of PKCS#11, and what we find by ourselves.

use std::fmt::Display;

use cryptoki::error::{Error as Failure, RvError as C};
use sidekey_core::{Error, Kind};

/// What we find: its kind, what is said of its object, and what the operator should do.
pub(crate) type Finding = (Kind, &'static str, &'static str);

#[rustfmt::skip]
mod findings {
    use super::{Finding, Kind};

    pub(crate) const STATIC: Finding = (Kind::Config, "is static, and a static program cannot load a PKCS#11 library", "run the image sidekey-pkcs11, or build with RUSTFLAGS=-Ctarget-feature=-crt-static and a --target-dir of its own");
    pub(crate) const NO_LIBRARY: Finding = (Kind::Config, "cannot be loaded", "settings.library must name the vendor's PKCS#11 library, with all that it needs, built for glibc and this CPU");
    pub(crate) const NO_TOKEN: Finding = (Kind::Unavailable, "is in no slot", "see whether the HSM is connected and its client set up, and check kek against pkcs11-tool --list-slots");
    pub(crate) const TOKENS: Finding = (Kind::Config, "is not the only one", "set kek.tokenSerial: pkcs11-tool --list-slots");
    pub(crate) const REFUSED: Finding = (Kind::Denied, "has refused this PIN before, or failed over it: it is not tried again", "write the right PIN into its file, with a line end more if it is the same, and see that the token has not locked it");
    pub(crate) const LOCKED: Finding = (Kind::Denied, "has locked the PIN", "the token's security officer must set a new one");
    pub(crate) const LAST_TRY: Finding = (Kind::Denied, "would lock the PIN if it were wrong once more, so it is not tried", "log in once by hand, which gives back all tries: pkcs11-tool --login --list-objects");
    pub(crate) const NO_PIN: Finding = (Kind::Denied, "wants a PIN", "set credentials.pinFile");
    pub(crate) const BAD_PIN: Finding = (Kind::Config, "cannot be given a PIN that is no text", "write the PIN into its file, and nothing else");
    pub(crate) const BUSY: Finding = (Kind::Timeout, "has all its sessions at work", "see whether the HSM still answers, or raise settings.maxSessions");
    pub(crate) const LATE: Finding = (Kind::Timeout, "has not answered in time", "see whether the HSM is reachable");
    pub(crate) const PANIC: Finding = (Kind::Bug, "was asked by a thread that has panicked", "report this");
    pub(crate) const NO_KEY: Finding = (Kind::KeyState, "is not there: there is none in the token, or this user may not see it", "restore it, and never make another in its place; check kek.keyLabel, kek.keyId and kek.algorithm");
    pub(crate) const NO_ID: Finding = (Kind::KeyState, "has no CKA_ID, or one of more than 255 bytes", "give it one: pkcs11-tool --set-id");
    pub(crate) const SAME_ID: Finding = (Kind::KeyState, "is there twice with the same CKA_ID", "give each an id of its own");
    pub(crate) const NOT_YET: Finding = (Kind::KeyState, "is not valid yet", "see its CKA_START_DATE");
    pub(crate) const NOT_OURS: Finding = (Kind::KeyState, "has not made this key_id", "restore the key with its CKA_ID, or serve the key that wrote it too");
    pub(crate) const NO_ENCRYPT: Finding = (Kind::KeyState, "has CKA_ENCRYPT false", "it reads; give the control plane a key that may encrypt");
    pub(crate) const NO_DECRYPT: Finding = (Kind::KeyState, "has CKA_DECRYPT false", "no key of a KMS does without");
    pub(crate) const TOO_SHORT: Finding = (Kind::KeyState, "is too short", "nothing is written with less than AES-256 or RSA of 2048 bits");
    pub(crate) const NO_PUBLIC: Finding = (Kind::KeyState, "has no public key in the token", "write it there, under the same CKA_ID: it encrypts");
    pub(crate) const NO_IV: Finding = (Kind::Config, "was used without an IV of the token's own", "unset settings.ivFromToken: this token takes ours");
    pub(crate) const EMPTY: Finding = (Kind::Invalid, "was given nothing to encrypt", "");
    pub(crate) const ALTERED: Finding = (Kind::Corrupt, "has not made this ciphertext, or it was altered", "");
}

pub(crate) use findings::*;

/// What the codes mean; what is not here may pass.
#[rustfmt::skip]
const CODES: [(&[C], Kind, &str); 9] = [
    (&[C::PinIncorrect, C::PinInvalid, C::PinLenRange], Kind::Denied, "write the right PIN into its file: it is tried once when the file has changed, and this one never again"),
    (&[C::PinLocked, C::PinExpired, C::UserPinNotInitialized, C::UserTypeInvalid], Kind::Denied, "the token's security officer must set a new PIN"),
    (&[C::EncryptedDataInvalid, C::EncryptedDataLenRange, C::SignatureInvalid, C::SignatureLenRange], Kind::Corrupt, "it was altered, or another key wrapped it"),
    (&[C::DataLenRange], Kind::Invalid, "it is longer than this key can encrypt"),
    (&[C::SessionCount], Kind::Throttled, "no session is free: lower settings.maxSessions here or there, or raise the token's limit"),
    (&[C::HostMemory, C::DeviceMemory], Kind::Throttled, "there is no memory left"),
    (&[C::KeyFunctionNotPermitted, C::KeyTypeInconsistent, C::KeySizeRange, C::ActionProhibited], Kind::KeyState, "see what the key is and what it may be used for: pkcs11-tool --list-objects"),
    (&[C::MechanismInvalid, C::MechanismParamInvalid, C::ArgumentsBad, C::FunctionNotSupported], Kind::Config, "this token cannot do that with this key: see pkcs11-tool --list-mechanisms, kek.algorithm and settings.ivFromToken"),
    (&[], Kind::Unavailable, "see whether the HSM is reachable and what its own log says"),
];

/// The error that a finding is.
pub(crate) fn found(object: &dyn Display, (kind, what, hint): Finding) -> Error {
    error(kind, format!("{object} {what}"), hint)
}

/// The error that a failure of `action` on `object` is.
pub(crate) fn explain(action: &str, object: &dyn Display, failure: &Failure) -> Error {
    let (code, text) = match failure {
        Failure::Pkcs11(code, function) => (Some(code), format!("{code:?} of {function:?}")),
        Failure::NullFunctionPointer => (Some(&C::FunctionNotSupported), failure.to_string()),
        _ => (None, failure.to_string()),
    };
    let known = |codes: &[C]| codes.is_empty() || code.is_some_and(|code| codes.contains(code));
    let (kind, hint) = CODES
        .iter()
        .find(|(codes, ..)| known(codes))
        .map_or_else(Default::default, |(_, kind, hint)| (*kind, *hint));
    error(kind, format!("{action} on {object}: {text}"), hint)
}

fn error(kind: Kind, text: String, hint: &str) -> Error {
    let error = Error::new(kind, text);
    let error = if hint.is_empty() { error } else { error.with_hint(hint) };
    // A login that was refused is not mended by waiting.
    if kind == Kind::Denied { error.lasting().without_retry() } else { error }
}
