//! The format that a client prefers, JSON or plain text: content negotiation by the `Accept` header (RFC 9110, section
//! 12.5.1).

use std::iter;

/// The media ranges of JSON and of plain text, the most specific first.
const JSON: [&str; 4] = ["application/problem+json", "application/json", "*/json", "application/*"];
const TEXT: [&str; 3] = ["text/plain", "text/*", "*/*"];

/// The longest header that is parsed, in bytes.
const MAX_LENGTH: usize = 4096;

/// Returns whether a client with these lines of `Accept` prefers JSON: they name JSON, with at least the weight
/// of plain text. A client that only accepts `*/*`, such as curl, gets plain text.
pub(crate) fn prefers_json<'a, L: Iterator<Item = &'a [u8]>>(lines: impl Fn() -> L) -> bool {
    // Most clients do not name JSON. Saves the parser for them (`benches/all -- layer`).
    lines().any(may_name_json) && prefers_json_to_text(lines())
}

fn prefers_json_to_text<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut json, mut text, mut length) = (None, None, 0);
    for line in lines {
        length += line.len();
        let Ok(line) = std::str::from_utf8(line) else { return false };
        if length > MAX_LENGTH {
            return false;
        }
        for range in line.split(',').filter_map(media_range) {
            range.apply_to(&JSON, &mut json);
            range.apply_to(&TEXT, &mut text);
        }
    }
    let text = text.map_or(0, |(_, quality)| quality);
    json.is_some_and(|(_, json)| json > 0 && json >= text)
}

/// Returns whether a line can contain one of [`JSON`].
fn may_name_json(line: &[u8]) -> bool {
    line.iter().any(|byte| matches!(byte, b'j' | b'J'))
        || line.windows(3).any(|end| matches!(end, b"n/*" | b"N/*"))
}

struct MediaRange<'a> {
    name: &'a str,
    /// The weight, in thousandths.
    quality: u32,
}

impl MediaRange<'_> {
    /// Sets `best`, an index in `names` and a quality, if this range is one of `names` and more specific than
    /// `best`.
    fn apply_to(&self, names: &[&str], best: &mut Option<(usize, u32)>) {
        let at = names.iter().position(|name| self.name.eq_ignore_ascii_case(name));
        if let Some(at) = at
            && best.is_none_or(|(before, _)| at < before)
        {
            *best = Some((at, self.quality));
        }
    }
}

/// Parses a media range with its weight; `None` if it is malformed.
fn media_range(text: &str) -> Option<MediaRange<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let is_weight = |part: &&str| part.get(..2).is_some_and(|it| it.eq_ignore_ascii_case("q="));
    let quality = match parts.find(is_weight) {
        Some(weight) => thousandths(&weight[2..])?,
        None => 1000,
    };
    Some(MediaRange { name, quality })
}

/// Parses a weight (RFC 9110, section 12.4.2): at most 1, with at most three digits after the point.
fn thousandths(weight: &str) -> Option<u32> {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !matches!(whole, "0" | "1") || fraction.len() > 3 || !is_digits(fraction) {
        return None;
    }
    let digits = whole.bytes().chain(fraction.bytes()).chain(iter::repeat(b'0')).take(4);
    let thousandths = digits.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    fn prefers_json(accept: &[u8]) -> bool {
        super::prefers_json(|| [accept].into_iter())
    }

    #[test]
    fn prefers_json_only_if_it_is_named() {
        for accept in [
            "application/json",
            "application/problem+json",
            "APPLICATION/JSON",
            "*/json",
            "application/*",
            "application/json, */*",
            "application/json;q=1.0,text/*;q=0.999",
            "text/html, application/json;q=0.1",
            "text/plain;q=0.5, application/json;charset=utf-8;q=0.5",
            "text/plain, application/json",
            ",, application/json ;q=0.8 ,",
            "application/json;q=0.7, application/problem+json;q=0.9, text/plain;q=0.8",
        ] {
            assert!(prefers_json(accept.as_bytes()), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "text/plain",
            "application/xml",
            "application/json;q=0",
            "application/json;q=0.000, text/plain",
            "application/json;q=0.5, text/plain",
            "application/json;q=0.5, */*",
            "application/json, application/problem+json;q=0",
            "application/jsonp",
            "application/json;q=2",
            "application/json;q=0.1234",
            "application/json;q=x",
            "application/json;q=-1",
        ] {
            assert!(!prefers_json(accept.as_bytes()), "{accept}");
        }
        assert!(!prefers_json(b"application/json\xff"));
        let long = "application/json,".repeat(300);
        assert!(prefers_json(&long.as_bytes()[..4080]) && !prefers_json(long.as_bytes()));
        assert!(super::prefers_json(|| [&b"text/x"[..], b"*/json"].into_iter()));
    }
}
