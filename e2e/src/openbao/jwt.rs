//! Signed tokens, as an issuer of service-account tokens gives them out.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::KeyPair;
use serde_json::json;

/// An issuer with a key of its own.
pub struct Issuer {
    key: EcdsaKeyPair,
    public: String,
}

impl Issuer {
    /// A new one.
    pub fn new() -> Result<Self> {
        let pair = KeyPair::generate()?;
        let der = pair.serialize_der();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der)
            .context("cannot sign with a new key")?;
        Ok(Self { key, public: pair.public_key_pem() })
    }

    /// Its public key in PEM, to be trusted.
    pub fn public_key(&self) -> &str {
        &self.public
    }

    /// A token that lives so long from now on.
    pub fn token(&self, audience: &str, subject: &str, life: Duration) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let claims = json!({
            "iss": "https://issuer.sidekey.test", "aud": [audience], "sub": subject,
            "iat": now, "nbf": now.saturating_sub(5), "exp": now + life.as_secs(),
        });
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let header = json!({"alg": "ES256", "typ": "JWT"}).to_string();
        let signed =
            format!("{}.{}", encode(header.as_bytes()), encode(claims.to_string().as_bytes()));
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .ok()
            .context("cannot sign a token")?;
        Ok(format!("{signed}.{}", encode(signature.as_ref())))
    }
}
