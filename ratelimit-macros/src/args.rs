//! Reads `name = value, …` between the parentheses of the attribute.
//!
//! The values stay expressions. A mistake drops one argument and not the rest of the list, so that
//! the mistakes after it are found too.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::token::Paren;
use syn::{Expr, ExprLit, Ident, Lit, LitInt, LitStr, Token};

use crate::algorithm::Algorithm;
use crate::argument::ArgumentName;
use crate::diagnostics::{Errors, foreign_argument, quoted, written};
use crate::text::closest::{closest, nearest};
use crate::text::limit::LimitText;
use crate::values::{as_literal, as_path};
use crate::words::Word;

/// The arguments of one attribute, or of one `limit(…)` in it, as written.
pub(crate) struct Args<'e> {
    /// Whether these are the arguments of a `limit(…)`.
    pub(crate) is_group: bool,
    /// The tokens that the error about a missing argument points at.
    span: Span,
    given: Vec<Argument>,
    /// The `limit(…)` groups.
    pub(crate) groups: Vec<Args<'e>>,
    /// Whether the text of the limit has a `burst`.
    text_has_burst: bool,
    /// The arguments that a reported mistake probably meant. They are not reported as missing.
    misspelled: Vec<ArgumentName>,
    pub(crate) errors: &'e Errors,
}

/// `name = value`.
pub(crate) struct Argument {
    name: ArgumentName,
    ident: Ident,
    value: Option<Expr>,
}

impl<'e> Args<'e> {
    pub(crate) fn parse(tokens: TokenStream, errors: &'e Errors) -> Self {
        Self::parse_level(false, Span::call_site(), tokens, errors)
    }

    fn parse_level(is_group: bool, span: Span, tokens: TokenStream, errors: &'e Errors) -> Self {
        let (given, groups, misspelled) = (Vec::new(), Vec::new(), Vec::new());
        let mut args =
            Args { is_group, span, given, groups, text_has_burst: false, misspelled, errors };
        let read_all = |input: ParseStream<'_>| {
            while !input.is_empty() {
                args.parse_one(input);
            }
            Ok(())
        };
        if let Err(error) = read_all.parse2(tokens)
            && errors.count() == 0
        {
            errors.report(error);
        }
        args
    }

    /// The argument as written, for an error to point at.
    pub(crate) fn get(&self, name: ArgumentName) -> Option<&Argument> {
        self.given.iter().find(|argument| argument.name == name)
    }

    /// The value of an argument, if it is given and an expression.
    fn value(&self, name: ArgumentName) -> Option<&Expr> {
        self.get(name)?.value.as_ref()
    }

    /// Whether an argument is given as a path.
    pub(crate) fn is_path(&self, name: ArgumentName) -> bool {
        self.value(name).and_then(as_path).is_some()
    }

    /// Whether an argument is given as the literal `word`.
    pub(crate) fn is_word(&self, name: ArgumentName, word: &str) -> bool {
        match self.value(name).and_then(as_literal) {
            Some((_, Lit::Str(text))) => text.value() == word,
            Some((_, Lit::Bool(flag))) => flag.value.to_string() == word,
            _ => false,
        }
    }

    /// Reports an error at the whole argument, if it is given.
    pub(crate) fn reject(&self, name: ArgumentName, message: &str) {
        if let Some(argument) = self.get(name) {
            self.errors.report(syn::Error::new_spanned(argument, message));
        }
    }

    /// Whether an argument has no value that is an expression, which was reported.
    pub(crate) fn lacks_value(&self) -> bool {
        self.given.iter().any(|argument| argument.value.is_none())
    }

    /// Whether a reported mistake probably meant an argument.
    pub(crate) fn is_misspelled(&self, name: ArgumentName) -> bool {
        self.misspelled.contains(&name)
    }

    /// The value of an argument as `read` understands it; `None` if it was not given, or is wrong, which is reported.
    pub(crate) fn optional<T>(
        &self,
        name: ArgumentName,
        read: impl FnOnce(ArgumentName, &Expr) -> syn::Result<T>,
    ) -> Option<T> {
        self.value(name).and_then(|value| self.errors.record(read(name, value)))
    }

    /// The same for an argument that has to be given; `missing` is the error if it is not.
    pub(crate) fn required<T>(
        &self,
        name: ArgumentName,
        missing: &str,
        read: impl FnOnce(ArgumentName, &Expr) -> syn::Result<T>,
    ) -> Option<T> {
        if self.get(name).is_none() && !self.is_misspelled(name) {
            self.errors.report(syn::Error::new(self.span, missing));
        }
        self.optional(name, read)
    }

    /// Reads one argument and the comma after it.
    fn parse_one(&mut self, input: ParseStream<'_>) {
        if input.peek(LitStr)
            && let Ok(text) = input.parse()
        {
            self.take_text(&text);
            return self.end_argument(input);
        }
        if input.peek(LitInt)
            && let Ok(number) = input.parse()
        {
            return self.reject_number(&number, input);
        }
        let Ok(ident) = input.call(Ident::parse_any) else {
            let message = "expected a named argument, such as `period = 30`";
            self.errors.report(input.error(message));
            self.anything_is_misspelled();
            return skip_argument(input);
        };
        if ident == ArgumentName::Limit.as_str() && !input.peek(Token![=]) {
            return self.parse_group(&ident, input);
        }
        let accepted = self.accept(&ident, input.peek(Token![=]));
        let value = parse_value(&ident, accepted, input);
        if value.is_err() {
            skip_to_comma(input);
        }
        // An unknown argument is one mistake. Its value is not reported as well.
        if let Some(name) = accepted {
            let value = self.errors.record(value);
            self.given.push(Argument { name, ident, value });
        }
        self.end_argument(input);
    }

    /// Reports a number without a name, or two: other rate limiters take numbers by their places.
    fn reject_number(&mut self, first: &LitInt, input: ParseStream<'_>) {
        let number = first.base10_digits();
        let mut advice =
            format!("`threshold = {number}`, or `period = {number}` for {number} seconds");
        if input.peek(Token![,]) && input.peek2(LitInt) {
            skip_argument(input);
            if let Ok(second) = input.parse::<LitInt>() {
                let period = second.base10_digits();
                advice = format!(
                    "`threshold = {number}, period = {period}` for {number} calls in {period} seconds"
                );
            }
        }
        let message = format!("a number needs the name of its argument: write {advice}");
        self.errors.report(syn::Error::new(first.span(), message));
        self.anything_is_misspelled();
        skip_argument(input);
    }

    /// The algorithm of a limit that does not name one.
    pub(crate) fn default_algorithm(&self) -> Algorithm {
        if self.text_has_burst { Algorithm::TokenBucket } else { Algorithm::Sliding }
    }

    /// Reads a limit that is written as a text, `"10/s"`, as the arguments that it stands for.
    fn take_text(&mut self, text: &LitStr) {
        let words: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.as_str()).collect();
        let limit = if self.given.is_empty() && self.groups.is_empty() {
            LimitText::read(&text.value(), &words)
        } else {
            Err("the text of a limit comes first: write it before the other arguments".to_owned())
        };
        let span = text.span();
        let LimitText { threshold, period: (period_us, unit), burst, algorithm } = match limit {
            Ok(limit) => limit,
            Err(message) => {
                self.errors.report(syn::Error::new(span, message));
                return self.anything_is_misspelled();
            }
        };
        let number = |number: u64| Lit::Int(LitInt::new(&number.to_string(), span));
        let word = |word: &str| Lit::Str(LitStr::new(word, span));
        self.text_has_burst = burst.is_some();
        let period = unit.map_or_else(|| format!("{period_us}us"), str::to_owned);
        let values = [
            (ArgumentName::Threshold, Some(number(threshold))),
            (ArgumentName::Period, Some(word(&period))),
            (ArgumentName::Burst, burst.map(number)),
            (ArgumentName::Algo, algorithm.map(word)),
        ];
        self.given.extend(values.into_iter().filter_map(|(name, value)| {
            let value = Some(Expr::Lit(ExprLit { attrs: Vec::new(), lit: value? }));
            Some(Argument { name, ident: Ident::new(name.as_str(), span), value })
        }));
    }

    /// Reads the comma after an argument.
    fn end_argument(&self, input: ParseStream<'_>) {
        if !input.is_empty() && !input.peek(Token![,]) {
            self.errors.report(input.error("expected `,` between two arguments"));
            // The next argument probably follows at once, or after another separator.
            let _ = input.parse::<Option<Token![;]>>();
            if input.peek(Ident::peek_any) && (input.peek2(Token![=]) || input.peek2(Paren)) {
                return;
            }
        }
        skip_argument(input);
    }

    /// Reads one `limit(…)` and the comma after it.
    fn parse_group(&mut self, ident: &Ident, input: ParseStream<'_>) {
        let group = input.parse::<Group>().ok();
        if group.is_some() && self.is_group {
            let message = "`limit(…)` cannot be nested: write one beside the other";
            self.errors.report(syn::Error::new(ident.span(), message));
        } else if let Some(group) =
            group.filter(|group| group.delimiter() == Delimiter::Parenthesis)
        {
            let (span, tokens) = (ident.span(), group.stream());
            self.groups.push(Args::parse_level(true, span, tokens, self.errors));
            return self.end_argument(input);
        } else {
            let message = "`limit` takes arguments in parentheses, or a constant: write \
                           `limit(period = 1, threshold = 10)`, or `limit = LOGIN`";
            self.errors.report(syn::Error::new(ident.span(), message));
            self.anything_is_misspelled();
        }
        skip_argument(input);
    }

    /// After a mistake that can be any argument misspelled, none is reported as missing.
    fn anything_is_misspelled(&mut self) {
        self.misspelled.extend(self.allowed());
    }

    /// The arguments that are allowed at this level.
    fn allowed(&self) -> Vec<ArgumentName> {
        let all = ArgumentName::ALL.iter().copied();
        all.filter(|name| !self.is_group || name.place().is_in_groups()).collect()
    }

    /// The argument of that name, if it exists and is given for the first time.
    fn accept(&mut self, ident: &Ident, has_value: bool) -> Option<ArgumentName> {
        let word = ident.to_string();
        let (message, meant) = match ArgumentName::find(&word) {
            Some(name) if self.get(name).is_none() => return Some(name),
            Some(_) => (format!("`{word}` is given twice: remove one of the two"), Vec::new()),
            None => self.unknown(&word, has_value),
        };
        self.errors.report(syn::Error::new(ident.span(), message));
        self.misspelled.extend(meant);
        None
    }

    /// What to write instead of a word that is no argument, and the arguments that it was probably meant to be.
    fn unknown(&self, word: &str, has_value: bool) -> (String, Vec<ArgumentName>) {
        let allowed = self.allowed();
        if let Some(advice) = foreign_argument(word).filter(|_| has_value) {
            return (format!("unknown argument `{word}`: {advice}"), allowed);
        }
        let names = || allowed.iter().map(|name| name.as_str());
        let similar = || ArgumentName::find(closest(word, names())?);
        if let Some(meant) = ArgumentName::find_synonym(word).or_else(similar) {
            let message = format!("unknown argument `{word}`: did you mean `{meant}`?");
            return (message, if meant == ArgumentName::Limit { allowed } else { vec![meant] });
        }
        if has_value {
            let names = quoted(nearest(word, names(), 3));
            let message = format!(
                "unknown argument `{word}`: the arguments with similar names are {names}; the documentation of \
                 `rate_limit` lists all"
            );
            return (message, Vec::new());
        }
        if word.contains(char::is_uppercase) && !word.contains(char::is_lowercase) {
            let message = format!("to name the constant of a limit, write `limit = {word}`");
            return (message, allowed);
        }
        let advice = match self.get(ArgumentName::Key) {
            Some(key) => {
                let key = key.value.as_ref().map_or_else(|| "..".into(), written);
                format!("to count several values together, write `key = ({key}, {word})`")
            }
            None => format!("to count each `{word}` separately, write `key = {word}`"),
        };
        (format!("`{word}` is no argument of `rate_limit`: {advice}"), Vec::new())
    }
}

impl ToTokens for Argument {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.ident.to_tokens(tokens);
        self.value.to_tokens(tokens);
    }
}

/// Reads `= value`. `name` is `None` after an unknown argument, whose errors are not reported.
fn parse_value(
    ident: &Ident,
    name: Option<ArgumentName>,
    input: ParseStream<'_>,
) -> syn::Result<Expr> {
    let example = name.map_or("period = 30", ArgumentName::example);
    let missing = |span, what: &str| {
        let message = format!("expected {what}, such as `{example}`");
        Err(syn::Error::new(span, message))
    };
    if !input.peek(Token![=]) {
        let next = if input.is_empty() { ident.span() } else { input.span() };
        return missing(next, &format!("`=` and a value after `{ident}`"));
    }
    let equals: Token![=] = input.parse()?;
    if input.is_empty() || input.peek(Token![,]) {
        return missing(equals.span, "a value after `=`");
    }
    if input.peek(Token![#]) && name == Some(ArgumentName::Key) {
        let spring = input.fork();
        let variable = spring.parse::<Token![#]>().and_then(|_| spring.call(Ident::parse_any));
        let variable = variable.map_or_else(|_| "user_id".to_owned(), |name| name.to_string());
        let message = format!("an argument is written without `#`: `key = {variable}`");
        return Err(syn::Error::new(input.span(), message));
    }
    input.parse().map_err(|error| {
        let message = format!("{error} as the value of `{ident}`, such as `{example}`");
        syn::Error::new(error.span(), message)
    })
}

fn skip_argument(input: ParseStream<'_>) {
    skip_to_comma(input);
    // Cannot fail: the comma is optional.
    let _ = input.parse::<Option<Token![,]>>();
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        // Cannot fail: there is a token.
        let _ = input.parse::<TokenTree>();
    }
}
