//! What a certificate says: for whom, by whom and for how long. `der` reads DER strictly and has
//! no dependencies; for these fields a whole X.509 crate would be much.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{ErrorKind, Reader, SliceReader, Tag, TagNumber, Tagged};

/// `id-ce-subjectAltName`, 2.5.29.17.
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
/// More names than are shown.
const MAX_NAMES: usize = 64;

/// A certificate, as far as it is of use.
#[derive(Debug)]
pub(crate) struct Leaf {
    /// Names of its owner: DNS names, URIs and addresses.
    pub(crate) names: Vec<String>,
    pub(crate) begins: SystemTime,
    pub(crate) expires: SystemTime,
}

impl Leaf {
    pub(crate) fn parse(certificate: &[u8]) -> Result<Self, der::Error> {
        let mut outer = SliceReader::new(certificate)?;
        let mut certificate = enter(outer.decode()?)?;
        let mut body = enter(certificate.decode()?)?;
        let version_or_serial: AnyRef<'_> = body.decode()?;
        if version_or_serial.tag() == explicit(0) {
            skip(&mut body, 1)?;
        }
        skip(&mut body, 2)?; // signature algorithm, issuer
        let mut validity = enter(body.decode()?)?;
        let (begins, expires) = (time(validity.decode()?)?, time(validity.decode()?)?);
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
        Ok(Self { names, begins, expires })
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

fn general_name(name: AnyRef<'_>) -> Option<String> {
    let Tag::ContextSpecific { number: TagNumber(number), .. } = name.tag() else { return None };
    let text = std::str::from_utf8(name.value()).ok();
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    match number {
        2 | 6 => text.map(str::to_owned),
        7 => address(name.value()),
        _ => None,
    }
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
