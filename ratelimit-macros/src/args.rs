//! Reads `name = value, …` between the parentheses of the attribute.
//!
//! Nothing is interpreted here: a value is an expression. A mistake costs one argument, not the
//! rest of the list, so the next mistake is found too.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, Token};

use crate::diagnostics::{Errors, Reported, closest, quoted};

/// The arguments of one attribute, or of one `limit(…)` in it, as written.
pub(crate) struct Args<'e> {
    names: &'static [&'static str],
    /// What to point at when something is missing.
    span: Span,
    given: Vec<Argument>,
    /// The `limit(…)` groups.
    pub(crate) groups: Vec<Args<'e>>,
    /// What the unknown arguments were probably meant to be: not missing, only misspelled.
    misspelled: Vec<(&'static str, Reported)>,
    pub(crate) errors: &'e Errors,
}

/// `name = value`.
pub(crate) struct Argument {
    name: Ident,
    value: Result<Expr, Reported>,
}

/// Every argument there is, in the order they are documented.
const NAMES: [&str; 16] = [
    "period",
    "threshold",
    "algo",
    "burst",
    "align",
    "key",
    "cost",
    "name",
    "limit",
    "scope",
    "on_error",
    "shadow",
    "wait",
    "lease",
    "on_limited",
    "crate",
];

/// Those that a `limit(…)` has.
const NAMES_OF_A_LIMIT: [&str; 8] =
    ["period", "threshold", "algo", "burst", "align", "key", "cost", "name"];

/// Said of a `lease` beside or in a `limit(…)`.
pub(crate) const NOT_TOGETHER: &str = "several limits are decided together, by asking for each call, \
                                       so none is leased: remove `lease`";

/// What other limiters call the same thing.
const SYNONYMS: [(&str, &str); 15] = [
    ("window", "period"),
    ("interval", "period"),
    ("per", "period"),
    ("max", "threshold"),
    ("rate", "threshold"),
    ("requests", "threshold"),
    ("algorithm", "algo"),
    ("capacity", "burst"),
    ("timezone", "align"),
    ("by", "key"),
    ("weight", "cost"),
    ("fallback", "on_error"),
    ("dry_run", "shadow"),
    ("timeout", "wait"),
    ("prefetch", "lease"),
];

impl<'e> Args<'e> {
    pub(crate) fn parse(tokens: TokenStream, errors: &'e Errors) -> Self {
        Self::parse_with(&NAMES, Span::call_site(), tokens, errors)
    }

    fn parse_with(
        names: &'static [&'static str],
        span: Span,
        tokens: TokenStream,
        errors: &'e Errors,
    ) -> Self {
        let (given, groups, misspelled) = (Vec::new(), Vec::new(), Vec::new());
        let mut args = Args { names, span, given, groups, misspelled, errors };
        let read_all = |input: ParseStream<'_>| {
            while !input.is_empty() {
                args.parse_one(input);
            }
            Ok(())
        };
        if let Err(error) = read_all.parse2(tokens)
            && errors.is_empty()
        {
            errors.report(error);
        }
        args
    }

    /// The argument as it stands, to point at.
    pub(crate) fn get(&self, name: &str) -> Option<&Argument> {
        self.given.iter().find(|argument| argument.name == name)
    }

    /// What `read` makes of the argument's value, if it was given.
    pub(crate) fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Expr) -> syn::Result<T>,
    ) -> Option<Result<T, Reported>> {
        self.get(name).map(|argument| match &argument.value {
            Ok(value) => self.errors.note(read(value)),
            Err(reported) => Err(*reported),
        })
    }

    /// The same for an argument that must be there; `missing` says why, and what to write.
    pub(crate) fn required<T>(
        &self,
        name: &str,
        missing: &str,
        read: impl FnOnce(&Expr) -> syn::Result<T>,
    ) -> Result<T, Reported> {
        self.optional(name, read).unwrap_or_else(|| {
            let misspelled = self.misspelled.iter().find(|(meant, _)| *meant == name);
            Err(misspelled.map_or_else(
                || self.errors.report(syn::Error::new(self.span, missing)),
                |(_, reported)| *reported,
            ))
        })
    }

    /// One argument and the comma behind it.
    fn parse_one(&mut self, input: ParseStream<'_>) {
        let Ok(name) = input.call(Ident::parse_any) else {
            let message = "expected an argument with its name, such as `period = 30`";
            let reported = self.errors.report(input.error(message));
            // It may be any of those that would be missing now.
            self.misspelled.extend(self.names.iter().map(|name| (*name, reported)));
            return skip_argument(input);
        };
        if name == "limit" && self.names.contains(&"limit") {
            return self.parse_group(&name, input);
        }
        let accepted = self.accept(&name);
        let value = parse_value(&name, input);
        if value.is_err() {
            skip_to_comma(input);
        }
        // An argument that does not exist is one mistake, whatever its value looks like.
        if accepted.is_ok() {
            let value = self.errors.note(value);
            self.given.push(Argument { name, value });
        }
        if !input.is_empty() && !input.peek(Token![,]) {
            self.errors.report(input.error("expected `,` between two arguments"));
            // The next argument is likely to follow at once, or behind another separator.
            let _ = input.parse::<Option<Token![;]>>();
            if input.peek(Ident::peek_any) && input.peek2(Token![=]) {
                return;
            }
        }
        skip_argument(input);
    }

    /// One `limit(…)` and the comma behind it.
    fn parse_group(&mut self, name: &Ident, input: ParseStream<'_>) {
        let group = input.parse::<Group>().ok();
        if let Some(group) = group.filter(|group| group.delimiter() == Delimiter::Parenthesis) {
            let (names, tokens) = (&NAMES_OF_A_LIMIT, group.stream());
            self.groups.push(Args::parse_with(names, name.span(), tokens, self.errors));
        } else {
            let message = "`limit` is a group: write `limit(period = 1, threshold = 10)`";
            let reported = self.errors.report(syn::Error::new(name.span(), message));
            self.misspelled.extend(self.names.iter().map(|name| (*name, reported)));
        }
        skip_argument(input);
    }

    /// Whether the argument exists and comes for the first time.
    fn accept(&mut self, name: &Ident) -> Result<(), Reported> {
        let word = name.to_string();
        let error = |message| Err(self.errors.report(syn::Error::new(name.span(), message)));
        if self.get(&word).is_some() {
            return error(format!("`{word}` is given twice: keep one of the two"));
        }
        let names = || self.names.iter().copied();
        if self.names.contains(&word.as_str()) {
            return Ok(());
        }
        if word == "lease" {
            return error(NOT_TOGETHER.to_owned());
        }
        if NAMES.contains(&word.as_str()) {
            return error(format!(
                "`{word}` is said once for all limits: move it out of `limit(…)`"
            ));
        }
        let Some(meant) = synonym(&word).or_else(|| closest(&word, names())) else {
            let names = quoted(names());
            return error(format!("unknown argument `{word}`: the arguments are {names}"));
        };
        let accepted = error(format!("unknown argument `{word}`: did you mean `{meant}`?"));
        self.misspelled.extend(accepted.map_err(|reported| (meant, reported)).err());
        accepted
    }
}

impl ToTokens for Argument {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.name.to_tokens(tokens);
        if let Ok(value) = &self.value {
            value.to_tokens(tokens);
        }
    }
}

fn synonym(word: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(theirs, _)| *theirs == word).map(|(_, ours)| *ours)
}

fn parse_value(name: &Ident, input: ParseStream<'_>) -> syn::Result<Expr> {
    let missing = |span, what: &str| {
        let message = format!("expected {what}: write `{name} = …`");
        Err(syn::Error::new(span, message))
    };
    if !input.peek(Token![=]) {
        let next = if input.is_empty() { name.span() } else { input.span() };
        return missing(next, &format!("`=` and a value after `{name}`"));
    }
    let equals: Token![=] = input.parse()?;
    if input.is_empty() || input.peek(Token![,]) {
        return missing(equals.span, "a value after `=`");
    }
    input.parse().map_err(|error| {
        let message = format!("{error} as the value of `{name}`; text is written in quotes");
        syn::Error::new(error.span(), message)
    })
}

fn skip_argument(input: ParseStream<'_>) {
    skip_to_comma(input);
    // Cannot fail: an optional token is there or not.
    let _ = input.parse::<Option<Token![,]>>();
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        // Cannot fail: there is a token.
        let _ = input.parse::<TokenTree>();
    }
}
