//! The end of a certificate's validity, which nothing else of it is needed for here.

use std::time::{Duration, SystemTime};

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `notAfter` of an X.509 certificate in DER; `None` if it cannot be found.
pub(super) fn end(certificate: &[u8]) -> Option<SystemTime> {
    let (body, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(body, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest, VERSION)?.1;
    }
    // Serial number, algorithm and issuer.
    for _ in 0..3 {
        rest = element(rest, *rest.first()?)?.1;
    }
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_, after) = element(validity, *validity.first()?)?;
    let tag = *after.first()?;
    let (text, _) = element(after, tag)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// The content of the first element, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        short @ 0..=0x7f => (usize::from(*short), rest),
        long @ 0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length).filter(|_| *first == tag)
}

/// `YYMMDDHHMMSSZ` or, from 2050 on, `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<SystemTime> {
    let digits = text.strip_suffix('Z').filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year: u64 = digits[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let part = |index: usize| rest[2 * index..2 * index + 2].parse::<u64>().ok();
    let (month, day) = (part(0)?, part(1)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Years that begin in March, so that the day of a leap year comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = days.checked_sub(719_468)? * 86_400 + part(2)? * 3600 + part(3)? * 60 + part(4)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<u64> {
        let time = time(tag, text)?.duration_since(SystemTime::UNIX_EPOCH);
        Some(time.unwrap().as_secs())
    }

    #[test]
    fn times_are_read_in_both_forms() {
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "240229235959Z"), Some(1_709_251_199));
        assert_eq!(seconds(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(seconds(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(seconds(GENERALIZED_TIME, "21000301000000Z"), Some(4_107_542_400));
        for text in ["", "Z", "240229235959", "24022923595Z", "241329235959Z", "2402292359x9Z"] {
            assert_eq!(seconds(UTC_TIME, text), None, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_real_certificate_is_found() {
        let mut params = rcgen::CertificateParams::new(vec!["kms".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 7, 9);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let end = end(certificate.der()).unwrap();
        let wanted = Duration::from_secs(1_941_321_600);
        assert_eq!(end.duration_since(SystemTime::UNIX_EPOCH).unwrap(), wanted);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "[0-9]{0,16}Z?") {
            let _ = end(&bytes);
            let _ = end(&[&[0x30, 0x30, 0x30, 0x20][..], &bytes].concat());
            let _ = time(UTC_TIME, &text);
            let _ = time(GENERALIZED_TIME, &text);
        }
    }
}
