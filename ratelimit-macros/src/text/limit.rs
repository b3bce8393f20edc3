//! Reads a limit: `300/minute`, `5 per 30s burst 20`.

use super::closest::closest;
use super::duration::{CALENDAR, parse_period};

/// A limit without its name.
#[derive(Debug)]
pub(crate) struct LimitText {
    pub(crate) threshold: u64,
    /// The microseconds of the period, and its word if it is a unit of the calendar.
    pub(crate) period: (u64, Option<&'static str>),
    pub(crate) burst: Option<u64>,
    /// A word of the algorithms, if the text has one.
    pub(crate) algorithm: Option<&'static str>,
}

/// The largest amount, as in the runtime.
pub(crate) const MOST: u64 = 999_999_999_999_999;

const FORM: &str = "write a threshold and a period, such as `300/minute` or `5 per 30s burst 20`";

/// The units of durations as they are written in full.
const LONG_UNITS: [(&str, &str); 4] =
    [("second", "s"), ("minute", "m"), ("hour", "h"), ("day", "d")];

impl LimitText {
    /// Reads a text. `algorithms` are the words that an algorithm can have.
    pub(crate) fn read(text: &str, algorithms: &[&'static str]) -> Result<Self, String> {
        let spaced = text.replace('/', " per ");
        let mut words = spaced.split_whitespace().peekable();
        let threshold = amount("threshold", words.next().ok_or(FORM)?)?;
        if words.next() != Some("per") || words.peek() == Some(&"per") {
            return Err(FORM.to_owned());
        }
        let mut period = String::new();
        while let Some(word) = words.peek()
            && is_of_duration(&period, word, algorithms)
        {
            period.push_str(&short_unit(word));
            words.next();
        }
        let is_unit = CALENDAR.iter().any(|(unit, _)| *unit == period);
        if !is_unit && period.starts_with(|first: char| first.is_alphabetic()) {
            period.insert(0, '1');
        }
        let period = parse_period(&period)?;
        let (mut burst, mut algorithm) = (None, None);
        while let Some(word) = words.next() {
            if word == "burst" {
                let number = words.next().ok_or("`burst` needs a number, as in `burst 20`")?;
                if burst.replace(amount("burst", number)?).is_some() {
                    return Err("`burst` is written twice".to_owned());
                }
            } else if algorithm.replace(algorithm_of(word, algorithms)?).is_some() {
                return Err("a limit has one algorithm: remove the other".to_owned());
            }
        }
        Ok(Self { threshold, period, burst, algorithm })
    }
}

/// Reads an algorithm, by its word in the attribute.
pub(crate) fn algorithm_of(
    word: &str,
    algorithms: &[&'static str],
) -> Result<&'static str, String> {
    if let Some(found) = algorithms.iter().find(|algorithm| **algorithm == word) {
        return Ok(found);
    }
    Err(match closest(word, algorithms.iter().copied().chain(["burst"])) {
        Some(meant) => format!("unknown word `{word}`: did you mean `{meant}`?"),
        None => format!(
            "unknown word `{word}`: after the period follow `burst` with a number, or an algorithm: `{}`",
            algorithms.join("`, `")
        ),
    })
}

fn amount(what: &str, digits: &str) -> Result<u64, String> {
    let plain = digits.replace('_', "");
    if plain.is_empty() || !plain.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "the {what} `{digits}` is not a whole number, such as `300` or `5_000`"
        ));
    }
    plain
        .parse()
        .ok()
        .filter(|amount| *amount <= MOST)
        .ok_or_else(|| format!("the {what} `{digits}` is too large: the largest is {MOST}"))
}

/// Returns whether a word begins or continues a duration, as those of `1 h 30 m` do. A unit without a number is whole.
fn is_of_duration(duration: &str, word: &str, algorithms: &[&str]) -> bool {
    if !duration.starts_with(|first: char| first.is_ascii_digit()) {
        return duration.is_empty();
    }
    let lacks_unit = duration.ends_with(|last: char| last.is_ascii_digit());
    let is_option = word == "burst" || algorithms.contains(&word);
    word.starts_with(|first: char| first.is_ascii_digit()) || lacks_unit && !is_option
}

/// Replaces a unit that is written in full.
fn short_unit(word: &str) -> String {
    let digits = word.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = &word[digits.len()..];
    let short = LONG_UNITS.iter().find(|(long, _)| {
        unit.strip_prefix(long).is_some_and(|plural| plural.is_empty() || plural == "s")
    });
    short.map_or_else(|| word.to_owned(), |(_, short)| format!("{digits}{short}"))
}
