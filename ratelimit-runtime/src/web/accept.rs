//! The format that a client prefers, JSON or plain text: content negotiation by the `Accept` header (RFC 9110, section
//! 12.5.1).

/// The media ranges of JSON and of plain text, the most specific first.
const JSON: [&str; 4] = ["application/problem+json", "application/json", "*/json", "application/*"];
const TEXT: [&str; 3] = ["text/plain", "text/*", "*/*"];

/// The longest header that is parsed, in bytes.
const MAX_LENGTH: usize = 4096;

/// Returns whether a client with these lines of `Accept` prefers JSON: they name JSON, with at least the weight
/// of plain text. A client that only accepts `*/*`, such as curl, gets plain text.
pub(crate) fn prefers_json<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    // Of each format, the index of its most specific range, and the weight of that.
    let (mut json, mut text, mut length) = (None, None, 0);
    for line in lines {
        // Most clients that are no browsers send this line (`benches/all -- layer`).
        if line == b"*/*" {
            text = text.or(Some((TEXT.len() - 1, 1.0)));
            continue;
        }
        length += line.len();
        let Ok(line) = std::str::from_utf8(line) else { return false };
        if length > MAX_LENGTH {
            return false;
        }
        for (name, weight) in line.split(',').filter_map(media_range) {
            for (names, best) in [(&JSON[..], &mut json), (&TEXT[..], &mut text)] {
                let at = names.iter().position(|known| known.eq_ignore_ascii_case(name));
                if let Some(at) = at
                    && best.is_none_or(|(before, _)| at < before)
                {
                    *best = Some((at, weight));
                }
            }
        }
    }
    let text = text.map_or(0.0, |(_, weight)| weight);
    json.is_some_and(|(_, json)| json > 0.0 && json >= text)
}

/// Parses a media range with its weight; `None` if it is malformed.
fn media_range(text: &str) -> Option<(&str, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let is_weight = |part: &&str| part.get(..2).is_some_and(|it| it.eq_ignore_ascii_case("q="));
    let weight = parts.find(is_weight).map_or(Some(1.0), |part| weight(&part[2..]));
    Some((name, weight?))
}

/// Parses a weight (RFC 9110, section 12.4.2): at most 1, with at most three digits after the point.
fn weight(text: &str) -> Option<f32> {
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let is_short = text.len() <= "0.000".len() && text.bytes().all(is_number);
    text.parse().ok().filter(|weight| is_short && *weight <= 1.0)
}

#[cfg(test)]
mod tests {
    fn prefers_json(accept: &[u8]) -> bool {
        super::prefers_json([accept].into_iter())
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
        assert!(super::prefers_json([&b"text/x"[..], b"*/json"].into_iter()));
    }
}
