//! What a certificate says of its owner: names and expiry.
//!
//! Peers' certificates come here only after rustls has verified them. rustls keeps neither expiry
//! nor IP addresses for us, and a whole X.509 crate would be much for two fields: `der` reads DER
//! strictly and has no dependencies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{ErrorKind, Reader, SliceReader, Tag, TagNumber, Tagged};

/// `id-ce-subjectAltName`, 2.5.29.17.
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
/// More names than any certificate of ours has.
const MAX_NAMES: usize = 64;

/// A certificate, as far as we look.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) names: Vec<String>,
    pub(super) expires: SystemTime,
}

/// The one form of a name, for comparison with [`Peer::sans`](super::Peer::sans): DNS names in
/// lower case, IP addresses in their shortest form, URIs as they are. `None` if it is none of
/// these: then no certificate can have it. Wildcards are none either, for a name says who calls.
pub fn name(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    uri(text).or_else(|| dns(text))
}

impl Leaf {
    pub(super) fn parse(certificate: &[u8]) -> Result<Self, der::Error> {
        let mut outer = SliceReader::new(certificate)?;
        let mut certificate = enter(outer.decode()?)?;
        let mut body = enter(certificate.decode()?)?;
        let version_or_serial: AnyRef<'_> = body.decode()?;
        if version_or_serial.tag() == explicit(0) {
            skip(&mut body, 1)?;
        }
        skip(&mut body, 2)?; // signature algorithm, issuer
        let mut validity = enter(body.decode()?)?;
        skip(&mut validity, 1)?;
        let expires = time(validity.decode()?)?;
        skip(&mut body, 2)?; // subject, public key
        let mut names = Vec::new();
        while !body.is_finished() {
            let field: AnyRef<'_> = body.decode()?;
            if field.tag() == explicit(3) {
                let mut list = enter(SliceReader::new(field.value())?.decode()?)?;
                while !list.is_finished() {
                    extension(list.decode()?, &mut names)?;
                }
            }
        }
        Ok(Self { names, expires })
    }
}

fn extension(extension: AnyRef<'_>, names: &mut Vec<String>) -> Result<(), der::Error> {
    let mut fields = enter(extension)?;
    let id: AnyRef<'_> = fields.decode()?;
    if id.tag() != Tag::ObjectIdentifier || id.value() != SUBJECT_ALT_NAME {
        return Ok(());
    }
    let critical_or_value: AnyRef<'_> = fields.decode()?;
    let value = match critical_or_value.tag() {
        Tag::Boolean => fields.decode()?,
        _ => critical_or_value,
    };
    let mut list = enter(SliceReader::new(value.value())?.decode()?)?;
    while !list.is_finished() && names.len() < MAX_NAMES {
        names.extend(general_name(list.decode()?));
    }
    Ok(())
}

/// Other kinds of names, and those that are not what they claim to be, name nobody here.
fn general_name(name: AnyRef<'_>) -> Option<String> {
    let Tag::ContextSpecific { number: TagNumber(number), .. } = name.tag() else { return None };
    let text = || std::str::from_utf8(name.value()).ok();
    match number {
        2 => text().and_then(dns),
        6 => text().and_then(uri),
        7 => address(name.value()),
        _ => None,
    }
}

fn dns(text: &str) -> Option<String> {
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inner)
    };
    let whole = text.len() <= 253 && text.split('.').all(label);
    // `10.0.0.1` as a DNS name would pass for the address.
    (whole && text.parse::<IpAddr>().is_err()).then(|| text.to_ascii_lowercase())
}

fn uri(text: &str) -> Option<String> {
    let printable = text.bytes().all(|b| b.is_ascii_graphic());
    let (scheme, rest) = text.split_once("://")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let sound = !scheme.is_empty() && scheme.bytes().all(plain) && !rest.is_empty();
    (sound && printable && text.len() <= 2048).then(|| text.to_owned())
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).to_string());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).to_string())
}

fn time(value: AnyRef<'_>) -> Result<SystemTime, der::Error> {
    let since: Duration = match value.tag() {
        Tag::UtcTime => value.decode_as::<UtcTime>()?.to_unix_duration(),
        _ => value.decode_as::<GeneralizedTime>()?.to_unix_duration(),
    };
    SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(|| ErrorKind::DateTime.into())
}

/// What is inside a SEQUENCE.
fn enter(value: AnyRef<'_>) -> Result<SliceReader<'_>, der::Error> {
    value.tag().assert_eq(Tag::Sequence)?;
    SliceReader::new(value.value())
}

fn skip(reader: &mut SliceReader<'_>, count: usize) -> Result<(), der::Error> {
    for _ in 0..count {
        let _: AnyRef<'_> = reader.decode()?;
    }
    Ok(())
}

fn explicit(number: u32) -> Tag {
    Tag::ContextSpecific { constructed: true, number: TagNumber(number) }
}
