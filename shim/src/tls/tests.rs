//! Certificates that are read, good and hostile.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};

use super::leaf::{Leaf, name};

fn certificate(year: i32, names: Vec<SanType>) -> Vec<u8> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_after = date_time_ymd(year, 1, 1);
    params.subject_alt_names = names;
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

#[test]
fn expiry_is_read_in_both_forms() {
    // RFC 5280: UTCTime until 2049, GeneralizedTime from 2050.
    for (year, seconds) in [(2030, 1_893_456_000), (2060, 2_840_140_800)] {
        let leaf = Leaf::parse(&certificate(year, Vec::new())).unwrap();
        assert_eq!(leaf.expires, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(leaf.names.is_empty());
    }
}

#[test]
fn a_name_of_one_kind_cannot_pass_for_another() {
    let dns = |text: &str| SanType::DnsName(text.try_into().unwrap());
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let names = vec![
        dns("10.0.0.1"),
        dns("spiffe://example/shim"),
        dns("*.example"),
        dns("good.example"),
        uri("shim.example"),
        uri("10.0.0.2"),
        uri("spiffe://example/with space"),
        uri("spiffe://example/good"),
        SanType::Rfc822Name("mail.example".try_into().unwrap()),
        SanType::IpAddress("10.0.0.3".parse().unwrap()),
    ];
    let leaf = Leaf::parse(&certificate(2030, names)).unwrap();
    assert_eq!(leaf.names, ["good.example", "spiffe://example/good", "10.0.0.3"]);
}

#[test]
fn hostile_bytes_are_refused_or_read_but_never_panic() {
    let names = vec![
        SanType::DnsName("shim.example".try_into().unwrap()),
        SanType::IpAddress("fd00::1".parse().unwrap()),
    ];
    let sound = certificate(2030, names);
    for end in 0..sound.len() {
        assert!(Leaf::parse(&sound[..end]).is_err(), "{end} bytes are not all");
    }
    for index in 0..sound.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut bytes = sound.clone();
            bytes[index] ^= flip;
            let _ = Leaf::parse(&bytes);
        }
    }
}

#[test]
fn names_have_one_form() {
    for (text, form) in [
        ("Shim.Example", "shim.example"),
        ("shim", "shim"),
        ("0:0:0::1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("spiffe://Example/Shim", "spiffe://Example/Shim"),
    ] {
        assert_eq!(name(text).as_deref(), Some(form));
    }
    for bad in ["", ".", "a..b", "*.example", "a b", "spiffe://", "://x", "a/b", "ä.example"] {
        assert_eq!(name(bad), None, "{bad:?}");
    }
}
