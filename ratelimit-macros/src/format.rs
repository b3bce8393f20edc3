//! Parses the format string of a key: `"user:{id}"` is the text `user:` and a placeholder for `id`.
//!
//! The grammar is that of `std::fmt` without positions and without widths that are arguments, and
//! with fields: `{user.id}` is not a Rust format string.

use proc_macro2::Ident;
use syn::ext::IdentExt;
use syn::parse::Parser;

/// One part of a format string.
#[derive(Debug, PartialEq)]
pub(crate) enum FormatPart {
    Text(String),
    Placeholder(Placeholder),
}

/// `{root.fields:spec}`.
#[derive(Debug, PartialEq)]
pub(crate) struct Placeholder {
    /// An argument of the function.
    pub(crate) root: String,
    /// The fields after it: names, or numbers for the fields of a tuple.
    pub(crate) fields: Vec<String>,
    /// The format after the colon, such as `08x`.
    pub(crate) spec: String,
}

/// Returns the parts, and the message of every mistake between them.
pub(crate) fn parse(text: &str) -> (Vec<FormatPart>, Vec<String>) {
    let mut parts = Vec::new();
    let mut problems = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from_brace) = rest.split_at(at);
        literal.push_str(before);
        let brace = &from_brace[..1];
        if let Some(after) = from_brace[1..].strip_prefix(brace) {
            literal.push_str(brace);
            rest = after;
        } else if brace == "}" {
            problems.push("unmatched `}`: remove it, or write `}}` for a literal brace".to_owned());
            rest = &from_brace[1..];
        } else if let Some((inside, after)) = split_placeholder(&from_brace[1..]) {
            if !literal.is_empty() {
                parts.push(FormatPart::Text(std::mem::take(&mut literal)));
            }
            match parse_placeholder(inside) {
                Ok(placeholder) => parts.push(FormatPart::Placeholder(placeholder)),
                Err(problem) => problems.push(problem),
            }
            rest = after;
        } else {
            problems.push("unclosed `{`: close it, or write `{{` for a literal brace".to_owned());
            rest = "";
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(FormatPart::Text(literal));
    }

    (parts, problems)
}

/// Splits the text at the closing brace of a placeholder.
fn split_placeholder(text: &str) -> Option<(&str, &str)> {
    text.split_once('}').filter(|(inside, _)| !inside.contains('{'))
}

fn parse_placeholder(inside: &str) -> Result<Placeholder, String> {
    let (path, spec) = inside.split_once(':').unwrap_or((inside, ""));
    let path = path.trim();
    if path.is_empty() {
        return Err(format!(
            "`{{{inside}}}` names no argument of the function: write one, such as `{{user_id}}`"
        ));
    }
    if is_number(path) {
        return Err(format!(
            "`{{{inside}}}` is a position: write the name of the argument instead"
        ));
    }
    let mut names = path.split('.');
    let root = names.next().unwrap_or_default().to_owned();
    let fields: Vec<String> = names.map(str::to_owned).collect();
    if !is_name(&root) || fields.iter().any(|name| !is_name(name) && !is_number(name)) {
        return Err(format!(
            "`{{{inside}}}` is not an argument or a field of one: write the whole key as an \
             expression, such as `key = (tenant, user.id())`"
        ));
    }
    if spec.contains(['$', '*']) {
        return Err(format!(
            "`{{{inside}}}` takes its width or precision from an argument: write a number instead"
        ));
    }
    Ok(Placeholder { root, fields, spec: spec.trim_end().to_owned() })
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_name(name: &str) -> bool {
    Ident::parse_any.parse_str(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{FormatPart, Placeholder};

    fn parse(text: &str) -> Result<Vec<FormatPart>, Vec<String>> {
        let (parts, problems) = super::parse(text);
        if problems.is_empty() { Ok(parts) } else { Err(problems) }
    }

    fn text(text: &str) -> FormatPart {
        FormatPart::Text(text.to_owned())
    }

    fn argument(root: &str, fields: &[&str], spec: &str) -> FormatPart {
        let fields = fields.iter().map(ToString::to_string).collect();
        let (root, spec) = (root.to_owned(), spec.to_owned());
        FormatPart::Placeholder(Placeholder { root, fields, spec })
    }

    #[test]
    fn splits_text_and_placeholders() {
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("user"), Ok(vec![text("user")]));
        assert_eq!(
            parse("user:{id}/{ip}!"),
            Ok(vec![
                text("user:"),
                argument("id", &[], ""),
                text("/"),
                argument("ip", &[], ""),
                text("!")
            ])
        );
        assert_eq!(parse("{a}{b}"), Ok(vec![argument("a", &[], ""), argument("b", &[], "")]));
    }

    #[test]
    fn reads_doubled_braces_as_text() {
        assert_eq!(parse("{{{id}}}"), Ok(vec![text("{"), argument("id", &[], ""), text("}")]));
        assert_eq!(parse("a{{b}}c"), Ok(vec![text("a{b}c")]));
    }

    #[test]
    fn reads_fields_and_formats() {
        assert_eq!(parse("{self.tenant}"), Ok(vec![argument("self", &["tenant"], "")]));
        assert_eq!(parse("{pair.0.1:?}"), Ok(vec![argument("pair", &["0", "1"], "?")]));
        assert_eq!(parse("{ id :>08x }"), Ok(vec![argument("id", &[], ">08x")]));
        assert_eq!(parse("{größe}"), Ok(vec![argument("größe", &[], "")]));
    }

    #[test]
    fn finds_every_mistake() {
        let problems = parse("{}, {0}, {a b}, {x:w$}, }, {y").unwrap_err();
        let about = ["no argument", "position", "is not an", "width", "unmatched", "unclosed"];
        assert_eq!(problems.len(), about.len(), "{problems:?}");
        for (problem, about) in problems.iter().zip(about) {
            assert!(problem.contains(about), "{problem}");
        }
    }

    #[test]
    fn rejects_other_expressions_in_a_placeholder() {
        for text in ["{a.}", "{.a}", "{a()}", "{a[0]}", "{&a}", "{a.x²}", "{a{b}}"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
