//! Takes the format string of a key apart: `"user:{id}"` is the text `user:` and a hole for `id`.
//!
//! The grammar is that of `std::fmt`, without what a key has no use for: positions, and widths
//! taken from arguments. With field access added: `{user.id}` is not a Rust format string.

use proc_macro2::Ident;
use syn::ext::IdentExt;
use syn::parse::Parser;

/// One part of a format string.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Hole(Hole),
}

/// `{root.fields:spec}`.
#[derive(Debug, PartialEq)]
pub(crate) struct Hole {
    /// An argument of the function.
    pub(crate) root: String,
    /// The path below it: names, or numbers for the fields of a tuple.
    pub(crate) fields: Vec<String>,
    /// What stands behind the colon.
    pub(crate) spec: String,
}

/// The parts, and every mistake in between.
pub(crate) fn parse(text: &str) -> (Vec<Part>, Vec<String>) {
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
            problems.push("unmatched `}`: write `}}` for a brace in the text".to_owned());
            rest = &from_brace[1..];
        } else if let Some((hole, after)) = split_hole(&from_brace[1..]) {
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            match parse_hole(hole) {
                Ok(hole) => parts.push(Part::Hole(hole)),
                Err(problem) => problems.push(problem),
            }
            rest = after;
        } else {
            problems.push("unclosed `{`: write `{{` for a brace in the text".to_owned());
            rest = "";
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }

    (parts, problems)
}

/// What is before the closing brace, and what is behind it.
fn split_hole(text: &str) -> Option<(&str, &str)> {
    text.split_once('}').filter(|(hole, _)| !hole.contains('{'))
}

fn parse_hole(hole: &str) -> Result<Hole, String> {
    let (path, spec) = hole.split_once(':').unwrap_or((hole, ""));
    let path = path.trim();
    if path.is_empty() {
        return Err(format!("`{{{hole}}}` names no argument: write one, such as `{{user_id}}`"));
    }
    if is_number(path) {
        return Err(format!("`{{{hole}}}` is a position: write the argument's name instead"));
    }
    let mut names = path.split('.');
    let root = names.next().unwrap_or_default().to_owned();
    let fields: Vec<String> = names.map(str::to_owned).collect();
    if !is_name(&root) || fields.iter().any(|name| !is_name(name) && !is_number(name)) {
        return Err(format!(
            "`{{{hole}}}` is more than an argument or a field: write the whole key as an \
             expression, such as `key = (tenant, user.id())`"
        ));
    }
    if spec.contains(['$', '*']) {
        return Err(format!("`{{{hole}}}` takes its width from an argument: write the number"));
    }
    Ok(Hole { root, fields, spec: spec.trim_end().to_owned() })
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_name(name: &str) -> bool {
    Ident::parse_any.parse_str(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{Hole, Part};

    fn parse(text: &str) -> Result<Vec<Part>, Vec<String>> {
        let (parts, problems) = super::parse(text);
        if problems.is_empty() { Ok(parts) } else { Err(problems) }
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn hole(root: &str, fields: &[&str], spec: &str) -> Part {
        let fields = fields.iter().map(ToString::to_string).collect();
        Part::Hole(Hole { root: root.to_owned(), fields, spec: spec.to_owned() })
    }

    #[test]
    fn text_and_holes_alternate() {
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("user"), Ok(vec![text("user")]));
        assert_eq!(
            parse("user:{id}/{ip}!"),
            Ok(vec![text("user:"), hole("id", &[], ""), text("/"), hole("ip", &[], ""), text("!")])
        );
        assert_eq!(parse("{a}{b}"), Ok(vec![hole("a", &[], ""), hole("b", &[], "")]));
    }

    #[test]
    fn doubled_braces_are_text() {
        assert_eq!(parse("{{{id}}}"), Ok(vec![text("{"), hole("id", &[], ""), text("}")]));
        assert_eq!(parse("a{{b}}c"), Ok(vec![text("a{b}c")]));
    }

    #[test]
    fn holes_have_fields_and_specs() {
        assert_eq!(parse("{self.tenant}"), Ok(vec![hole("self", &["tenant"], "")]));
        assert_eq!(parse("{pair.0.1:?}"), Ok(vec![hole("pair", &["0", "1"], "?")]));
        assert_eq!(parse("{ id :>08x }"), Ok(vec![hole("id", &[], ">08x")]));
        assert_eq!(parse("{größe}"), Ok(vec![hole("größe", &[], "")]));
    }

    #[test]
    fn every_mistake_is_found() {
        let problems = parse("{}, {0}, {a b}, {x:w$}, }, {y").unwrap_err();
        let about = ["no argument", "position", "more than", "width", "unmatched", "unclosed"];
        assert_eq!(problems.len(), about.len(), "{problems:?}");
        for (problem, about) in problems.iter().zip(about) {
            assert!(problem.contains(about), "{problem}");
        }
    }

    #[test]
    fn a_hole_is_a_place_and_no_other_expression() {
        for hole in ["{a.}", "{.a}", "{a()}", "{a[0]}", "{&a}", "{a.x²}", "{a{b}}"] {
            assert!(parse(hole).is_err(), "{hole}");
        }
    }
}
