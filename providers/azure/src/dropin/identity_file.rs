//! One user-assigned identity as ARO's data plane hands it out, in a file that is written anew
//! before its certificate ends. Every change of it is taken: it is watched by its directory.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use sidekey_core::{Error, Files, Kind};

use super::pkcs12;
use crate::identity::{Identity, Login, pem};

/// Borrowed from the file, which is wiped.
#[derive(Deserialize)]
struct Identified<'a> {
    client_id: &'a str,
    tenant_id: &'a str,
    /// A certificate with its key, in standard base64: PKCS#12 without a password, or PEM.
    client_secret: &'a str,
    authentication_endpoint: &'a str,
}

pub(crate) fn read(path: &Path, files: &Files) -> Result<Identity, Error> {
    let bad = |what: &str| Error::new(Kind::Config, format!("file {path:?} {what}"));
    let file = files.secret(path)?;
    let read: Identified<'_> = serde_json::from_slice(file.expose())
        .map_err(|_| bad("holds no identity with client_id, tenant_id, client_secret and authentication_endpoint"))?;
    let secret = STANDARD
        .decode(read.client_secret)
        .map_err(|_| bad("has a client_secret that is no base64"))?;
    let secret = zeroize::Zeroizing::new(secret);
    let is_pem = secret.windows(10).any(|window| window == b"-----BEGIN");
    let (chain, key) = if is_pem { pem(&secret, path)? } else { pkcs12::read(&secret, "")? };
    Ok(Identity {
        tenant: read.tenant_id.to_owned(),
        client: Some(read.client_id.to_owned()),
        authority: Some(read.authentication_endpoint.to_owned()),
        login: Login::Certificate { chain, key },
    })
}
