//! The check of a call: which limits, which keys, which costs.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::punctuated::Pair;
use syn::spanned::Spanned;
use syn::{Expr, ExprReference, ExprTuple, LitByteStr, LitStr, Token};

use super::Expansion;
use crate::guard::Once;
use crate::key::{self, Key, KeyPiece};
use crate::limit::Kind;
use crate::spans::{hygienic, hygienic_span, spanned_at, variable, word};
use crate::values::unwrap_parens;

impl Expansion<'_> {
    /// The expression that starts the check. Its value is the future of the decision, or of the permits for `acquire`.
    pub(super) fn check(&self, function: &str) -> TokenStream {
        let rt = &self.rt;
        let check = self.call(function);
        let Some(limiter) = &self.guard.limiter else { return check };
        // A variable, because the type of the parameter would otherwise choose that of a generic expression.
        let call = hygienic!(#rt::__private::limiter(__rate_limit_limiter));
        let call = spanned_at(limiter, call);
        let check = hygienic!(match #call { __rate_limit_limiter => #check });
        hygienic!(match &#limiter { __rate_limit_limiter => #check })
    }

    /// The limiter that the attribute names, if any.
    fn limiter(&self) -> TokenStream {
        if self.guard.limiter.is_some() {
            hygienic!(::core::option::Option::Some(__rate_limit_limiter))
        } else {
            hygienic!(::core::option::Option::None)
        }
    }

    fn call(&self, function: &str) -> TokenStream {
        let (rt, charges, shared) = (&self.rt, &self.guard.charges, self.guard.shared.as_ref());
        let given = shared.and_then(|shared| shared.name.as_ref());
        let name = self.name(given);
        // The limits with computed amounts, which are evaluated before the keys and the costs.
        let mut limits: Vec<(Ident, TokenStream)> = Vec::new();
        // The values of the keys and the costs, in their order.
        let mut values: Vec<(Ident, TokenStream)> = Vec::new();
        let (shared_key, shared_cost) = (variable("key"), variable("cost"));
        if let Some(shared) = shared {
            values.push((shared_key.clone(), self.key_value(shared.key.as_ref())));
            values.push((shared_cost.clone(), self.cost(shared.cost.as_ref())));
        }
        let mut once = None;
        let mut parts = Vec::new();
        for (charge, number) in charges.iter().zip(1_usize..) {
            let own = charge.limit.name.as_ref();
            let name = match (own, shared) {
                (Some(own), _) => own.to_token_stream(),
                (None, Some(_)) => {
                    let number = format!("#{number}");
                    hygienic!(::core::concat!(#name, #number))
                }
                (None, None) => name.clone(),
            };
            let limit = self.registered(charge, &name, given.is_some() || own.is_some());
            let mut own_value = |name, value| {
                let variable = variable(&format!("{name}_{number}"));
                values.push((variable.clone(), value));
                variable
            };
            let key = match (&charge.key, shared) {
                (None, Some(_)) => shared_key.clone(),
                (key, _) => own_value("key", self.key_value(key.as_ref())),
            };
            let cost = match (&charge.cost, shared) {
                (None, Some(_)) => shared_cost.clone(),
                (cost, _) => own_value("cost", self.cost(cost.as_ref())),
            };
            once = charge.once.as_ref().map(|Once { id, within }| {
                let id = own_value("id", self.key_value(Some(id)));
                let remembered = self.remembered(&name, within);
                hygienic!(.once(const { &#remembered }, &(&#key, &#id)))
            });
            let limit = if charge.limit.varies() {
                let variable = variable(&format!("limit_{number}"));
                limits.push((variable.clone(), limit));
                variable.into_token_stream()
            } else {
                limit
            };
            parts.push(hygienic!((&#limit, &#key, #cost)));
        }
        let blocking = if self.function.is_synchronous() { "_blocking" } else { "" };
        let check = word(&format!("{function}{blocking}"));
        let (limiter, agree) = (self.limiter(), self.agreement());
        let call = hygienic!(&#rt::__private::AnnotatedCall::new(#limiter, [#(#parts),*]) #once);
        let mut call = hygienic!(#rt::__private::#check(#call));
        if shared.is_some() {
            // Limits with keys and costs of their own leave these unread.
            call = hygienic!({ #agree let _ = (&#shared_key, &#shared_cost); #call });
        }
        // A `match` keeps the temporaries of the keys alive while they are borrowed.
        for values in [values, limits].into_iter().filter(|values| !values.is_empty()) {
            let (variables, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
            call = hygienic!(match (#(#values,)*) { (#(#variables,)*) => #call });
        }
        call
    }

    /// The limits of a group have one policy. The attribute sets it, but a constant can have its own.
    fn agreement(&self) -> Option<TokenStream> {
        let (rt, charges) = (&self.rt, &self.guard.charges);
        let path = charges.iter().find_map(|charge| match &charge.limit.kind {
            Kind::Constant(path) => Some(path),
            Kind::Rate { .. } | Kind::InFlight => None,
        })?;
        let name = LitStr::new("limit", hygienic_span()).into_token_stream();
        let limits = charges.iter().map(|charge| self.limit(&charge.limit, &name, "limit"));
        let call = hygienic!(#rt::__private::decided_together(&[#(&#limits),*]));
        let call = spanned_at(path, call);
        Some(hygienic!(const { #call };))
    }

    /// A reference to the value. For a tuple, a tuple of references: `&(a, b)` would move `a` and `b`.
    fn borrow(&self, expr: &Expr) -> Expr {
        let rt = &self.rt;
        let hashed = key::hashed(expr).and_then(|args| args.first());
        let value = match (hashed, unwrap_parens(expr)) {
            (Some(hashed), _) => {
                let (limiter, key) = (self.limiter(), self.borrow(hashed));
                let call = hygienic!(#rt::__private::hashed(#limiter, #key));
                Expr::Verbatim(spanned_at(hashed, call))
            }
            (None, Expr::Tuple(tuple)) => {
                let elems = tuple.elems.pairs().map(|pair| {
                    let (elem, comma) = pair.into_tuple();
                    Pair::new(self.borrow(elem), comma.copied())
                });
                Expr::Tuple(ExprTuple { elems: elems.collect(), ..tuple.clone() })
            }
            (None, _) => expr.clone(),
        };
        Expr::Reference(ExprReference {
            attrs: Vec::new(),
            and_token: Token![&](hygienic_span().located_at(expr.span())),
            mutability: None,
            expr: Box::new(value),
        })
    }

    /// The key of an expression, for a variable. A value that is no key is an error at the expression.
    fn key_value(&self, key: Option<&Key>) -> TokenStream {
        let rt = &self.rt;
        match key {
            None => hygienic!(()),
            Some(Key::Expr(expr)) => {
                let borrowed = self.borrow(expr);
                spanned_at(expr, hygienic!(#rt::__private::key(#borrowed)))
            }
            Some(Key::Format(pieces)) => format_key(rt, pieces),
        }
    }

    /// The cost, for a variable. A value of another type is an error at the expression.
    fn cost(&self, given: Option<&Expr>) -> TokenStream {
        let rt = &self.rt;
        let one_unit = || hygienic!(1_u64);
        let cost = |cost: &Expr| spanned_at(cost, hygienic!(#rt::__private::cost(#cost)));
        given.map_or_else(one_unit, cost)
    }
}

/// The key of a format string. It borrows the values.
pub(crate) fn format_key(rt: &TokenStream, pieces: &[KeyPiece]) -> TokenStream {
    let out = variable("out");
    let written = pieces.iter().map(|piece| match piece {
        KeyPiece::Text(text) => written_text(&out, text),
        // A value that is not `Display` is an error at the format string.
        KeyPiece::Argument { spec, root, fields } => {
            let value = hygienic!(#root #(.#fields)*);
            let formatted =
                hygienic!(#rt::__private::Formatted(::core::format_args!(#spec, #value)));
            let argument = match &*spec.value() {
                "{}" => hygienic!(#rt::__private::FormatArgument(&#value, #formatted)),
                _ => formatted,
            };
            hygienic!(#argument.write_argument(#out);)
        }
    });
    let written: TokenStream = written.collect();
    hygienic!(#rt::__private::Format(|#out: &mut #rt::KeyWriter<'_>| { #written }))
}

/// Writes a text. Its colons separate parts of the key.
fn written_text(out: &Ident, text: &LitStr) -> TokenStream {
    let mut written = TokenStream::new();
    for (index, part) in text.value().split(':').enumerate() {
        if index > 0 {
            written.extend(hygienic!(#out.separator();));
        }
        if !part.is_empty() {
            let bytes = LitByteStr::new(part.as_bytes(), text.span());
            written.extend(hygienic!(#out.bytes(#bytes);));
        }
    }
    written
}
