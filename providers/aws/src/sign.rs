//! AWS Signature Version 4 for the one form of request that KMS takes: a POST to `/`.
//!
//! Ours, because the general one costs more than the rest of a call; its tests hold it against the
//! SDK's.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_lc_rs::hmac;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use sidekey_core::{hex, sha256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "kms";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

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

    /// Adds date, token and signature to the headers of a POST to `/`; every header that is
    /// there already is signed, the host among them.
    pub(crate) fn sign(
        &self,
        headers: &mut HeaderMap,
        body: &[u8],
        credentials: &Credentials,
        at: SystemTime,
    ) -> Result<(), header::InvalidHeaderValue> {
        // 2026-11-16T05:57:55Z without its separators.
        let stamp: String = sidekey_core::time(at).chars().filter(|c| !"-:".contains(*c)).collect();
        let day = &stamp[..8];
        headers.insert(DATE, HeaderValue::from_str(&stamp)?);
        if let Some(token) = credentials.session_token() {
            let mut token = HeaderValue::from_str(token)?;
            token.set_sensitive(true);
            headers.insert(TOKEN, token);
        }
        let mut names: Vec<&HeaderName> = headers.keys().collect();
        names.sort_unstable_by_key(|name| name.as_str());
        let signed = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(";");
        let mut canonical = String::with_capacity(1024);
        canonical.push_str("POST\n/\n\n");
        for name in names {
            canonical.push_str(name.as_str());
            canonical.push(':');
            canonical.push_str(headers[name].to_str().unwrap_or_default().trim());
            canonical.push('\n');
        }
        canonical.push('\n');
        canonical.push_str(&signed);
        canonical.push('\n');
        canonical.push_str(&hex(&sha256(body)));
        let scope = format!("{day}/{}/{SERVICE}/aws4_request", self.region);
        let hashed = hex(&sha256(canonical.as_bytes()));
        let text = format!("{ALGORITHM}\n{stamp}\n{scope}\n{hashed}");
        let signature = self.with_key(day, credentials, text.as_bytes());
        let id = credentials.access_key_id();
        let value = format!(
            "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={signed}, Signature={signature}"
        );
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&value)?);
        Ok(())
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
    fn by_the_sdk(headers: &HeaderMap, body: &[u8], keys: &Credentials, at: SystemTime) -> String {
        let identity = keys.clone().into();
        let settings = SigningSettings::default();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region("eu-west-1")
            .name("kms")
            .time(at)
            .settings(settings)
            .build()
            .unwrap();
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        let url = "https://kms.eu-west-1.amazonaws.com/";
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
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("host", "kms.eu-west-1.amazonaws.com"),
                ("content-type", "application/x-amz-json-1.1"),
                ("x-amz-target", "TrentService.Decrypt"),
                ("x-amz-source-arn", "arn:aws:eks:eu-west-1:111122223333:cluster/prod"),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            let expected = by_the_sdk(&headers, body, &keys, at);
            signer.sign(&mut headers, body, &keys, at).unwrap();
            assert_eq!(headers["authorization"], expected);
        }
    }
}
