//! AWS Signature Version 4 for the one form of request that KMS takes: a POST to `/`.
//!
//! Ours, because the general one costs more than the rest of a call; its tests hold it against the
//! SDK's.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_lc_rs::hmac;
use sidekey_core::{hex, sha256};
use zeroize::Zeroizing;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "kms";

/// Signs for one region.
pub(crate) struct Signer {
    region: String,
    /// The key of a day and an access key: it is the same for all of their requests.
    derived: Mutex<Option<Derived>>,
}

struct Derived {
    day: String,
    access_key_id: String,
    key: hmac::Key,
}

impl Signer {
    pub(crate) fn new(region: &str) -> Self {
        Self { region: region.to_owned(), derived: Mutex::default() }
    }

    /// The `authorization` of a POST to `/` with these headers, which must be in the order of
    /// their names, and this [`stamp`].
    pub(crate) fn sign(
        &self,
        headers: &[(&str, &str)],
        body: &[u8],
        credentials: &Credentials,
        stamp: &str,
    ) -> String {
        let day = &stamp[..8];
        let mut names = String::with_capacity(128);
        let room: usize =
            headers.iter().map(|(name, value)| 2 * name.len() + value.len() + 3).sum();
        // The session's token is in it.
        let mut canonical = Zeroizing::new(String::with_capacity(room + 80));
        canonical.push_str("POST\n/\n\n");
        for (name, value) in headers {
            for part in [name, ":", value.trim(), "\n"] {
                canonical.push_str(part);
            }
            if !names.is_empty() {
                names.push(';');
            }
            names.push_str(name);
        }
        for part in ["\n", &names, "\n", &hex(&sha256(body))] {
            canonical.push_str(part);
        }
        let region = &self.region;
        let hashed = hex(&sha256(canonical.as_bytes()));
        let scope = format!("{day}/{region}/{SERVICE}/aws4_request");
        let text = format!("{ALGORITHM}\n{stamp}\n{scope}\n{hashed}");
        let signature = self.with_key(day, credentials, text.as_bytes());
        let id = credentials.access_key_id();
        format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
    }

    fn with_key(&self, day: &str, credentials: &Credentials, text: &[u8]) -> String {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let id = credentials.access_key_id();
        let usable = |known: &Derived| known.day == day && known.access_key_id == id;
        let known = match derived.take().filter(usable) {
            Some(known) => known,
            None => {
                let secret =
                    zeroize::Zeroizing::new(format!("AWS4{}", credentials.secret_access_key()));
                let mut key = mac(secret.as_bytes(), day.as_bytes());
                for part in [self.region.as_str(), SERVICE, "aws4_request"] {
                    key = mac(key.as_ref(), part.as_bytes());
                }
                let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
                Derived { day: day.to_owned(), access_key_id: id.to_owned(), key }
            }
        };
        let signature = hex(hmac::sign(&known.key, text).as_ref());
        *derived = Some(known);
        signature
    }
}

/// The time as it is signed: RFC 3339 without its separators.
pub(crate) fn stamp(at: SystemTime) -> String {
    sidekey_core::time(at).chars().filter(|c| !"-:".contains(*c)).collect()
}

fn mac(key: &[u8], text: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings};
    use aws_sigv4::sign::v4;

    use super::*;

    /// What the SDK makes of the same request.
    fn by_the_sdk(
        headers: &[(&str, &str)],
        body: &[u8],
        keys: &Credentials,
        at: SystemTime,
    ) -> String {
        let identity = keys.clone().into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region("eu-west-1")
            .name("kms")
            .time(at)
            .settings(SigningSettings::default())
            .build()
            .unwrap();
        let url = "https://kms.eu-west-1.amazonaws.com/";
        let headers = headers.iter().copied();
        let request =
            SignableRequest::new("POST", url, headers, SignableBody::Bytes(body)).unwrap();
        let signed = aws_sigv4::http_request::sign(request, &parameters.into()).unwrap();
        let (instructions, _) = signed.into_parts();
        let mut headers = instructions.headers();
        headers.find(|(name, _)| *name == "authorization").unwrap().1.to_owned()
    }

    #[test]
    fn signatures_are_those_of_the_sdk() {
        let signer = Signer::new("eu-west-1");
        let keys = |id: &str, token: Option<&str>| {
            Credentials::new(id, "wJalrXUtnFEMI/K7MDENG", token.map(str::to_owned), None, "test")
        };
        let cases = [
            (keys("AKIDEXAMPLE", None), 1_440_938_160, &b"{}"[..]),
            (keys("AKIDEXAMPLE", Some("token")), 1_440_938_161, b"{\"KeyId\":\"alias/x\"}"),
            (keys("AKIDOTHER", Some("token")), 1_440_938_161, b""),
            (keys("AKIDOTHER", None), 1_893_456_000, b"another day"),
        ];
        for (keys, seconds, body) in cases {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let stamp = stamp(at);
            let mut headers = vec![
                ("content-type", "application/x-amz-json-1.1"),
                ("host", "kms.eu-west-1.amazonaws.com"),
                ("x-amz-source-arn", "arn:aws:eks:eu-west-1:111122223333:cluster/prod"),
                ("x-amz-target", "TrentService.Decrypt"),
            ];
            // The SDK adds date and token by itself.
            let expected = by_the_sdk(&headers, body, &keys, at);
            headers.insert(2, ("x-amz-date", &stamp));
            if let Some(token) = keys.session_token() {
                headers.insert(3, ("x-amz-security-token", token));
            }
            assert_eq!(signer.sign(&headers, body, &keys, &stamp), expected);
        }
    }
}
