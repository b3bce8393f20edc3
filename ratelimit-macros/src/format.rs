//! Parses the format string of a key: `"user:{id}"` is the text `user:` and a placeholder for `id`.
//!
//! The grammar is that of `std::fmt` without positions and without widths that are arguments, and
//! with fields: `{user.id}` is not a Rust format string.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{LitStr, Member};

/// A part of the key of a format string.
pub(crate) enum KeyPiece {
    Text(LitStr),
    /// A variable or a field of one: `{root.fields:spec}`.
    Argument {
        /// The placeholder without a name: `{}`, `{:08x}`.
        spec: LitStr,
        root: Ident,
        fields: Vec<Member>,
    },
}

/// Returns the pieces, or every mistake between them. `find` returns the variable with a name, or what is wrong.
pub(crate) fn parse(
    text: &LitStr,
    find: impl Fn(&str) -> Result<Ident, String>,
) -> syn::Result<Vec<KeyPiece>> {
    let place = text.span();
    let piece = |text: &str| KeyPiece::Text(LitStr::new(text, place));
    let mut parts = Vec::new();
    let mut problems = Vec::new();
    let mut literal = String::new();
    let text = text.value();
    let mut rest = &*text;
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
                parts.push(piece(&std::mem::take(&mut literal)));
            }
            match parse_placeholder(inside, place, &find) {
                Ok(argument) => parts.push(argument),
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
        parts.push(piece(&literal));
    }
    let mut errors = problems.into_iter().map(|problem| syn::Error::new(place, problem));
    let Some(mut first) = errors.next() else { return Ok(parts) };
    first.extend(errors);
    Err(first)
}

/// Splits the text at the closing brace of a placeholder.
fn split_placeholder(text: &str) -> Option<(&str, &str)> {
    text.split_once('}').filter(|(inside, _)| !inside.contains('{'))
}

fn parse_placeholder(
    inside: &str,
    at: Span,
    find: impl Fn(&str) -> Result<Ident, String>,
) -> Result<KeyPiece, String> {
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
    let root = names.next().unwrap_or_default();
    if !is_name(root) || names.clone().any(|name| !is_name(name) && !is_number(name)) {
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
    let mut root = find(root)?;
    // Errors point at the format string, and the name resolves to the argument.
    root.set_span(at.resolved_at(root.span()));
    let fields = names.map(|field| {
        let mut member: Member = syn::parse_str(field).map_err(|_| {
            format!("`{field}` is not the name of a field: write a keyword as `r#{field}`")
        })?;
        match &mut member {
            Member::Named(name) => name.set_span(at),
            Member::Unnamed(index) => index.span = at,
        }
        Ok(member)
    });
    let fields = fields.collect::<Result<_, String>>()?;
    let spec = match spec.trim_end() {
        "" => "{}".to_owned(),
        spec => format!("{{:{spec}}}"),
    };
    Ok(KeyPiece::Argument { spec: LitStr::new(&spec, at), root, fields })
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_name(name: &str) -> bool {
    Ident::parse_any.parse_str(name).is_ok()
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;
    use quote::ToTokens;
    use syn::{Ident, LitStr};

    use super::KeyPiece;

    /// Returns the pieces, an argument as `<root.field:spec>`; or the problems.
    fn parse(text: &str) -> Result<Vec<String>, Vec<String>> {
        let found = |name: &str| syn::parse_str::<Ident>(name).map_err(|it| it.to_string());
        let pieces = super::parse(&LitStr::new(text, Span::call_site()), found);
        let problems =
            |all: syn::Error| all.into_iter().map(|it| it.to_string()).collect::<Vec<_>>();
        let pieces = pieces.map_err(problems)?;
        let shown = |piece: KeyPiece| match piece {
            KeyPiece::Text(text) => text.value(),
            KeyPiece::Argument { spec, root, fields } => {
                let fields = fields.iter().map(|it| format!(".{}", it.to_token_stream()));
                format!("<{root}{}{}>", fields.collect::<String>(), spec.value())
            }
        };
        Ok(pieces.into_iter().map(shown).collect())
    }

    #[test]
    fn splits_text_and_placeholders() {
        for (text, pieces) in [
            ("", &[][..]),
            ("user", &["user"]),
            ("user:{id}/{ip}!", &["user:", "<id{}>", "/", "<ip{}>", "!"]),
            ("{a}{b}", &["<a{}>", "<b{}>"]),
            ("{{{id}}}", &["{", "<id{}>", "}"]),
            ("a{{b}}c", &["a{b}c"]),
            ("{user.tenant}", &["<user.tenant{}>"]),
            ("{pair.0.1:?}", &["<pair.0.1{:?}>"]),
            ("{ id :>08x }", &["<id{:>08x}>"]),
            ("{größe}", &["<größe{}>"]),
        ] {
            assert_eq!(parse(text).expect(text), pieces, "{text}");
        }
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
