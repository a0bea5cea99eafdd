//! Small values that people write in configuration files.

use std::time::Duration;

/// Nothing here is worth waiting for longer, and sums of such times are far from any overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A duration with its unit, as `30s`, `500ms` or `2m`; a bare number is refused because nobody
/// remembers its unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no duration: write a number and ms, s, m or h, as in 30s");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    let duration = millis.map(Duration::from_millis).ok_or_else(bad)?;
    if duration > LONGEST {
        return Err(format!("{text:?} is too long: at most 8760h, which is a year"));
    }
    Ok(duration)
}

/// A file mode in octal, as `0660`.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let bad = || format!("{text:?} is no file mode: write octal digits in quotes, as in \"0660\"");
    if text.len() < 3 || text.len() > 5 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let mode = u32::from_str_radix(text, 8).map_err(|_| bad())?;
    if mode > 0o777 { Err(bad()) } else { Ok(mode) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        for bad in
            ["", "30", "s", "-1s", "1.5s", "1 s", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_duration_is_so_long_that_a_sum_overflows() {
        assert_eq!(parse_duration("8760h"), Ok(LONGEST));
        for bad in ["8761h", "31536001s", "18446744073709551615ms"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_octal_and_hold_no_special_bits() {
        assert_eq!(parse_mode("0660"), Ok(0o660));
        assert_eq!(parse_mode("600"), Ok(0o600));
        for bad in ["", "66", "0o660", "888", "4755", "07777", "rw-"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9]{0,30}.{0,4}") {
            let _ = parse_mode(&text);
            if let Ok(duration) = parse_duration(&text) {
                prop_assert!(duration <= LONGEST);
            }
        }
    }
}
