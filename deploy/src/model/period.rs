//! Times of the calendar: what is done every so many days.

use std::time::Duration;

use sidekey_core::config::parse_duration;

/// A duration as everywhere, or so many days, as in `30d`; at most a year.
pub fn parse_period(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').filter(|days| days.bytes().all(|b| b.is_ascii_digit()));
    let Some(days) = days else {
        return parse_duration(text).map_err(|error| error.replace("m or h", "m, h or d"));
    };
    let hours = days.parse::<u64>().ok().and_then(|days| days.checked_mul(24));
    let hours = hours.ok_or_else(|| format!("{text:?} is no number of days, as in 30d"))?;
    parse_duration(&format!("{hours}h")).map_err(|_| format!("{text:?} is too long: at most 365d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_may_be_days() {
        assert_eq!(parse_period("30d"), Ok(Duration::from_secs(30 * 24 * 3600)));
        assert_eq!(parse_period("365d"), parse_duration("8760h"));
        assert_eq!(parse_period("90m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "d", "30", "-1d", "1.5d", "+1d", "366d", "18446744073709551615d", "1w"] {
            assert!(parse_period(bad).is_err(), "{bad}");
        }
    }
}
