//! Whether a client takes JSON: content negotiation by its `Accept` (RFC 9110, section 12.5.1).

/// Whether JSON is to be sent to a client that sent `accept`: where it names JSON, and likes it no
/// less than plain text. Who accepts anything, as curl does, is sent text to be read.
pub(crate) fn prefers_json(accept: &[u8]) -> bool {
    let Ok(accept) = std::str::from_utf8(accept) else { return false };
    let quality = |names: &[&str]| {
        names.iter().find_map(|name| accept.split(',').filter_map(range).find(|it| it.is(name)))
    };
    let quality = |names| quality(names).map(|range| range.quality);
    // The more telling range speaks.
    let json =
        quality(&["application/problem+json", "application/json", "*/json", "application/*"]);
    let text = quality(&["text/plain", "text/*", "*/*"]);
    json.is_some_and(|json| json > 0 && json >= text.unwrap_or(0))
}

struct Range<'a> {
    name: &'a str,
    /// In thousandths.
    quality: u32,
}

impl Range<'_> {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
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
    let thousandths = format!("{whole}{fraction:0<3}").parse().ok()?;
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::prefers_json;

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
    }
}
