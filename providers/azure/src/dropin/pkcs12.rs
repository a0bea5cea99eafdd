//! Certificates in PKCS#12, which hold their key under ciphers of the nineties: the one thing here
//! that aws-lc-rs has no part in. A FIPS build refuses them.

use sidekey_core::{Error, Kind, Secret};

/// The chain, leaf first, and the key.
pub(crate) type Pair = (Vec<Vec<u8>>, Secret);

const HINT: &str = "give the certificate and its key as PEM";

#[cfg(not(feature = "fips"))]
pub(crate) fn read(file: &[u8], password: &str) -> Result<Pair, Error> {
    use p12_keystore::{KeyStore, Pkcs12ImportPolicy};
    let bad = |what: &str| {
        Error::new(Kind::Config, format!("the PKCS#12 certificate {what}")).with_hint(HINT)
    };
    let store = KeyStore::from_pkcs12(file, password, Pkcs12ImportPolicy::Relaxed)
        .map_err(|_| bad("cannot be opened, or its password is wrong"))?;
    let (_, pair) = store.private_key_chain().ok_or_else(|| bad("holds no private key"))?;
    let key = Secret::new(pair.key().as_der().to_vec());
    let chain = pair.certs().iter().map(|certificate| certificate.as_der().to_vec());
    Ok((chain.collect(), key))
}

#[cfg(feature = "fips")]
pub(crate) fn read(_: &[u8], _: &str) -> Result<Pair, Error> {
    Err(Error::new(Kind::Config, "a FIPS build opens no PKCS#12").with_hint(HINT))
}
