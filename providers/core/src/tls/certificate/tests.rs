//! Certificates that are read, good and hostile.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType, SerialNumber, date_time_ymd};

use super::*;

fn params(year: i32, names: Vec<SanType>) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_before = date_time_ymd(2024, 2, 29);
    params.not_after = date_time_ymd(year, 1, 1);
    params.subject_alt_names = names;
    params
}

fn signed(params: CertificateParams) -> Vec<u8> {
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

fn certificate(year: i32, names: Vec<SanType>) -> Vec<u8> {
    signed(params(year, names))
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

#[test]
fn validity_is_read_in_both_forms_of_a_time() {
    // RFC 5280: UTCTime until 2049, GeneralizedTime from 2050.
    for (year, seconds) in [(2030, 1_893_456_000), (2049, 2_493_072_000), (2060, 2_840_140_800)] {
        let found = Certificate::parse(&certificate(year, Vec::new())).unwrap();
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since(found.not_before).as_secs(), 1_709_164_800);
        assert_eq!(since(found.not_after).as_secs(), seconds);
        assert!(found.names.is_empty());
    }
}

#[test]
fn a_name_of_one_kind_cannot_pass_for_another() {
    let names = vec![
        dns("10.0.0.1"),
        dns("spiffe://example/shim"),
        dns("*.example"),
        dns("Good.example"),
        uri("shim.example"),
        uri("10.0.0.2"),
        uri("spiffe://example/with space"),
        uri("spiffe://example/good"),
        SanType::Rfc822Name("mail.example".try_into().unwrap()),
        SanType::IpAddress("10.0.0.3".parse().unwrap()),
    ];
    let found = Certificate::parse(&certificate(2030, names)).unwrap();
    assert_eq!(found.identities(), ["good.example", "spiffe://example/good", "10.0.0.3"]);
    assert!(found.names.contains(&SubjectName::Dns("*.example".to_owned())));
    assert!(found.names.contains(&SubjectName::Uri("shim.example".to_owned())));
}

#[test]
fn kinds_of_names_that_nobody_knows_hide_no_others() {
    // An x400Address, an address of three bytes and an unknown kind before a DNS name.
    let odd = [0x30, 0x12, 0xa3, 0x02, 0x30, 0x00, 0x87, 0x03, 1, 2, 3, 0x8f, 0x01, 0, 0x82, 0x04];
    let list = [&odd[..], b"good"].concat();
    let mut params = params(2030, Vec::new());
    let extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], list);
    params.custom_extensions = vec![extension];
    let found = Certificate::parse(&signed(params)).unwrap();
    assert_eq!(found.names, [SubjectName::Dns("good".to_owned())]);
}

#[test]
fn an_overlong_serial_number_is_no_reason_not_to_read_the_rest() {
    let mut params = params(2030, vec![dns("good.example")]);
    params.serial_number = Some(SerialNumber::from_slice(&[0x7f; 30]));
    assert_eq!(Certificate::parse(&signed(params)).unwrap().identities(), ["good.example"]);
}

#[test]
fn no_more_names_are_read_than_the_limit() {
    let names = (0..100).map(|n| dns(&format!("n{n}.example"))).collect();
    let found = Certificate::parse(&certificate(2030, names)).unwrap();
    assert_eq!(found.names.len(), MAX_NAMES);
    assert!(Certificate::parse(&vec![0x30; MAX_SIZE + 1]).is_err());
}

#[test]
fn identities_have_one_form() {
    for (text, form) in [
        ("Shim.Example", "shim.example"),
        ("shim", "shim"),
        ("0:0:0::1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("spiffe://Example/Shim", "spiffe://Example/Shim"),
    ] {
        assert_eq!(identity(text).as_deref(), Some(form));
    }
    for bad in ["", ".", "a..b", "*.example", "a b", "spiffe://", "://x", "a/b", "ä.example"] {
        assert_eq!(identity(bad), None, "{bad:?}");
    }
}

#[test]
fn a_certificate_that_was_cut_off_anywhere_is_refused() {
    let sound = certificate(2030, vec![dns("shim.example")]);
    for end in 0..sound.len() {
        assert!(Certificate::parse(&sound[..end]).is_err(), "{end} bytes are not all");
    }
}

fn any_name() -> impl Strategy<Value = SanType> {
    prop_oneof![
        "[ -~]{0,40}".prop_map(|text| dns(&text)),
        "[a-z]{1,8}://[ -~]{0,40}".prop_map(|text| uri(&text)),
        any::<IpAddr>().prop_map(SanType::IpAddress),
    ]
}

/// What must be found of a name that was written.
fn expected(name: &SanType) -> Option<SubjectName> {
    let printable = |text: &str| (!text.is_empty() && !text.contains(' ')).then(|| text.to_owned());
    match name {
        SanType::DnsName(text) => printable(text.as_str()).map(SubjectName::Dns),
        SanType::URI(text) => printable(text.as_str()).map(SubjectName::Uri),
        SanType::IpAddress(address) => Some(SubjectName::Ip(*address)),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read(names in prop::collection::vec(any_name(), 0..8), year in 2025..9999) {
        let wanted: Vec<_> = names.iter().filter_map(expected).collect();
        let found = Certificate::parse(&certificate(year, names)).unwrap();
        prop_assert_eq!(&found.names, &wanted);
        let since = found.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        prop_assert_eq!(since.as_secs(), u64::try_from(date_time_ymd(year, 1, 1).unix_timestamp()).unwrap());
        for identity in found.identities() {
            prop_assert_eq!(super::identity(&identity), Some(identity.clone()));
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Certificate::parse(&bytes);
        let _ = Certificate::parse(&[&[0x30, 0x82, 1, 0x90, 0x30, 0x82, 1, 0][..], &bytes].concat());
    }

    #[test]
    fn no_text_panics_as_an_identity(text in "\\PC{0,80}") {
        let _ = identity(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_mutated_certificate_is_refused_or_read(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        static SOUND: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            let address = SanType::IpAddress("fd00::1".parse().unwrap());
            certificate(2030, vec![dns("shim.example"), uri("spiffe://example/shim"), address])
        });
        let mut bytes = SOUND.clone();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        let _ = Certificate::parse(&bytes);
    }
}
