//! The key of a limit: an expression of the arguments, or a format string over them.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::{Expr, Lit, LitStr, Member};

use crate::diagnostics::{closest, quoted};
use crate::format::{self, Hole, Part};
use crate::function::Function;
use crate::values::{Sign, as_literal, peel};

pub(crate) enum Key {
    Expr(Expr),
    Format(Vec<Piece>),
}

/// A part of a format string whose names are known to exist.
pub(crate) enum Piece {
    Text(LitStr),
    /// `{}` or `{:spec}`, and the place it shows.
    Hole {
        spec: LitStr,
        root: Ident,
        fields: Vec<Member>,
    },
}

/// The runtime implements its `Key` trait for tuples of up to this many elements.
const LONGEST_TUPLE: usize = 8;

impl Key {
    /// Without a function, what depends on its arguments goes unchecked.
    pub(crate) fn read(expr: &Expr, function: Option<&Function>) -> syn::Result<Self> {
        if let Some((Sign::Plus, Lit::Str(text))) = as_literal(expr) {
            return read_format(text, function).map(Key::Format);
        }
        check_tuples(expr)?;
        Ok(Key::Expr(expr.clone()))
    }
}

fn read_format(text: &LitStr, function: Option<&Function>) -> syn::Result<Vec<Piece>> {
    let value = text.value();
    let (parts, mut problems) = format::parse(&value);
    let mut pieces = Vec::new();
    if let Some(function) = function {
        let bindings = function.bindings();
        let holes = parts.iter().any(|part| matches!(part, Part::Hole(_)));
        if !holes && problems.is_empty() {
            // `#user_id` is how Spring names an argument.
            let word = value.trim_start_matches('#');
            let example = find(word, &bindings).or(bindings.first());
            let example = example.map_or("{user_id}".to_owned(), |name| format!("{{{name}}}"));
            problems.push(format!(
                "`\"{value}\"` is the same text in every call: write `key = \"{example}\"` to count \
                 each value separately, or leave `key` out to count all calls together"
            ));
        }
        for part in parts {
            match part {
                Part::Text(part) => pieces.push(Piece::Text(LitStr::new(&part, text.span()))),
                Part::Hole(hole) => match find(&hole.root, &bindings) {
                    Some(binding) => pieces.push(fill(&hole, binding, text.span())?),
                    None => problems.push(no_such_argument(&hole.root, function, &bindings)),
                },
            }
        }
    }
    let errors = problems.into_iter().map(|problem| syn::Error::new(text.span(), problem));
    let all = errors.reduce(|mut all, error| {
        all.combine(error);
        all
    });
    all.map_or(Ok(pieces), Err)
}

fn find<'a>(name: &str, bindings: &'a [Ident]) -> Option<&'a Ident> {
    bindings.iter().find(|binding| binding.unraw() == name)
}

fn fill(hole: &Hole, binding: &Ident, at: Span) -> syn::Result<Piece> {
    let spec = if hole.spec.is_empty() { "{}".to_owned() } else { format!("{{:{}}}", hole.spec) };
    let mut root = binding.clone();
    // Shown where the hole is, resolved where the argument is.
    root.set_span(at.resolved_at(binding.span()));
    let fields = hole.fields.iter().map(|field| {
        let mut member: Member = syn::parse_str(field).map_err(|_| {
            let message = format!("`{field}` cannot name a field; a keyword is `r#{field}`");
            syn::Error::new(at, message)
        })?;
        match &mut member {
            Member::Named(name) => name.set_span(at),
            Member::Unnamed(index) => index.span = at,
        }
        Ok(member)
    });
    let fields = fields.collect::<syn::Result<_>>()?;
    Ok(Piece::Hole { spec: LitStr::new(&spec, at), root, fields })
}

fn no_such_argument(name: &str, function: &Function, bindings: &[Ident]) -> String {
    let bindings: Vec<_> = bindings.iter().map(|binding| binding.unraw().to_string()).collect();
    let names = || bindings.iter().map(String::as_str);
    let hint = match closest(name, names()) {
        Some(meant) => format!("did you mean `{{{meant}}}`?"),
        None if bindings.is_empty() => "it has none".to_owned(),
        None => format!("it has {}", quoted(names())),
    };
    format!("`{{{name}}}` is not an argument of `{}`: {hint}", function.sig.ident)
}

fn check_tuples(expr: &Expr) -> syn::Result<()> {
    let Expr::Tuple(tuple) = peel(expr) else {
        return Ok(());
    };
    if tuple.elems.len() > LONGEST_TUPLE {
        let message =
            format!("a key has at most {LONGEST_TUPLE} parts: nest tuples, as in `((a, b), c)`");
        return Err(syn::Error::new_spanned(tuple, message));
    }
    tuple.elems.iter().try_for_each(check_tuples)
}
