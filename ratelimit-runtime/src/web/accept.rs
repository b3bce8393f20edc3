//! Whether a client takes JSON: content negotiation by its `Accept` (RFC 9110, section 12.5.1).

use std::iter;

/// What asks for JSON, and for a text: the more telling range first.
const JSON: [&str; 4] = ["application/problem+json", "application/json", "*/json", "application/*"];
const TEXT: [&str; 3] = ["text/plain", "text/*", "*/*"];

/// Nobody who means it sends more bytes than these.
const LONGEST: usize = 4096;

/// Whether JSON is to be sent to a client that sent these lines of `Accept`: where they name JSON, and
/// like it no less than plain text. Who accepts anything, as curl does, is sent text to be read.
pub(crate) fn prefers_json<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut json, mut text, mut length) = (None, None, 0);
    for line in lines {
        length += line.len();
        let Ok(line) = std::str::from_utf8(line) else { return false };
        if length > LONGEST {
            return false;
        }
        for range in line.split(',').filter_map(range) {
            range.speak(&JSON, &mut json);
            range.speak(&TEXT, &mut text);
        }
    }
    let text = text.map_or(0, |(_, quality)| quality);
    json.is_some_and(|(_, json)| json > 0 && json >= text)
}

struct Range<'a> {
    name: &'a str,
    /// In thousandths.
    quality: u32,
}

impl Range<'_> {
    /// Says its quality where it is one of `names`, and none before it in them has spoken.
    fn speak(&self, names: &[&str], said: &mut Option<(usize, u32)>) {
        let at = names.iter().position(|name| self.name.eq_ignore_ascii_case(name));
        if let Some(at) = at
            && said.is_none_or(|(before, _)| at < before)
        {
            *said = Some((at, self.quality));
        }
    }
}

/// A media range with its weight; `None` for one that cannot be read.
fn range(text: &str) -> Option<Range<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let is_weight = |part: &&str| part.get(..2).is_some_and(|it| it.eq_ignore_ascii_case("q="));
    let quality = match parts.find(is_weight) {
        Some(weight) => thousandths(&weight[2..])?,
        None => 1000,
    };
    Some(Range { name, quality })
}

/// A weight (RFC 9110, section 12.4.2): at most three digits after the point, at most one in all.
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
        super::prefers_json([accept].into_iter())
    }

    #[test]
    fn json_is_for_those_who_name_it() {
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
        assert!(super::prefers_json([&b"text/x"[..], b"*/json"].into_iter()));
    }
}
