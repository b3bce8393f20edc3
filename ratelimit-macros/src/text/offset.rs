//! Reads where it is midnight: `utc`, `+08:00`, `Europe/Berlin`.

use super::closest::closest;

/// The names of the time zone database, release 2026f, one a line. `tests/limits.rs` compares them with it.
pub(crate) const ZONES: &str = include_str!("zones.txt");

/// Where it is midnight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AlignText {
    /// At so many minutes ahead of UTC.
    Minutes(i32),
    /// In this time zone.
    Zone(&'static str),
}

/// The words that others write for the length of a calendar window.
const LENGTHS: [&str; 8] =
    ["minute", "hour", "day", "week", "month", "quarter", "year", "midnight"];

/// Reads `utc`, the `time-numoffset` of RFC 3339, or the name of a time zone.
pub(crate) fn read_align(word: &str) -> Result<AlignText, String> {
    Err(match parse_offset(word) {
        Some(minutes) if minutes.abs() <= 14 * 60 => return Ok(AlignText::Minutes(minutes)),
        Some(_) => format!("`{word}` is out of range: an offset is from `-14:00` to `+14:00`"),
        None if ["utc", "gmt", "z"].contains(&word.to_lowercase().as_str()) => {
            format!("unknown offset `{word}`: did you mean `\"utc\"`?")
        }
        None if LENGTHS.contains(&word.to_lowercase().as_str()) => format!(
            "`{word}` is no offset: `align` says where midnight is, as `\"utc\"` or `\"+08:00\"`, and `period` \
             how long a window is, such as `\"1d\"` or `\"7d\"`"
        ),
        None => match closest(word, ZONES.lines()) {
            Some(zone) if zone == word => return Ok(AlignText::Zone(zone)),
            Some(zone) => format!("unknown time zone `{word}`: did you mean `\"{zone}\"`?"),
            None => format!(
                "unknown offset `{word}`: write `\"utc\"`, an offset such as `\"+08:00\"` or `\"-03:30\"`, or a time \
                 zone such as `\"Europe/Berlin\"`"
            ),
        },
    })
}

/// Minutes east of UTC. The range is not checked here.
fn parse_offset(text: &str) -> Option<i32> {
    if text == "utc" {
        return Some(0);
    }
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let two_digits = |part: &str| {
        let written = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<i32>().ok().filter(|_| written)
    };
    let (hours, minutes) = digits.split_once(':')?;
    let minutes = two_digits(minutes).filter(|minutes| *minutes < 60)?;
    Some(sign * (two_digits(hours)? * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::parse_offset;

    #[test]
    fn reads_utc_or_a_sign_and_four_digits() {
        assert_eq!(parse_offset("utc"), Some(0));
        assert_eq!(parse_offset("+00:00"), Some(0));
        assert_eq!(parse_offset("+08:00"), Some(480));
        assert_eq!(parse_offset("-03:30"), Some(-210));
        for wrong in ["", "UTC", "08:00", "+8", "+8:00", "+0800", "+08:60", "+-8:00", "−03:30"] {
            assert_eq!(parse_offset(wrong), None, "{wrong}");
        }
    }
}
