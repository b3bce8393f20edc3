//! Reads a duration: `30`, `0.5`, `"250ms"`, `"1h30m"`.
//!
//! The runtime counts in whole microseconds. A text is therefore scaled in integers, and a value
//! that would have to be rounded is an error.

use super::closest::closest;

/// A hundred years. Up to it, microseconds are exact in the doubles that the scripts calculate with.
pub(crate) const LONGEST_US: u64 = 36_525 * DAY_US;
pub(crate) const DAY_US: u64 = 24 * 60 * 60 * SECOND_US;
const SECOND_US: u64 = 1_000_000;

pub(crate) const NEGATIVE: &str = "a duration cannot be negative: the shortest is `\"1us\"`";

/// The units and their microseconds, in the order in which they can follow each other.
const UNITS: [(&str, u64); 6] = [
    ("d", DAY_US),
    ("h", 60 * 60 * SECOND_US),
    ("m", 60 * SECOND_US),
    ("s", SECOND_US),
    ("ms", 1_000),
    ("us", 1),
];

/// The first letters of units as other libraries write them, and the unit here.
const FOREIGN_UNITS: [(&str, &str); 9] = [
    ("day", "d"),
    ("hour", "h"),
    ("hr", "h"),
    ("min", "m"),
    ("sec", "s"),
    ("mil", "ms"),
    ("msec", "ms"),
    ("mic", "us"),
    ("usec", "us"),
];

/// The units of the calendar, which differ in length, and the microseconds of the longest.
pub(crate) const CALENDAR: [(&str, u64); 3] =
    [("month", 31 * DAY_US), ("quarter", 92 * DAY_US), ("year", 366 * DAY_US)];

/// Reads a period: a duration, `"day"` or `"week"`, or a unit of the calendar. Returns its microseconds, and the word
/// of a unit.
pub(crate) fn parse_period(text: &str) -> Result<(u64, Option<&'static str>), String> {
    if let Some((unit, longest_us)) = CALENDAR.iter().find(|(unit, _)| *unit == text.trim()) {
        return Ok((*longest_us, Some(unit)));
    }
    let words = CALENDAR.iter().map(|(unit, _)| *unit).chain(["day", "week"]);
    let days = match text.trim() {
        "day" => "1d",
        "week" => "7d",
        text => text,
    };
    match closest(days, words) {
        Some(meant) => Err(format!("unknown period `{days}`: did you mean `\"{meant}\"`?")),
        None => Ok((parse_text(days)?, None)),
    }
}

/// Reads a number without quotes. Rust reads `30s` as the number `30` with the suffix `s`.
pub(crate) fn parse_seconds(digits: &str, suffix: &str) -> Result<u64, String> {
    if digits.contains('e') {
        return Err(format!("a duration cannot have an exponent: write `{digits}` without one"));
    }
    if suffix.is_empty() {
        return scale(digits, SECOND_US).and_then(in_range);
    }
    if unit(suffix).is_ok() {
        Err(format!(
            "a duration with a unit is a string: write `\"{digits}{suffix}\"`, with quotes"
        ))
    } else {
        Err(format!("a number without quotes is in seconds: write `{digits}`, without `{suffix}`"))
    }
}

/// Reads `"1h30m"`: numbers with their units, the longest unit first, each at most once.
pub(crate) fn parse_text(text: &str) -> Result<u64, String> {
    let mut rest = text.trim();
    let mut total_us: u64 = 0;
    let mut shorter_than = u64::MAX;
    if rest.is_empty() {
        return Err(
            "a duration cannot be empty: write a number and a unit, such as `\"30s\"`".to_owned()
        );
    }
    if rest.starts_with('-') {
        return Err(NEGATIVE.to_owned());
    }
    while !rest.is_empty() {
        let (number, after) = split_while(rest, |c| c.is_ascii_digit() || c == '.' || c == '_');
        let (name, after) = split_while(after.trim_start(), char::is_alphabetic);
        if number.is_empty() {
            return Err(format!("expected a number before `{rest}`, as in `\"30s\"`"));
        }
        if name.is_empty() && after.is_empty() {
            return Err(format!("`{number}` has no unit: write `\"{number}s\"` for seconds"));
        }
        let unit_us = unit(name)?;
        if unit_us >= shorter_than {
            return Err(format!(
                "`{name}` is out of order: write each unit once, the longest first, as in \
                 `\"1h30m\"`"
            ));
        }
        shorter_than = unit_us;
        total_us = total_us.saturating_add(scale(number, unit_us)?);
        rest = after.trim_start();
    }
    in_range(total_us)
}

fn unit(name: &str) -> Result<u64, String> {
    if let Some((_, us)) = UNITS.iter().find(|(unit, _)| *unit == name) {
        return Ok(*us);
    }
    let lower = name.to_lowercase().replace(['µ', 'μ'], "u");
    let days = match &*lower {
        // A capital `M` can mean months.
        _ if name == "M" || lower.starts_with("mo") => Some((
            "months differ in length",
            "`\"30d\"`, or `\"month\"` for a month of the calendar",
        )),
        _ if lower == "w" || lower.starts_with("week") => {
            Some(("a week is seven days", "`\"7d\"`"))
        }
        _ if lower == "y" || lower.starts_with("year") => {
            Some(("years differ in length", "`\"365d\"`, or `\"year\"` for a year of the calendar"))
        }
        _ => None,
    };
    if let Some((reason, days)) = days {
        return Err(format!("unknown unit `{name}`: {reason}, so write days, such as {days}"));
    }
    let ours = UNITS.iter().find(|(unit, _)| *unit == lower).map(|(unit, _)| unit).or_else(|| {
        let foreign = FOREIGN_UNITS.iter().find(|(theirs, _)| lower.starts_with(theirs));
        foreign.map(|(_, ours)| ours)
    });
    Err(match ours {
        Some(ours) => format!("unknown unit `{name}`: did you mean `{ours}`?"),
        None => format!("unknown unit `{name}`: the units are `us`, `ms`, `s`, `m`, `h` and `d`"),
    })
}

/// `digits` × `unit_us`, which must be a whole number. Saturates far beyond the longest duration.
fn scale(digits: &str, unit_us: u64) -> Result<u64, String> {
    let plain = digits.replace('_', "");
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let fraction = fraction.trim_end_matches('0');
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return Err(format!("`{digits}` is not a number"));
    }
    let too_fine = || {
        format!(
            "`{digits}` is not a whole number of microseconds: a duration cannot be finer than \
             `\"1us\"`"
        )
    };
    // A day is 2^13 × 3^3 × 5^8 µs: no number with more than 13 decimals is whole in microseconds.
    let decimals = u32::try_from(fraction.len()).ok().filter(|decimals| *decimals <= 13);
    let denominator = 10_u128.pow(decimals.ok_or_else(too_fine)?);
    let numerator = fraction.parse::<u128>().unwrap_or(0) * u128::from(unit_us);
    if numerator % denominator != 0 {
        return Err(too_fine());
    }
    let fraction_us = u64::try_from(numerator / denominator).unwrap_or(u64::MAX);
    let whole_us = whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit_us);
    Ok(whole_us.saturating_add(fraction_us))
}

fn in_range(us: u64) -> Result<u64, String> {
    match us {
        0 => Err("a duration cannot be zero: the shortest is `\"1us\"`".to_owned()),
        1..=LONGEST_US => Ok(us),
        _ => Err("a duration can be at most 100 years: `\"36525d\"`".to_owned()),
    }
}

fn split_while(text: &str, part: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !part(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_US, parse_seconds, parse_text};

    #[test]
    fn reads_a_number_as_seconds() {
        assert_eq!(parse_seconds("30", ""), Ok(30_000_000));
        assert_eq!(parse_seconds("0.5", ""), Ok(500_000));
        assert_eq!(parse_seconds("1.", ""), Ok(1_000_000));
        assert_eq!(parse_seconds("0.000001", ""), Ok(1));
        assert_eq!(parse_seconds("3155760000", ""), Ok(LONGEST_US));
    }

    #[test]
    fn reads_text_with_units() {
        assert_eq!(parse_text("30s"), Ok(30_000_000));
        assert_eq!(parse_text("250ms"), Ok(250_000));
        assert_eq!(parse_text("500us"), Ok(500));
        assert_eq!(parse_text("1.5h"), Ok(5_400_000_000));
        assert_eq!(parse_text("1m"), Ok(60_000_000));
        assert_eq!(parse_text("1d"), Ok(86_400_000_000));
        assert_eq!(parse_text("1h30m"), Ok(5_400_000_000));
        assert_eq!(parse_text(" 1 h 30 m "), Ok(5_400_000_000));
        assert_eq!(parse_text("1_000ms"), Ok(1_000_000));
        assert_eq!(parse_text("36525d"), Ok(LONGEST_US));
    }

    #[test]
    fn keeps_decimals_exact() {
        // In doubles, 0.1 + 0.2 and 4.35 × 100 are rounded.
        assert_eq!(parse_text("0.3s"), Ok(300_000));
        assert_eq!(parse_text("4.35s"), Ok(4_350_000));
        assert_eq!(parse_text("0.0001220703125d"), Ok(10_546_875), "a day / 2^13");
        assert!(parse_text("0.00006103515625d").unwrap_err().contains("microseconds"), "/ 2^14");
        assert_eq!(parse_text("0.5000000000000000000000000s"), Ok(500_000));
    }

    #[test]
    fn rejects_what_is_no_duration() {
        for text in ["", "30", "s", "-1s", "0s", "0.0ms", "0.5us", "1.2.3s", "1,5s", "ss"] {
            assert!(parse_text(text).is_err(), "{text}");
        }
        for text in ["36525d1us", "99999999999999999999999d", "30m1h", "1m1m", "1h 2"] {
            assert!(parse_text(text).is_err(), "{text}");
        }
        assert!(parse_seconds("1e3", "").is_err());
        assert!(parse_seconds("0.0000001", "").is_err());
        assert!(parse_seconds("3155760001", "").is_err());
    }

    #[test]
    fn longer_units_are_written_in_days() {
        let unknown = |text| parse_text(text).unwrap_err();
        for text in ["1M", "1mo", "1month", "2 months"] {
            let message = unknown(text);
            assert!(message.contains("`\"30d\"`") && !message.contains("`m`"), "{message}");
        }
        assert!(unknown("2w").contains("`\"7d\"`") && unknown("1 week").contains("`\"7d\"`"));
        assert!(unknown("1y").contains("`\"365d\"`") && unknown("1years").contains("`\"365d\"`"));
    }

    #[test]
    fn suggests_a_unit_for_another_spelling() {
        let unknown = |text| parse_text(text).unwrap_err();
        assert!(unknown("5min").contains("did you mean `m`?"));
        assert!(unknown("5 seconds").contains("did you mean `s`?"));
        assert!(unknown("5S").contains("did you mean `s`?"));
        assert!(unknown("5µs").contains("did you mean `us`?"));
        assert!(unknown("5millis").contains("did you mean `ms`?"));
        assert!(unknown("2f").contains("the units are"));
        assert!(parse_seconds("30", "s").unwrap_err().contains("`\"30s\"`"));
        assert!(parse_seconds("30", "u64").unwrap_err().contains("without `u64`"));
    }
}
