//! Trust that ends with time, whatever the clock does.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;

use super::*;

/// An identity, and a client whose certificate lasts until the year 4096.
fn acquainted(directory: &Path) -> (Arc<Identity>, TlsPeer) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::new(vec!["shim.example".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = TlsFiles {
        ca: file("ca.crt", &ca),
        cert: file("tls.crt", &certificate.pem()),
        key: file("tls.key", &key.serialize_pem()),
    };
    let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()];
    (Identity::load(files).unwrap(), TlsPeer::of(chain).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_ends_trust_within_a_minute() {
    let directory = tempfile::tempdir().unwrap();
    let (identity, peer) = acquainted(directory.path());
    let set_forward = AtomicBool::new(false);
    let clock = || match set_forward.load(Ordering::Relaxed) {
        false => SystemTime::now(),
        true => peer.expires + Duration::from_secs(2),
    };
    let mut distrusted = std::pin::pin!(identity.distrusted_by(&peer, clock));
    let day = Duration::from_secs(24 * 3600);
    assert!(timeout(day, &mut distrusted).await.is_err(), "it is valid for years");
    set_forward.store(true, Ordering::Relaxed);
    timeout(Duration::from_secs(60), distrusted).await.unwrap();
}

#[test]
fn a_client_is_trusted_from_the_beginning_to_the_end_of_its_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let (identity, peer) = acquainted(directory.path());
    assert!(identity.trusts(&peer));
    assert!(!identity.trusts_at(&peer, SystemTime::UNIX_EPOCH));
    assert!(identity.trusts_at(&peer, peer.expires - Duration::from_secs(1)));
    assert!(!identity.trusts_at(&peer, peer.expires + Duration::from_secs(2)));
}

#[test]
fn a_fips_build_speaks_approved_tls_alone_on_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    acquainted(directory.path());
    let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"].map(|name| directory.path().join(name));
    let loaded = files::Loaded::read(&TlsFiles { ca, cert, key }).unwrap();
    let approved = [loaded.client.fips(), loaded.http2.fips(), loaded.http1.fips()];
    assert_eq!(approved, [cfg!(feature = "fips"); 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_a_stranger_sends_in_the_place_of_a_handshake_is_refused_with_a_short_reason(
        head in prop_oneof![Just(vec![]), Just(vec![0x16, 3, 1, 0, 0x40, 1, 0, 0, 0x3c, 3, 3])],
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refusal = runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let (identity, _) = acquainted(directory.path());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (tcp, _) = listener.accept().await.unwrap();
            stranger.write_all(&[head, bytes].concat()).await.unwrap();
            stranger.shutdown().await.unwrap();
            identity.accept(tcp, Protocol::Http2).await.map(|_| ()).unwrap_err()
        });
        prop_assert!(matches!(refusal.reason, Reason::Protocol | Reason::Closed), "{refusal:?}");
        prop_assert!(refusal.error.report().len() < 600, "{refusal:?}");
    }
}
